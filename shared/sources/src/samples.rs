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

/// A file within each of the packings, in two frames where there are frames.
pub fn packed(content: &[u8]) -> Vec<Vec<u8>> {
    let (first, second) = content.split_at(content.len() / 2);
    let kinds = crate::frames::FrameKind::ALL.into_iter();
    let files = kinds.map(|kind| frames(kind, &[first, second]));
    std::iter::once(gzip(content)).chain(files).collect()
}

/// A file of frames: of xz one stream with a block for each of `parts`, of others a frame for each.
pub(crate) fn frames(kind: crate::frames::FrameKind, parts: &[&[u8]]) -> Vec<u8> {
    use crate::frames::FrameKind;
    use liblzma::stream::{Check, Stream};
    use std::io::{Read as _, Write as _};
    let mut out = Vec::new();
    match kind {
        FrameKind::Zstd => {
            let mut packer = zstd::bulk::Compressor::new(3).expect("there is memory");
            packer.include_checksum(true).expect("it is an option");
            for part in parts {
                out.extend(packer.compress(part).expect("there is memory"));
            }
        }
        FrameKind::Bzip2 => {
            for part in parts {
                let mut packer = bzip2::read::BzEncoder::new(*part, bzip2::Compression::fast());
                packer.read_to_end(&mut out).expect("memory is read");
            }
        }
        FrameKind::Xz => {
            let stream = Stream::new_easy_encoder(1, Check::Crc64).expect("there is memory");
            let mut packer = liblzma::write::XzEncoder::new_stream(&mut out, stream);
            for part in parts {
                packer.write_all(part).expect("memory is written");
                packer.flush().expect("memory is written");
            }
            packer.finish().expect("memory is written");
        }
    }
    out
}

/// The content of the files in `tests/golden/packed`.
#[cfg(test)]
pub(crate) fn golden_lines() -> Vec<u8> {
    let line =
        |i: u64| format!("{{\"v\": {}, \"t\": \"{}\"}}\n", i, "ab".repeat((i * i % 31) as usize));
    (0..20_000).flat_map(|i| line(i).into_bytes()).collect()
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
