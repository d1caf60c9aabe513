//! Where elements come from, and which of their features are kept.

use crate::{
    COPY_FIELD, DType, FieldSchema, KEY_FIELD, PipelineError, Schema,
    node::{Node, shown},
    table::Table,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// Most features kept of a record.
const MAX_FEATURES: usize = 256;
/// Longest field name, in bytes: what a tensor name may have.
const MAX_NAME_BYTES: usize = 200;
/// Longest vector feature, and most values of one feature.
const MAX_VALUES: u32 = 1 << 20;

/// The types a feature of a `tf.Example` can be read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureDType {
    /// One byte string.
    Bytes,
    I64,
    F32,
}

impl FeatureDType {
    /// The same as a field's dtype.
    pub const fn dtype(self) -> DType {
        match self {
            FeatureDType::Bytes => DType::Bytes,
            FeatureDType::I64 => DType::I64,
            FeatureDType::F32 => DType::F32,
        }
    }
}

/// One feature of a `tf.Example`, kept as a field of the element.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// Its key in the example.
    pub key: String,
    pub dtype: FeatureDType,
    /// Dimensions, the product of which is the number of values; empty for a scalar.
    pub shape: Vec<u32>,
}

/// A set of TFRecord files of `tf.Example` messages.
///
/// Serialises without the path: where the data lies does not change what it is, which the dataset's
/// own fingerprint says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Source {
    /// Path, directory, glob or `s3://bucket/prefix`; empty when read from the canonical form.
    #[serde(skip)]
    pub path: String,
    #[serde(rename = "tfrecord")]
    pub features: BTreeMap<String, Feature>,
}

impl Source {
    /// The `source` of a pipeline file.
    pub(crate) fn parse(node: &Node) -> Result<Self, PipelineError> {
        let mut table = Table::new("`source`", node)?;
        let Some(path) = table.get("tfrecord") else {
            return Err(table.error("`source` needs `tfrecord: PATH`, the files to read"));
        };
        let path = table.text("tfrecord", path)?;
        let features = features(table.require("features")?)?;
        table.finish()?;
        Ok(Source { path, features })
    }

    /// The `source` of the canonical form.
    pub(crate) fn parse_canonical(node: &Node) -> Result<Self, PipelineError> {
        let mut table = Table::new("`source`", node)?;
        let features = features(table.require("tfrecord")?)?;
        table.finish()?;
        Ok(Source { path: String::new(), features })
    }

    /// The schema of what it yields.
    pub(crate) fn schema(&self) -> Schema {
        let field = |(name, feature): (&String, &Feature)| {
            let shape = feature.shape.iter().copied();
            (name.clone(), FieldSchema::fixed(feature.dtype.dtype(), shape))
        };
        Schema { fields: self.features.iter().map(field).collect() }
    }
}

fn features(node: &Node) -> Result<BTreeMap<String, Feature>, PipelineError> {
    let table = Table::new("`features`", node)?;
    let entries = table.entries()?;
    if entries.is_empty() || entries.len() > MAX_FEATURES {
        return Err(node.error(format!(
            "`features` names 1 to {MAX_FEATURES} fields, not {}; for example \
             `image: {{ key: image/encoded, dtype: bytes }}`",
            entries.len()
        )));
    }
    let mut features = BTreeMap::new();
    for (name, key, value) in entries {
        check_name(&name).map_err(|message| key.error(message))?;
        let feature = feature(&name, value)?;
        if features.insert(name.clone(), feature).is_some() {
            return Err(key.error(format!("`features` names {} twice", shown(&name))));
        }
    }
    Ok(features)
}

fn feature(name: &str, node: &Node) -> Result<Feature, PipelineError> {
    let mut table = Table::new(format!("feature {}", shown(name)), node)?;
    let key = match table.get("key") {
        Some(node) => table.text("key", node)?,
        None => name.to_owned(),
    };
    let all = [FeatureDType::Bytes, FeatureDType::I64, FeatureDType::F32];
    let choices = all.map(|dtype| (dtype.dtype().name(), dtype));
    let dtype = table.require("dtype")?;
    let dtype = table.choice("dtype", dtype, &choices)?;
    let shape = match table.get("shape") {
        Some(node) => {
            let shape = table.wholes("shape", node, 1..=MAX_VALUES)?;
            let values = shape.iter().try_fold(1_u32, |n, dim| n.checked_mul(*dim));
            if shape.len() > 8 || values.is_none_or(|n| n > MAX_VALUES) {
                return Err(node.error(format!(
                    "feature {} has more than 8 dimensions or {MAX_VALUES} values",
                    shown(name)
                )));
            }
            if dtype == FeatureDType::Bytes && !shape.is_empty() {
                return Err(node.error(format!(
                    "feature {} is bytes, which is one byte string: leave out `shape`",
                    shown(name)
                )));
            }
            shape
        }
        None => Vec::new(),
    };
    table.finish()?;
    Ok(Feature { key, dtype, shape })
}

/// Field names become tensor names, keys of mappings and names of Python attributes.
fn check_name(name: &str) -> Result<(), String> {
    let letter = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let plain = name.bytes().all(letter) && !name.starts_with(|c: char| c.is_ascii_digit());
    if name == KEY_FIELD || name == COPY_FIELD || name.starts_with("__") {
        return Err(format!("field {} is reserved: names starting with __ are ours", shown(name)));
    }
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !plain {
        return Err(format!(
            "field {} is not a name: use 1 to {MAX_NAME_BYTES} letters, digits and _, not \
             starting with a digit",
            shown(name)
        ));
    }
    Ok(())
}
