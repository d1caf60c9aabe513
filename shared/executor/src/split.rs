//! What a split is to whoever has it run: records in, one object out.

use crate::{ExecError, OpMetrics};
use bytes::Bytes;
use gristmill_model::{Epoch, ErrorPolicy, RecordKey, SkippedRecord};
use gristmill_sources::FileIndex;
use std::ops::Range;

/// One split to run.
#[derive(Clone, Debug)]
pub struct SplitInput<'a> {
    pub epoch: Epoch,
    pub seed: u64,
    pub on_error: ErrorPolicy,
    /// What was read for it.
    pub parts: Vec<Part<'a>>,
    /// Which time the epoch has these records, from 0: each draws anew.
    pub copy: u32,
    /// The records to run, one after the other; if not given, all there are.
    pub picks: Option<Vec<Pick>>,
    /// What was read of each further dataset of a zip.
    pub zipped: Vec<Zipped<'a>>,
    /// The place to cache at which elements are put aside: its index among those of the pipeline, one
    /// before the batch. What comes before it then draws as in epoch 0.
    pub put: Option<u32>,
    /// Elements that are put aside are cut into parts behind the record with which one has this many bytes.
    pub put_bytes: usize,
    /// Records that have been run already.
    pub begin: u32,
    /// [`Program::run_portion`] comes back behind the record with which such a part is complete, so that
    /// it can be taken before there are more.
    ///
    /// [`Program::run_portion`]: crate::Program::run_portion
    pub in_turns: bool,
}

/// Neighbours in a file.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    pub first: RecordKey,
    pub n_records: u32,
    /// The bytes of these records, framing included: [`FileIndex::byte_range`] of the file.
    pub data: Bytes,
    /// The index of the file they are in.
    pub index: &'a FileIndex,
}

/// Records of a dataset that is zipped to the first: as many as that has, in the same order.
#[derive(Clone, Debug)]
pub struct Zipped<'a> {
    pub parts: Vec<Part<'a>>,
    /// What errors call the file of each part.
    pub files: Vec<String>,
    /// As [`SplitInput::picks`]; copies are those of the first.
    pub picks: Option<Vec<Pick>>,
}

/// One record of what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    pub part: u32,
    /// From 0 in its part.
    pub record: u32,
    /// Which time the epoch has it.
    pub copy: u32,
}

impl<'a> SplitInput<'a> {
    /// All records of one part, once, for epoch 0 of seed 0; a bad one is an error.
    pub fn whole(part: Part<'a>) -> Self {
        let on_error = ErrorPolicy::Fail;
        SplitInput {
            epoch: 0,
            seed: 0,
            on_error,
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

    /// How many records it has.
    pub fn n_records(&self) -> u32 {
        count(&self.parts, self.picks.as_deref())
    }
}

/// A record to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) key: RecordKey,
    /// Its bytes, framing included.
    pub(crate) stored: &'a [u8],
    pub(crate) copy: u32,
    /// The part it is of.
    pub(crate) part: u32,
}

/// Records one after the other, found as they are asked for: small ones are too many for a list.
pub(crate) type Records<'a> = Box<dyn Iterator<Item = Result<Record<'a>, ExecError>> + 'a>;

/// The records of `parts` that are to be run, in their order.
pub(crate) fn records<'a>(
    parts: &'a [Part<'_>],
    picks: Option<&'a [Pick]>,
    copy: u32,
) -> Records<'a> {
    let Some(picks) = picks else {
        let of_part = move |(part, at): (&'a Part<'_>, u32)| {
            part.records().map(move |(record, bytes)| Ok(part.record(at, record, bytes, copy)))
        };
        return Box::new(parts.iter().zip(0..).flat_map(of_part));
    };
    let bytes_of = |part: &Part<'_>| part.records().map(|(_, bytes)| bytes).collect::<Vec<_>>();
    let bytes_of: Vec<Vec<Range<usize>>> = parts.iter().map(bytes_of).collect();
    Box::new(picks.iter().map(move |&Pick { part: at, record, copy }| {
        let found = bytes_of.get(at as usize).and_then(|records| records.get(record as usize));
        let (Some(bytes), Some(part)) = (found, parts.get(at as usize)) else {
            let what = format!("record {record} of part {at} was not read");
            return Err(ExecError::Source(what));
        };
        Ok(part.record(at, record, bytes.clone(), copy))
    }))
}

/// How many records are run.
fn count(parts: &[Part<'_>], picks: Option<&[Pick]>) -> u32 {
    match picks {
        Some(picks) => picks.len() as u32,
        None => parts.iter().map(|part| part.n_records).sum(),
    }
}

impl Zipped<'_> {
    /// How many records there are.
    pub(crate) fn n_records(&self) -> u32 {
        count(&self.parts, self.picks.as_deref())
    }
}

impl Part<'_> {
    /// Checks that its bytes are those of its records.
    pub(crate) fn check(&self) -> Result<(), ExecError> {
        let Part { first, n_records, index, data } = self;
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

    /// One of its records, which is the `at`-th part.
    fn record(&self, at: u32, record: u32, bytes: Range<usize>, copy: u32) -> Record<'_> {
        let key = RecordKey { file: self.first.file, record: self.first.record + record };
        // All of them together are as long as `data`, which was checked.
        let stored = self.data.get(bytes).unwrap_or_default();
        Record { key, stored, copy, part: at }
    }

    /// Its records in order: number and bytes.
    pub(crate) fn records(&self) -> impl Iterator<Item = (u32, Range<usize>)> {
        let mut start = 0;
        let sizes = self.index.sizes(self.first.record, self.n_records);
        (0..self.n_records).zip(sizes).map(move |(i, stored_bytes)| {
            let end = start + stored_bytes as usize;
            (i, std::mem::replace(&mut start, end)..end)
        })
    }
}

/// About what a part of a cached split has, in bytes, unless one record alone makes more: little beside the
/// memory of a worker, much beside what a request costs.
pub const CACHED_PART_BYTES: usize = 64 << 20;

/// What a split became.
#[derive(Clone, Debug)]
pub struct SplitOutput {
    /// The chunk object: full batches, then at most one remainder frame. Without any row it is an
    /// object without frames.
    pub object: Vec<u8>,
    /// Rows in all, those of the remainder included.
    pub rows: u32,
    /// Full batches.
    pub batches: u32,
    /// Rows of the remainder frame; 0 if there is none.
    pub remainder_rows: u32,
    /// Records left out, in order.
    pub skipped: Vec<SkippedRecord>,
    /// Payloads of the records left out, under [`ErrorPolicy::Quarantine`].
    pub quarantined: Vec<(RecordKey, Bytes)>,
    /// The source, then every operator in the order of the pipeline.
    pub metrics: Vec<OpMetrics>,
    /// The cache object of the place that [`SplitInput::put`] names: every element that reached it, and
    /// the records refused before; of a large split, those of its last records.
    pub cached: Option<Vec<u8>>,
    /// Cache objects of the records before those, in order, that [`Unfinished::take_cached`] has not
    /// given away.
    ///
    /// [`Unfinished::take_cached`]: crate::Unfinished::take_cached
    pub cached_before: Vec<Vec<u8>>,
}
