//! `skip`: all but the first records of the dataset.

use super::{count, of_dataset};
use crate::{Cardinality, Declaration, PipelineError, flow::Flow, op::Operator, table::Table};
use gristmill_model::DatasetOp;
use serde::Serialize;

/// Leaves out the first `count` records of the dataset: what [`Take`](super::Take) keeps. They are
/// not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skip {
    pub count: u64,
}

impl Operator for Skip {
    const DECLARATION: Declaration =
        Declaration { cardinality: Cardinality::Filter, ..of_dataset("skip", 1) };

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        Ok(Skip { count: count(params, 0)? })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        flow.counts_records("skip")
    }

    fn field(&self) -> Option<&str> {
        None
    }

    fn dataset(&self) -> Option<DatasetOp> {
        Some(DatasetOp::Skip { count: self.count })
    }
}
