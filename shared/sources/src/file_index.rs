//! The index of one source file: how many records it has, and which of its bytes hold them.

use crate::{
    FileFormat, IndexKind, RecordReaderInput, SourceError, SourceLimits,
    csv::reader as csv,
    frames::{self, FramePoints},
    gzip,
    lengths::{MAX_LENGTH_BYTES, RecordLengths},
    npy::{self, NpyLayout},
    parquet::reader as parquet,
    varint,
    webdataset::links::{self, TarLinks},
};

mod opened;

pub use opened::OpenedRecords;

use bytes::Bytes;
use opened::{part_of, take_text};
use std::ops::Range;

/// First eight bytes of a stored index.
const MAGIC: [u8; 8] = *b"\x89GRMIDX\n";
/// Version of the stored form. Indices are made again when it changes.
const VERSION: u32 = 3;
/// The number of the stored layout of numpy's files.
const NPY: u32 = 16;
/// In the number of a stored packing: links follow.
const HAS_LINKS: u32 = 4;
/// In the same number: a text follows that says what is lost.
const IS_DAMAGED: u32 = 32;
/// Longest such text.
const MAX_LOST_BYTES: usize = 2000;
/// In the same number: counts of blank lines follow.
const HAS_BLANK_LINES: u32 = 8;
/// Bytes before the content: magic, version, packing, record count, size of the content before
/// compression.
const HEAD_BYTES: usize = 28;

/// The places of a file's records. About four bytes per record in memory, one or two when stored;
/// for Parquet about 24 per page.
#[derive(Clone, Debug, PartialEq)]
pub struct FileIndex {
    /// Records that lie end to end, once the file is unpacked; none of Parquet.
    lengths: RecordLengths,
    packing: Packing,
    /// The header and line counts of a table of text.
    table: Option<Box<csv::CsvTableIndex>>,
    /// Those of a tar file.
    links: TarLinks,
    /// The loss in a damaged file, in words: one more record, which has no bytes.
    lost: Option<String>,
    /// Records that have been opened and cannot be read, in order, and why. Not stored.
    faults: Vec<(u32, String)>,
    /// Those of a file whose lines are records, unless an older build made the index.
    blank_lines: Option<BlankLines>,
}

/// Blank lines between records: by record that has some right before it, how many there are up to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BlankLines(Vec<(u32, u32)>);

/// The step that makes records lie end to end.
#[derive(Clone, Debug, PartialEq)]
enum Packing {
    None,
    Gzip(gzip::GzipAccessPoints),
    Frames(FramePoints),
    Parquet(Box<parquet::ParquetLayout>),
    Npy(Box<NpyLayout>),
}

impl Packing {
    /// Reads the stored form of one with this number off the start of `rest`.
    fn decode(packing: u32, rest: &mut &[u8], limits: SourceLimits) -> Result<Self, String> {
        Ok(match packing {
            0 => Packing::None,
            1 => Packing::Gzip(gzip::GzipAccessPoints::decode(rest)?),
            3 => Packing::Frames(FramePoints::decode(rest)?),
            NPY => Packing::Npy(Box::new(NpyLayout::decode(rest, limits)?)),
            _ => Packing::Parquet(Box::new(parquet::ParquetLayout::decode(rest, limits)?)),
        })
    }
}

/// Records that are decoded as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRange {
    pub rows: Range<u32>,
    /// About how many bytes they take once decoded.
    pub bytes: u64,
}

impl FileIndex {
    /// The index of a file without records, each of which has `framing_bytes` beside its length.
    pub(crate) fn new(framing_bytes: u32) -> Self {
        Self::window(RecordLengths::new(0, framing_bytes))
    }

    /// The index of records that lie end to end, the first of which is not the file's.
    pub(crate) fn window(lengths: RecordLengths) -> Self {
        FileIndex {
            lengths,
            packing: Packing::None,
            table: None,
            links: TarLinks::default(),
            lost: None,
            faults: Vec::new(),
            blank_lines: None,
        }
    }

    pub(crate) fn table(self, table: csv::CsvTableIndex) -> Self {
        FileIndex { table: Some(Box::new(table)), ..self }
    }

    pub(crate) fn gzip(self, points: gzip::GzipAccessPoints) -> Self {
        FileIndex { packing: Packing::Gzip(points), ..self }
    }

    pub(crate) fn frames(self, points: FramePoints) -> Self {
        FileIndex { packing: Packing::Frames(points), ..self }
    }

    pub(crate) fn parquet(layout: parquet::ParquetLayout) -> Self {
        let packing = Packing::Parquet(Box::new(layout));
        FileIndex { packing, ..Self::new(0) }
    }

    pub(crate) fn npy(layout: NpyLayout) -> Self {
        FileIndex { packing: Packing::Npy(Box::new(layout)), ..Self::new(0) }
    }

    /// Adds a record, unless the file has as many as are read of one.
    pub(crate) fn push(&mut self, length: u32, limits: SourceLimits) -> Result<(), String> {
        let most = limits.records;
        if self.len() >= most {
            return Err(format!("the limit is {most} records a file; use more files"));
        }
        self.lengths.push(length);
        Ok(())
    }

    /// The fault of the record that would be added next.
    pub(crate) fn fault(&self, what: &str) -> SourceError {
        SourceError(format!("record {} at byte {}: {what}", self.len(), self.file_bytes()))
    }

    /// Number of records.
    pub fn len(&self) -> u32 {
        self.sound() + u32::from(self.lost.is_some())
    }

    /// Number of records that are whole.
    fn sound(&self) -> u32 {
        match &self.packing {
            Packing::Parquet(layout) => layout.rows(),
            Packing::Npy(layout) => layout.rows(),
            _ => self.lengths.end(),
        }
    }

    /// Whether each record is a range of the unpacked file; the rows of Parquet are not.
    pub fn is_contiguous(&self) -> bool {
        !matches!(self.packing, Packing::Parquet(_) | Packing::Npy(_))
    }

    /// Whether the file has no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The end of the last record, in bytes of the unpacked file; 0 for Parquet.
    pub fn file_bytes(&self) -> u64 {
        self.start() + self.lengths.bytes()
    }

    /// The offset of the first record.
    fn start(&self) -> u64 {
        self.table.as_ref().map_or(0, |table| table.start())
    }

    /// The range of records `first .. first + n` in the unpacked file, framing included; none if they
    /// are not all there, or have no such place, as rows of Parquet.
    pub fn byte_range(&self, first: u32, n: u32) -> Option<Range<u64>> {
        let end = first.checked_add(n)?;
        let place = |record: u32| {
            // The lost rest has no bytes.
            let sound = (record <= self.len()).then_some(record.min(self.sound()))?;
            Some(self.start() + self.lengths.start(sound)?)
        };
        Some(place(first)?..place(end)?)
    }

    /// Bytes in the unpacked file of records `first .. first + n`, as far as they are there.
    pub fn sizes(&self, first: u32, n: u32) -> impl Iterator<Item = u64> {
        self.lengths.sizes(first, n)
    }

    /// About how many bytes each of records `first .. first + n` takes in memory, as far as they are
    /// there.
    pub fn weights(&self, first: u32, n: u32) -> Vec<u64> {
        let mut weights = match &self.packing {
            Packing::Parquet(layout) => layout.weights(first..first.saturating_add(n)),
            Packing::Npy(layout) => {
                let rows = self.sound().saturating_sub(first).min(n);
                vec![layout.row_bytes(); rows as usize]
            }
            _ => self.linked_weights(first, n),
        };
        let has_lost = (first..first.saturating_add(n)).contains(&self.sound());
        weights.extend(self.lost.iter().filter(|_| has_lost).map(|_| 0));
        weights
    }

    /// The parts of the stored file from which [`open`](Self::open) makes records
    /// `first .. first + n`: in order, apart from each other, none empty.
    ///
    /// # Errors
    /// [`SourceError`] if the records are not all there, or lack what `source` wants of them.
    pub fn stored_ranges<'a>(
        &self,
        first: u32,
        n: u32,
        source: impl Into<RecordReaderInput<'a>>,
    ) -> Result<Vec<Range<u64>>, SourceError> {
        let source = source.into();
        let end = first.checked_add(n).filter(|end| *end <= self.len());
        let Some(end) = end else { return Err(self.not_there(first, n)) };
        if let Packing::Parquet(layout) = &self.packing {
            return layout.stored_ranges(first..end, source).map_err(SourceError);
        }
        if let Packing::Npy(layout) = &self.packing {
            let ranges = layout.stored_ranges(&(first..end), source).map_err(SourceError)?;
            return Ok(apart(ranges.into_iter().filter(|range| !range.is_empty()).collect()));
        }
        if first >= self.sound() {
            return Ok(Vec::new());
        }
        let range = self.range(first, n)?;
        let linked = self.links.contents(&range).map(|range| self.packed(&range));
        let packed = std::iter::once(self.packed(&range)).chain(linked);
        Ok(apart(packed.filter(|range| !range.is_empty()).collect()))
    }

    /// The runs of records, in order, that hold records `first .. first + n` and that decoding takes apart from others:
    /// what is decoded for one record of a run is decoded for all. None where each record is decoded alone, or the wanted
    /// records are all of their runs.
    pub fn blocks<'a>(
        &self,
        first: u32,
        n: u32,
        source: impl Into<RecordReaderInput<'a>>,
    ) -> Option<Vec<BlockRange>> {
        let rows = first..first.checked_add(n).filter(|end| *end <= self.len())?;
        let blocks = match &self.packing {
            Packing::Parquet(layout) => layout.blocks(rows.clone(), source.into())?,
            Packing::Frames(points) => self.frame_blocks(points, &rows),
            Packing::Npy(layout) => {
                let bytes = layout.whole(source.into())?;
                vec![BlockRange { rows: 0..self.len(), bytes }]
            }
            Packing::None | Packing::Gzip(_) => return None,
        };
        let (start, end) = (blocks.first()?.rows.start, blocks.last()?.rows.end);
        ((start, end) != (rows.start, rows.end)).then_some(blocks)
    }

    /// The records that begin in each part of the file that is unpacked together, of those with a record of `rows`.
    fn frame_blocks(&self, points: &FramePoints, rows: &Range<u32>) -> Vec<BlockRange> {
        let record_at = |at: u64| match at {
            u64::MAX => self.len(),
            at => self.lengths.record_at(at.saturating_sub(self.start())),
        };
        let block = |part: Range<u64>| {
            let rows = record_at(part.start)..record_at(part.end);
            BlockRange { bytes: self.weight(rows.start, rows.end - rows.start), rows }
        };
        let blocks = points.blocks().into_iter().map(block);
        let is_wanted = |block: &BlockRange| {
            block.rows.start < rows.end.min(block.rows.end) && rows.start < block.rows.end
        };
        blocks.filter(is_wanted).collect()
    }

    /// The part of the stored file that has bytes `range` of the unpacked one.
    fn packed(&self, range: &Range<u64>) -> Range<u64> {
        match &self.packing {
            Packing::Gzip(points) => points.packed_range(range),
            Packing::Frames(points) => points.packed_range(range),
            Packing::None | Packing::Parquet(_) | Packing::Npy(_) => range.clone(),
        }
    }

    /// Records `first .. first + n`, unpacked from the parts that
    /// [`stored_ranges`](Self::stored_ranges) names. Takes time, but for plain files.
    ///
    /// # Errors
    /// [`SourceError`] if the parts are not those of the file that was indexed.
    pub fn open<'a>(
        &self,
        first: u32,
        n: u32,
        source: impl Into<RecordReaderInput<'a>>,
        parts: &[Bytes],
    ) -> Result<OpenedRecords, SourceError> {
        let source = source.into();
        let sound = n.min(self.sound().saturating_sub(first));
        let Some(lost) = self.lost.as_ref().filter(|_| sound < n) else {
            return self.open_sound(first, n, source, parts);
        };
        let lost = OpenedRecords::faults(first + sound, 1, lost);
        if sound == 0 {
            return Ok(lost);
        }
        let opened = self.open_sound(first, sound, source, parts)?.with_index(self, first, sound);
        OpenedRecords::joined(vec![opened, lost]).ok_or_else(|| self.not_there(first, n))
    }

    fn open_sound(
        &self,
        first: u32,
        n: u32,
        source: RecordReaderInput<'_>,
        parts: &[Bytes],
    ) -> Result<OpenedRecords, SourceError> {
        if !self.links.is_empty() {
            return self.open_links(first, n, source, parts);
        }
        let records = self.unpack(first, n, source, parts)?;
        let Some(table) = &self.table else { return Ok(records) };
        let opened = table.open(first, &self.lengths, n, source, &records.data);
        let (lengths, data) = opened.map_err(SourceError)?;
        Ok(OpenedRecords { data, index: Some(FileIndex::window(lengths)) })
    }

    fn unpack(
        &self,
        first: u32,
        n: u32,
        source: RecordReaderInput<'_>,
        parts: &[Bytes],
    ) -> Result<OpenedRecords, SourceError> {
        match (&self.packing, parts) {
            (Packing::Parquet(layout), _) => {
                let ranges = self.stored_ranges(first, n, source)?;
                let opened = layout.open(first..first + n, source, ranges, parts);
                let (lengths, data) = opened.map_err(SourceError)?;
                Ok(OpenedRecords { data: data.into(), index: Some(FileIndex::window(lengths)) })
            }
            (Packing::Npy(layout), _) => {
                let ranges = self.stored_ranges(first, n, source)?;
                let read = |range: &Range<u64>| {
                    let is_some = !range.is_empty();
                    if is_some { part_of(&ranges, parts, range) } else { Some(Bytes::new()) }
                };
                let opened = layout.open(first..first + n, source, read);
                let (lengths, data) = opened.map_err(SourceError)?;
                Ok(OpenedRecords { data: data.into(), index: Some(FileIndex::window(lengths)) })
            }
            (Packing::Gzip(points), [part]) => {
                let unpacked = points.unpack(part, self.range(first, n)?);
                Ok(OpenedRecords { data: unpacked.map_err(SourceError)?.into(), index: None })
            }
            (Packing::Frames(points), [part]) => {
                let unpacked = points.unpack(part, self.range(first, n)?).map_err(SourceError)?;
                let opened = OpenedRecords { data: unpacked.into(), index: None };
                // Blocks are divided by an index of their own.
                Ok(opened.with_index(self, first, n))
            }
            (_, [part]) => Ok(OpenedRecords { data: part.clone(), index: None }),
            (_, _) => Ok(OpenedRecords { data: parts.concat().into(), index: None }),
        }
    }

    fn range(&self, first: u32, n: u32) -> Result<Range<u64>, SourceError> {
        self.byte_range(first, n).ok_or_else(|| self.not_there(first, n))
    }

    fn not_there(&self, first: u32, n: u32) -> SourceError {
        let records = self.len();
        SourceError(format!(
            "record {first} and {n} on are not in the index of a file of {records} records"
        ))
    }

    /// About how many bytes of memory it takes.
    pub fn memory_bytes(&self) -> usize {
        let packing = match &self.packing {
            Packing::None => 0,
            Packing::Gzip(points) => points.memory_bytes(),
            Packing::Frames(points) => points.memory_bytes(),
            Packing::Parquet(layout) => layout.memory_bytes(),
            Packing::Npy(layout) => layout.memory_bytes(),
        };
        let table = self.table.as_ref().map_or(0, |table| table.memory_bytes());
        let blank_lines = self.blank_lines.as_ref().map_or(0, |lines| lines.0.capacity() * 8);
        self.lengths.memory_bytes() + packing + table + self.links.memory_bytes() + blank_lines
    }

    /// The stored form: head, content compressed with zstd, CRC-32C of all. The content is the
    /// lengths as LEB128 numbers, then what the packing needs.
    pub fn encode(&self) -> Vec<u8> {
        let mut content = Vec::new();
        self.lengths.encode(&mut content);
        let packing = match &self.packing {
            Packing::None => 0_u32,
            Packing::Gzip(points) => {
                points.encode(&mut content);
                1
            }
            Packing::Parquet(layout) => {
                layout.encode(&mut content);
                2
            }
            Packing::Frames(points) => {
                points.encode(&mut content);
                3
            }
            Packing::Npy(layout) => {
                layout.encode(&mut content);
                NPY
            }
        };
        if let Some(table) = &self.table {
            table.encode(&mut content);
        }
        let mut packing = packing;
        if let Some(lost) = &self.lost {
            varint::put(&mut content, lost.len() as u64);
            content.extend_from_slice(lost.as_bytes());
            packing |= IS_DAMAGED;
        }
        if !self.links.is_empty() {
            self.links.encode(&mut content);
            packing |= HAS_LINKS;
        }
        if let Some(lines) = &self.blank_lines {
            lines.encode(&mut content);
            packing |= HAS_BLANK_LINES;
        }
        let mut out = Vec::with_capacity(HEAD_BYTES + 4);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&packing.to_le_bytes());
        out.extend_from_slice(&self.lengths.end().to_le_bytes());
        out.extend_from_slice(&(content.len() as u64).to_le_bytes());
        // Compression fails only for want of memory; what is stored then says so by its size.
        match zstd::bulk::compress(&content, 3) {
            Ok(compressed) if compressed.len() < content.len() => out.extend(compressed),
            _ => out.extend(content),
        }
        let crc = gristmill_chunk::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the stored form of a file of `format`, with default limits.
    ///
    /// # Errors
    /// [`SourceError`] for anything [`encode`](Self::encode) would not have written.
    pub fn decode(stored: &[u8], format: &FileFormat) -> Result<FileIndex, SourceError> {
        Self::decode_with(stored, format, SourceLimits::default())
    }

    pub fn decode_with(
        stored: &[u8],
        format: &FileFormat,
        limits: SourceLimits,
    ) -> Result<FileIndex, SourceError> {
        Self::read(stored, format, limits)
            .map_err(|what| SourceError(format!("the stored index is not valid: {what}")))
    }

    fn read(stored: &[u8], format: &FileFormat, limits: SourceLimits) -> Result<FileIndex, String> {
        let cut = || "it is cut short".to_owned();
        let (checked, crc) = stored.split_last_chunk::<4>().ok_or_else(cut)?;
        let (head, packed) = checked.split_first_chunk::<HEAD_BYTES>().ok_or_else(cut)?;
        if !head.starts_with(&MAGIC) {
            return Err("it does not start with the magic bytes".into());
        }
        if gristmill_chunk::crc32c(checked) != u32::from_le_bytes(*crc) {
            return Err("its checksum does not match".into());
        }
        let number = |at: usize| head[at..].first_chunk().map_or(0, |n| u32::from_le_bytes(*n));
        let (version, mut packing, records) = (number(8), number(12), number(16));
        let mut take = |flag: u32, may_be: bool| {
            let is_set = may_be && packing & flag != 0;
            packing &= if is_set { !flag } else { u32::MAX };
            is_set
        };
        let has_links = take(HAS_LINKS, matches!(format, FileFormat::WebDataset(_)));
        let has_blanks = take(HAS_BLANK_LINES, matches!(format, FileFormat::Jsonl(_)));
        let is_damaged = take(IS_DAMAGED, true);
        let raw_bytes = head[20..].first_chunk().map_or(0, |n| u64::from_le_bytes(*n));
        if version != VERSION {
            return Err(format!("it has version {version}, this build reads {VERSION}"));
        }
        if records > limits.records {
            return Err(format!("it has {records} records; the limit is {}", limits.records));
        }
        let (has_footer, layout) = match format.index_kind(limits) {
            IndexKind::Footer(_) => (true, None),
            IndexKind::ScanTable(layout, _) => (false, Some(layout)),
            IndexKind::Scan(_) | IndexKind::ScanText(_) | IndexKind::Packed => (false, None),
        };
        let is_unknown = is_damaged && records == 0;
        let most = most_packing_bytes(packing, format, has_footer, is_unknown)
            .ok_or_else(|| format!("it is not that of a {} file", format.name()))?;
        let table = layout.map_or(0, |_| csv::CsvTableIndex::most_stored(records));
        let links = if has_links { links::MAX_STORED_BYTES } else { 0 };
        let lost = if is_damaged { MAX_LOST_BYTES + 10 } else { 0 };
        let blanks = if has_blanks { (records as usize + 1) * 2 * MAX_LENGTH_BYTES } else { 0 };
        let most = records as usize * MAX_LENGTH_BYTES + most + table + links + lost + blanks;
        let raw_bytes = usize::try_from(raw_bytes).ok().filter(|bytes| *bytes <= most);
        let raw_bytes = raw_bytes.ok_or("its size is not that of its records")?;
        let unpacked;
        let mut rest = packed;
        if packed.len() != raw_bytes {
            unpacked = zstd::bulk::decompress(packed, raw_bytes)
                .map_err(|error| format!("it cannot be decompressed: {error}"))?;
            rest = &unpacked;
        }
        let framing = format.framing_bytes();
        let lengths = RecordLengths::decode(&mut rest, records, framing, limits.record_bytes)?;
        let packing = Packing::decode(packing, &mut rest, limits)?;
        let table = match layout {
            Some(layout) => Some(Box::new(csv::CsvTableIndex::decode(&mut rest, layout, records)?)),
            None => None,
        };
        let lost = if is_damaged { Some(take_text(&mut rest)?) } else { None };
        let links = if has_links {
            TarLinks::decode(&mut rest, limits.record_bytes)?
        } else {
            TarLinks::default()
        };
        let blank_lines = has_blanks.then(|| BlankLines::decode(&mut rest, records)).transpose()?;
        let faults = Vec::new();
        match rest {
            [] => Ok(FileIndex { lengths, packing, table, links, lost, faults, blank_lines }),
            _ => Err("it has more than its records need".into()),
        }
    }
}

/// The most bytes of the stored packing with this number; none if no file of `format` has it. A damaged file of which
/// nothing is known has none.
fn most_packing_bytes(
    packing: u32,
    format: &FileFormat,
    has_footer: bool,
    is_unknown: bool,
) -> Option<usize> {
    let is_npy = matches!(format, FileFormat::Npy(_));
    match (packing, has_footer) {
        (0, false) => Some(0),
        (0, true) if is_unknown => Some(0),
        (1, false) => Some(gzip::MAX_STORED_BYTES),
        (2, true) if !is_npy => Some(parquet::MAX_STORED_BYTES),
        (NPY, true) if is_npy => Some(npy::MAX_STORED_BYTES),
        (3, false) => Some(frames::MAX_STORED_BYTES),
        _ => None,
    }
}

impl BlankLines {
    /// Notes that the file has `lines` blank lines before `record`.
    pub(crate) fn add(&mut self, record: u32, lines: u32) {
        self.0.push((record, lines));
    }

    fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.0.len() as u64);
        for (record, lines) in &self.0 {
            varint::put(out, u64::from(*record));
            varint::put(out, u64::from(*lines));
        }
    }

    fn decode(rest: &mut &[u8], records: u32) -> Result<Self, String> {
        let count = varint::take(rest)?;
        if count > u64::from(records) {
            return Err("it has more blank lines than records".into());
        }
        let mut next = || u32::try_from(varint::take(rest)?).map_err(|error| error.to_string());
        let lines =
            (0..count).map(|_| Ok((next()?, next()?))).collect::<Result<Vec<_>, String>>()?;
        let in_order = lines.is_sorted_by_key(|(record, _)| *record);
        in_order
            .then_some(BlankLines(lines))
            .ok_or_else(|| "its blank lines are not in order".into())
    }
}

impl FileIndex {
    pub(crate) fn blank_lines(self, blank_lines: BlankLines) -> Self {
        FileIndex { blank_lines: Some(blank_lines), ..self }
    }

    /// The line that a record is, counted from 1, if lines are records and the index knows of blank ones.
    pub fn line(&self, record: u32) -> Option<u64> {
        let BlankLines(blank) = self.blank_lines.as_ref()?;
        let before = blank.partition_point(|(first, _)| *first <= record).checked_sub(1);
        Some(u64::from(record) + 1 + before.map_or(0, |at| u64::from(blank[at].1)))
    }
}

// Records whose links lead elsewhere in their archive.

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
    fn linked_weights(&self, first: u32, n: u32) -> Vec<u64> {
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
    fn open_links(
        &self,
        first: u32,
        n: u32,
        source: RecordReaderInput<'_>,
        parts: &[Bytes],
    ) -> Result<OpenedRecords, SourceError> {
        let stored = self.stored_ranges(first, n, source)?;
        let read = |range: &Range<u64>| -> Result<Bytes, String> {
            let packed = self.packed(range);
            if packed.is_empty() {
                return Ok(Bytes::new());
            }
            let part = part_of(&stored, parts, &packed);
            let part = part.ok_or("the parts are not those of the file that was indexed")?;
            match &self.packing {
                Packing::Gzip(points) => Ok(points.unpack(&part, range.clone())?.into()),
                Packing::Frames(points) => Ok(points.unpack(&part, range.clone())?.into()),
                Packing::None | Packing::Parquet(_) | Packing::Npy(_) => Ok(part),
            }
        };
        let range = self.range(first, n)?;
        let data = read(&range).map_err(SourceError)?;
        let opened = self.links.open(first, range.start, self.sizes(first, n), &data, read);
        let (lengths, data) = opened.map_err(SourceError)?;
        Ok(OpenedRecords { data, index: Some(FileIndex::window(lengths)) })
    }
}

/// The same bytes as ranges in order and apart from each other.
fn apart(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ParsedSource, parquet::Parquet, tfrecord::TfRecord};

    use proptest::prelude::*;

    fn index(lengths: &[u32]) -> FileIndex {
        let mut index = FileIndex::new(16);
        lengths.iter().for_each(|length| index.push(*length, SourceLimits::default()).unwrap());
        index
    }

    #[test]
    fn starts_are_sums_also_beyond_the_stride() {
        let lengths: Vec<u32> = (0..5000).map(|i| i * 37 % 1000).collect();
        let index = index(&lengths);
        let mut start = 0;
        for (record, length) in (0..).zip(&lengths) {
            let end = start + u64::from(*length) + 16;
            assert_eq!(index.byte_range(record, 1), Some(start..end));
            start = end;
        }
        assert_eq!(index.byte_range(0, 5000), Some(0..start));
        assert_eq!(index.byte_range(5000, 1), None);
        assert_eq!(index.byte_range(u32::MAX, 2), None);
        assert_eq!(index.byte_range(5001, 0), None);
    }

    #[test]
    fn a_stored_index_is_compact() {
        let lengths: Vec<u32> =
            (0..1000_u32).map(|i| 90_000 + i.wrapping_mul(2_654_435_761) % 40_000).collect();
        let stored = index(&lengths).encode();
        assert!(stored.len() < 3 * 1000, "{}", stored.len());
        assert!(index(&[7; 100_000]).encode().len() < 200);
    }

    #[test]
    fn hostile_counts_are_refused_before_they_are_believed() {
        let mut stored = index(&[1, 2, 3]).encode();
        stored[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        let sealed = |mut bytes: Vec<u8>| {
            bytes.truncate(bytes.len() - 4);
            let crc = gristmill_chunk::crc32c(&bytes);
            bytes.extend(crc.to_le_bytes());
            FileIndex::decode(&bytes, &TfRecord.into()).unwrap_err().to_string()
        };
        assert!(sealed(stored.clone()).contains("the limit is"));
        stored[16..20].copy_from_slice(&2_u32.to_le_bytes());
        assert!(sealed(stored.clone()).contains("more than its records need"));
        stored[16..20].copy_from_slice(&4_u32.to_le_bytes());
        assert!(sealed(stored.clone()).contains("too short"));
        stored[20..28].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(sealed(stored.clone()).contains("size"));
        stored[12] = 2;
        assert!(sealed(stored.clone()).contains("not that of a tfrecord file"));
        stored[8] = 9;
        assert!(sealed(stored).contains("version 9"));
    }

    proptest! {
        #[test]
        fn indices_round_trip(lengths in prop::collection::vec(0_u32..=256 << 20, 0..3000)) {
            let index = index(&lengths);
            prop_assert_eq!(FileIndex::decode(&index.encode(), &TfRecord.into()), Ok(index));
        }

        #[test]
        fn damage_is_found(
            lengths in prop::collection::vec(0_u32..100_000, 0..200),
            at in any::<prop::sample::Index>(),
            bit in 0_u32..8,
            cut in any::<prop::sample::Index>(),
        ) {
            let stored = index(&lengths).encode();
            let mut bad = stored.clone();
            bad[at.index(stored.len())] ^= 1_u8 << bit;
            prop_assert!(FileIndex::decode(&bad, &TfRecord.into()).is_err());
            prop_assert!(FileIndex::decode(&stored[..cut.index(stored.len())], &TfRecord.into()).is_err());
        }

        #[test]
        fn sealed_rubbish_never_panics(
            packing in 0_u32..3, records in 0_u32..100, raw in 0_u64..600, body: Vec<u8>,
        ) {
            let mut bytes = MAGIC.to_vec();
            bytes.extend(VERSION.to_le_bytes());
            bytes.extend(packing.to_le_bytes());
            bytes.extend(records.to_le_bytes());
            bytes.extend(raw.to_le_bytes());
            bytes.extend(body);
            let crc = gristmill_chunk::crc32c(&bytes);
            bytes.extend(crc.to_le_bytes());
            let format = if packing == 2 { Parquet.into() } else { TfRecord.into() };
            if let Ok(index) = FileIndex::decode(&bytes, &format) {
                prop_assert_eq!(index.len(), records);
            }
        }
    }

    #[test]
    fn records_are_read_by_an_index_of_the_beginning_of_their_file() {
        let lines = |line: &dyn Fn(u32) -> String| (0..20_000).map(line).collect::<String>();
        for (name, file) in [
            ("jsonl", lines(&|i| format!("{{\"v\": {i}}}\n"))),
            ("csv", format!("v\n{}", lines(&|i| format!("\"{i}\n\"\n")))),
        ] {
            let source =
                ParsedSource::from_yaml(&format!("{name}: x\nfeatures: {{ v: {{ dtype: i64 }} }}"))
                    .unwrap();
            let format = &source.format;
            let mut packed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
            packed.extend(miniz_oxide::deflate::compress_to_vec(file.as_bytes(), 1));
            packed.extend(crc32fast::hash(file.as_bytes()).to_le_bytes());
            packed.extend((file.len() as u32).to_le_bytes());
            for stored in [file.clone().into_bytes(), packed] {
                let whole = index_of(format, &stored);
                let half = &stored[..stored.len() / 2];
                let mut builder = crate::IndexBuilder::new(format).unwrap();
                builder.push(half).unwrap();
                let found = builder.records();
                assert!(found > 1_000 && found < whole.len(), "{found} of {}", whole.len());
                let begun = builder.stop().unwrap();
                let read = |index: &FileIndex| {
                    let source = &source;
                    let part = |range: &Range<u64>| {
                        let range = range.start as usize..range.end as usize;
                        Bytes::copy_from_slice(&stored[range])
                    };
                    let ranges = index.stored_ranges(0, found, source).unwrap();
                    let parts: Vec<Bytes> = ranges.iter().map(part).collect();
                    index.open(0, found, source, &parts).unwrap().data
                };
                assert!(
                    begun.stored_ranges(0, found, &source).unwrap()[0].end <= half.len() as u64
                );
                assert_eq!(read(&begun), read(&whole));
            }
        }
    }

    fn index_of(format: &FileFormat, file: &[u8]) -> FileIndex {
        let mut builder = crate::IndexBuilder::new(format).unwrap();
        builder.push(file).unwrap();
        builder.finish().unwrap()
    }

    /// Records of 1, 2, 3 .. bytes, from number `first` on, each filled with its number.
    fn records(first: u32, n: u32) -> OpenedRecords {
        let (mut lengths, mut data) = (RecordLengths::new(first, 0), Vec::new());
        for number in first..first + n {
            lengths.push(number + 1);
            data.extend(std::iter::repeat_n(number as u8, number as usize + 1));
        }
        OpenedRecords { data: data.into(), index: Some(FileIndex::window(lengths)) }
    }

    fn same(found: &OpenedRecords, expected: &OpenedRecords) -> bool {
        (&found.data, &found.index) == (&expected.data, &expected.index)
    }

    #[test]
    fn parts_are_those_records_alone_and_join_again() {
        let all = records(5, 9);
        for (first, n) in [(5, 9), (5, 1), (13, 1), (7, 4), (9, 0)] {
            assert!(same(&all.part(first, n).unwrap(), &records(first, n)), "{first}, {n}");
        }
        for (first, n) in [(4, 1), (13, 2), (5, 10)] {
            assert!(all.part(first, n).is_none(), "{first}, {n}");
        }
        let parts = [(5, 2), (7, 3), (10, 4)].map(|(first, n)| all.part(first, n).unwrap());
        assert!(same(&OpenedRecords::joined(parts.to_vec()).unwrap(), &all));
        assert!(OpenedRecords::joined(Vec::new()).is_none());
    }
}
