//! The view of a dataset in an epoch: files one after the other, possibly zipped with those of
//! other datasets, then the dataset operators. Any place is found by arithmetic, without going
//! through the places before it.

use crate::splits::order::KeyedPermutation;
use crate::{DatasetOp, Epoch};
use std::{ops::Range, sync::Arc};

/// Most runs of neighbours that interleaved files may consist of: 16 bytes each, in every worker.
const MAX_RUNS: u64 = 4_000_000;

/// Neighbours in one file, in the order of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordRange {
    /// Index of the file in the dataset.
    pub file: u32,
    pub first_record: u32,
    /// How many records, at least 1.
    pub records: u32,
    /// The repetition of these records within the epoch, from 0.
    pub copy: u32,
}

/// Why a view of a dataset cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DatasetViewError {
    #[error("the dataset has more {0} than can be counted")]
    TooMany(&'static str),
    #[error(
        "`interleave` makes more than {MAX_RUNS} runs of this dataset: give it a larger \
         `block_length`"
    )]
    TooFine,
    #[error("`{0}` works on files: put it before the other dataset operators")]
    NotOnFiles(&'static str),
    #[error("`{0}` works on the files of one dataset, not on those of a zip")]
    Zipped(&'static str),
    #[error(
        "`shard` by file: {files} files are not enough for {shards} shards; use fewer, or shard by record"
    )]
    TooFewFiles { files: usize, shards: u32 },
    #[error("`select` names record {record}, and the dataset has {records}, counted from 0")]
    NoSuchRecord { record: u64, records: u64 },
}

/// One dataset of an epoch. In a zip, record i of the first goes with record i of each other one,
/// up to the end of the shortest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZipMember<'a> {
    pub records_per_file: &'a [u32],
    /// Repetitions of its records, one after the other.
    pub times: u32,
}

impl<'a> ZipMember<'a> {
    /// A dataset whose records come once.
    pub const fn once(records_per_file: &'a [u32]) -> Self {
        Self { records_per_file, times: 1 }
    }
}

/// The records of an epoch in order, before splits are permuted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DatasetView {
    /// One for each dataset; records are named by the first.
    sequences: Vec<Sequence>,
    steps: Vec<Step>,
    records: u64,
    shuffle: Option<u64>,
}

/// The records of a dataset, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sequence {
    /// First place of each run, in ascending order; the total last.
    starts: Vec<u64>,
    /// File and record at its start.
    runs: Vec<(u32, u32)>,
    /// Number of passes.
    times: u32,
}

/// One operator, with what it must know of its input.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Skip { count: u64 },
    Repeat { input: u64, count: u32 },
    Shard { index: u32, count: u32, block: u32 },
    Select { starts: Vec<u64>, ranges: Arc<[Range<u64>]> },
    Shuffle { input: u64, block: u64, seed: u64 },
}

/// Neighbours at one stage of the view.
#[derive(Debug, Clone, Copy)]
struct RecordSpan {
    start: u64,
    records: u64,
    copy: u32,
}

impl DatasetView {
    /// The view of `ops` over zipped datasets, whose files are numbered from the first dataset on,
    /// cut into splits of `split_records`.
    pub(crate) fn new(
        members: &[ZipMember<'_>],
        ops: &[DatasetOp],
        split_records: u32,
    ) -> Result<Self, DatasetViewError> {
        let mut sequences = Vec::with_capacity(members.len());
        let mut first_file = 0_u32;
        for member in members {
            let files = (first_file..).zip(member.records_per_file);
            let runs = files.map(|(file, &records)| RecordRange {
                file,
                first_record: 0,
                records,
                copy: 0,
            });
            sequences.push(Sequence::new(&runs.collect::<Vec<_>>(), member.times));
            let files = u32::try_from(member.records_per_file.len()).ok();
            let after = files.and_then(|files| first_file.checked_add(files));
            first_file = after.ok_or(DatasetViewError::TooMany("files"))?;
        }
        let lengths = sequences.iter().map(Sequence::records).collect::<Option<Vec<_>>>();
        let lengths = lengths.ok_or(DatasetViewError::TooMany("records"))?;
        let records = lengths.into_iter().min().unwrap_or(0);
        let mut view = DatasetView { sequences, steps: Vec::new(), records, shuffle: None };
        for op in ops {
            view.apply(op, split_records)?;
        }
        Ok(view)
    }

    /// The files of the only dataset, for an operator that comes first.
    fn files(&mut self, op: &'static str) -> Result<&mut Sequence, DatasetViewError> {
        let is_first = self.steps.is_empty();
        let [sequence] = &mut *self.sequences else { return Err(DatasetViewError::Zipped(op)) };
        if !is_first || Some(self.records) != sequence.records() {
            return Err(DatasetViewError::NotOnFiles(op));
        }
        Ok(sequence)
    }

    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// The key of the random order of records inside a split, if they are shuffled.
    pub(crate) fn shuffle(&self) -> Option<u64> {
        self.shuffle
    }

    /// The runs of the records at `places`, in order, for each dataset.
    pub(crate) fn runs(
        &self,
        places: Range<u64>,
        seed: u64,
        epoch: Epoch,
    ) -> Vec<Vec<RecordRange>> {
        let end = places.end.min(self.records);
        let records = end.saturating_sub(places.start);
        let mut spans = vec![RecordSpan { start: places.start, records, copy: 0 }];
        for step in self.steps.iter().rev() {
            let mut before = Vec::with_capacity(spans.len());
            for span in spans {
                step.undo(span, seed, epoch, &mut before);
            }
            spans = before;
        }
        let of = |sequence: &Sequence| {
            let mut runs = Vec::with_capacity(spans.len());
            spans.iter().for_each(|span| sequence.cut(*span, &mut runs));
            runs
        };
        self.sequences.iter().map(of).collect()
    }

    fn apply(&mut self, op: &DatasetOp, split_records: u32) -> Result<(), DatasetViewError> {
        match *op {
            DatasetOp::Take { count } => self.records = self.records.min(count),
            DatasetOp::Skip { count } => {
                self.records = self.records.saturating_sub(count);
                self.steps.push(Step::Skip { count });
            }
            DatasetOp::Repeat { count } => {
                let input = self.records;
                let total = input.checked_mul(u64::from(count));
                self.records = total.ok_or(DatasetViewError::TooMany("records"))?;
                self.steps.push(Step::Repeat { input, count });
            }
            DatasetOp::Interleave { cycle_length, block_length } => {
                let sequence = self.files("interleave")?;
                let runs = interleave(&sequence.runs(), cycle_length, block_length)?;
                *sequence = Sequence::new(&runs, sequence.times);
            }
            DatasetOp::ShardFiles { index, count } => {
                let sequence = self.files("shard")?;
                let files = sequence.runs();
                if files.len() < count as usize {
                    return Err(DatasetViewError::TooFewFiles {
                        files: files.len(),
                        shards: count,
                    });
                }
                let own = files.into_iter().skip(index as usize).step_by(count.max(1) as usize);
                *sequence = Sequence::new(&own.collect::<Vec<_>>(), sequence.times);
                self.records = sequence.records().unwrap_or(0);
            }
            DatasetOp::ShardRecords { index, count, block } => {
                let (index, count, block) =
                    (index.min(count.saturating_sub(1)), count.max(1), block.max(1));
                let turn = u64::from(count) * u64::from(block);
                let before = u64::from(index) * u64::from(block);
                let last = (self.records % turn).saturating_sub(before).min(u64::from(block));
                self.records = self.records / turn * u64::from(block) + last;
                self.steps.push(Step::Shard { index, count, block });
            }
            DatasetOp::Select(ref ranges) => {
                let last = ranges.iter().map(|range| range.end).max().unwrap_or(0);
                if last > self.records {
                    let (record, records) = (last - 1, self.records);
                    return Err(DatasetViewError::NoSuchRecord { record, records });
                }
                let mut starts = vec![0];
                for range in &**ranges {
                    starts.push(starts[starts.len() - 1] + (range.end - range.start));
                }
                self.records = starts[starts.len() - 1];
                self.steps.push(Step::Select { starts, ranges: Arc::clone(ranges) });
            }
            DatasetOp::Shuffle { blocks, seed } => {
                let block = u64::from(split_records.div_ceil(blocks.max(1)).max(1));
                let input = self.records;
                if input.div_ceil(block) > u64::from(u32::MAX) {
                    return Err(DatasetViewError::TooMany("blocks"));
                }
                self.steps.push(Step::Shuffle { input, block, seed });
                self.shuffle = Some(self.shuffle.unwrap_or(0) ^ seed);
            }
            DatasetOp::InOrder => {}
        }
        Ok(())
    }
}

impl Sequence {
    /// Runs one after the other, as often as `times`.
    fn new(runs: &[RecordRange], times: u32) -> Self {
        let mut starts = vec![0];
        for run in runs {
            starts.push(starts[starts.len() - 1] + u64::from(run.records));
        }
        let runs = runs.iter().map(|run| (run.file, run.first_record)).collect();
        Self { starts, runs, times }
    }

    /// The runs, as [`new`](Self::new) takes them.
    fn runs(&self) -> Vec<RecordRange> {
        let runs = self.runs.iter().zip(self.starts.windows(2));
        let run = |(&(file, first_record), starts): (&(u32, u32), &[u64])| {
            let records = (starts[1] - starts[0]) as u32;
            RecordRange { file, first_record, records, copy: 0 }
        };
        runs.map(run).collect()
    }

    /// Records of one pass.
    fn total(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Records of all passes; none if they cannot be counted.
    fn records(&self) -> Option<u64> {
        self.total().checked_mul(u64::from(self.times))
    }

    /// Cuts neighbours in the sequence at the ends of runs.
    fn cut(&self, span: RecordSpan, runs: &mut Vec<RecordRange>) {
        let RecordSpan { mut start, records, copy } = span;
        let total = self.total();
        let end = start.saturating_add(records).min(self.records().unwrap_or(0));
        while start < end {
            let (time, place) = (start / total, start % total);
            // The last run that begins at or before it: those without records begin there too.
            let at = self.starts.partition_point(|first| *first <= place) - 1;
            let length = (self.starts[at + 1] - place).min(end - start);
            let (file, first) = self.runs[at];
            let first_record = first + (place - self.starts[at]) as u32;
            let copy = copy.saturating_mul(self.times).saturating_add(time as u32);
            let run = RecordRange { file, first_record, records: length as u32, copy };
            let follows = |last: &&mut RecordRange| {
                (last.file, last.copy) == (run.file, run.copy)
                    && last.first_record.checked_add(last.records) == Some(run.first_record)
            };
            match runs.last_mut().filter(follows) {
                Some(last) => last.records += run.records,
                None => runs.push(run),
            }
            start += length;
        }
    }
}

impl Step {
    /// Maps `span` of this operator's output to spans of its input.
    fn undo(&self, span: RecordSpan, seed: u64, epoch: Epoch, before: &mut Vec<RecordSpan>) {
        let RecordSpan { mut start, records, copy } = span;
        let end = start + records;
        match *self {
            Step::Skip { count } => before.push(RecordSpan { start: start + count, records, copy }),
            Step::Repeat { input, count } => {
                while start < end {
                    let (time, at) = (start / input, start % input);
                    let records = (input - at).min(end - start);
                    let copy = copy.saturating_mul(count).saturating_add(time as u32);
                    before.push(RecordSpan { start: at, records, copy });
                    start += records;
                }
            }
            Step::Shard { index, count, block } => {
                let block = u64::from(block);
                while start < end {
                    let (turn, at) = (start / block, start % block);
                    let records = (block - at).min(end - start);
                    let chosen = turn * u64::from(count) + u64::from(index);
                    before.push(RecordSpan { start: chosen * block + at, records, copy });
                    start += records;
                }
            }
            Step::Select { ref starts, ref ranges } => {
                while start < end {
                    let chosen = starts.partition_point(|first| *first <= start) - 1;
                    let records = starts[chosen + 1].min(end) - start;
                    let first = ranges[chosen].start + (start - starts[chosen]);
                    before.push(RecordSpan { start: first, records, copy });
                    start += records;
                }
            }
            Step::Shuffle { input, block, seed: own } => {
                let blocks = input.div_ceil(block) as u32;
                // Each repetition of the records has an order of its own.
                let order = KeyedPermutation::new(blocks, mixed(seed, own, copy), epoch);
                // All blocks have the same length but the last, which may stand anywhere: blocks
                // after it begin that much earlier.
                let missing = u64::from(blocks) * block - input;
                let short_at = order.position_of(blocks.saturating_sub(1)).unwrap_or(0);
                let short_end = (u64::from(short_at) + 1) * block - missing;
                while start < end {
                    let place = if start < short_end { start } else { start + missing };
                    let Some(chosen) = order.split_at((place / block) as u32) else { return };
                    let length = if chosen + 1 == blocks { block - missing } else { block };
                    let at = place % block;
                    let records = (length - at).min(end - start);
                    before.push(RecordSpan {
                        start: u64::from(chosen) * block + at,
                        records,
                        copy,
                    });
                    start += records;
                }
            }
        }
    }
}

/// The seed of one order among several of a job.
pub(crate) fn mixed(seed: u64, own: u64, copy: u32) -> u64 {
    let copy = u64::from(copy) + 1;
    seed ^ own.rotate_left(32) ^ copy.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The runs of files read in turn, as tf.data's `interleave` without parallelism: `cycle_length`
/// files are open, each gives `block_length` records in its turn. A file that ends gives up its turn,
/// and at the next one another file takes its place.
fn interleave(
    files: &[RecordRange],
    cycle_length: u32,
    block_length: u32,
) -> Result<Vec<RecordRange>, DatasetViewError> {
    let block = block_length.max(1);
    let blocks = files.iter().map(|file| u64::from(file.records.div_ceil(block))).sum::<u64>();
    if blocks > MAX_RUNS {
        return Err(DatasetViewError::TooFine);
    }
    let mut waiting = files.iter().copied();
    let mut open: Vec<Option<RecordRange>> = vec![None; cycle_length.max(1) as usize];
    let mut runs = Vec::with_capacity(blocks as usize);
    let mut turn = 0;
    while waiting.len() > 0 || open.iter().any(Option::is_some) {
        let file = open[turn].take().or_else(|| waiting.next());
        // The end of a file shows only when it is asked for more.
        if let Some(file) = file.filter(|file| file.records > 0) {
            let records = file.records.min(block);
            runs.push(RecordRange { records, ..file });
            let (first_record, rest) = (file.first_record + records, file.records - records);
            let whole = records == block;
            open[turn] = whole.then_some(RecordRange { first_record, records: rest, ..file });
        }
        turn = (turn + 1) % open.len();
    }
    Ok(runs)
}

#[cfg(test)]
mod tests;
