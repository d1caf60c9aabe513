//! The parts of a file that have been read, as the decoder asks for them.

use ::parquet::{
    errors::{ParquetError, Result as ParquetResult},
    file::reader::{ChunkReader, Length},
};
use bytes::{Buf, Bytes, buf::Reader};
use std::ops::Range;

/// Parts of a file by where they start, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct FilePieces(Vec<(u64, Bytes)>);

impl FilePieces {
    /// Parts that were read of these ranges.
    pub(super) fn new(ranges: Vec<Range<u64>>, parts: &[Bytes]) -> Result<Self, String> {
        let fits =
            |(range, part): (&Range<u64>, &Bytes)| part.len() as u64 == range.end - range.start;
        if ranges.len() != parts.len() || !ranges.iter().zip(parts).all(fits) {
            return Err("what was read of the file is not what was asked for".into());
        }
        let starts = ranges.into_iter().map(|range| range.start);
        Ok(FilePieces(starts.zip(parts.iter().cloned()).collect()))
    }

    /// The bytes from `start` on, as far as they were read together.
    pub(super) fn from(&self, start: u64) -> Option<Bytes> {
        let after = self.0.partition_point(|(begin, _)| *begin <= start);
        let (begin, part) = self.0.get(after.checked_sub(1)?)?;
        let skipped = usize::try_from(start - begin).ok()?;
        (skipped <= part.len()).then(|| part.slice(skipped..))
    }
}

impl Length for FilePieces {
    /// One byte more than what was read: the decoder wants a page index to have something behind it,
    /// as it does in a file.
    fn len(&self) -> u64 {
        self.0.last().map_or(0, |(start, part)| start + part.len() as u64 + 1)
    }
}

impl ChunkReader for FilePieces {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let missing = || ParquetError::EOF(format!("byte {start} was not read"));
        Ok(self.from(start).ok_or_else(missing)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let missing = || ParquetError::EOF(format!("{length} bytes from {start} were not read"));
        let bytes = self.from(start).filter(|bytes| bytes.len() >= length);
        Ok(bytes.ok_or_else(missing)?.slice(..length))
    }
}
