//! Reads rows of some columns and makes records of them.

use super::{
    ParquetLayout, chunk_range,
    columns::{FeatureColumn, GatheredRows, decimal, lacks},
    indexing::headers,
    one_line,
    page_header::PageKind,
    put_values,
};
use crate::{
    BlockRange, Feature, FeatureDType, RecordReaderInput, SourceLimits, lengths::RecordLengths,
    words,
};

use ::parquet::{
    column::{
        page::{Page, PageMetadata, PageReader},
        reader::{ColumnReader, ColumnReaderImpl, get_column_reader},
    },
    data_type::{ByteArray, DataType, FixedLenByteArray, Int96},
    errors::{ParquetError, Result as ParquetResult},
    file::reader::{ChunkReader, Length, SerializedPageReader},
};
use bytes::{Buf, Bytes, buf::Reader};
use std::{ops::Range, sync::Arc};

/// Parts of a file that are closer than this are read as one: a request takes as long.
const GAP_BYTES: u64 = 512 << 10;
/// Most bytes that a split reads, unpacked or not, and makes.
const MAX_SPLIT_BYTES: u64 = 1 << 30;
/// Most values in the pages that a split reads of one column.
const MAX_SPLIT_VALUES: u64 = 1 << 27;

/// One value of each row of a split.
pub(super) enum ColumnValues {
    /// The range of a row's numbers in `bytes`, or the row's fault.
    Numbers {
        bytes: Vec<u8>,
        rows: Vec<Result<Range<usize>, String>>,
    },
    Bytes(Vec<Result<ByteArray, String>>),
    /// The same in each row: the default of a feature whose column the file lacks.
    Default(Vec<u8>),
}

/// The origin of the values of a feature.
enum FeatureOrigin<'a> {
    Column(FeatureColumn<'a>),
    Default(Vec<u8>),
}

/// The origin of the values of each feature, in the order of the features.
fn origins<'a>(
    layout: &ParquetLayout,
    source: RecordReaderInput<'a>,
) -> Result<Vec<FeatureOrigin<'a>>, String> {
    let schema = layout.metadata.file_metadata().schema_descr();
    let find = |feature: &'a Feature| {
        let Some(column) = FeatureColumn::find(schema, feature)? else {
            let text = feature.default.as_ref().ok_or_else(|| lacks(schema, feature))?;
            let mut bytes = Vec::new();
            words::read_value(feature, text, &mut bytes)?;
            return Ok(FeatureOrigin::Default(bytes));
        };
        if layout.encrypted.iter().skip(column.leaf).step_by(layout.leaves()).any(|chunk| *chunk) {
            return Err(format!(
                "column `{}` is encrypted, which is not read: write it without encryption",
                column.feature.key
            ));
        }
        Ok(FeatureOrigin::Column(column))
    };
    let origins = source.features.values().map(find).collect::<Result<Vec<_>, _>>()?;
    match source.features.values().next() {
        // It is another file than the one that was meant, or each name is misspelt.
        Some(first) if origins.iter().all(|origin| origin.column().is_none()) => {
            Err(lacks(schema, first))
        }
        _ => Ok(origins),
    }
}

/// The parts of a column chunk that some rows of its group are in: its dictionary, its pages.
fn chunk_parts(
    layout: &ParquetLayout,
    group: usize,
    leaf: usize,
    rows: &Range<usize>,
) -> Result<Vec<Range<u64>>, String> {
    let meta = layout.metadata.row_group(group).column(leaf);
    let whole = chunk_range(meta, i64::MAX as u64).ok_or("a column lies outside of the file")?;
    let pages = layout.pages(group, leaf);
    let Some(first) = pages.first() else { return Ok(vec![whole]) };
    let after = |row: usize| pages.partition_point(|page| page.first_row_index < row as i64);
    let (from, to) = (after(rows.start + 1).saturating_sub(1), after(rows.end));
    // Pages were checked: they lie in the chunk, in order.
    let start = |at: usize| pages.get(at).map_or(whole.end, |page| page.offset as u64);
    let end = to
        .checked_sub(1)
        .and_then(|last| pages.get(last))
        .map_or(whole.end, |page| page.offset as u64 + page.compressed_page_size as u64);
    Ok([whole.start..first.offset as u64, start(from)..end].to_vec())
}

/// The ranges to read for some rows: in order, and neighbours together.
pub(super) fn stored_ranges(
    layout: &ParquetLayout,
    rows: Range<u32>,
    source: RecordReaderInput<'_>,
) -> Result<Vec<Range<u64>>, String> {
    let origins = origins(layout, source)?;
    let mut parts = Vec::new();
    for (group, rows) in layout.groups(rows) {
        for column in origins.iter().filter_map(FeatureOrigin::column) {
            parts.extend(chunk_parts(layout, group, column.leaf, &rows)?);
        }
    }
    parts.retain(|part| !part.is_empty());
    parts.sort_unstable_by_key(|part| (part.start, part.end));
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for part in parts {
        match ranges.last_mut() {
            Some(last) if part.start <= last.end.saturating_add(GAP_BYTES) => {
                last.end = last.end.max(part.end);
            }
            _ => ranges.push(part),
        }
    }
    let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    if bytes <= MAX_SPLIT_BYTES {
        Ok(ranges)
    } else {
        Err(format!(
            "a split would read {bytes} bytes; the limit is {MAX_SPLIT_BYTES}: write the file with \
             smaller row groups or a page index"
        ))
    }
}

/// Makes records of some rows.
pub(super) fn open(
    layout: &ParquetLayout,
    rows: Range<u32>,
    source: RecordReaderInput<'_>,
    pieces: FilePieces,
) -> Result<(RecordLengths, Vec<u8>), String> {
    let origins = origins(layout, source)?;
    let pieces = Arc::new(pieces);
    let (mut lengths, mut data) = (RecordLengths::new(rows.start, 0), Vec::new());
    for (group, rows) in layout.groups(rows) {
        let read = |origin: &FeatureOrigin<'_>| match origin {
            FeatureOrigin::Default(bytes) => Ok(ColumnValues::Default(bytes.clone())),
            FeatureOrigin::Column(column) => {
                let read = column.read(layout, group, &rows, &pieces);
                read.map_err(|what| {
                    format!("column `{}` of row group {group}: {what}", column.feature.key)
                })
            }
        };
        let values = origins.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        for row in 0..rows.len() {
            let start = data.len();
            values.iter().for_each(|values| put_values(&mut data, values, row));
            let (bytes, most) = (data.len() - start, SourceLimits::default().record_bytes);
            if bytes > most as usize || data.len() as u64 > MAX_SPLIT_BYTES {
                return Err(format!(
                    "row {row} of the split has {bytes} bytes; the limit is {most}, and \
                     {MAX_SPLIT_BYTES} of a split: use smaller batches"
                ));
            }
            lengths.push(bytes as u32);
        }
    }
    Ok((lengths, data))
}

impl<'a> FeatureOrigin<'a> {
    fn column(&self) -> Option<&FeatureColumn<'a>> {
        match self {
            FeatureOrigin::Column(column) => Some(column),
            FeatureOrigin::Default(_) => None,
        }
    }
}

impl FeatureColumn<'_> {
    fn read(
        &self,
        layout: &ParquetLayout,
        group: usize,
        rows: &Range<usize>,
        pieces: &Arc<FilePieces>,
    ) -> Result<ColumnValues, String> {
        let (mut unpacked, mut values, mut dictionary) = (0_u64, 0_u64, false);
        for part in chunk_parts(layout, group, self.leaf, rows)? {
            for (_, page) in headers(pieces, part)? {
                unpacked += page.unpacked_bytes as u64;
                values += page.values;
                dictionary |= page.kind == PageKind::Dictionary;
                // The decoder takes it for granted.
                if page.by_dictionary && !dictionary {
                    return Err("a page refers to a dictionary that is not before it".into());
                }
            }
        }
        if unpacked > MAX_SPLIT_BYTES || values > MAX_SPLIT_VALUES {
            return Err(format!(
                "a split would unpack {unpacked} bytes and {values} values; the limits are \
                 {MAX_SPLIT_BYTES} and {MAX_SPLIT_VALUES}"
            ));
        }
        let meta = layout.metadata.row_group(group);
        let pages = Some(layout.pages(group, self.leaf).to_vec()).filter(|pages| !pages.is_empty());
        let all_rows = usize::try_from(meta.num_rows()).unwrap_or(0);
        let column = meta.column(self.leaf);
        let pages = SerializedPageReader::new(Arc::clone(pieces), column, all_rows, pages);
        let pages = pages.map_err(|error| one_line(&error))?;
        let reader = get_column_reader(Arc::clone(&self.descriptor), Box::new(FilledPages(pages)));
        match reader {
            reader if self.scale.is_some() => self.decimals(reader, rows),
            ColumnReader::BoolColumnReader(reader) => {
                self.numbers(reader, rows, |value, out| self.put(i128::from(*value), out))
            }
            ColumnReader::Int32ColumnReader(reader) => self.numbers(reader, rows, |value, out| {
                let value =
                    if self.is_unsigned() { i128::from(*value as u32) } else { i128::from(*value) };
                self.put(value, out)
            }),
            ColumnReader::Int64ColumnReader(reader) => self.numbers(reader, rows, |value, out| {
                let value =
                    if self.is_unsigned() { i128::from(*value as u64) } else { i128::from(*value) };
                self.put(value, out)
            }),
            ColumnReader::FloatColumnReader(reader) => {
                self.numbers(reader, rows, |value, out| self.put_real(f64::from(*value), out))
            }
            ColumnReader::DoubleColumnReader(reader) => {
                self.numbers(reader, rows, |value, out| self.put_real(*value, out))
            }
            ColumnReader::ByteArrayColumnReader(reader) => self.bytes(reader, rows, Ok),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => match self.feature.dtype {
                FeatureDType::Bytes => self.bytes(reader, rows, |value| Ok(ByteArray::from(value))),
                _ => self.numbers(reader, rows, |value, out| self.put_real(half(value)?, out)),
            },
            ColumnReader::Int96ColumnReader(reader) => {
                self.numbers(reader, rows, |value, out| self.put(nanoseconds(value), out))
            }
        }
    }

    /// Reads decimal numbers as their text, or as the numbers that these are.
    fn decimals(&self, reader: ColumnReader, rows: &Range<usize>) -> Result<ColumnValues, String> {
        match reader {
            ColumnReader::Int32ColumnReader(reader) => {
                self.decimals_of(reader, rows, |value, take| take(&value.to_be_bytes()))
            }
            ColumnReader::Int64ColumnReader(reader) => {
                self.decimals_of(reader, rows, |value, take| take(&value.to_be_bytes()))
            }
            ColumnReader::ByteArrayColumnReader(reader) => {
                self.decimals_of(reader, rows, |value, take| take(value.data()))
            }
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                self.decimals_of(reader, rows, |value, take| take(value.data()))
            }
            _ => Err("a DECIMAL is stored in numbers that cannot be".into()),
        }
    }

    fn decimals_of<T: DataType>(
        &self,
        reader: ColumnReaderImpl<T>,
        rows: &Range<usize>,
        bytes: impl Fn(&T::T, &dyn Fn(&[u8]) -> Result<String, String>) -> Result<String, String>,
    ) -> Result<ColumnValues, String> {
        let (dtype, scale) = (self.feature.dtype, self.scale.unwrap_or(0));
        let text = |value: &T::T| bytes(value, &|bytes| decimal(bytes, scale));
        if dtype == FeatureDType::Bytes {
            return self
                .bytes(reader, rows, |value| Ok(ByteArray::from(text(&value)?.into_bytes())));
        }
        self.numbers(reader, rows, |value, out| {
            let text = text(value)?;
            words::add(dtype, &text, out).ok_or_else(|| words::no_number(dtype, &text))
        })
    }

    /// Appends a whole number as what the feature is.
    fn put(&self, value: i128, out: &mut Vec<u8>) -> Result<(), String> {
        let dtype = self.feature.dtype;
        let beyond = |_| format!("holds {value}, which is no {}", dtype.dtype());
        match dtype {
            FeatureDType::F32 => out.extend_from_slice(&(value as f32).to_le_bytes()),
            FeatureDType::F64 => out.extend_from_slice(&(value as f64).to_le_bytes()),
            FeatureDType::U64 => {
                out.extend_from_slice(&u64::try_from(value).map_err(beyond)?.to_le_bytes());
            }
            FeatureDType::I64 | FeatureDType::Bytes => {
                out.extend_from_slice(&i64::try_from(value).map_err(beyond)?.to_le_bytes());
            }
        }
        Ok(())
    }

    /// Appends a number as what the feature is.
    fn put_real(&self, value: f64, out: &mut Vec<u8>) -> Result<(), String> {
        let narrow = value as f32;
        match self.feature.dtype {
            FeatureDType::F64 => out.extend_from_slice(&value.to_le_bytes()),
            _ if narrow.is_infinite() && value.is_finite() => {
                return Err(format!("holds {value}, which is no f32"));
            }
            _ => out.extend_from_slice(&narrow.to_le_bytes()),
        }
        Ok(())
    }

    fn bytes<T: DataType>(
        &self,
        reader: ColumnReaderImpl<T>,
        rows: &Range<usize>,
        bytes: impl Fn(T::T) -> Result<ByteArray, String>,
    ) -> Result<ColumnValues, String> {
        let Levels { definition, values, .. } = levels(reader, rows)?;
        let mut values = values.into_iter();
        let key = &self.feature.key;
        let default = self.feature.default.as_deref().map(ByteArray::from);
        let max = self.descriptor.max_def_level();
        let mut value = |row: usize| match (definition.get(row), &default) {
            (Some(level), Some(default)) if *level < max => Ok(default.clone()),
            (Some(level), None) if *level < max => Err(format!("column `{key}` is null")),
            _ => {
                let value =
                    values.next().ok_or_else(|| format!("column `{key}` has too few values"))?;
                bytes(value).map_err(|what| format!("column `{key}` {what}"))
            }
        };
        Ok(ColumnValues::Bytes((0..rows.len()).map(&mut value).collect()))
    }

    /// Reads numbers; `put` appends one as the feature stores it.
    fn numbers<T: DataType>(
        &self,
        reader: ColumnReaderImpl<T>,
        rows: &Range<usize>,
        put: impl Fn(&T::T, &mut Vec<u8>) -> Result<(), String>,
    ) -> Result<ColumnValues, String> {
        let Levels { definition, repetition, values } = levels(reader, rows)?;
        let max = self.descriptor.max_def_level();
        let mut values = values.iter();
        let mut gathered = GatheredRows::new(self, rows.len());
        let levels =
            definition.len().max(repetition.len()).max(if max == 0 { values.len() } else { 0 });
        for i in 0..levels {
            gathered.place(repetition.get(i).copied().unwrap_or(0));
            let level = definition.get(i).copied().unwrap_or(max);
            match usize::try_from(level).ok().and_then(|level| self.absent.get(level)) {
                Some(absent) if level < max => gathered.absent(*absent),
                _ => {
                    let value = values.next().ok_or("there are too few values")?;
                    gathered.value(|out| put(value, out));
                }
            }
        }
        let (bytes, found) = gathered.finish();
        if found.len() == rows.len() {
            Ok(ColumnValues::Numbers { bytes, rows: found })
        } else {
            Err(format!("there are {} rows of {}", found.len(), rows.len()))
        }
    }
}

/// A time of 96 bits, nanoseconds of a Julian day, in nanoseconds since 1970.
fn nanoseconds(time: &Int96) -> i128 {
    const EPOCH_DAY: i128 = 2_440_588;
    const NANOSECONDS_A_DAY: i128 = 86_400_000_000_000;
    let [low, high, day] = [0, 1, 2].map(|i| time.data()[i]);
    let within = (u64::from(high) << 32 | u64::from(low)) as i64;
    (i128::from(day as i32) - EPOCH_DAY) * NANOSECONDS_A_DAY + i128::from(within)
}

/// A half-precision number.
fn half(value: &FixedLenByteArray) -> Result<f64, String> {
    let bytes = value.data().first_chunk::<2>().ok_or("holds a half that has not two bytes")?;
    Ok(half::f16::from_le_bytes(*bytes).to_f64())
}

/// The pages of a column without those that hold nothing: the decoder takes one for the end, and pyarrow begins with
/// one if its pages are small.
struct FilledPages(SerializedPageReader<FilePieces>);

impl PageReader for FilledPages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        self.peek_next_page()?;
        self.0.get_next_page()
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        loop {
            match self.0.peek_next_page()? {
                Some(page) if page.num_levels == Some(0) => self.0.skip_next_page()?,
                page => return Ok(page),
            }
        }
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.0.skip_next_page()
    }
}

impl Iterator for FilledPages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// The decoder's output for rows.
struct Levels<T> {
    definition: Vec<i16>,
    repetition: Vec<i16>,
    values: Vec<T>,
}

fn levels<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    rows: &Range<usize>,
) -> Result<Levels<T::T>, String> {
    let mut levels = Levels { definition: Vec::new(), repetition: Vec::new(), values: Vec::new() };
    let skipped = reader.skip_records(rows.start).map_err(|error| one_line(&error))?;
    let mut left = rows.len();
    while left > 0 && skipped == rows.start {
        let Levels { definition, repetition, values } = &mut levels;
        let read = reader.read_records(left, Some(definition), Some(repetition), values);
        match read.map_err(|error| one_line(&error))? {
            (0, ..) => break,
            (rows, ..) => left = left.saturating_sub(rows),
        }
    }
    match left {
        0 => Ok(levels),
        _ => Err(format!("it ends {left} rows too soon")),
    }
}

// Rows that are decoded together.

impl ParquetLayout {
    /// The blocks of rows that hold `rows`: the pages of the largest wanted column, or its whole row group where its
    /// pages are not known. None if `open` would refuse the file.
    pub(crate) fn blocks(
        &self,
        rows: Range<u32>,
        source: RecordReaderInput<'_>,
    ) -> Option<Vec<BlockRange>> {
        let origins = origins(self, source).ok()?;
        let columns = origins.iter().filter_map(FeatureOrigin::column);
        let leaves: Vec<usize> = columns.map(|column| column.leaf).collect();
        let mut blocks = Vec::new();
        for (group, within) in self.groups(rows) {
            let meta = self.metadata.row_group(group);
            let bytes = |leaf: usize| {
                u64::try_from(meta.column(leaf).uncompressed_size()).unwrap_or(u64::MAX)
            };
            let all: u64 = leaves.iter().map(|leaf| bytes(*leaf)).fold(0, u64::saturating_add);
            let largest = leaves.iter().copied().max_by_key(|leaf| bytes(*leaf))?;
            let (first_row, group_rows) = (self.first_rows[group], meta.num_rows() as u64);
            for block in self.pages_of(group, largest, &within) {
                let share = u128::from(all) * block.len() as u128 / u128::from(group_rows.max(1));
                let rows = first_row + block.start as u32..first_row + block.end as u32;
                blocks.push(BlockRange { rows, bytes: u64::try_from(share).unwrap_or(u64::MAX) });
            }
        }
        Some(blocks)
    }

    /// The rows, within their group, of the pages of a column that hold `rows`.
    fn pages_of(&self, group: usize, leaf: usize, rows: &Range<usize>) -> Vec<Range<usize>> {
        let whole = self.metadata.row_group(group).num_rows() as usize;
        let starts = self.pages(group, leaf).iter().map(|page| page.first_row_index as usize);
        let mut starts: Vec<usize> = starts.collect();
        if starts.first() != Some(&0) {
            starts.insert(0, 0);
        }
        let ends = starts.iter().copied().skip(1).chain([whole]);
        let pages = starts.iter().copied().zip(ends).map(|(start, end)| start..end);
        pages.filter(|page| page.start < rows.end && rows.start < page.end).collect()
    }
}

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
