//! Code shared by `parse_json`, `parse_csv` and `parse_example`, which extract several fields from one byte
//! string.

use crate::prelude::*;
use gristmill_sources::SourceFormat;

/// Parses the parameter `features`, with keys that the format `F` checks.
pub(crate) fn features<F: SourceFormat>(
    params: &mut MappingReader<'_>,
) -> Result<BTreeMap<String, Feature>, PipelineError> {
    gristmill_sources::features(params.require("features")?, F::check)
}

/// Infers the schema: adds `features`, and removes the byte string in `field` unless `keep` is set.
pub(crate) fn infer(
    flow: &mut SchemaFlow,
    op: &'static str,
    field: &str,
    features: &BTreeMap<String, Feature>,
    keep: bool,
) -> Result<(), String> {
    let input = flow.field(op, field)?;
    if input.dtype != FieldDType::Bytes {
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
    ($name:ident, $op:literal, $format:ty, $extractor:path) => {
        impl OperatorDefinition for $name {
            const DECLARATION: OperatorDeclaration = element_wise($op, 1).costs(500, 2_000);

            const PARAMETERS: &'static [Parameter] = &[
                required("field", ParameterKind::Field, "The byte string."),
                required("features", ParameterKind::Features, "By the name of the new field: `{ key, dtype, shape }`, as the `features` of a source."),
                or("keep", ParameterKind::Bool, "false", "Whether the byte string stays a field of the element."),
            ];

            fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
                let field = required_field(params)?;
                let features = crate::parse::parsing::features::<$format>(params)?;
                Ok($name { field, features, keep: flag::<Self>(params, "keep")? })
            }
        }

        impl Operator for $name {
            fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
                crate::parse::parsing::infer(flow, $op, &self.field, &self.features, self.keep)
            }

            fn fields(&self) -> TouchedFields<'_> {
                TouchedFields::Parses {
                    field: &self.field,
                    into: self.features.keys().map(String::as_str).collect(),
                }
            }

            #[cfg(feature = "kernels")]
            fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
                use $extractor as Extractor;
                Ok(Kernel::Extract(Box::new(Extractor::new(&self.features))))
            }
        }
    };
}
pub(crate) use parsing_operator;
