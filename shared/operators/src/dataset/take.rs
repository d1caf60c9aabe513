//! `take`: keeps the first records of the dataset.

use crate::prelude::*;

/// Keeps the first `count` records of the dataset, or all if there are fewer. The selection is made when the
/// job is registered; other records are never read. It counts records, so it must precede operators that
/// change the number of elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Take {
    pub count: u64,
}

impl Define for Take {
    const DECLARATION: Declaration =
        Declaration { cardinality: Cardinality::Filter, ..of_dataset("take", 1) };

    const PARAMETERS: &'static [Parameter] =
        &[required("count", Kind::Whole { min: 1, max: u64::MAX }, "Records, at least 1.")];

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        Ok(Take { count: large::<Self>(params, "count")? })
    }
}

impl Operator for Take {
    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        flow.counts_records("take")
    }

    fn dataset(&self) -> Option<DatasetOp> {
        Some(DatasetOp::Take { count: self.count })
    }
}
