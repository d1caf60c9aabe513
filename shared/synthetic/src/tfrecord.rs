//! The two encodings a dataset is stored in: `tf.Example` messages inside TFRecord framing.
//!
//! Source: TensorFlow's `example.proto`, `feature.proto` and `tfrecord.rst`. Only the writer's half
//! lives here; reading belongs to the executor.

use std::collections::BTreeMap;
use std::io::{self, Write};

use bytes::Bytes;
use prost::Message;

/// Bytes that framing adds to a record: u64 length, its CRC, the payload's CRC.
pub const FRAMING_BYTES: u64 = 16;

const HEADER_BYTES: usize = 12;

/// A `tf.Example`: named features, kept sorted so that equal examples are equal bytes.
#[derive(Clone, PartialEq, Message)]
pub struct TfExample {
    #[prost(message, optional, tag = "1")]
    pub features: Option<TfFeatures>,
}

/// Features by key.
#[derive(Clone, PartialEq, Message)]
pub struct TfFeatures {
    #[prost(btree_map = "string, message", tag = "1")]
    pub feature: BTreeMap<String, TfFeature>,
}

/// One feature: a list of values of one kind.
#[derive(Clone, PartialEq, Message)]
pub struct TfFeature {
    #[prost(oneof = "TfFeatureKind", tags = "1, 2, 3")]
    pub kind: Option<TfFeatureKind>,
}

/// The values of a feature.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum TfFeatureKind {
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

impl TfExample {
    /// Adds a feature holding one byte string.
    pub fn with_bytes(self, key: &str, value: impl Into<Bytes>) -> Self {
        self.with(key, TfFeatureKind::Bytes(BytesList { value: vec![value.into()] }))
    }

    /// Adds a feature holding one int64.
    pub fn with_int(self, key: &str, value: i64) -> Self {
        self.with(key, TfFeatureKind::Ints(IntList { value: vec![value] }))
    }

    /// Adds a feature.
    pub fn with(mut self, key: &str, kind: TfFeatureKind) -> Self {
        let features = self.features.get_or_insert_default();
        features.feature.insert(key.to_owned(), TfFeature { kind: Some(kind) });
        self
    }
}

/// Writes examples as TFRecords, one buffered frame and one `write_all` each.
pub struct RecordWriter<W> {
    sink: W,
    frame: Vec<u8>,
    bytes: u64,
}

impl<W: Write> RecordWriter<W> {
    /// Writes to `sink`, which needs no buffer of its own.
    pub fn new(sink: W) -> Self {
        Self { sink, frame: Vec::new(), bytes: 0 }
    }

    /// Appends one record.
    pub fn write(&mut self, example: &TfExample) -> io::Result<()> {
        self.frame.clear();
        self.frame.resize(HEADER_BYTES, 0);
        example.encode(&mut self.frame).map_err(io::Error::other)?;
        let payload_bytes = self.frame.len() - HEADER_BYTES;
        let length = (payload_bytes as u64).to_le_bytes();
        self.frame[..8].copy_from_slice(&length);
        self.frame[8..HEADER_BYTES].copy_from_slice(&masked_crc32c(&length).to_le_bytes());
        let crc = masked_crc32c(&self.frame[HEADER_BYTES..]);
        self.frame.extend_from_slice(&crc.to_le_bytes());
        self.sink.write_all(&self.frame)?;
        self.bytes += payload_bytes as u64 + FRAMING_BYTES;
        Ok(())
    }

    /// Flushes and returns the bytes written, framing included.
    pub fn finish(mut self) -> io::Result<u64> {
        self.sink.flush()?;
        Ok(self.bytes)
    }
}

/// CRC-32C rotated and offset, as TFRecord stores it, so that a checksum of data that itself holds
/// checksums stays strong.
pub fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_crc_of_a_length() {
        // CRC-32C("123456789") is the check value of the catalogue; masked by hand.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked_crc32c(b"123456789"), 0xc78a_b0e5);
    }

    #[test]
    fn an_example_is_the_wire_bytes_of_the_protocol() {
        let example = TfExample::default().with_int("value", 300).with_bytes("a", &b"xy"[..]);
        let expected: &[u8] = &[
            0x0a, 30, // features
            0x0a, 11, 0x0a, 1, b'a', 0x12, 6, 0x0a, 4, 0x0a, 2, b'x', b'y', // "a": bytes
            0x0a, 15, 0x0a, 5, b'v', b'a', b'l', b'u', b'e', 0x12, 6, 0x1a, 4, 0x0a, 2, 0xac,
            0x02, // "value": int64, packed
        ];
        assert_eq!(example.encode_to_vec(), expected);
    }

    #[test]
    fn frames_are_length_crc_payload_crc() {
        let mut file = Vec::new();
        let example = TfExample::default().with_int("value", 7);
        let mut writer = RecordWriter::new(&mut file);
        writer.write(&example).unwrap();
        writer.write(&example).unwrap();
        assert_eq!(writer.finish().unwrap(), file.len() as u64);
        let payload = example.encode_to_vec();
        let one = &file[..file.len() / 2];
        assert_eq!(one, &file[file.len() / 2..]);
        assert_eq!(&one[..8], (payload.len() as u64).to_le_bytes());
        assert_eq!(&one[8..12], masked_crc32c(&one[..8]).to_le_bytes());
        assert_eq!(&one[12..one.len() - 4], payload);
        assert_eq!(&one[one.len() - 4..], masked_crc32c(&payload).to_le_bytes());
    }
}
