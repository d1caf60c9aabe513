//! Zipped datasets: `zip`, a list of sources.

use super::PipelineSource;
use crate::{
    PipelineError,
    node::{NodeValue, SyntaxNode, shown},
    table::MappingReader,
};
use gristmill_sources::{FileFormat, MAX_FEATURES};
use serde::{Serialize, Serializer, ser::SerializeMap};
use std::collections::BTreeMap;

/// The key of `source` that lists datasets.
pub(super) const KEY: &str = "zip";
/// Maximum number of zipped datasets; every split reads from each.
const MAX_DATASETS: usize = 16;
const REPEAT: &str = "repeat";

/// A dataset of a zip, without the others.
pub(super) struct ZippedSource<'a>(pub(super) &'a PipelineSource);

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

/// Reads the list of datasets under `zip`. `member` reads one of them and gets its name for
/// messages.
pub(super) fn parse(
    node: &SyntaxNode,
    member: impl Fn(String, &SyntaxNode) -> Result<PipelineSource, PipelineError>,
) -> Result<PipelineSource, PipelineError> {
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
        let source = member(format!("dataset {i} of `zip`"), node)?;
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

/// Reads a dataset as an author writes it.
pub(super) fn parse_member(
    what: String,
    node: &SyntaxNode,
) -> Result<PipelineSource, PipelineError> {
    let mut table = MappingReader::new(&*what, node)?;
    if let Some(inner) = table.get(KEY) {
        return Err(inner.error("a `zip` within a `zip`; put its datasets beside the others"));
    }
    let source = PipelineSource::from(FileFormat::parse_source(&what, &mut table)?);
    if let Some(why) = source.format.definition().zip_refusal {
        return Err(node.error(why));
    }
    repeated(source, table)
}

/// Reads a dataset of the canonical form.
pub(super) fn parse_canonical_member(
    what: String,
    node: &SyntaxNode,
) -> Result<PipelineSource, PipelineError> {
    let mut table = MappingReader::new(&*what, node)?;
    let source = FileFormat::parse_canonical(&what, &mut table)?.into();
    repeated(source, table)
}

fn repeated(
    source: PipelineSource,
    mut table: MappingReader<'_>,
) -> Result<PipelineSource, PipelineError> {
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
