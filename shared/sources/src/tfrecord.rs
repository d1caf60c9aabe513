//! `tfrecord`: TFRecord files of `tf.Example` and `tf.SequenceExample` messages.

#[cfg(feature = "readers")]
pub mod example;
#[cfg(feature = "readers")]
pub(crate) mod reader;

use crate::{
    Feature, FeatureDType, FeatureMap, FileNameRules, FormatDefinition, SourceFormat,
    format::DEFAULTS,
};
use gristmill_model::DeclaredCost;
use gristmill_syntax::{MappingReader, PipelineError};

/// TFRecord files of `tf.Example` or `tf.SequenceExample` messages; keys are those of the example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TfRecord;

impl SourceFormat for TfRecord {
    const DEFINITION: FormatDefinition = FormatDefinition {
        record: "`tf.Example` or `tf.SequenceExample` messages",
        keys: "keys of the example; of a sequence, those of its context and of its lists",
        example: "{ tfrecord: x, defaults: { i: 0 }, features: { i: { dtype: i64 }, f: { dtype: f32, shape: [3] }, \
                  image: { dtype: bytes } } }",
        parameters: &[DEFAULTS],
        cost: DeclaredCost::new(300, 300),
        ..FormatDefinition::new(
            "tfrecord",
            FileNameRules::new("TFRecord", &["tfrecord", "tfrecords", "tfrec"]),
        )
    };

    fn parse(_: &str, _: &mut MappingReader<'_>, _: &FeatureMap) -> Result<Self, PipelineError> {
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
impl crate::ReadableFormat for TfRecord {
    type Reader = reader::TfRecordReader;

    const FRAMING_BYTES: u32 = reader::FRAMING_BYTES as u32;

    fn reader(&self, features: &FeatureMap) -> Self::Reader {
        reader::TfRecordReader::new(features)
    }

    fn index_kind(&self, limits: crate::SourceLimits) -> crate::IndexKind {
        crate::IndexKind::Scan(Box::new(reader::TfRecordScanner::new(limits)))
    }

    /// The length of the first record may begin as a gzip file does; a checksum follows it.
    fn begins(head: &[u8]) -> bool {
        reader::begins(head)
    }

    #[cfg(any(test, feature = "samples"))]
    fn sample(&self, rows: &[crate::samples::SampleRow]) -> Option<Vec<u8>> {
        use crate::samples::{SampleValue, bytes, example, floats, framed, ints};
        let kind = |value: &SampleValue| match value {
            SampleValue::Ints(values) => ints(values),
            SampleValue::Floats(values) => floats(values),
            SampleValue::Text(text) => bytes(text.as_bytes()),
        };
        let record = |row: &crate::samples::SampleRow| {
            framed(&example(row.iter().map(|(key, value)| (*key, kind(value)))))
        };
        Some(rows.iter().flat_map(record).collect())
    }
}
