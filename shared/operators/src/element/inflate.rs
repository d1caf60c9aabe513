//! `inflate`: makes elements larger. For experiments.

use crate::prelude::*;

/// Largest factor.
const MAX_FACTOR: u32 = 1_000_000;

/// Any numeric `[..shape]` -> `[factor, ..shape]` of the same dtype: the value repeated `factor` times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Inflate {
    pub field: String,
    pub factor: u32,
}

impl OperatorDefinition for Inflate {
    const DECLARATION: OperatorDeclaration = element_wise("inflate", 1).costs(500, 100);

    const PARAMETERS: &'static [Parameter] = &[
        FIELD,
        required(
            "factor",
            ParameterKind::Whole { min: 1, max: MAX_FACTOR as u64 },
            "How many times the value is repeated.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let factor = whole::<Self>(params, "factor")?;
        Ok(Inflate { field: params.field()?, factor })
    }
}

impl Operator for Inflate {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let field = &self.field;
        let input = flow.field("inflate", field)?;
        if input.dtype == FieldDType::Bytes || input.known_shape().is_none() {
            let origin = flow.origin(field);
            return Err(format!(
                "`inflate` needs numbers of one shape, but `{field}` is {input}{origin}"
            ));
        }
        let shape = [Some(self.factor)].into_iter().chain(input.shape.iter().copied()).collect();
        let output = FieldSchema { shape, ..input.clone() };
        // `batch` would also refuse it, but only after further operators made it larger still.
        if output.shape.len() > 8 || output.element_bytes().is_none_or(|b| b > MAX_BATCH_BYTES) {
            return Err(format!("`inflate` makes `{field}` {output}, which no batch can hold"));
        }
        flow.write("inflate", field, output);
        Ok(())
    }

    replaces_field!();

    #[cfg(feature = "kernels")]
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        let factor = self.factor as usize;
        Ok(transform(move |input, output, _, _| {
            let bytes = input.bytes.len() * factor;
            for copy in output.take(bytes)?.chunks_exact_mut(input.bytes.len().max(1)) {
                copy.copy_from_slice(input.bytes);
            }
            Ok(OutputSize { bytes, size: input.size })
        }))
    }
}
