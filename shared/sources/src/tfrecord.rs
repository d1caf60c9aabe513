//! `tfrecord`: TFRecord files of `tf.Example` messages.

#[cfg(feature = "readers")]
pub mod example;
#[cfg(feature = "readers")]
pub(crate) mod reader;

use crate::{Definition, Feature, FeatureDType, Features, Files, SourceFormat};
use gristmill_model::DeclaredCost;
use gristmill_syntax::{PipelineError, Table};

/// TFRecord files of `tf.Example` messages; keys are those of the example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TfRecord;

impl SourceFormat for TfRecord {
    const DEFINITION: Definition = Definition {
        record: "`tf.Example` messages",
        keys: "keys of the example",
        example: "{ tfrecord: x, features: { i: { dtype: i64 }, f: { dtype: f32, shape: [3] }, \
                  image: { dtype: bytes } } }",
        cost: DeclaredCost::new(300, 300),
        ..Definition::new("tfrecord", Files::new("TFRecord", &["tfrecord", "tfrecords", "tfrec"]))
    };

    fn parse(_: &str, _: &mut Table<'_>, _: &Features) -> Result<Self, PipelineError> {
        Ok(TfRecord)
    }

    fn check(feature: &Feature) -> Result<(), String> {
        match feature.dtype {
            FeatureDType::U64 | FeatureDType::F64 => Err(format!(
                "a tf.Example has i64 and f32, not {}: read one of them",
                feature.dtype.dtype()
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(feature = "readers")]
impl crate::Records for TfRecord {
    type Reader = reader::Reader;

    const FRAMING_BYTES: u32 = reader::FRAMING_BYTES as u32;

    fn reader(&self, features: &Features) -> Self::Reader {
        reader::Reader::new(features)
    }

    fn index_kind(&self, limits: crate::Limits) -> crate::IndexKind {
        crate::IndexKind::Scan(Box::new(reader::Scanner::new(limits)))
    }

    /// The length of the first record may begin as a gzip file does; a checksum follows it.
    fn begins(head: &[u8]) -> bool {
        reader::begins(head)
    }

    #[cfg(any(test, feature = "samples"))]
    fn sample(&self, rows: &[crate::samples::Row]) -> Option<Vec<u8>> {
        use crate::samples::{Value, bytes, example, floats, framed, ints};
        let kind = |value: &Value| match value {
            Value::Ints(values) => ints(values),
            Value::Floats(values) => floats(values),
            Value::Text(text) => bytes(text.as_bytes()),
        };
        let record = |row: &crate::samples::Row| {
            framed(&example(row.iter().map(|(key, value)| (*key, kind(value)))))
        };
        Some(rows.iter().flat_map(record).collect())
    }
}
