//! `npy`, `npz`: files of numpy, whose rows are records.

#[cfg(feature = "readers")]
mod array;
#[cfg(feature = "readers")]
mod layout;
#[cfg(feature = "readers")]
#[cfg(test)]
mod tests;

#[cfg(feature = "readers")]
pub(crate) use array::{is_npy, read};
#[cfg(feature = "readers")]
pub(crate) use layout::{MAX_STORED_BYTES, NpyLayout};

use crate::{FeatureMap, FileNameRules, FormatDefinition, SourceFormat};
use gristmill_model::{DeclaredCost, Fingerprint};
use gristmill_syntax::{MappingReader, PipelineError};

/// Arrays, each entry of whose first axis is of a record; keys are the names of arrays in an `.npz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Npy {
    /// The arrays that are read, in order: others of a file may have other lengths.
    keys: Vec<String>,
}

impl SourceFormat for Npy {
    const DEFINITION: FormatDefinition = FormatDefinition {
        aliases: &["npz"],
        record: "entries of the first axis of numpy's arrays (`.npy`, `.npz`)",
        keys: "names of arrays; of an `.npy`, which has one, any",
        example: "{ npy: x, features: { i: { dtype: i64 }, f: { dtype: f32, shape: [2] } } }",
        cost: DeclaredCost::new(200, 300),
        ..FormatDefinition::new("npy", FileNameRules::new("a numpy file", &["npy", "npz"]))
    };

    fn parse(
        _: &str,
        _: &mut MappingReader<'_>,
        features: &FeatureMap,
    ) -> Result<Self, PipelineError> {
        let mut keys: Vec<String> = features.values().map(|feature| feature.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        Ok(Npy { keys })
    }

    fn index_name(&self) -> String {
        let keys = Fingerprint::from_content("keys of arrays", self.keys.join("\0").as_bytes());
        format!("npy-{:.16}", keys.to_string())
    }
}

#[cfg(feature = "readers")]
impl crate::ReadableFormat for Npy {
    type Reader = crate::parquet::reader::ParquetRecordReader;

    fn reader(&self, features: &FeatureMap) -> Self::Reader {
        Self::Reader::new(features)
    }

    fn index_kind(&self, limits: crate::SourceLimits) -> crate::IndexKind {
        let indexer = layout::NpyIndexer::new(self.keys.clone(), limits);
        crate::IndexKind::Footer(Box::new(indexer))
    }

    #[cfg(any(test, feature = "samples"))]
    fn sample(&self, _: &[crate::samples::SampleRow]) -> Option<Vec<u8>> {
        None
    }
}
