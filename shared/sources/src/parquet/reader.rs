//! Parquet files: rows as records, features as columns. Source: the Apache Parquet format
//! specification; pages are decoded by the `parquet` crate.
//!
//! The index holds the file's footer and where its pages are: of a file that says so itself (a page
//! index) the footer is all that is read; else each column chunk is read once. A split then reads the
//! pages of its own rows, and of wanted columns alone, in a few ranged reads; a page is about 1 MiB.
//! Pages that do not start with a row, which old writers made, leave a column chunk to be read whole by each
//! split of its row group: write such files again, or with small row groups.
//!
//! Rows become records of our own: each wanted value after its length, in the order of the features.
//! The fault of a bad row is kept in its record, for the policy on bad records.

mod columns;
mod indexing;
mod page_header;
mod reading;
#[cfg(any(test, feature = "samples"))]
pub(crate) mod sample;
#[cfg(test)]
mod tests;

use crate::{
    FeatureMap, ReadRecord, RecordReaderInput, SourceLimits, lengths::RecordLengths, varint,
};

use ::parquet::{
    basic::Compression,
    file::{
        metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader},
        page_index::offset_index::PageLocation,
    },
};
use bytes::Bytes;
use gristmill_kernel::{CellStorage, FieldCell};
use page_header::{check_structure, encrypted_chunks};
use reading::ColumnValues;
use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
};

pub use indexing::ParquetIndexer;

/// Largest footer, and largest page index.
const MAX_FOOTER_BYTES: u64 = 32 << 20;
/// Most pages of a file whose places are kept.
const MAX_PAGES: usize = 1 << 20;
/// Most leaf columns of all row groups together: what a footer may describe.
const MAX_CHUNKS: usize = 1 << 20;
/// Most bytes of a stored index: footer and pages.
pub(crate) const MAX_STORED_BYTES: usize =
    MAX_FOOTER_BYTES as usize + MAX_PAGES * 20 + MAX_CHUNKS * 5;

/// The places of a file's rows.
#[derive(Clone, Debug)]
pub(crate) struct ParquetLayout {
    footer: Bytes,
    metadata: ParquetMetaData,
    /// First row of each row group, and their total.
    first_rows: Vec<u32>,
    /// The data pages of each column chunk, group by group. None are known of a chunk that can only
    /// be read whole.
    pages: Vec<Vec<PageLocation>>,
    n_pages: usize,
    /// Whether each column chunk is encrypted; none of its pages are known.
    encrypted: Vec<bool>,
}

/// Without `metadata`: that is the footer read, and its statistics may hold what does not equal itself.
impl PartialEq for ParquetLayout {
    fn eq(&self, other: &Self) -> bool {
        (&self.footer, &self.first_rows, &self.pages)
            == (&other.footer, &other.first_rows, &other.pages)
    }
}

/// Runs code of the decoder, in which files that lie have caused panics.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let outcome = catch_unwind(AssertUnwindSafe(work));
    outcome.unwrap_or_else(|_| Err("the Parquet file is damaged".into()))
}

/// The decoder's message, on one line.
fn one_line(error: &::parquet::errors::ParquetError) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    error.to_string().chars().map(plain).take(200).collect()
}

/// Refuses what the decoder is not built for.
fn check_codec(chunk: &ColumnChunkMetaData) -> Result<(), String> {
    let codec = match chunk.compression() {
        Compression::BROTLI(_) => "Brotli",
        Compression::LZO => "LZO",
        _ => return Ok(()),
    };
    Err(format!("it is compressed with {codec}, which is not read; write it with zstd or snappy"))
}

/// Bytes of a column chunk; none if they are not in a file of `file_bytes`.
fn chunk_range(chunk: &ColumnChunkMetaData, file_bytes: u64) -> Option<Range<u64>> {
    let start = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
    let start = u64::try_from(start).ok()?;
    let end = start.checked_add(u64::try_from(chunk.compressed_size()).ok()?)?;
    (end <= file_bytes).then_some(start..end)
}

impl ParquetLayout {
    /// Reads and checks a footer; no pages are known yet.
    fn from_footer(footer: Bytes, limits: SourceLimits) -> Result<ParquetLayout, String> {
        let (metadata, encrypted) = guarded(|| {
            check_structure(&footer)?;
            let metadata = ParquetMetaDataReader::decode_metadata(&footer);
            Ok((metadata.map_err(|error| one_line(&error))?, encrypted_chunks(&footer)?))
        })?;
        let (mut rows, mut first_rows) = (0_u64, vec![0]);
        for group in metadata.row_groups() {
            rows = rows.saturating_add(u64::try_from(group.num_rows()).unwrap_or(u64::MAX));
            if rows > u64::from(limits.records) {
                let most = limits.records;
                return Err(format!("the limit is {most} records a file; use more files"));
            }
            first_rows.push(rows as u32);
        }
        let leaves = metadata.file_metadata().schema_descr().num_columns();
        let chunks = metadata.num_row_groups().saturating_mul(leaves);
        if chunks > MAX_CHUNKS {
            return Err(format!("it has {chunks} column chunks; the limit is {MAX_CHUNKS}"));
        }
        if encrypted.len() != chunks {
            return Err("its row groups do not have the columns of the file".into());
        }
        for (i, group) in metadata.row_groups().iter().enumerate() {
            if group.num_columns() != leaves {
                return Err(format!("row group {i} does not have the columns of the file"));
            }
            for chunk in group.columns() {
                check_codec(chunk)?;
                // The footer is behind everything else, so no chunk may reach the largest offset.
                if chunk_range(chunk, i64::MAX as u64).is_none() {
                    return Err(format!("row group {i} has a column outside of the file"));
                }
            }
        }
        Ok(ParquetLayout {
            footer,
            metadata,
            first_rows,
            pages: vec![Vec::new(); chunks],
            n_pages: 0,
            encrypted,
        })
    }

    fn leaves(&self) -> usize {
        self.metadata.file_metadata().schema_descr().num_columns()
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> u32 {
        self.first_rows.last().copied().unwrap_or(0)
    }

    /// The row groups of some rows, and which rows of each.
    fn groups(&self, rows: Range<u32>) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.first_rows.windows(2).enumerate().filter_map(move |(group, ends)| {
            let (start, end) = (rows.start.max(ends[0]), rows.end.min(ends[1]));
            let within =
                (start.wrapping_sub(ends[0]) as usize)..(end.wrapping_sub(ends[0]) as usize);
            (start < end).then_some((group, within))
        })
    }

    /// Bytes of some rows, each taken for an even share of its row group.
    pub(crate) fn weights(&self, rows: Range<u32>) -> Vec<u64> {
        let share = |group: usize| {
            let group = self.metadata.row_group(group);
            let rows = u64::try_from(group.num_rows()).unwrap_or(0);
            u64::try_from(group.total_byte_size()).unwrap_or(0) / rows.max(1)
        };
        let of_group =
            |(group, rows): (usize, Range<usize>)| std::iter::repeat_n(share(group), rows.len());
        self.groups(rows).flat_map(of_group).collect()
    }

    fn pages(&self, group: usize, leaf: usize) -> &[PageLocation] {
        self.pages.get(group * self.leaves() + leaf).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn stored_ranges(
        &self,
        rows: Range<u32>,
        source: RecordReaderInput<'_>,
    ) -> Result<Vec<Range<u64>>, String> {
        reading::stored_ranges(self, rows, source)
    }

    /// The records of some rows, end to end, and their lengths.
    pub(crate) fn open(
        &self,
        rows: Range<u32>,
        source: RecordReaderInput<'_>,
        ranges: Vec<Range<u64>>,
        parts: &[Bytes],
    ) -> Result<(RecordLengths, Vec<u8>), String> {
        guarded(|| reading::open(self, rows, source, reading::FilePieces::new(ranges, parts)?))
    }

    /// About how many bytes of memory it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let pages = self.n_pages * size_of::<PageLocation>();
        self.footer.len() + self.metadata.memory_size() + pages
    }

    /// Appends the stored form: the footer, then for each column chunk its pages, as what each adds to
    /// the one before.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.footer.len() as u64);
        out.extend_from_slice(&self.footer);
        for pages in &self.pages {
            varint::put(out, pages.len() as u64);
            let (mut end, mut row) = (0, 0);
            for page in pages {
                // Neither is negative: they were checked when the pages were taken in.
                varint::put(out, (page.offset - end) as u64);
                varint::put(out, page.compressed_page_size as u64);
                varint::put(out, (page.first_row_index - row) as u64);
                end = page.offset + i64::from(page.compressed_page_size);
                row = page.first_row_index;
            }
        }
    }

    /// Takes the stored form off the start of `rest`.
    pub(crate) fn decode(rest: &mut &[u8], limits: SourceLimits) -> Result<ParquetLayout, String> {
        let bytes = varint::take(rest)?;
        if bytes > MAX_FOOTER_BYTES {
            return Err(format!("its footer has {bytes} bytes; the limit is {MAX_FOOTER_BYTES}"));
        }
        let footer = Bytes::copy_from_slice(varint::bytes(rest, bytes as usize)?);
        let mut layout = Self::from_footer(footer, limits)?;
        for chunk in 0..layout.pages.len() {
            let count = varint::take(rest)?;
            // A page takes at least three bytes.
            if count > rest.len() as u64 / 3 {
                return Err("it has fewer pages than it says".into());
            }
            let mut pages = Vec::with_capacity(count as usize);
            let (mut end, mut row) = (0_i64, 0_i64);
            for _ in 0..count {
                let mut next = || {
                    let number = varint::take(rest)?;
                    i64::try_from(number).map_err(|_| "a page lies nowhere".to_owned())
                };
                let offset = end.saturating_add(next()?);
                let size = i32::try_from(next()?).map_err(|_| "a page is too large")?;
                row = row.saturating_add(next()?);
                end = offset.saturating_add(i64::from(size));
                pages.push(PageLocation {
                    offset,
                    compressed_page_size: size,
                    first_row_index: row,
                });
            }
            layout.set_pages(chunk, pages)?;
        }
        Ok(layout)
    }

    /// Takes in where the data pages of a chunk are, once they have been checked.
    fn set_pages(&mut self, chunk: usize, pages: Vec<PageLocation>) -> Result<(), String> {
        let (group, leaf) = (chunk / self.leaves().max(1), chunk % self.leaves().max(1));
        let meta = self.metadata.row_group(group);
        let column = meta.column(leaf);
        let wrong = || format!("the pages of column `{}` do not lie in it", column.column_path());
        let range = chunk_range(column, i64::MAX as u64).ok_or_else(wrong)?;
        let (mut end, mut row) = (range.start, -1);
        for (i, page) in pages.iter().enumerate() {
            let offset = u64::try_from(page.offset).ok().filter(|offset| *offset >= end);
            let size = u64::try_from(page.compressed_page_size).map_err(|_| wrong())?;
            end = offset.and_then(|offset| offset.checked_add(size)).ok_or_else(wrong)?;
            let first = if i == 0 { page.first_row_index == 0 } else { page.first_row_index > row };
            row = page.first_row_index;
            // Bytes before the first page are taken for its dictionary, whose size is an i32.
            let dictionary = offset.map_or(0, |offset| offset - range.start);
            if end > range.end
                || !first
                || row >= meta.num_rows()
                || (i == 0 && dictionary > i32::MAX as u64)
            {
                return Err(wrong());
            }
        }
        self.n_pages += pages.len();
        if self.n_pages > MAX_PAGES {
            return Err(format!("it has more than {MAX_PAGES} pages, the limit; use more files"));
        }
        self.pages[chunk] = pages;
        Ok(())
    }

    fn forget_pages(&mut self) {
        self.pages.iter_mut().for_each(Vec::clear);
        self.n_pages = 0;
    }
}

// A row as a record: for each feature its length (u32, little-endian) and its value; or, with the
// highest bit of the length set, what is wrong with it.

/// Set in the length of what is no value.
pub(crate) const FAULT: u32 = 1 << 31;

/// Appends the value of a row.
fn put_values(record: &mut Vec<u8>, values: &ColumnValues, row: usize) {
    let missing = || Err("a row is missing");
    let value: Result<&[u8], &str> = match values {
        ColumnValues::Numbers { bytes, rows } => match rows.get(row) {
            Some(Ok(range)) => Ok(&bytes[range.clone()]),
            Some(Err(what)) => Err(what),
            None => missing(),
        },
        ColumnValues::Bytes(rows) => match rows.get(row) {
            Some(Ok(value)) => Ok(value.data()),
            Some(Err(what)) => Err(what),
            None => missing(),
        },
        ColumnValues::Default(value) => Ok(value),
    };
    // A value too long for its length is too long for a record as well, which the caller checks.
    let (bytes, flag) = match value {
        Ok(value) => (value, 0),
        Err(what) => (what.as_bytes(), FAULT),
    };
    record.extend_from_slice(&(bytes.len() as u32 & !FAULT | flag).to_le_bytes());
    record.extend_from_slice(bytes);
}

/// Finds the features of a pipeline in records; feature i goes to cell i.
#[derive(Debug)]
pub struct ParquetRecordReader {
    features: usize,
}

impl ParquetRecordReader {
    pub(crate) fn new(features: &FeatureMap) -> Self {
        ParquetRecordReader { features: features.len() }
    }
}

impl ReadRecord for ParquetRecordReader {
    fn find(&self, record: &[u8], cells: &mut [FieldCell]) -> Result<usize, String> {
        let (mut at, mut found) = (0, 0);
        for cell in cells.iter_mut().take(self.features) {
            let cut = || "the record is cut short".to_owned();
            let head = record.get(at..).and_then(|rest| rest.first_chunk::<4>()).ok_or_else(cut)?;
            let length = u32::from_le_bytes(*head);
            let range = at + 4..at + 4 + (length & !FAULT) as usize;
            let value = record.get(range.clone()).ok_or_else(cut)?;
            if length & FAULT != 0 {
                return Err(String::from_utf8_lossy(value).into_owned());
            }
            (at, found) = (range.end, found + value.len());
            cell.place = CellStorage::Record(range);
        }
        Ok(found)
    }
}
