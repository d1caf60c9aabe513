//! What the operators share that find several fields in one byte string: `parse_json`, `parse_csv` and
//! `parse_example`.

use crate::{DType, Feature, FieldSchema, PipelineError, flow::Flow, table::Table};
use gristmill_sources::SourceFormat;
use std::collections::BTreeMap;

/// Their parameter `features`, with keys as the format `F` has them.
pub(super) fn features<F: SourceFormat>(
    params: &mut Table<'_>,
) -> Result<BTreeMap<String, Feature>, PipelineError> {
    gristmill_sources::features(params.require("features")?, F::check)
}

/// The byte string in `field` gives way to `features`, or stays beside them.
pub(super) fn infer(
    flow: &mut Flow,
    op: &'static str,
    field: &str,
    features: &BTreeMap<String, Feature>,
    keep: bool,
) -> Result<(), String> {
    let input = flow.field(op, field)?;
    if input.dtype != DType::Bytes {
        let origin = flow.origin(field);
        return Err(format!("`{op}` needs a byte string, but `{field}` is {input}{origin}"));
    }
    if !keep {
        flow.remove(field);
    }
    if let Some(name) = features.keys().find(|name| flow.schema().field(name).is_some()) {
        return Err(format!(
            "`{op}` makes `{name}`, but the element has a field of that name{}; call it otherwise \
             and say where it is found: `OTHER: {{ key: {}, .. }}`",
            flow.origin(name),
            features[name].key
        ));
    }
    for (name, feature) in features {
        let Feature { dtype, shape, .. } = feature;
        let (dtype, shape) = (dtype.dtype(), shape.clone());
        flow.write(op, name, FieldSchema { dtype, shape, range: None });
    }
    Ok(())
}

/// An operator whose parameters are the field, its features and whether the field is kept.
macro_rules! parsing_operator {
    ($name:ident, $op:literal, $format:ty) => {
        impl crate::op::Operator for $name {
            const DECLARATION: crate::Declaration = super::element_wise($op, 1);

            fn parse(params: &mut crate::table::Table<'_>) -> Result<Self, crate::PipelineError> {
                let field = params.require("field")?;
                let field = params.text("field", field)?;
                let features = super::parsing::features::<$format>(params)?;
                Ok($name { field, features, keep: params.bool("keep", false)? })
            }

            fn infer(&self, flow: &mut crate::flow::Flow) -> Result<(), String> {
                super::parsing::infer(flow, $op, &self.field, &self.features, self.keep)
            }

            fn field(&self) -> Option<&str> {
                Some(&self.field)
            }

            fn output(&self) -> Option<&str> {
                None
            }

            fn outputs(&self) -> Vec<&str> {
                self.features.keys().map(String::as_str).collect()
            }
        }
    };
}
pub(super) use parsing_operator;
