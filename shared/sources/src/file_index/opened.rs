//! Records that have been opened, and those that cannot be, because their file is damaged.

use super::{BlankLines, FileIndex, MAX_LOST_BYTES, RecordLengths};
use crate::{RecordReaderInput, SourceError, varint};
use bytes::Bytes;
use std::ops::Range;

/// The records of a split, end to end.
#[derive(Clone, Debug)]
pub struct OpenedRecords {
    /// The bytes that a split runs over.
    pub data: Bytes,
    /// Their places in `data`, if the file's own index does not have them.
    pub index: Option<FileIndex>,
}

impl OpenedRecords {
    /// Records `first .. first + n` of these, which have an index of their own; none if they are not all there. Shares
    /// the bytes.
    pub fn part(&self, first: u32, n: u32) -> Option<OpenedRecords> {
        let index = self.index.as_ref()?;
        let range = index.byte_range(first, n)?;
        let data = self.data.slice(range.start as usize..range.end as usize);
        let mut lengths = RecordLengths::new(first, 0);
        index.sizes(first, n).for_each(|bytes| lengths.push(bytes as u32));
        let faults = index.faults.iter().filter(|(record, _)| (first..first + n).contains(record));
        let faults = faults.cloned().collect();
        Some(OpenedRecords {
            data,
            index: Some(FileIndex { faults, ..FileIndex::window(lengths) }),
        })
    }

    /// Records that cannot be read.
    pub(super) fn faults(first: u32, n: u32, what: &str) -> OpenedRecords {
        let mut lengths = RecordLengths::new(first, 0);
        (0..n).for_each(|_| lengths.push(0));
        let faults = (first..first + n).map(|record| (record, what.to_owned())).collect();
        let index = FileIndex { faults, ..FileIndex::window(lengths) };
        OpenedRecords { data: Bytes::new(), index: Some(index) }
    }

    /// The same with an index of their own; that of their file is `file`.
    pub(super) fn with_index(self, file: &FileIndex, first: u32, n: u32) -> OpenedRecords {
        let own = || {
            let mut lengths = RecordLengths::new(first, 0);
            file.sizes(first, n).for_each(|bytes| lengths.push(bytes as u32));
            FileIndex::window(lengths)
        };
        OpenedRecords { index: Some(self.index.unwrap_or_else(own)), ..self }
    }

    /// The records of all `parts`, each of which follows the one before and has an index of its own.
    pub fn joined(parts: Vec<OpenedRecords>) -> Option<OpenedRecords> {
        if let [_] = parts.as_slice() {
            return parts.into_iter().next();
        }
        let first = parts.first()?.index.as_ref()?.lengths.first();
        let (mut lengths, mut data) = (RecordLengths::new(first, 0), Vec::new());
        let mut faults = Vec::new();
        for part in &parts {
            let index = part.index.as_ref()?;
            faults.extend_from_slice(&index.faults);
            index.sizes(lengths.end(), u32::MAX).for_each(|bytes| lengths.push(bytes as u32));
            data.extend_from_slice(&part.data);
        }
        let index = FileIndex { faults, ..FileIndex::window(lengths) };
        Some(OpenedRecords { data: Bytes::from(data), index: Some(index) })
    }

    /// About how many bytes of memory they take.
    pub fn memory_bytes(&self) -> usize {
        self.data.len() + self.index.as_ref().map_or(0, FileIndex::memory_bytes)
    }
}

impl FileIndex {
    /// Adds what is lost of the file.
    pub(crate) fn lost(self, what: String) -> Self {
        let what = what.chars().take(MAX_LOST_BYTES / 4).collect();
        FileIndex { lost: Some(what), ..self }
    }

    /// The byte of the file behind its last record, or before that record where a packing can be read from.
    pub(crate) fn packed_end(&self) -> u64 {
        let end = self.file_bytes();
        self.packed(&(end..end)).start
    }

    /// The loss in the file, in words, if it is damaged: the last of its records stands for it.
    pub fn lost_rest(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// The first `records`, as far as they end before byte `end` of the unpacked file.
    pub(crate) fn first(mut self, records: u32, end: u64) -> Self {
        let end = end.saturating_sub(self.start());
        let next = self.lengths.record_at(end);
        // The record before it may reach beyond the end.
        let within = next - u32::from(self.lengths.start(next).is_some_and(|start| start > end));
        let records = records.min(within);
        self.lengths.truncate(records);
        if let Some(table) = &mut self.table {
            table.truncate(records);
        }
        if let Some(BlankLines(lines)) = &mut self.blank_lines {
            lines.retain(|(record, _)| *record < records);
        }
        self.links.retain_before(self.start() + end);
        self
    }

    /// Why a record that has been opened cannot be read, if it cannot.
    pub fn fault_of(&self, record: u32) -> Option<&str> {
        let found = self.faults.binary_search_by_key(&record, |(faulty, _)| *faulty).ok()?;
        self.faults.get(found).map(|(_, what)| what.as_str())
    }

    /// [`open`](Self::open), but records that cannot be opened are faulty, and the others are there.
    ///
    /// # Errors
    /// [`SourceError`] if the parts are not those of the records.
    pub fn open_each<'a>(
        &self,
        first: u32,
        n: u32,
        source: impl Into<RecordReaderInput<'a>>,
        parts: &[Bytes],
    ) -> Result<OpenedRecords, SourceError> {
        let source = source.into();
        let error = match self.open(first, n, source, parts) {
            Err(error) if !self.is_contiguous() => error,
            opened => return opened,
        };
        let stored = self.stored_ranges(first, n, source)?;
        // Records that are decoded from the same bytes share their fault.
        let same = |record: u32| {
            let ranges = self.stored_ranges(record, 1, source)?;
            Ok::<_, SourceError>(ranges == stored)
        };
        if n <= 1 || (same(first)? && same(first + n - 1)?) {
            return Ok(OpenedRecords::faults(first, n, &error.0));
        }
        let half = |first: u32, n: u32| {
            let part = |range: &Range<u64>| part_of(&stored, parts, range);
            let ranges = self.stored_ranges(first, n, source)?;
            let parts: Option<Vec<Bytes>> = ranges.iter().map(part).collect();
            self.open_each(first, n, source, &parts.ok_or_else(|| error.clone())?)
        };
        let halves = vec![half(first, n / 2)?, half(first + n / 2, n - n / 2)?];
        OpenedRecords::joined(halves).ok_or_else(|| self.not_there(first, n))
    }
}

/// The bytes of `range`, from `parts` that hold those of `stored`.
pub(super) fn part_of(stored: &[Range<u64>], parts: &[Bytes], range: &Range<u64>) -> Option<Bytes> {
    let holds = |(all, part): (&Range<u64>, &Bytes)| {
        let at = range.start.checked_sub(all.start)? as usize;
        let end = at + (range.end - range.start) as usize;
        (range.end <= all.end && end <= part.len()).then(|| part.slice(at..end))
    };
    stored.iter().zip(parts).find_map(holds)
}

/// Takes a text off the start of `rest`.
pub(super) fn take_text(rest: &mut &[u8]) -> Result<String, String> {
    let bytes = usize::try_from(varint::take(rest)?).unwrap_or(usize::MAX);
    if bytes > MAX_LOST_BYTES {
        return Err("it says too much of what is lost".into());
    }
    let text = str::from_utf8(varint::bytes(rest, bytes)?);
    text.map(str::to_owned).map_err(|_| "it has a text that is not UTF-8".into())
}
