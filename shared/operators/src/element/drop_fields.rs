//! `drop`: removes fields.

use crate::prelude::*;

/// Any element -> the same without `fields`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DropFields {
    pub fields: Vec<String>,
}

impl OperatorDefinition for DropFields {
    const DECLARATION: OperatorDeclaration = element_wise("drop", 1).costs(50, 0);

    const PARAMETERS: &'static [Parameter] = &[required(
        "fields",
        ParameterKind::List(&ParameterKind::Field),
        "The fields that are left out.",
    )];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let node: &SyntaxNode = params.require("fields")?;
        let fields: Vec<String> = match &node.value {
            NodeValue::Seq(items) if !items.is_empty() => {
                items.iter().map(|item| params.text("fields", item)).collect::<Result<_, _>>()?
            }
            _ => return Err(node.error("`drop` `fields` must be a list of field names")),
        };
        if let Some((_, twice)) =
            fields.iter().enumerate().find(|(i, field)| fields[..*i].contains(field))
        {
            return Err(node.error(format!("`drop` `fields` names {} twice", shown(twice))));
        }
        Ok(DropFields { fields })
    }
}

impl Operator for DropFields {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        for field in &self.fields {
            flow.field("drop", field)?;
            flow.remove(field);
        }
        if flow.schema().fields.is_empty() {
            Err("`drop` leaves the element without fields".into())
        } else {
            Ok(())
        }
    }

    fn forget(&mut self, field: &str) {
        self.fields.retain(|dropped| dropped != field);
    }

    fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    // The output schema lacks the fields, which is enough to leave them out.
    #[cfg(feature = "kernels")]
    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(Kernel::Nothing)
    }
}
