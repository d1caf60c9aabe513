//! Operators on the sequence of records. They are resolved when the job is registered, before records are read.

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
        OperatorDeclaration { cardinality: Cardinality::Filter, ..dataset_declaration("take", 1) };

    const PARAMETERS: &'static [Parameter] = &[required(
        "count",
        ParameterKind::Whole { min: 1, max: u64::MAX },
        "Records, at least 1.",
    )];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        Ok(Take { count: large(params, "count", 1)? })
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

/// Leaves out the first `count` records of the dataset, the complement of [`Take`]. They are
/// not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skip {
    pub count: u64,
}

impl OperatorDefinition for Skip {
    const DECLARATION: OperatorDeclaration =
        OperatorDeclaration { cardinality: Cardinality::Filter, ..dataset_declaration("skip", 1) };

    const PARAMETERS: &'static [Parameter] = &[required("count", ANY_COUNT, "Records.")];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        Ok(Skip { count: large(params, "count", 0)? })
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

/// Most repetitions.
const MAX_COUNT: u32 = 100_000;

/// Repeats all records `count` times, one repetition after the other. Random operators draw anew in each,
/// and `__copy__` numbers the repetitions. To train for several epochs use the job's `--epochs` instead: an
/// epoch has its own cursor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Repeat {
    pub count: u32,
}

impl OperatorDefinition for Repeat {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        cardinality: Cardinality::OneToMany,
        ..dataset_declaration("repeat", 1)
    };

    const PARAMETERS: &'static [Parameter] = &[required("count", from_to(1, MAX_COUNT), "Times.")];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        if params.get("count").is_none() {
            return Err(params.error(
                "`repeat` needs a `count`; to go on without end, run the job with `--epochs`",
            ));
        }
        Ok(Repeat { count: params.read_whole("count")? })
    }
}

impl Operator for Repeat {
    fn dataset(&self) -> Option<DatasetOp> {
        Some(DatasetOp::Repeat { count: self.count })
    }
}

/// Most files read in turn.
const MAX_CYCLE: u32 = 4096;
/// Most records of a file in its turn.
const MAX_BLOCK: u32 = 1 << 20;

/// Reads `cycle_length` files in turn, `block_length` records of each; when a file ends, the next file
/// takes its place. The order is that of `tf.data.Dataset.interleave` without parallel calls. It must
/// precede the other dataset operators. Splits still come in random order, unless `in_order` is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interleave {
    pub cycle_length: u32,
    pub block_length: u32,
}

impl OperatorDefinition for Interleave {
    const DECLARATION: OperatorDeclaration = dataset_declaration("interleave", 1);

    const PARAMETERS: &'static [Parameter] = &[
        or("cycle_length", from_to(1, MAX_CYCLE), "16", "Files read in turn."),
        or("block_length", from_to(1, MAX_BLOCK), "1", "Records of a file in its turn."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let cycle_length = params.read_whole("cycle_length")?;
        let block_length = params.read_whole("block_length")?;
        Ok(Interleave { cycle_length, block_length })
    }
}

impl Operator for Interleave {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        flow.works_on_files("interleave")
    }

    fn dataset(&self) -> Option<DatasetOp> {
        let Interleave { cycle_length, block_length } = *self;
        Some(DatasetOp::Interleave { cycle_length, block_length })
    }
}

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
    const DECLARATION: OperatorDeclaration = dataset_declaration("shuffle", 1).random();

    const PARAMETERS: &'static [Parameter] = &[
        or("blocks", from_to(1, MAX_BLOCKS), "16", "Runs of neighbours in a split."),
        or("seed", ANY_COUNT, "0", "Tells two shuffles apart."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let blocks = params.read_whole("blocks")?;
        let seed = large(params, "seed", 0)?;
        Ok(Shuffle { blocks, seed })
    }
}

impl Operator for Shuffle {
    fn dataset(&self) -> Option<DatasetOp> {
        Some(DatasetOp::Shuffle { blocks: self.blocks, seed: self.seed })
    }
}

/// Delivers every epoch in the order of the dataset, record by record: for validation, and for data whose
/// order matters. Elements left over at the end of a split start the next batch, also after `filter` or
/// `flat_map`. Without `in_order`, splits come in a new random order each epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InOrder {}

impl OperatorDefinition for InOrder {
    const DECLARATION: OperatorDeclaration = dataset_declaration("in_order", 2);

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
