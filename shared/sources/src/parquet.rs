//! `parquet`: rows of Parquet files.

#[cfg(feature = "readers")]
pub(crate) mod reader;

#[cfg(feature = "readers")]
pub use reader::ParquetIndexer;

use crate::{FeatureMap, FileNameRules, FormatDefinition, SourceFormat, format::DEFAULTS};
use gristmill_model::DeclaredCost;
use gristmill_syntax::{MappingReader, PipelineError};

/// Parquet files; keys are columns, `a.b` the column `b` of the group `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parquet;

impl SourceFormat for Parquet {
    const DEFINITION: FormatDefinition = FormatDefinition {
        record: "rows",
        keys: "columns; `a.b` is the field `b` of `a`",
        example: "{ parquet: x, defaults: { i: 0 }, features: { i: { dtype: i64 }, \
                  f: { key: a.f, dtype: f32, shape: [2] }, image: { dtype: bytes } } }",
        parameters: &[DEFAULTS],
        cost: DeclaredCost::new(500, 1_500),
        ..FormatDefinition::new(
            "parquet",
            FileNameRules::new("Parquet", &["parquet", "parq", "pq"]),
        )
    };

    fn parse(_: &str, _: &mut MappingReader<'_>, _: &FeatureMap) -> Result<Self, PipelineError> {
        Ok(Parquet)
    }
}

#[cfg(feature = "readers")]
impl crate::ReadableFormat for Parquet {
    type Reader = reader::ParquetRecordReader;

    fn reader(&self, features: &FeatureMap) -> Self::Reader {
        reader::ParquetRecordReader::new(features)
    }

    fn index_kind(&self, limits: crate::SourceLimits) -> crate::IndexKind {
        crate::IndexKind::Footer(Box::new(ParquetIndexer::new(limits)))
    }

    #[cfg(any(test, feature = "samples"))]
    fn sample(&self, rows: &[crate::samples::SampleRow]) -> Option<Vec<u8>> {
        reader::sample::file(rows)
    }
}
