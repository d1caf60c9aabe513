//! `take`: keeps the first records of the dataset.

use crate::prelude::*;

/// Keeps the first `count` records of the dataset, or all if there are fewer. The selection is made when the
/// job is registered; other records are never read. It counts records, so it must precede operators that
/// change the number of elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Take {
    pub count: u64,
}

impl OperatorDefinition for Take {
    const DECLARATION: OperatorDeclaration =
        OperatorDeclaration { cardinality: Cardinality::Filter, ..of_dataset("take", 1) };

    const PARAMETERS: &'static [Parameter] = &[required(
        "count",
        ParameterKind::Whole { min: 1, max: u64::MAX },
        "Records, at least 1.",
    )];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        Ok(Take { count: large::<Self>(params, "count")? })
    }
}

impl Operator for Take {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        flow.counts_records("take")
    }

    fn dataset(&self) -> Option<DatasetOp> {
        Some(DatasetOp::Take { count: self.count })
    }
}
