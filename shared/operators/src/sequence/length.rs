//! `length`: counts the items of a sequence.

use crate::prelude::*;

/// A sequence `[n, ..]` or byte string of n bytes -> i64 scalar n in the new field `into`, a name that the
/// element must not have yet. The sequence stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Length {
    pub field: String,
    pub into: String,
}

impl OperatorDefinition for Length {
    const DECLARATION: OperatorDeclaration = element_wise("length", 1).costs(100, 0);

    const PARAMETERS: &'static [Parameter] = &[
        required("field", ParameterKind::Field, "The sequence or byte string."),
        required("into", ParameterKind::Field, "The new field."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        Ok(Length { field: required_field(params)?, into: into(params, "length")? })
    }
}

impl Operator for Length {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let input = flow.field("length", &self.field)?;
        if !input.is_sequence() && input.shape.is_empty() {
            let origin = flow.origin(&self.field);
            return Err(format!(
                "`length` needs a sequence, but `{}` is {input}{origin}",
                self.field
            ));
        }
        if input.item_bytes().is_none() {
            return Err(format!("`length` of `{}` is not known: it is {input}", self.field));
        }
        flow.write_new("length", &self.into, FieldSchema::fixed(FieldDType::I64, []))
    }

    fn fields(&self) -> TouchedFields<'_> {
        TouchedFields::Derives { field: &self.field, into: &self.into }
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, input: &KernelInput<'_>) -> Result<Kernel, String> {
        let item_bytes = item_bytes_of(input.field()?);
        Ok(transform(move |input, output, _, _| {
            let items = (input.bytes.len() / item_bytes) as i64;
            output.take(8)?.copy_from_slice(&items.to_le_bytes());
            Ok(OutputSize { bytes: 8, size: [0, 0] })
        }))
    }
}
