//! Operators on the sequence of records. They are resolved when the job is registered, before records are read.

use crate::prelude::*;
use std::{ops::Range, sync::Arc};

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

/// Most shards.
const MAX_SHARDS: u32 = 1 << 20;

/// Keeps one of `count` parts of the dataset, that numbered `index` from 0: of every `count` runs of `block` records one, or of
/// every `count` files one. The parts have no record in common and are the whole together. It comes before `shuffle`,
/// and by file before other dataset operators. `gristmill run --shard 3/5` gives `index` and `count` to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shard {
    pub index: u32,
    pub count: u32,
    pub by: ShardUnit,
    pub block: u32,
}

/// Parts of a dataset: runs of records, or files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ShardUnit {
    Record,
    File,
}

impl OperatorDefinition for Shard {
    const DECLARATION: OperatorDeclaration =
        OperatorDeclaration { cardinality: Cardinality::Filter, ..dataset_declaration("shard", 1) };

    const PARAMETERS: &'static [Parameter] = &[
        or("index", from_to(0, MAX_SHARDS - 1), "0", "The part, from 0."),
        or("count", from_to(1, MAX_SHARDS), "1", "Parts."),
        or("by", ParameterKind::Choice(&["record", "file"]), "record", "What is dealt in turn."),
        or("block", from_to(1, MAX_BLOCK), "1", "Records in a turn, with `by: record`."),
    ];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let (index, count) = (params.read_whole("index")?, params.read_whole("count")?);
        if index >= count {
            return Err(params.error(format!(
                "`shard` has `index: {index}` of `count: {count}`: the parts are numbered from 0 to {}",
                count - 1
            )));
        }
        let by = params.read_choice("by", &[ShardUnit::Record, ShardUnit::File])?;
        Ok(Shard { index, count, by, block: params.read_whole("block")? })
    }
}

impl Operator for Shard {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        match self.by {
            ShardUnit::Record => flow.counts_records("shard"),
            ShardUnit::File => flow.works_on_files("shard"),
        }
    }

    fn dataset(&self) -> Option<DatasetOp> {
        let Shard { index, count, by, block } = *self;
        Some(match by {
            ShardUnit::Record => DatasetOp::ShardRecords { index, count, block },
            ShardUnit::File => DatasetOp::ShardFiles { index, count },
        })
    }
}

/// Keeps the records with these numbers, in the order in which they are given; others are not read. `records` is numbers from 0
/// and ranges with both ends, such as `0-9, 12, 40`. It counts records, so it must precede operators that change the
/// number of elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Select {
    pub records: String,
    #[serde(skip)]
    ranges: Arc<[Range<u64>]>,
}

impl OperatorDefinition for Select {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration {
        cardinality: Cardinality::Filter,
        ..dataset_declaration("select", 1)
    };

    const PARAMETERS: &'static [Parameter] = &[required(
        "records",
        ParameterKind::Text,
        "Numbers from 0 and ranges with both ends, such as `0-9, 12, 40`.",
    )];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let node = params.present("records")?;
        let text = match node.value {
            NodeValue::Int(number) => number.to_string(),
            _ => params.text("records", &node)?,
        };
        let ranges = ranges_of(&text).map_err(|why| params.error(format!("`select`: {why}")))?;
        let shown = |Range { start, end }: &Range<u64>| match end - start {
            1 => start.to_string(),
            _ => format!("{start}-{}", end - 1),
        };
        let records = ranges.iter().map(shown).collect::<Vec<_>>().join(",");
        Ok(Select { records, ranges: ranges.into() })
    }
}

impl Operator for Select {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        flow.counts_records("select")
    }

    fn dataset(&self) -> Option<DatasetOp> {
        Some(DatasetOp::Select(Arc::clone(&self.ranges)))
    }
}

/// Ranges of record numbers as they are written, those that follow each other as one. An epoch has each record once.
fn ranges_of(text: &str) -> Result<Vec<Range<u64>>, String> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u64>().ok().filter(|n| *n < u64::MAX);
        let range = number(first).zip(number(last)).filter(|(first, last)| first <= last);
        let (first, last) = range
            .ok_or_else(|| format!("`{part}` is no number from 0, and no range such as 10-19"))?;
        match ranges.last_mut().filter(|before| before.end == first) {
            Some(before) => before.end = last + 1,
            None => ranges.push(first..last + 1),
        }
    }
    let mut sorted: Vec<&Range<u64>> = ranges.iter().collect();
    sorted.sort_by_key(|range| range.start);
    match sorted.windows(2).find(|pair| pair[1].start < pair[0].end) {
        Some(pair) => Err(format!("record {} is given twice: an epoch has it once", pair[1].start)),
        None => Ok(ranges),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ranges_are_read_and_joined() {
        assert_eq!(ranges_of("0-9, 12,13 , 40"), Ok(vec![0..10, 12..14, 40..41]));
        assert_eq!(ranges_of("5, 3-4"), Ok(vec![5..6, 3..5]), "their order is kept");
        for (text, why) in [
            ("", "`` is no number from 0, and no range such as 10-19"),
            ("3,,4", "`` is no number"),
            ("-1", "`-1` is no number"),
            ("9-8", "`9-8` is no number"),
            ("18446744073709551615", "is no number"),
            ("4-6, 6", "record 6 is given twice"),
        ] {
            let said = ranges_of(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
