//! Reads parameters of users' operators as JSON, and schemas from the canonical form.

use crate::{
    FieldDType, FieldSchema, MAX_SIDE, MappingReader, PipelineError, ValueRange,
    node::{NodeValue, SyntaxNode, shown},
    parameters::optional,
};
use serde_json::Value as Json;
use std::collections::BTreeMap;

const DTYPES: [FieldDType; 11] = [
    FieldDType::Bytes,
    FieldDType::U8,
    FieldDType::F16,
    FieldDType::BF16,
    FieldDType::F32,
    FieldDType::F64,
    FieldDType::U16,
    FieldDType::I32,
    FieldDType::U32,
    FieldDType::I64,
    FieldDType::U64,
];

/// Converts a value of the pipeline file to JSON.
pub(super) fn json(node: &SyntaxNode) -> Result<Json, PipelineError> {
    Ok(match &node.value {
        NodeValue::Null => Json::Null,
        NodeValue::Bool(value) => Json::Bool(*value),
        NodeValue::Int(value) => match (i64::try_from(*value), u64::try_from(*value)) {
            (Ok(value), _) => value.into(),
            (_, Ok(value)) => value.into(),
            _ => return Err(node.error(format!("{value} is beyond 64 bits"))),
        },
        // Adding zero turns -0.0 into 0.0, so that zero has one canonical form.
        NodeValue::Float(value) => match serde_json::Number::from_f64(*value + 0.0) {
            Some(value) => Json::Number(value),
            None => return Err(node.error(format!("{value} is no finite number"))),
        },
        NodeValue::Str(text) => Json::String(text.clone()),
        NodeValue::Seq(items) => Json::Array(items.iter().map(json).collect::<Result<_, _>>()?),
        NodeValue::Map(entries) => {
            let mut sorted = BTreeMap::new();
            for (key, value) in entries {
                let NodeValue::Str(name) = &key.value else {
                    return Err(key.error(format!("keys are text, not {}", key.shown())));
                };
                sorted.insert(name.clone(), json(value)?);
            }
            Json::Object(sorted.into_iter().collect())
        }
    })
}

/// Reads a field's schema from the canonical form.
pub(super) fn schema(node: &SyntaxNode) -> Result<FieldSchema, PipelineError> {
    let mut table = MappingReader::new("`output`", node)?;
    let names = DTYPES.map(|dtype| (dtype.name(), dtype));
    let dtype = table.require("dtype")?;
    let dtype = table.choice("dtype", dtype, &names)?;
    let shape = table.require("shape")?;
    let NodeValue::Seq(dims) = &shape.value else {
        return Err(shape.error(format!("`shape` must be a list, not {}", shown(&shape.shown()))));
    };
    // No image side is larger, and no list has more values.
    let most = MAX_SIDE.max(crate::MAX_VALUES);
    let dim = |dim: &SyntaxNode| match dim.value {
        NodeValue::Null => Ok(None),
        _ => table.whole("shape", dim, 0..=most).map(Some),
    };
    let shape = dims.iter().map(dim).collect::<Result<Vec<_>, _>>()?;
    let range = match optional(&mut table, "range") {
        None => None,
        Some(node) => {
            let mut bounds = MappingReader::new("`range`", node)?;
            let mut bound = |key| {
                let node = bounds.require(key)?;
                bounds.number(key, node, f64::MIN..=f64::MAX)
            };
            Some(ValueRange { min: bound("min")?, max: bound("max")? })
        }
    };
    table.finish()?;
    Ok(FieldSchema { dtype, shape, range })
}
