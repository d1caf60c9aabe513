//! `in_order`: records in the order of the dataset.

use crate::prelude::*;

/// Delivers every epoch in the order of the dataset, record by record: for validation, and for data whose
/// order matters. Elements left over at the end of a split start the next batch, also after `filter` or
/// `flat_map`. Without `in_order`, splits come in a new random order each epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InOrder {}

impl OperatorDefinition for InOrder {
    const DECLARATION: OperatorDeclaration = of_dataset("in_order", 2);

    const PARAMETERS: &'static [Parameter] = &[];

    fn parse(_: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        Ok(InOrder {})
    }
}

impl Operator for InOrder {
    fn dataset(&self) -> Option<DatasetOp> {
        Some(DatasetOp::InOrder)
    }
}
