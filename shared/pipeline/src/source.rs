//! Where elements come from, and which of their features are kept.

use crate::{FieldSchema, PipelineError, Schema, node::Node, table::Table};
use gristmill_sources::{Feature, Features, Format, Parsed, Reading};
use serde::{Serialize, Serializer, ser::SerializeMap};

mod zip;

/// The source in messages.
const WHAT: &str = "`source`";

/// Files of records.
///
/// Serialises without paths: the place of the data does not change what it is, which the dataset's
/// own fingerprint says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Path, directory, glob or `s3://bucket/prefix`, or several of them, whose files follow each
    /// other; empty when read from the canonical form.
    pub paths: Vec<String>,
    pub format: Format,
    pub features: Features,
    /// How often its records come, one time after the other: of a dataset in a zip, else once.
    pub repeat: u32,
    /// Datasets that are zipped to it: record i of it goes with record i of each of them, as far as the
    /// shortest has any. Their features are fields beside its own.
    pub zipped: Vec<Source>,
}

impl From<Parsed> for Source {
    fn from(Parsed { paths, format, features }: Parsed) -> Self {
        Source { paths, format, features, repeat: 1, zipped: Vec::new() }
    }
}

/// One dataset, without others that are zipped to it.
impl<'a> From<&'a Source> for Reading<'a> {
    fn from(Source { format, features, .. }: &'a Source) -> Self {
        Reading { format, features }
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self.is_zip() {
            true => {
                map.serialize_entry(zip::KEY, &self.members().map(zip::Alone).collect::<Vec<_>>())?
            }
            false => self.format.write_source(&self.features, &mut map)?,
        }
        map.end()
    }
}

impl Source {
    /// Whether it is several datasets side by side.
    pub fn is_zip(&self) -> bool {
        !self.zipped.is_empty()
    }

    /// The datasets side by side, this one first.
    pub fn members(&self) -> impl Iterator<Item = &Source> {
        std::iter::once(self).chain(&self.zipped)
    }

    /// How the records of all datasets are stored, for naming them: other records are found in the
    /// same files of another format.
    pub fn stored_as(&self) -> String {
        self.members().map(|source| source.format.index_name()).collect::<Vec<_>>().join("+")
    }

    /// What is read, to show how it differs between two pipelines: of a zip, dataset by dataset.
    pub(crate) fn described(&self) -> serde_json::Value {
        // Plain data without maps of other keys than text always has a JSON form.
        if !self.is_zip() {
            return serde_json::to_value(self).unwrap_or_default();
        }
        let dataset = |(i, source): (usize, &Source)| {
            let value = serde_json::to_value(zip::Alone(source)).unwrap_or_default();
            (format!("dataset {i}"), value)
        };
        serde_json::Value::Object((1..).zip(self.members()).map(dataset).collect())
    }

    /// The `source` of a pipeline file.
    pub(crate) fn parse(node: &Node) -> Result<Self, PipelineError> {
        let mut table = Table::new(WHAT, node)?;
        match table.get(zip::KEY) {
            Some(datasets) => {
                table.finish()?;
                zip::parse(datasets, zip::parse_member)
            }
            None => {
                let parsed = Format::parse_source(WHAT, &mut table)?;
                table.finish()?;
                Ok(parsed.into())
            }
        }
    }

    /// The `source` of the canonical form.
    pub(crate) fn parse_canonical(node: &Node) -> Result<Self, PipelineError> {
        let mut table = Table::new(WHAT, node)?;
        if let Some(datasets) = table.get(zip::KEY) {
            table.finish()?;
            return zip::parse(datasets, zip::parse_canonical_member);
        }
        let parsed = Format::parse_canonical(WHAT, &mut table)?;
        table.finish()?;
        Ok(parsed.into())
    }

    /// The schema of its elements.
    pub(crate) fn schema(&self) -> Schema {
        let field = |(name, feature): (&String, &Feature)| {
            let (dtype, shape) = (feature.dtype.dtype(), feature.shape.clone());
            (name.clone(), FieldSchema { dtype, shape, range: None })
        };
        let features = self.members().flat_map(|source| &source.features);
        Schema { fields: features.map(field).collect() }
    }
}

#[cfg(test)]
mod tests;
