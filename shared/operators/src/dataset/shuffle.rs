//! `shuffle`: puts records in random order, block by block.

use crate::prelude::*;

/// Most blocks of a split; each costs one read.
const MAX_BLOCKS: u32 = 1024;

/// Each split consists of `blocks` runs of adjacent records drawn from the whole dataset, and its records
/// are shuffled before they are batched. The order changes each epoch, keyed by the job's seed and `seed`.
/// Without `shuffle`, the records of a batch are adjacent in a file, and only the splits are in random
/// order. More blocks mix better but cost a read each. Reads below 4 MiB are slow on S3, so about 16 blocks
/// suit a split of 64 MiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shuffle {
    pub blocks: u32,
    pub seed: u64,
}

impl OperatorDefinition for Shuffle {
    const DECLARATION: OperatorDeclaration =
        OperatorDeclaration { randomness: Randomness::Random, ..of_dataset("shuffle", 1) };

    const PARAMETERS: &'static [Parameter] = &[
        or(
            "blocks",
            ParameterKind::Whole { min: 1, max: MAX_BLOCKS as u64 },
            "16",
            "Runs of neighbours in a split.",
        ),
        or(
            "seed",
            ParameterKind::Whole { min: 0, max: u64::MAX },
            "0",
            "Tells two shuffles apart.",
        ),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let blocks = whole::<Self>(params, "blocks")?;
        let seed = large::<Self>(params, "seed")?;
        Ok(Shuffle { blocks, seed })
    }
}

impl Operator for Shuffle {
    fn dataset(&self) -> Option<DatasetOp> {
        Some(DatasetOp::Shuffle { blocks: self.blocks, seed: self.seed })
    }
}
