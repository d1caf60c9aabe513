//! `shuffle`: records in random order, block by block.

use super::of_dataset;
use crate::{
    Declaration, PipelineError, Randomness, flow::Flow, node::Value, op::Operator, table::Table,
};
use gristmill_model::DatasetOp;
use serde::Serialize;

/// Most blocks of a split: each is a read of its own.
const MAX_BLOCKS: u32 = 1024;

/// Every split is made of `blocks` runs of neighbouring records drawn from all over the dataset, and
/// its records are put in random order before they are batched; another order each epoch, keyed by
/// the job's seed and `seed`. Without it, the records of a batch are neighbours in a file, and only
/// splits come in random order. More blocks mix better and cost a read each: reads below 4 MiB are
/// slow on S3, so a split of 64 MiB takes about 16.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shuffle {
    pub blocks: u32,
    pub seed: u64,
}

impl Operator for Shuffle {
    const DECLARATION: Declaration =
        Declaration { randomness: Randomness::Random, ..of_dataset("shuffle", 1) };

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let blocks = match params.get("blocks") {
            Some(node) => params.whole("blocks", node, 1..=MAX_BLOCKS)?,
            None => 16,
        };
        let seed = match params.get("seed") {
            Some(node) => match node.value {
                Value::Int(seed) => u64::try_from(seed).ok(),
                _ => None,
            }
            .ok_or_else(|| {
                node.error(format!("`shuffle` `seed` must be a whole number, not {}", node.shown()))
            })?,
            None => 0,
        };
        Ok(Shuffle { blocks, seed })
    }

    fn infer(&self, _: &mut Flow) -> Result<(), String> {
        Ok(())
    }

    fn field(&self) -> Option<&str> {
        None
    }

    fn dataset(&self) -> Option<DatasetOp> {
        Some(DatasetOp::Shuffle { blocks: self.blocks, seed: self.seed })
    }
}
