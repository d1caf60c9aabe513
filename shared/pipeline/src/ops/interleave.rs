//! `interleave`: records of several files in turn.

use super::of_dataset;
use crate::{Declaration, PipelineError, flow::Flow, op::Operator, table::Table};
use gristmill_model::DatasetOp;
use serde::Serialize;

/// Most files read in turn.
const MAX_CYCLE: u32 = 4096;
/// Most records of a file in its turn.
const MAX_BLOCK: u32 = 1 << 20;

/// Reads `cycle_length` files in turn, `block_length` records of each; when a file ends, the next one
/// takes its place. The order is that of `tf.data.Dataset.interleave` without parallel calls. It
/// comes before other dataset operators. Splits still come in random order, unless `in_order` is
/// given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interleave {
    pub cycle_length: u32,
    pub block_length: u32,
}

impl Operator for Interleave {
    const DECLARATION: Declaration = of_dataset("interleave", 1);

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let mut number = |key, most, default| match params.get(key) {
            Some(node) => params.whole(key, node, 1..=most),
            None => Ok(default),
        };
        let cycle_length = number("cycle_length", MAX_CYCLE, 16)?;
        let block_length = number("block_length", MAX_BLOCK, 1)?;
        Ok(Interleave { cycle_length, block_length })
    }

    fn infer(&self, flow: &mut Flow) -> Result<(), String> {
        flow.works_on_files("interleave")
    }

    fn field(&self) -> Option<&str> {
        None
    }

    fn dataset(&self) -> Option<DatasetOp> {
        let Interleave { cycle_length, block_length } = *self;
        Some(DatasetOp::Interleave { cycle_length, block_length })
    }
}
