//! `skip`: leaves out the first records of the dataset.

use crate::prelude::*;

/// Leaves out the first `count` records of the dataset, the complement of [`Take`]. They are
/// not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skip {
    pub count: u64,
}

impl OperatorDefinition for Skip {
    const DECLARATION: OperatorDeclaration =
        OperatorDeclaration { cardinality: Cardinality::Filter, ..of_dataset("skip", 1) };

    const PARAMETERS: &'static [Parameter] =
        &[required("count", ParameterKind::Whole { min: 0, max: u64::MAX }, "Records.")];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        Ok(Skip { count: large::<Self>(params, "count")? })
    }
}

impl Operator for Skip {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        flow.counts_records("skip")
    }

    fn dataset(&self) -> Option<DatasetOp> {
        Some(DatasetOp::Skip { count: self.count })
    }
}
