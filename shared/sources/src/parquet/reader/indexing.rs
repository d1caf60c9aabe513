//! Finds out where the pages of a Parquet file are, by asking for parts of it.

use super::{
    MAX_FOOTER_BYTES, ParquetLayout, chunk_range, guarded, one_line,
    page_header::{PageHeader, PageKind, check_structure, level_rows},
    reading::FilePieces,
};
use crate::{FileIndex, SourceLimits, records::FooterIndexer};
use ::parquet::{
    column::page::{Page, PageReader},
    file::{
        metadata::{PageIndexPolicy, ParquetMetaDataReader},
        page_index::offset_index::PageLocation,
        reader::{Length, SerializedPageReader},
    },
};
use bytes::Bytes;
use std::{collections::VecDeque, ops::Range, sync::Arc};

/// Bytes at the end: the length of the footer and the magic.
const TAIL_BYTES: u64 = 8;
/// Bytes read first: most footers are smaller.
const FIRST_READ_BYTES: u64 = 64 << 10;
/// Column chunks that lie together are read together up to this.
const READ_BYTES: u64 = 32 << 20;
/// Largest chunk that is looked into. The pages of a larger one stay unknown.
const MAX_CHUNK_BYTES: u64 = 256 << 20;

/// Asks for parts of a file until it knows where its pages are.
#[derive(Debug)]
pub struct ParquetIndexer {
    file_bytes: u64,
    limits: SourceLimits,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The end of the file, from which the footer may follow.
    Tail,
    Footer(Range<u64>),
    /// The places of pages by the file's own page index.
    PageIndex(Box<ParquetLayout>, Range<u64>),
    /// Column chunks still to look into: what to read, and which chunks that has.
    Chunks(Box<ParquetLayout>, VecDeque<(Range<u64>, Range<usize>)>),
    Failed,
}

impl ParquetIndexer {
    pub(crate) fn new(limits: SourceLimits) -> Self {
        ParquetIndexer { file_bytes: 0, limits, stage: Stage::Tail }
    }
}

impl FooterIndexer for ParquetIndexer {
    fn begin(&mut self, file_bytes: u64) {
        self.file_bytes = file_bytes;
    }

    fn wants(&self) -> Option<Range<u64>> {
        match &self.stage {
            Stage::Tail => Some(self.file_bytes.saturating_sub(FIRST_READ_BYTES)..self.file_bytes),
            Stage::Footer(range) | Stage::PageIndex(_, range) => Some(range.clone()),
            Stage::Chunks(_, left) => left.front().map(|(range, _)| range.clone()),
            Stage::Failed => None,
        }
    }

    fn push(&mut self, bytes: Bytes) -> Result<(), String> {
        let fits = |range: Range<u64>| range.end - range.start == bytes.len() as u64;
        if !self.wants().is_some_and(fits) {
            return Err("what was read of the file is not what was asked for".into());
        }
        self.stage = match std::mem::replace(&mut self.stage, Stage::Failed) {
            Stage::Tail => self.tail(&bytes)?,
            Stage::Footer(_) => self.footer(bytes)?,
            Stage::PageIndex(layout, range) => Self::page_index(layout, range, bytes)?,
            Stage::Chunks(mut layout, mut left) => {
                if let Some((range, chunks)) = left.pop_front() {
                    let pieces = FilePieces::new(vec![range], &[bytes])?;
                    for chunk in chunks {
                        let pages = guarded(|| scan(&layout, chunk, &pieces))?;
                        layout.set_pages(chunk, pages)?;
                    }
                }
                Stage::Chunks(layout, left)
            }
            Stage::Failed => return Err("indexing this file has failed before".into()),
        };
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<FileIndex, String> {
        match self.stage {
            Stage::Chunks(layout, left) if left.is_empty() => Ok(FileIndex::parquet(*layout)),
            _ => Err("indexing this file has failed before, or is not done".into()),
        }
    }
}

impl ParquetIndexer {
    fn tail(&self, bytes: &Bytes) -> Result<Stage, String> {
        let cut = || "it does not end as a Parquet file: is it one, and whole?".to_owned();
        let (before, magic) = bytes.split_last_chunk::<4>().ok_or_else(cut)?;
        match magic {
            b"PAR1" => {}
            b"PARE" => {
                return Err(
                    "it is encrypted, which is not read: write it without encryption".into()
                );
            }
            _ => return Err(cut()),
        }
        let (_, length) = before.split_last_chunk::<4>().ok_or_else(cut)?;
        let length = u64::from(u32::from_le_bytes(*length));
        if length > MAX_FOOTER_BYTES {
            return Err(format!("its footer has {length} bytes; the limit is {MAX_FOOTER_BYTES}"));
        }
        let end = self.file_bytes.checked_sub(TAIL_BYTES).ok_or_else(cut)?;
        let range = end.checked_sub(length).ok_or_else(cut)?..end;
        let have = (before.len() - 4) as u64;
        match have.checked_sub(length) {
            Some(skipped) => self.footer(bytes.slice(skipped as usize..have as usize)),
            None => Ok(Stage::Footer(range)),
        }
    }

    fn footer(&self, footer: Bytes) -> Result<Stage, String> {
        let before = self.file_bytes - TAIL_BYTES - footer.len() as u64;
        let layout = Box::new(ParquetLayout::from_footer(footer, self.limits)?);
        let groups = layout.metadata.row_groups().iter();
        let mut whole: Option<Range<u64>> = None;
        let mut indexed = layout.metadata.num_row_groups() > 0;
        let chunks_of_file = groups.flat_map(|group| group.columns());
        for (chunk, encrypted) in chunks_of_file.zip(&layout.encrypted) {
            if chunk_range(chunk, before).is_none() {
                return Err(format!("column `{}` reaches beyond the file", chunk.column_path()));
            }
            let (start, length) = (chunk.offset_index_offset(), chunk.offset_index_length());
            let range = start.zip(length).and_then(|(start, length)| {
                let start = u64::try_from(start).ok()?;
                let end = start.checked_add(u64::try_from(length).ok()?)?;
                (start < end && end <= before).then_some(start..end)
            });
            // The page index of an encrypted column is encrypted as well.
            indexed &= range.is_some() && !encrypted;
            whole = match (whole, range) {
                (Some(whole), Some(range)) => {
                    Some(whole.start.min(range.start)..whole.end.max(range.end))
                }
                (whole, range) => range.or(whole),
            };
        }
        match whole {
            Some(range) if indexed && range.end - range.start <= MAX_FOOTER_BYTES => {
                Ok(Stage::PageIndex(layout, range))
            }
            _ => Ok(chunks(layout)),
        }
    }

    fn page_index(
        mut layout: Box<ParquetLayout>,
        range: Range<u64>,
        bytes: Bytes,
    ) -> Result<Stage, String> {
        let pieces = FilePieces::new(vec![range], &[bytes])?;
        let found = guarded(|| {
            let groups = layout.metadata.row_groups().iter();
            for chunk in groups.flat_map(|group| group.columns()) {
                let place = chunk.offset_index_offset().zip(chunk.offset_index_length());
                let (start, bytes) = place.ok_or("a column has no page index")?;
                let start = u64::try_from(start).map_err(|error| error.to_string())?;
                let index = pieces.from(start).ok_or("a page index lies elsewhere")?;
                let bytes = usize::try_from(bytes).map_err(|error| error.to_string())?;
                check_structure(index.get(..bytes).ok_or("a page index is cut short")?)?;
            }
            let mut reader = ParquetMetaDataReader::new_with_metadata(layout.metadata.clone())
                .with_column_index_policy(PageIndexPolicy::Skip)
                .with_offset_index_policy(PageIndexPolicy::Required);
            reader
                .read_page_indexes_sized(&pieces, pieces.len())
                .map_err(|error| one_line(&error))?;
            reader.finish().map_err(|error| one_line(&error))
        });
        let leaves = layout.leaves();
        // A page index that cannot be used is no more than a missing one.
        let Ok(found) = found else { return Ok(chunks(layout)) };
        for chunk in 0..layout.pages.len() {
            let index = found.page_index_for_row_group(chunk / leaves);
            let pages = index.page_locations(chunk % leaves).cloned();
            let Some(pages) = pages.filter(|pages| !pages.is_empty()) else {
                return Ok(chunks(layout));
            };
            if layout.set_pages(chunk, pages).is_err() {
                return Ok(chunks(layout));
            }
        }
        Ok(Stage::Chunks(layout, VecDeque::new()))
    }
}

/// All column chunks, to be looked into: neighbours together.
fn chunks(mut layout: Box<ParquetLayout>) -> Stage {
    layout.forget_pages();
    let mut reads: VecDeque<(Range<u64>, Range<usize>)> = VecDeque::new();
    let groups = layout.metadata.row_groups().iter();
    for (i, chunk) in groups.flat_map(|group| group.columns()).enumerate() {
        let Some(range) = chunk_range(chunk, i64::MAX as u64) else { continue };
        let too_large = range.end - range.start > MAX_CHUNK_BYTES;
        if range.is_empty() || too_large || layout.encrypted[i] {
            continue;
        }
        match reads.back_mut() {
            Some((read, chunks))
                if range.start >= read.end
                    && range.end - read.start <= READ_BYTES
                    && chunks.end == i =>
            {
                read.end = range.end;
                chunks.end = i + 1;
            }
            _ => reads.push_back((range, i..i + 1)),
        }
    }
    Stage::Chunks(layout, reads)
}

/// The data pages of a column chunk; none if it can only be read whole.
fn scan(
    layout: &ParquetLayout,
    chunk: usize,
    pieces: &FilePieces,
) -> Result<Vec<PageLocation>, String> {
    let (group, leaf) = (chunk / layout.leaves(), chunk % layout.leaves());
    let meta = layout.metadata.row_group(group);
    let column = meta.column(leaf);
    let bad =
        |what: String| format!("column `{}` of row group {group}: {what}", column.column_path());
    let range = chunk_range(column, i64::MAX as u64).unwrap_or_default();
    let headers = headers(pieces, range).map_err(bad)?;
    // Levels are within compressed data, unless the header says how many rows there are.
    let nested = column.column_descr().max_rep_level() > 0;
    let mut unpacked = if nested && headers.iter().any(|(_, page)| page.kind == PageKind::V1) {
        let pages = Arc::new(pieces.clone());
        let pages = SerializedPageReader::new(pages, column, meta.num_rows() as usize, None);
        Some(pages.map_err(|error| bad(one_line(&error)))?)
    } else {
        None
    };
    let (mut pages, mut rows) = (Vec::new(), 0_u64);
    for (i, (offset, page)) in headers.iter().enumerate() {
        let inside = match &mut unpacked {
            Some(reader) => reader.get_next_page().map_err(|error| bad(one_line(&error)))?,
            None => None,
        };
        let page_rows = match (page.kind, inside) {
            (PageKind::Dictionary, _) if i == 0 => continue,
            (PageKind::V2 { rows }, _) => rows,
            (PageKind::V1, Some(Page::DataPage { buf, .. })) => {
                let max_level = column.column_descr().max_rep_level();
                match level_rows(&buf, page.values, max_level).map_err(bad)? {
                    Some(rows) => rows,
                    None => return Ok(Vec::new()),
                }
            }
            (PageKind::V1, None) => page.values,
            _ => return Ok(Vec::new()),
        };
        // A page without a row has no place among others.
        if page_rows == 0 {
            return Ok(Vec::new());
        }
        pages.push(PageLocation {
            offset: *offset as i64,
            compressed_page_size: (page.header_bytes + page.bytes) as i32,
            first_row_index: rows as i64,
        });
        rows += page_rows;
    }
    if rows == meta.num_rows() as u64 {
        Ok(pages)
    } else {
        Err(bad(format!("it has {rows} rows of {}", meta.num_rows())))
    }
}

/// The pages of a part of the file, and where they start.
///
/// # Errors
/// If they are larger than pages may be, do not fill it, or differ from their checksums.
pub(super) fn headers(
    pieces: &FilePieces,
    range: Range<u64>,
) -> Result<Vec<(u64, PageHeader)>, String> {
    if range.is_empty() {
        return Ok(Vec::new());
    }
    let bytes = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let part = pieces.from(range.start).filter(|part| part.len() >= bytes);
    let part = part.ok_or("it was not read")?.slice(..bytes);
    let (mut at, mut headers) = (0, Vec::new());
    while at < part.len() {
        let page = PageHeader::parse(&part[at..])?;
        let (start, data) = (range.start + at as u64, at + page.header_bytes);
        at = data + page.bytes;
        let data = part.get(data..at).ok_or("a page reaches beyond its column")?;
        if page.checksum.is_some_and(|checksum| checksum != crc32fast::hash(data)) {
            return Err(format!(
                "the checksum of its page at byte {start} does not match: the file is damaged"
            ));
        }
        headers.push((start, page));
    }
    Ok(headers)
}
