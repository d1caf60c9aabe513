//! How long records are that lie end to end, and so where each starts.

use crate::varint;

/// One start is kept for this many records; others are sums of at most as many lengths.
const STRIDE: u32 = 1024;
/// Lengths are below 2^32, so each takes at most five bytes of seven bits.
pub(crate) const MAX_LENGTH_BYTES: usize = 5;

/// Record lengths, without framing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordLengths {
    /// Number of the first record.
    first: u32,
    /// Bytes each record has beside its length.
    framing: u32,
    lengths: Vec<u32>,
    /// Byte offset of every `STRIDE`-th record.
    starts: Vec<u64>,
    bytes: u64,
}

impl RecordLengths {
    /// No records; the next one has number `first`.
    pub(crate) fn new(first: u32, framing: u32) -> Self {
        RecordLengths { first, framing, lengths: Vec::new(), starts: Vec::new(), bytes: 0 }
    }

    /// Adds a record. Callers keep its number below 2^32.
    pub(crate) fn push(&mut self, length: u32) {
        if (self.lengths.len() as u32).is_multiple_of(STRIDE) {
            self.starts.push(self.bytes);
        }
        self.lengths.push(length);
        self.bytes += self.stored(length);
    }

    /// Leaves the first `records` of them.
    pub(crate) fn truncate(&mut self, records: u32) {
        self.bytes = self.start(self.first + records).unwrap_or(self.bytes);
        self.lengths.truncate(records as usize);
        self.starts.truncate(records.div_ceil(STRIDE) as usize);
    }

    /// Bytes that a record of this length takes.
    fn stored(&self, length: u32) -> u64 {
        u64::from(length) + u64::from(self.framing)
    }

    /// The number of the first record.
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// The number of the record after the last.
    pub(crate) fn end(&self) -> u32 {
        self.first + self.lengths.len() as u32
    }

    /// The end of the last record.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of records `first .. first + n`, as far as they are there.
    pub(crate) fn sizes(&self, first: u32, n: u32) -> impl Iterator<Item = u64> {
        let skipped = first.checked_sub(self.first).map_or(usize::MAX, |skipped| skipped as usize);
        let lengths = self.lengths.iter().skip(skipped).take(n as usize);
        lengths.map(|length| self.stored(*length))
    }

    /// The start of a record, or the end of the last one.
    pub(crate) fn start(&self, record: u32) -> Option<u64> {
        let at = record.checked_sub(self.first)?;
        if record >= self.end() {
            return (record == self.end()).then_some(self.bytes);
        }
        let base = at - at % STRIDE;
        let start = *self.starts.get((base / STRIDE) as usize)?;
        Some(start + self.sizes(self.first + base, at - base).sum::<u64>())
    }

    /// The number of the first record that begins at byte `at` or after it; that after the last if none does.
    pub(crate) fn record_at(&self, at: u64) -> u32 {
        let stride = self.starts.partition_point(|start| *start < at).saturating_sub(1);
        let mut record = self.first + stride as u32 * STRIDE;
        let mut start = self.starts.get(stride).copied().unwrap_or_default();
        while start < at && record < self.end() {
            start += self.sizes(record, 1).sum::<u64>();
            record += 1;
        }
        record
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.lengths.capacity() * 4 + self.starts.capacity() * 8
    }

    /// Appends the lengths.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.lengths.len() * 3);
        self.lengths.iter().for_each(|length| varint::put(out, u64::from(*length)));
    }

    /// Takes the lengths of `records` records of at most `most` bytes off the start of `rest`.
    pub(crate) fn decode(
        rest: &mut &[u8],
        records: u32,
        framing: u32,
        most: u32,
    ) -> Result<Self, String> {
        let mut lengths = RecordLengths::new(0, framing);
        // A record takes at least a byte, so this allocates no more than was decompressed, times 4.
        lengths.lengths.reserve_exact((records as usize).min(rest.len()));
        for _ in 0..records {
            let length = varint::take(rest)?;
            let fitting = u32::try_from(length).ok().filter(|length| *length <= most);
            lengths.push(
                fitting
                    .ok_or_else(|| format!("a record has {length} bytes; the limit is {most}"))?,
            );
        }
        Ok(lengths)
    }
}
