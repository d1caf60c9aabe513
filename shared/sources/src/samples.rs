//! Contents of files, for tests: records in every format that can hold them.

use crate::tfrecord::reader::masked_crc32c;
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;

/// `tf.train.Example`, written for tests.
#[derive(Clone, PartialEq, Message)]
pub struct SampleExample {
    #[prost(message, optional, tag = "1")]
    pub features: Option<SampleFeatures>,
}

/// Features by key.
#[derive(Clone, PartialEq, Message)]
pub struct SampleFeatures {
    #[prost(btree_map = "string, message", tag = "1")]
    pub feature: BTreeMap<String, SampleFeature>,
}

/// One feature: a list of values of one kind.
#[derive(Clone, PartialEq, Message)]
pub struct SampleFeature {
    #[prost(oneof = "SampleFeatureKind", tags = "1, 2, 3")]
    pub kind: Option<SampleFeatureKind>,
}

/// The values of a feature.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum SampleFeatureKind {
    #[prost(message, tag = "1")]
    Bytes(BytesList),
    #[prost(message, tag = "2")]
    Floats(FloatList),
    #[prost(message, tag = "3")]
    Ints(IntList),
}

/// Byte strings.
#[derive(Clone, PartialEq, Message)]
pub struct BytesList {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub value: Vec<Bytes>,
}

/// Values of f32.
#[derive(Clone, PartialEq, Message)]
pub struct FloatList {
    #[prost(float, repeated, tag = "1")]
    pub value: Vec<f32>,
}

/// Values of i64.
#[derive(Clone, PartialEq, Message)]
pub struct IntList {
    #[prost(int64, repeated, tag = "1")]
    pub value: Vec<i64>,
}

/// A feature of one byte string.
pub fn bytes(value: &[u8]) -> SampleFeatureKind {
    SampleFeatureKind::Bytes(BytesList { value: vec![Bytes::copy_from_slice(value)] })
}

/// A feature of whole numbers.
pub fn ints(value: &[i64]) -> SampleFeatureKind {
    SampleFeatureKind::Ints(IntList { value: value.to_vec() })
}

/// A feature of f32.
pub fn floats(value: &[f32]) -> SampleFeatureKind {
    SampleFeatureKind::Floats(FloatList { value: value.to_vec() })
}

/// The bytes of an example with these features.
pub fn example(features: impl IntoIterator<Item = (&'static str, SampleFeatureKind)>) -> Vec<u8> {
    let feature = features
        .into_iter()
        .map(|(key, kind)| (key.to_owned(), SampleFeature { kind: Some(kind) }))
        .collect();
    SampleExample { features: Some(SampleFeatures { feature }) }.encode_to_vec()
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
