//! Input and output of running a split: records in, one object out.

use bytes::Bytes;
use gristmill_chunk::ChunkFormatError;
use gristmill_kernel::FieldCell;
use gristmill_model::wire::{OpWork, WorkProfile};
use gristmill_model::{Epoch, ErrorPolicy, RecordKey, SkippedRecord};
use gristmill_pipeline::Pipeline;
use gristmill_sources::{FileIndex, RecordReader};
use serde::Serialize;
use std::ops::Range;

/// One split to run.
#[derive(Clone, Debug)]
pub struct SplitInput<'a> {
    pub epoch: Epoch,
    pub seed: u64,
    pub on_error: ErrorPolicy,
    /// Whether the split ends before its first bad record, with any `on_error`. That record is the one in
    /// [`SplitOutput::skipped`].
    pub ends_at_bad: bool,
    /// Records as read from their files.
    pub parts: Vec<InputRange<'a>>,
    /// Occurrence of these records in the epoch, from 0. Each occurrence draws anew.
    pub copy: u32,
    /// Records to run, in this order. `None` runs all records.
    pub picks: Option<Vec<RecordPick>>,
    /// Records of each further dataset of a zip.
    pub zipped: Vec<ZippedInput<'a>>,
    /// Cache point at which elements are captured: its index among the pipeline's cache points, one
    /// before the batch. Operators before it then draw as in epoch 0.
    pub put: Option<u32>,
    /// Captured elements are cut into parts. A part ends after the record with which it reaches
    /// this many bytes.
    pub put_bytes: usize,
    /// Records that earlier calls have run.
    pub begin: u32,
    /// [`CompiledPipeline::run_portion`] returns after the record that completes a part, so that the caller
    /// can take the part before there are more.
    ///
    /// [`CompiledPipeline::run_portion`]: crate::CompiledPipeline::run_portion
    pub in_turns: bool,
}

/// Consecutive records of one file.
#[derive(Clone, Debug)]
pub struct InputRange<'a> {
    pub first: RecordKey,
    pub n_records: u32,
    /// Bytes of these records with their framing: [`FileIndex::byte_range`] of the file.
    pub data: Bytes,
    /// Index of their file.
    pub index: &'a FileIndex,
}

/// Records of a dataset that is zipped to the first one: the same number, in the same order.
#[derive(Clone, Debug)]
pub struct ZippedInput<'a> {
    pub parts: Vec<InputRange<'a>>,
    /// Name of each part's file in error messages.
    pub files: Vec<String>,
    /// Like [`SplitInput::picks`], but copies are those of the first dataset.
    pub picks: Option<Vec<RecordPick>>,
}

/// Reference to one record that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPick {
    pub part: u32,
    /// Index of the record in its part, from 0.
    pub record: u32,
    /// Occurrence of the record in the epoch, from 0.
    pub copy: u32,
}

impl<'a> SplitInput<'a> {
    /// Runs all records of one part once, in epoch 0 with seed 0. A bad record is an error.
    pub fn whole(part: InputRange<'a>) -> Self {
        let on_error = ErrorPolicy::Fail;
        SplitInput {
            epoch: 0,
            seed: 0,
            on_error,
            ends_at_bad: false,
            parts: vec![part],
            copy: 0,
            picks: None,
            zipped: Vec::new(),
            put: None,
            put_bytes: CACHED_PART_BYTES,
            begin: 0,
            in_turns: false,
        }
    }

    /// Number of records to run.
    pub fn n_records(&self) -> u32 {
        count(&self.parts, self.picks.as_deref())
    }
}

/// A record to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputRecord<'a> {
    pub(crate) key: RecordKey,
    /// Bytes of the record with its framing.
    pub(crate) stored: &'a [u8],
    pub(crate) copy: u32,
    /// Index of its part.
    pub(crate) part: u32,
    /// Why it cannot be read, if its file is damaged there.
    pub(crate) fault: Option<&'a str>,
}

impl<'a> InputRecord<'a> {
    /// Checks it and finds its features, as [`RecordReader::read`] does.
    pub(crate) fn read(
        &self,
        reader: &RecordReader,
        cells: &mut [FieldCell],
    ) -> Result<(&'a [u8], usize), String> {
        match self.fault {
            Some(fault) => Err(fault.to_owned()),
            None => reader.read(self.stored, cells),
        }
    }
}

/// Records in order. Lazy, because a list of small records would be too large.
pub(crate) type InputRecords<'a> =
    Box<dyn Iterator<Item = Result<InputRecord<'a>, ExecError>> + 'a>;

/// The records of `parts` to run, in order.
pub(crate) fn records<'a>(
    parts: &'a [InputRange<'_>],
    picks: Option<&'a [RecordPick]>,
    copy: u32,
) -> InputRecords<'a> {
    let Some(picks) = picks else {
        let of_part = move |(part, at): (&'a InputRange<'_>, u32)| {
            part.records().map(move |(record, bytes)| Ok(part.record(at, record, bytes, copy)))
        };
        return Box::new(parts.iter().zip(0..).flat_map(of_part));
    };
    let bytes_of =
        |part: &InputRange<'_>| part.records().map(|(_, bytes)| bytes).collect::<Vec<_>>();
    let bytes_of: Vec<Vec<Range<usize>>> = parts.iter().map(bytes_of).collect();
    Box::new(picks.iter().map(move |&RecordPick { part: at, record, copy }| {
        let found = bytes_of.get(at as usize).and_then(|records| records.get(record as usize));
        let (Some(bytes), Some(part)) = (found, parts.get(at as usize)) else {
            let what = format!("record {record} of part {at} was not read");
            return Err(ExecError::Source(what));
        };
        Ok(part.record(at, record, bytes.clone(), copy))
    }))
}

/// Number of records to run.
fn count(parts: &[InputRange<'_>], picks: Option<&[RecordPick]>) -> u32 {
    match picks {
        Some(picks) => picks.len() as u32,
        None => parts.iter().map(|part| part.n_records).sum(),
    }
}

impl ZippedInput<'_> {
    /// Number of records to run.
    pub(crate) fn n_records(&self) -> u32 {
        count(&self.parts, self.picks.as_deref())
    }
}

impl InputRange<'_> {
    /// Checks that the data has the size that the index gives for the records.
    pub(crate) fn check(&self) -> Result<(), ExecError> {
        let InputRange { first, n_records, index, data } = self;
        let expected = index.byte_range(first.record, *n_records).ok_or_else(|| {
            let records = index.len();
            ExecError::Source(format!(
                "{first} and {n_records} on are not in the index of a file of {records} records"
            ))
        })?;
        let data_bytes = data.len() as u64;
        if data_bytes == expected.end - expected.start {
            return Ok(());
        }
        Err(ExecError::Source(format!(
            "bytes {}..{} of the file were read as {data_bytes} bytes",
            expected.start, expected.end
        )))
    }

    /// The given record of this part, which has index `at`.
    fn record(&self, at: u32, record: u32, bytes: Range<usize>, copy: u32) -> InputRecord<'_> {
        let key = RecordKey { file: self.first.file, record: self.first.record + record };
        // `check` compared the sum of all sizes with the length of `data`.
        let stored = self.data.get(bytes).unwrap_or_default();
        let fault = self.index.fault_of(key.record);
        InputRecord { key, stored, copy, part: at, fault }
    }

    /// Yields index and byte range of each record, in order.
    pub(crate) fn records(&self) -> impl Iterator<Item = (u32, Range<usize>)> {
        let mut start = 0;
        let sizes = self.index.sizes(self.first.record, self.n_records);
        (0..self.n_records).zip(sizes).map(move |(i, stored_bytes)| {
            let end = start + stored_bytes as usize;
            (i, std::mem::replace(&mut start, end)..end)
        })
    }
}

/// Target size in bytes of a part of a cached split; a single record can exceed it. Small beside a
/// worker's memory, and large enough that the cost of a request hardly counts.
pub const CACHED_PART_BYTES: usize = 64 << 20;

/// Result of running a split.
#[derive(Clone, Debug)]
pub struct SplitOutput {
    /// The chunk object: full batches, then at most one remainder frame. It has no frames if there
    /// are no rows.
    pub object: Vec<u8>,
    /// Number of rows, including the remainder.
    pub rows: u32,
    /// Number of full batches.
    pub batches: u32,
    /// Rows of the remainder frame, 0 if there is none.
    pub remainder_rows: u32,
    /// Records that were left out, in order.
    pub skipped: Vec<SkippedRecord>,
    /// Payloads of these records under [`ErrorPolicy::Quarantine`].
    pub quarantined: Vec<(RecordKey, Bytes)>,
    /// Metrics of the source, then of every operator in pipeline order.
    pub metrics: Vec<OpMetrics>,
    /// Cache object of the cache point that [`SplitInput::put`] names: every element that reached
    /// it, and the records refused before it. For a large split, only its last part.
    pub cached: Option<Vec<u8>>,
    /// Cache objects of the earlier parts, in order, without those that [`UnfinishedSplit::take_cached`]
    /// returned.
    ///
    /// [`UnfinishedSplit::take_cached`]: crate::UnfinishedSplit::take_cached
    pub cached_before: Vec<Vec<u8>>,
}

impl SplitOutput {
    /// Its account of the work of `pipeline`: all but the reads of the source, and the processor time.
    pub fn work_profile(&self, pipeline: &Pipeline) -> WorkProfile {
        let mut bytes = 0_u64;
        let op = |op: &OpMetrics| {
            let stage = op.stage.and_then(|stage| pipeline.stages().get(stage as usize));
            let is_point = stage.is_some_and(|stage| stage.op.cache_point().is_some());
            bytes = match stage {
                // They say how large whole elements are.
                None => op.bytes_produced,
                Some(_) if is_point => op.bytes_produced,
                Some(stage) if stage.op.batching().is_some() => self.object.len() as u64,
                Some(_) => (bytes + op.bytes_produced).saturating_sub(op.bytes_in),
            };
            OpWork {
                op: op.op.to_owned(),
                stage: op.stage,
                is_point,
                waits: stage.is_some_and(|stage| stage.op.waits()),
                active_us: op.active_ns / 1000,
                elements: op.num_elements,
                bytes,
            }
        };
        WorkProfile {
            splits: 1,
            batches: self.batches + u32::from(self.remainder_rows > 0),
            records: self.metrics.first().map_or(0, |source| source.num_elements),
            object_bytes: self.object.len() as u64,
            ops: self.metrics.iter().map(op).collect(),
            ..WorkProfile::default()
        }
    }
}

/// Totals of one operator over one split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpMetrics {
    /// The operator as the pipeline file names it; `source` for reading and parsing records.
    pub op: &'static str,
    /// Index in the pipeline's stages; `None` for the source.
    pub stage: Option<u32>,
    /// Time spent in the operator, in nanoseconds.
    pub active_ns: u64,
    /// Elements it produced; for `batch`, frames.
    pub num_elements: u64,
    /// Bytes of the values it read.
    pub bytes_in: u64,
    /// Bytes of the values it wrote.
    pub bytes_produced: u64,
}

impl OpMetrics {
    pub(crate) fn new(op: &'static str, stage: Option<u32>) -> Self {
        OpMetrics { op, stage, active_ns: 0, num_elements: 0, bytes_in: 0, bytes_produced: 0 }
    }

    pub(crate) fn add(
        &mut self,
        active_ns: u64,
        elements: u64,
        bytes_in: usize,
        bytes_produced: usize,
    ) {
        self.active_ns += active_ns;
        self.num_elements += elements;
        self.bytes_in += bytes_in as u64;
        self.bytes_produced += bytes_produced as u64;
    }
}

/// Errors of indexing a source and of running a split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The caller asked to stop: hand the split back.
    #[error("the split was cancelled before it was done")]
    Cancelled,

    /// A bad record under the error policy `Fail`: fail the job.
    #[error("{} ({}): {}", .0.key, .0.op, .0.reason)]
    Record(SkippedRecord),

    /// The source file, its index or its bytes are not as expected: fail the job and name the file.
    #[error("{0}")]
    Source(String),

    /// This build cannot run the pipeline: refuse the job.
    #[error("{0}")]
    Pipeline(String),

    /// A split cannot be cached, or its cache object is damaged or of another pipeline: run the
    /// split without it.
    #[error("{point}: {reason}")]
    Cache { point: String, reason: String },

    /// The result does not fit a chunk object: refuse the job, or make its splits smaller.
    #[error(transparent)]
    Output(#[from] ChunkFormatError),
}
