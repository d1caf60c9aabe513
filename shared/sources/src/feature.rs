//! Features of records: which of a record's values are kept, as which fields.

use crate::words;
use gristmill_syntax::{
    COPY_FIELD, FieldDType, KEY_FIELD, MappingReader, PipelineError, SyntaxNode,
    node::{NodeValue, shown},
};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// Most features kept of a record.
pub const MAX_FEATURES: usize = 256;
/// Longest field name, in bytes: what a tensor name may have.
const MAX_NAME_BYTES: usize = 200;
/// Most values of one feature of one record: what a reader makes room for.
pub const MAX_VALUES: u32 = 1 << 20;
/// Most dimensions of a feature.
const MAX_DIMS: usize = 8;
/// How an unknown dimension is written.
const UNKNOWN: i32 = -1;

/// The features of a record, by the names of their fields.
pub type FeatureMap = BTreeMap<String, Feature>;

/// The types a feature of a record can be read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureDType {
    /// One byte string.
    Bytes,
    I64,
    U64,
    F32,
    F64,
}

impl FeatureDType {
    /// The same as a field's dtype.
    pub const fn dtype(self) -> FieldDType {
        match self {
            FeatureDType::Bytes => FieldDType::Bytes,
            FeatureDType::I64 => FieldDType::I64,
            FeatureDType::U64 => FieldDType::U64,
            FeatureDType::F32 => FieldDType::F32,
            FeatureDType::F64 => FieldDType::F64,
        }
    }
}

/// One feature of a record, kept as a field of the element.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// Its key in the record.
    pub key: String,
    pub dtype: FeatureDType,
    /// Dimensions, the product of which is the number of values; empty for a scalar. The first may
    /// be unknown: records then differ, and hold whole multiples of the others' product. It
    /// serialises as -1.
    #[serde(serialize_with = "serialize_shape")]
    pub shape: Vec<Option<u32>>,
    /// The value to read in place of one that a record lacks: a text, or numbers with spaces between them. A
    /// source writes it beside its features.
    #[serde(skip)]
    pub default: Option<String>,
}

impl Feature {
    /// How many values a record has; none if records differ.
    pub fn values(&self) -> Option<usize> {
        self.shape.iter().try_fold(1, |n, dim| Some(n * dim.map(|dim| dim as usize)?))
    }

    /// How many values one entry of the first dimension has: 1 for scalars and vectors.
    pub fn inner_values(&self) -> usize {
        self.shape.iter().skip(1).flatten().map(|dim| *dim as usize).product()
    }

    /// Checks how many values a record has.
    ///
    /// # Errors
    /// The mismatch, to follow the feature's name: for example "has 3 values, the pipeline
    /// reads 4".
    pub fn check_values(&self, have: usize) -> Result<(), String> {
        let inner = self.inner_values();
        match self.values() {
            Some(wanted) if have == wanted => Ok(()),
            Some(wanted) => Err(format!("has {have} values, the pipeline reads {wanted}")),
            None if have > MAX_VALUES as usize => {
                Err(format!("has {have} values; the limit is {MAX_VALUES}"))
            }
            None if have.is_multiple_of(inner) => Ok(()),
            None => Err(format!("has {have} values, which is no multiple of the {inner} of a row")),
        }
    }
}

/// Writes a shape with -1 for a dimension in which records differ.
pub fn serialize_shape<S: Serializer>(
    shape: &[Option<u32>],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(shape.iter().map(|dim| dim.map_or(i64::from(UNKNOWN), i64::from)))
}

/// Reads the `features` of a source, or of an operator that finds them in a byte string. `check`
/// judges each of them.
///
/// # Errors
/// The first feature that is wrong, with its line.
pub fn features(
    node: &SyntaxNode,
    check: impl Fn(&Feature) -> Result<(), String>,
) -> Result<FeatureMap, PipelineError> {
    let table = MappingReader::new("`features`", node)?;
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
        check(&feature).map_err(|message| value.error(message))?;
        if features.insert(name.clone(), feature).is_some() {
            return Err(key.error(format!("`features` names {} twice", shown(&name))));
        }
    }
    Ok(features)
}

fn feature(name: &str, node: &SyntaxNode) -> Result<Feature, PipelineError> {
    let mut table = MappingReader::new(format!("feature {}", shown(name)), node)?;
    if let Some((_, key, _)) = table.entries()?.into_iter().find(|(key, ..)| key == "default") {
        let remedy = format!("write `defaults: {{ {name}: .. }}` beside the path of the source");
        return Err(key.error(format!("{} has no key `default`; {remedy}", table.name())));
    }
    let key = match table.get("key") {
        Some(node) => table.text("key", node)?,
        None => name.to_owned(),
    };
    use FeatureDType::{Bytes, F32, F64, I64, U64};
    let all = [Bytes, I64, U64, F32, F64];
    let choices = all.map(|dtype| (dtype.dtype().name(), dtype));
    let dtype = table.require("dtype")?;
    let dtype = table.choice("dtype", dtype, &choices)?;
    let shape = match table.get("shape") {
        Some(node) => shape(name, dtype, node)?,
        None => Vec::new(),
    };
    table.finish()?;
    Ok(Feature { key, dtype, shape, default: None })
}

/// Reads the `defaults` of a source into its features.
///
/// # Errors
/// The first that is none of a feature, with its line.
pub(crate) fn defaults(node: &SyntaxNode, features: &mut FeatureMap) -> Result<(), PipelineError> {
    for (name, key, value) in MappingReader::new("`defaults`", node)?.entries()? {
        let Some(feature) = features.get_mut(&name) else {
            return Err(key.error(format!("{} is none of `features`", shown(&name))));
        };
        let text = match &value.value {
            NodeValue::Seq(items) if feature.dtype != FeatureDType::Bytes => {
                items.iter().map(default).collect::<Result<Vec<_>, _>>()?.join(" ")
            }
            _ => default(value)?,
        };
        if feature.dtype != FeatureDType::Bytes {
            words::read(feature, &text, &mut Vec::new())
                .map_err(|what| value.error(format!("the default of {} {what}", shown(&name))))?;
        }
        feature.default = Some(text);
    }
    Ok(())
}

fn default(node: &SyntaxNode) -> Result<String, PipelineError> {
    match &node.value {
        NodeValue::Str(text) => Ok(text.clone()),
        NodeValue::Int(number) => Ok(number.to_string()),
        NodeValue::Float(number) => Ok(number.to_string()),
        _ => {
            let found = node.shown();
            Err(node.error(format!(
                "a default is a number, a text, or for a feature with a `shape` a list of numbers, not \
                 {found}"
            )))
        }
    }
}

/// The `shape` of a feature.
fn shape(
    name: &str,
    dtype: FeatureDType,
    node: &SyntaxNode,
) -> Result<Vec<Option<u32>>, PipelineError> {
    let what = format!("feature {}", shown(name));
    let shape = dimensions(&what, node, MAX_VALUES)?;
    if dtype == FeatureDType::Bytes && !shape.is_empty() {
        return Err(
            node.error(format!("{what} is bytes, which is one byte string: leave out `shape`"))
        );
    }
    Ok(shape)
}

/// Reads a `shape` of at most `most` values: whole numbers, of which the first may be -1. `what` has it, in messages.
///
/// # Errors
/// The dimension that is wrong, with its line.
pub fn dimensions(
    what: &str,
    node: &SyntaxNode,
    most: u32,
) -> Result<Vec<Option<u32>>, PipelineError> {
    let NodeValue::Seq(items) = &node.value else {
        let found = node.shown();
        return Err(node.error(format!(
            "{what} `shape` must be a list of dimensions such as [3] or [-1, 80], not {found}"
        )));
    };
    let mut shape = Vec::new();
    for (i, item) in items.iter().enumerate() {
        shape.push(match item.value {
            NodeValue::Int(dim) if i == 0 && dim == i128::from(UNKNOWN) => None,
            NodeValue::Int(dim) if (1..=i128::from(most)).contains(&dim) => Some(dim as u32),
            _ => {
                return Err(item.error(format!(
                    "{what} `shape` must be a whole number from 1 to {most}, the first also -1 where \
                     records differ, not {}",
                    item.shown()
                )));
            }
        });
    }
    let values = shape.iter().flatten().try_fold(1_u32, |n, dim| n.checked_mul(*dim));
    if shape.len() > MAX_DIMS || values.is_none_or(|n| n > most) {
        return Err(
            node.error(format!("{what} has more than {MAX_DIMS} dimensions or {most} values"))
        );
    }
    Ok(shape)
}

/// Checks the name of a field. It becomes the name of a tensor, a key of a mapping and the name of a
/// Python attribute.
///
/// # Errors
/// The form of a name.
pub fn check_name(name: &str) -> Result<(), String> {
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
