//! `shuffle`: records in random order, block by block.

use crate::prelude::*;

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

impl Define for Shuffle {
    const DECLARATION: Declaration =
        Declaration { randomness: Randomness::Random, ..of_dataset("shuffle", 1) };

    const PARAMETERS: &'static [Parameter] = &[
        or(
            "blocks",
            Kind::Whole { min: 1, max: MAX_BLOCKS as u64 },
            "16",
            "Runs of neighbours in a split.",
        ),
        or("seed", Kind::Whole { min: 0, max: u64::MAX }, "0", "Tells two shuffles apart."),
    ];

    fn parse(params: &mut Table<'_>) -> Result<Self, PipelineError> {
        let blocks = whole::<Self>(params, "blocks")?;
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
}

impl Operator for Shuffle {
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
