//! The source of a pipeline: its files, their format, and the features to read.

#[cfg(test)]
mod tests;

use crate::{
    ElementSchema, FieldSchema, PipelineError,
    node::{NodeValue, SyntaxNode, shown},
    table::MappingReader,
};

use gristmill_sources::{
    Feature, FeatureMap, FileFormat, MAX_FEATURES, ParsedSource, RecordReaderInput,
};
use serde::{Serialize, Serializer, ser::SerializeMap};
use std::collections::BTreeMap;

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
            map.serialize_entry(KEY, &self.members().map(ZippedSource).collect::<Vec<_>>())?
        } else {
            self.format.write_source(&self.features, &mut map)?
        }
        map.end()
    }
}

impl PipelineSource {
    /// The same, with the classes of an image folder in place of the folder that names them. `list` returns the names of
    /// that folder's directories.
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
            let value = serde_json::to_value(ZippedSource(source)).unwrap_or_default();
            (format!("dataset {i}"), value)
        };
        serde_json::Value::Object((1..).zip(self.members()).map(dataset).collect())
    }

    /// Reads the `source` of a pipeline file.
    pub(crate) fn parse(node: &SyntaxNode) -> Result<Self, PipelineError> {
        read(node, FileFormat::parse_source)
    }

    /// Reads the `source` of the canonical form.
    pub(crate) fn parse_canonical(node: &SyntaxNode) -> Result<Self, PipelineError> {
        read(node, FileFormat::parse_canonical)
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

// Zipped datasets: `zip`, a list of sources.

/// The key of `source` that lists datasets.
const KEY: &str = "zip";
/// Maximum number of zipped datasets; every split reads from each.
const MAX_DATASETS: usize = 16;
const REPEAT: &str = "repeat";

/// A dataset of a zip, without the others.
struct ZippedSource<'a>(&'a PipelineSource);

impl Serialize for ZippedSource<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let PipelineSource { format, features, repeat, .. } = self.0;
        let mut map = serializer.serialize_map(None)?;
        format.write_source(features, &mut map)?;
        if *repeat != 1 {
            map.serialize_entry(REPEAT, repeat)?;
        }
        map.end()
    }
}

/// Reads one dataset, which messages call by the text.
type ReadDataset = fn(&str, &mut MappingReader<'_>) -> Result<ParsedSource, PipelineError>;

/// Reads a source, whose datasets `dataset` reads.
fn read(node: &SyntaxNode, dataset: ReadDataset) -> Result<PipelineSource, PipelineError> {
    let mut table = MappingReader::new(WHAT, node)?;
    if let Some(datasets) = table.get(KEY) {
        table.finish()?;
        return read_zip(datasets, dataset);
    }
    let parsed = dataset(WHAT, &mut table)?;
    table.finish()?;
    Ok(parsed.into())
}

/// Reads the list of datasets under `zip`.
fn read_zip(node: &SyntaxNode, dataset: ReadDataset) -> Result<PipelineSource, PipelineError> {
    let datasets = match &node.value {
        NodeValue::Seq(datasets) if (2..=MAX_DATASETS).contains(&datasets.len()) => datasets,
        NodeValue::Seq(datasets) => {
            return Err(node.error(format!(
                "`zip` puts 2 to {MAX_DATASETS} datasets side by side, not {}",
                datasets.len()
            )));
        }
        _ => {
            return Err(node.error(format!(
                "`zip` must be a list of datasets, each as `source` has it, not {}",
                node.shown()
            )));
        }
    };
    let mut fields = BTreeMap::new();
    let mut members = Vec::with_capacity(datasets.len());
    for (i, node) in (1..).zip(datasets) {
        let source = read_member(format!("dataset {i} of `zip`"), node, dataset)?;
        for name in source.features.keys() {
            if let Some(first) = fields.insert(name.clone(), i) {
                return Err(at_feature(node, name).error(format!(
                    "datasets {first} and {i} of `zip` both have the field {}; give one of them \
                     another name, and say with `key` what it is called in its records",
                    shown(name)
                )));
            }
        }
        if fields.len() > MAX_FEATURES {
            return Err(node.error(format!(
                "the datasets of `zip` have more than {MAX_FEATURES} fields together"
            )));
        }
        members.push(source);
    }
    let zipped = members.split_off(1);
    // The list has at least two entries.
    let first = members.pop().ok_or_else(|| node.error("`zip` has no datasets"))?;
    Ok(PipelineSource { zipped, ..first })
}

/// Reads a dataset of a zip.
fn read_member(
    what: String,
    node: &SyntaxNode,
    dataset: ReadDataset,
) -> Result<PipelineSource, PipelineError> {
    let mut table = MappingReader::new(&*what, node)?;
    if let Some(inner) = table.get(KEY) {
        return Err(inner.error("a `zip` within a `zip`; put its datasets beside the others"));
    }
    let source = PipelineSource::from(dataset(&what, &mut table)?);
    if let Some(why) = source.format.definition().zip_refusal {
        return Err(node.error(why));
    }
    let repeat = match table.get(REPEAT) {
        Some(node) => table.whole(REPEAT, node, 1..=u32::MAX)?,
        None => 1,
    };
    table.finish()?;
    Ok(PipelineSource { repeat, ..source })
}

/// The node where a dataset names a field, for the line of a message.
fn at_feature<'a>(dataset: &'a SyntaxNode, name: &str) -> &'a SyntaxNode {
    let is =
        |node: &SyntaxNode, name: &str| matches!(&node.value, NodeValue::Str(text) if text == name);
    let within = |node: &'a SyntaxNode, name: &str| match &node.value {
        NodeValue::Map(entries) => entries.iter().find(|(key, _)| is(key, name)),
        _ => None,
    };
    let features = within(dataset, "features").map(|(_, features)| features);
    let feature = features.and_then(|features| within(features, name));
    feature.map_or(dataset, |(key, _)| key)
}
