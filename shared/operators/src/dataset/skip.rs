//! `skip`: leaves out the first records of the dataset.

use crate::prelude::*;

/// Leaves out the first `count` records of the dataset, the complement of [`Take`]. They are
/// not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skip {
    pub count: u64,
}

impl Define for Skip {
    const DECLARATION: Declaration =
        Declaration { cardinality: Cardinality::Filter, ..of_dataset("skip", 1) };

    const PARAMETERS: &'static [Parameter] =
        &[required("count", Kind::Whole { min: 0, max: u64::MAX }, "Records.")];

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        Ok(Skip { count: large::<Self>(params, "count")? })
    }
}

impl Operator for Skip {
    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        flow.counts_records("skip")
    }

    fn dataset(&self) -> Option<DatasetOp> {
        Some(DatasetOp::Skip { count: self.count })
    }
}
