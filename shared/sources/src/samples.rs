//! Contents of files, for tests: records in every format that can hold them.

use crate::tfrecord::reader::masked_crc32c;
use bytes::Bytes;
use gristmill_synthetic::tfrecord::{
    BytesList, FloatList, IntList, TfExample, TfFeatureKind, TfFeatures,
};
use prost::Message;

/// A feature of one byte string.
pub fn bytes(value: &[u8]) -> TfFeatureKind {
    TfFeatureKind::Bytes(BytesList { value: vec![Bytes::copy_from_slice(value)] })
}

/// A feature of whole numbers.
pub fn ints(value: &[i64]) -> TfFeatureKind {
    TfFeatureKind::Ints(IntList { value: value.to_vec() })
}

/// A feature of f32.
pub fn floats(value: &[f32]) -> TfFeatureKind {
    TfFeatureKind::Floats(FloatList { value: value.to_vec() })
}

/// The bytes of an example with these features.
pub fn example(features: impl IntoIterator<Item = (&'static str, TfFeatureKind)>) -> Vec<u8> {
    let example = TfExample { features: Some(TfFeatures::default()) };
    let example = features.into_iter().fold(example, |all, (key, kind)| all.with(key, kind));
    example.encode_to_vec()
}

/// A record of a TFRecord file.
pub fn framed(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64).to_le_bytes();
    let mut out = length.to_vec();
    out.extend(masked_crc32c(&length).to_le_bytes());
    out.extend(payload);
    out.extend(masked_crc32c(payload).to_le_bytes());
    out
}

/// A file within gzip.
pub fn gzip(content: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    out.extend(miniz_oxide::deflate::compress_to_vec(content, 3));
    out.extend(crc32fast::hash(content).to_le_bytes());
    out.extend((content.len() as u32).to_le_bytes());
    out
}

/// A value of a record.
#[derive(Clone, Debug, PartialEq)]
pub enum SampleValue {
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Text(String),
}

/// The values of one record, by their keys.
pub type SampleRow = Vec<(&'static str, SampleValue)>;

impl SampleValue {
    /// The value as formats of text have it: numbers with spaces between them.
    pub fn text(&self) -> String {
        fn words<T: ToString>(values: &[T]) -> String {
            values.iter().map(T::to_string).collect::<Vec<_>>().join(" ")
        }
        match self {
            SampleValue::Ints(values) => words(values),
            SampleValue::Floats(values) => words(values),
            SampleValue::Text(text) => text.clone(),
        }
    }
}
