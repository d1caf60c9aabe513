//! `copy`: copies a field, for two views of it.

use crate::prelude::*;

/// Any field -> the same, and a copy in the new field `into`, a name that the element must not have yet.
/// Later operators can treat the two differently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopyField {
    pub field: String,
    pub into: String,
}

impl OperatorDefinition for CopyField {
    const DECLARATION: OperatorDeclaration = element_wise("copy", 1).costs(200, 100);

    const PARAMETERS: &'static [Parameter] =
        &[FIELD, required("into", ParameterKind::Field, "The new field.")];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        Ok(CopyField { into: into(params, "copy")?, field: params.field()? })
    }
}

impl Operator for CopyField {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let copy = flow.field("copy", &self.field)?.clone();
        flow.write_new("copy", &self.into, copy)?;
        flow.set_mask(&self.into, flow.is_mask(&self.field));
        Ok(())
    }

    fn fields(&self) -> TouchedFields<'_> {
        TouchedFields::Derives { field: &self.field, into: &self.into }
    }

    #[cfg(feature = "kernels")]
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(transform(|input, output, _, _| {
            output.take(input.bytes.len())?.copy_from_slice(input.bytes);
            Ok(OutputSize { bytes: input.bytes.len(), size: input.size })
        }))
    }
}
