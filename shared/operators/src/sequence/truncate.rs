//! `truncate`: cuts a sequence to a length.

use crate::prelude::*;

/// A sequence `[n, ..]` or byte string -> its first `length` items; shorter ones stay as they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Truncate {
    pub field: String,
    pub length: u32,
}

impl OperatorDefinition for Truncate {
    const DECLARATION: OperatorDeclaration = element_wise("truncate", 1).costs(100, 50);

    const PARAMETERS: &'static [Parameter] = &[
        required("field", ParameterKind::Field, "The sequence or byte string."),
        required(
            "length",
            ParameterKind::Whole { min: 1, max: MAX_LENGTH as u64 },
            "Most items that are kept.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let field = required_field(params)?;
        Ok(Truncate { length: whole::<Self>(params, "length")?, field })
    }
}

impl Operator for Truncate {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.field("truncate", &self.field)?;
        if !input.is_sequence() {
            let origin = flow.origin(&self.field);
            let field = &self.field;
            return Err(format!("`truncate` needs a sequence, but `{field}` is {input}{origin}"));
        }
        let output = input.clone();
        flow.write("truncate", &self.field, output);
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let given = input.field()?;
        let most_bytes = (self.length as usize).saturating_mul(item_bytes_of(given));
        Ok(Kernel::Shorten { most_bytes })
    }
}
