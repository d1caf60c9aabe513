//! `parquet`: rows of Parquet files.

#[cfg(feature = "readers")]
pub(crate) mod reader;

#[cfg(feature = "readers")]
pub use reader::Indexer;

use crate::{Definition, Features, Files, SourceFormat};
use gristmill_model::DeclaredCost;
use gristmill_syntax::{PipelineError, Table};

/// Parquet files; keys are columns, `a.b` the column `b` of the group `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parquet;

impl SourceFormat for Parquet {
    const DEFINITION: Definition = Definition {
        record: "rows",
        keys: "columns; `a.b` is the field `b` of `a`",
        example: "{ parquet: x, features: { i: { dtype: i64 }, \
                  f: { key: a.f, dtype: f32, shape: [2] }, image: { dtype: bytes } } }",
        cost: DeclaredCost::new(500, 1_500),
        ..Definition::new("parquet", Files::new("Parquet", &["parquet", "parq", "pq"]))
    };

    fn parse(_: &str, _: &mut Table<'_>, _: &Features) -> Result<Self, PipelineError> {
        Ok(Parquet)
    }
}

#[cfg(feature = "readers")]
impl crate::Records for Parquet {
    type Reader = reader::Extractor;

    fn reader(&self, features: &Features) -> Self::Reader {
        reader::Extractor::new(features)
    }

    fn index_kind(&self, _: crate::Limits) -> crate::IndexKind {
        crate::IndexKind::Footer(Indexer::new)
    }

    #[cfg(any(test, feature = "samples"))]
    fn sample(&self, rows: &[crate::samples::Row]) -> Option<Vec<u8>> {
        reader::sample::file(rows)
    }
}
