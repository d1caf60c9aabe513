//! Records whose links lead elsewhere in their archive.

use super::{FileIndex, OpenedRecords, Packing};
use crate::{RecordReaderInput, SourceError, SourceLimits, webdataset::links::TarLinks};
use bytes::Bytes;
use std::ops::Range;

impl FileIndex {
    pub(crate) fn links(self, links: TarLinks) -> Self {
        FileIndex { links, ..self }
    }

    /// Compares the records, with files in place of links, with the limit of their size.
    pub(crate) fn check_links(&self, limits: SourceLimits) -> Result<(), SourceError> {
        let sizes = (0..self.len()).zip(self.weights(0, self.len()));
        let most = u64::from(limits.record_bytes);
        match sizes.into_iter().find(|(_, bytes)| *bytes > most) {
            Some((record, bytes)) if !self.links.is_empty() => Err(SourceError(format!(
                "record {record}: with what its links lead to it has {bytes} bytes; the limit is {most}"
            ))),
            _ => Ok(()),
        }
    }

    /// Bytes of each of records `first .. first + n` with files in place of links.
    pub(super) fn linked_weights(&self, first: u32, n: u32) -> Vec<u64> {
        let mut at = self.lengths.start(first).unwrap_or_default();
        let weigh = |bytes| {
            let record = at..at + bytes;
            at = record.end;
            bytes + self.links.more_bytes(&record)
        };
        self.sizes(first, n).map(weigh).collect()
    }

    /// About how many bytes records `first .. first + n` take in memory.
    pub fn weight(&self, first: u32, n: u32) -> u64 {
        match self.byte_range(first, n) {
            Some(range) => range.end - range.start + self.links.more_bytes(&range),
            None => self.weights(first, n).iter().sum(),
        }
    }

    /// Records of a tar file, with files in place of links.
    pub(super) fn open_links(
        &self,
        first: u32,
        n: u32,
        source: RecordReaderInput<'_>,
        parts: &[Bytes],
    ) -> Result<OpenedRecords, SourceError> {
        let stored = self.stored_ranges(first, n, source)?;
        let read = |range: &Range<u64>| -> Result<Bytes, String> {
            let packed = self.packed(range);
            let holds = |(all, part): (&Range<u64>, &Bytes)| {
                let at = packed.start.checked_sub(all.start)? as usize;
                let end = at + (packed.end - packed.start) as usize;
                (packed.end <= all.end && end <= part.len()).then(|| part.slice(at..end))
            };
            if packed.is_empty() {
                return Ok(Bytes::new());
            }
            let part = stored.iter().zip(parts).find_map(holds);
            let part = part.ok_or("the parts are not those of the file that was indexed")?;
            match &self.packing {
                Packing::Gzip(points) => Ok(points.unpack(&part, range.clone())?.into()),
                Packing::None | Packing::Parquet(_) => Ok(part),
            }
        };
        let range = self.range(first, n)?;
        let data = read(&range).map_err(SourceError)?;
        let opened = self.links.open((first, range.start), self.sizes(first, n), &data, read);
        let (lengths, data) = opened.map_err(SourceError)?;
        Ok(OpenedRecords { data, index: Some(FileIndex::window(lengths)) })
    }
}

/// The same bytes as ranges in order and apart from each other.
pub(super) fn apart(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => joined.push(range),
        }
    }
    joined
}
