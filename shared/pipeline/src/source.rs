//! The source of a pipeline: its files, their format, and the features to read.

use crate::{ElementSchema, FieldSchema, PipelineError, node::SyntaxNode, table::MappingReader};
use gristmill_sources::{Feature, FeatureMap, FileFormat, ParsedSource, RecordReaderInput};
use serde::{Serialize, Serializer, ser::SerializeMap};

mod zip;

/// Name of the source in messages.
const WHAT: &str = "`source`";

/// Files of records.
///
/// Serialises without paths. The dataset's own fingerprint identifies the data, wherever it is
/// stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineSource {
    /// Paths, directories, globs or `s3://bucket/prefix`. Their files form one sequence in this
    /// order. Empty when read from the canonical form.
    pub paths: Vec<String>,
    pub format: FileFormat,
    pub features: FeatureMap,
    /// How often its records repeat, one pass after the other. Always 1 outside a zip.
    pub repeat: u32,
    /// Datasets zipped to this one: record i goes with record i of each of them, up to the end of
    /// the shortest. Their features become further fields.
    pub zipped: Vec<PipelineSource>,
}

impl From<ParsedSource> for PipelineSource {
    fn from(ParsedSource { paths, format, features }: ParsedSource) -> Self {
        PipelineSource { paths, format, features, repeat: 1, zipped: Vec::new() }
    }
}

/// Reads one dataset, without those zipped to it.
impl<'a> From<&'a PipelineSource> for RecordReaderInput<'a> {
    fn from(PipelineSource { format, features, .. }: &'a PipelineSource) -> Self {
        RecordReaderInput { format, features }
    }
}

impl Serialize for PipelineSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if self.is_zip() {
            map.serialize_entry(
                zip::KEY,
                &self.members().map(zip::ZippedSource).collect::<Vec<_>>(),
            )?
        } else {
            self.format.write_source(&self.features, &mut map)?
        }
        map.end()
    }
}

impl PipelineSource {
    /// The same, with the classes of an image folder in place of the folder that names them. `list` returns the names of
    /// that folder's directories.
    ///
    /// # Errors
    /// That of `list`.
    pub fn with_classes(
        mut self,
        list: impl FnOnce(&str) -> Result<Vec<String>, String>,
    ) -> Result<Self, PipelineError> {
        if let FileFormat::Images(images) = self.format {
            let named = images.with_classes(list);
            let named = named.map_err(|why| PipelineError::general(format!("`classes`: {why}")))?;
            self.format = FileFormat::Images(named);
        }
        Ok(self)
    }

    /// Whether it zips several datasets.
    pub fn is_zip(&self) -> bool {
        !self.zipped.is_empty()
    }

    /// The zipped datasets, this one first.
    pub fn members(&self) -> impl Iterator<Item = &PipelineSource> {
        std::iter::once(self).chain(&self.zipped)
    }

    /// Identifies the format of each dataset's records. The same files have other records in
    /// another format.
    pub fn stored_as(&self) -> String {
        self.members().map(|source| source.format.index_name()).collect::<Vec<_>>().join("+")
    }

    /// The source as a JSON value, to show differences between two pipelines. For a zip, one entry
    /// per dataset.
    pub(crate) fn described(&self) -> serde_json::Value {
        // Plain data whose map keys are all text always has a JSON form.
        if !self.is_zip() {
            return serde_json::to_value(self).unwrap_or_default();
        }
        let dataset = |(i, source): (usize, &PipelineSource)| {
            let value = serde_json::to_value(zip::ZippedSource(source)).unwrap_or_default();
            (format!("dataset {i}"), value)
        };
        serde_json::Value::Object((1..).zip(self.members()).map(dataset).collect())
    }

    /// Reads the `source` of a pipeline file.
    pub(crate) fn parse(node: &SyntaxNode) -> Result<Self, PipelineError> {
        let mut table = MappingReader::new(WHAT, node)?;
        match table.get(zip::KEY) {
            Some(datasets) => {
                table.finish()?;
                zip::parse(datasets, zip::parse_member)
            }
            None => {
                let parsed = FileFormat::parse_source(WHAT, &mut table)?;
                table.finish()?;
                Ok(parsed.into())
            }
        }
    }

    /// Reads the `source` of the canonical form.
    pub(crate) fn parse_canonical(node: &SyntaxNode) -> Result<Self, PipelineError> {
        let mut table = MappingReader::new(WHAT, node)?;
        if let Some(datasets) = table.get(zip::KEY) {
            table.finish()?;
            return zip::parse(datasets, zip::parse_canonical_member);
        }
        let parsed = FileFormat::parse_canonical(WHAT, &mut table)?;
        table.finish()?;
        Ok(parsed.into())
    }

    /// The schema of the elements it yields.
    pub(crate) fn schema(&self) -> ElementSchema {
        let field = |(name, feature): (&String, &Feature)| {
            let (dtype, shape) = (feature.dtype.dtype(), feature.shape.clone());
            (name.clone(), FieldSchema { dtype, shape, range: None })
        };
        let features = self.members().flat_map(|source| &source.features);
        ElementSchema { fields: features.map(field).collect() }
    }
}

#[cfg(test)]
mod tests;
