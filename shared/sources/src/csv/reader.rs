//! Text files with a line of values for each record (RFC 4180): CSV, TSV and the like.
//!
//! Lines end in LF, CRLF or CR, the last may end with the file; blank lines are no records. Values may be quoted, and
//! then hold delimiters and line ends, so a file is read from its start to find its records. The line that names the
//! columns is kept with the index: a record handed to the reader begins with the places of its values.

#[cfg(test)]
mod tests;

use crate::{
    Feature, FeatureDType, FeatureMap, FileIndex, ReadRecord, RecordReaderInput, RecordScanner,
    SourceError, SourceLimits,
    csv::{Csv, CsvLayout},
    lengths::{MAX_LENGTH_BYTES, RecordLengths},
    varint, words,
};

use bytes::Bytes;
use gristmill_kernel::{CellStorage, FieldCell};
use std::borrow::Cow;

/// The byte order mark that some editors write.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Longest line of names.
const MAX_HEADER_BYTES: usize = 1 << 20;
/// In place of the place of a column that a file lacks: its values are the feature's default.
const NO_COLUMN: u32 = u32::MAX;

/// The part of a table's index beside the places of its records.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CsvTableIndex {
    layout: CsvLayout,
    /// The line that names the columns, as it stands in the file; empty if there is none.
    header: Vec<u8>,
    /// How many lines each record has, unless it is one each.
    lines: Option<RecordLengths>,
}

impl CsvTableIndex {
    /// The offset of the first record.
    pub(crate) fn start(&self) -> u64 {
        self.header.len() as u64
    }

    /// Leaves the first `records`.
    pub(crate) fn truncate(&mut self, records: u32) {
        if let Some(lines) = &mut self.lines {
            lines.truncate(records);
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.header.len() + self.lines.as_ref().map_or(0, RecordLengths::memory_bytes)
    }

    /// Most bytes of the stored form of a table of so many records.
    pub(crate) fn most_stored(records: u32) -> usize {
        MAX_HEADER_BYTES + records as usize * MAX_LENGTH_BYTES + 32
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.header.len() as u64);
        out.extend_from_slice(&self.header);
        out.push(u8::from(self.lines.is_some()));
        if let Some(lines) = &self.lines {
            lines.encode(out);
        }
    }

    pub(crate) fn decode(
        rest: &mut &[u8],
        layout: CsvLayout,
        records: u32,
    ) -> Result<Self, String> {
        let bytes = usize::try_from(varint::take(rest)?).unwrap_or(usize::MAX);
        if bytes > MAX_HEADER_BYTES {
            return Err("its header is too long".into());
        }
        let header = varint::bytes(rest, bytes)?.to_vec();
        let lines = match varint::byte(rest)? {
            0 => None,
            _ => Some(RecordLengths::decode(rest, records, 0, u32::MAX)?),
        };
        Ok(CsvTableIndex { layout, header, lines })
    }

    /// Records from `first` on, of `lengths` and end to end in `data`, as the reader takes them.
    ///
    /// # Errors
    /// If the columns are not those that `source` reads.
    pub(crate) fn open(
        &self,
        first: u32,
        lengths: &RecordLengths,
        n: u32,
        source: RecordReaderInput<'_>,
        data: &[u8],
    ) -> Result<(RecordLengths, Bytes), String> {
        let places = self.places(source)?;
        let head = 4 + places.len();
        let mut out = Vec::with_capacity(data.len() + n as usize * head);
        let mut window = RecordLengths::new(first, 0);
        let mut rest = data;
        for (record, bytes) in (first..).zip(lengths.sizes(first, n)) {
            let cut = || "the records are not those that were indexed".to_owned();
            let (line, after) = rest.split_at_checked(bytes as usize).ok_or_else(cut)?;
            rest = after;
            let before =
                self.lines.as_ref().map_or(Some(u64::from(record)), |lines| lines.start(record));
            let number = before.unwrap_or_default() + u64::from(self.header_lines()) + 1;
            out.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
            out.extend_from_slice(&places);
            let marked = record == 0 && self.header.is_empty();
            let line = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| marked).unwrap_or(line);
            out.extend_from_slice(line);
            window.push((head + line.len()) as u32);
        }
        Ok((window, out.into()))
    }

    fn header_lines(&self) -> u32 {
        count_lines(&self.header)
    }

    /// The number of columns, and the column of each feature, each as four bytes.
    fn places(&self, source: RecordReaderInput<'_>) -> Result<Vec<u8>, String> {
        let named;
        let columns = if self.layout.header {
            let line = self.header.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&self.header);
            let values = values(line, self.layout)?;
            let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
            named = values.iter().map(|value| text(value)).collect::<Vec<_>>();
            named.as_slice()
        } else {
            source.format.columns()
        };
        let mut places = (columns.len() as u32).to_le_bytes().to_vec();
        for feature in source.features.values() {
            let mut found = (0_u32..).zip(columns).filter(|(_, column)| **column == feature.key);
            let place = match found.next() {
                Some((place, _)) => place,
                None if feature.default.is_some() => NO_COLUMN,
                None => return Err(lacks(feature, columns)),
            };
            if found.next().is_some() {
                return Err(format!("line 1: it has two columns `{}`", feature.key));
            }
            places.extend(place.to_le_bytes());
        }
        let mut wanted = source.features.values();
        match source.features.values().next() {
            // It is another file than the one that was meant, or each name is misspelt.
            Some(first) if !wanted.any(|feature| columns.contains(&feature.key)) => {
                Err(lacks(first, columns))
            }
            _ => Ok(places),
        }
    }
}

/// The message on a feature whose column a file lacks.
fn lacks(feature: &Feature, columns: &[String]) -> String {
    let shown: Vec<&str> = columns.iter().take(20).map(String::as_str).collect();
    let more = if columns.len() > shown.len() { ", .." } else { "" };
    let shown = shown.join(", ").replace(|c: char| c.is_control(), " ");
    format!("line 1: it has no column `{}`, but {shown}{more}", feature.key)
}

/// Line ends: LF, CRLF or CR.
fn count_lines(bytes: &[u8]) -> u32 {
    let ends = |(i, byte): &(usize, &u8)| {
        **byte == b'\n' || (**byte == b'\r' && bytes.get(i + 1) != Some(&b'\n'))
    };
    bytes.iter().enumerate().filter(ends).count() as u32
}

/// Builds the index of a file from its bytes, pushed in order in pieces of any size.
#[derive(Debug)]
pub(crate) struct CsvScanner {
    limits: SourceLimits,
    layout: CsvLayout,
    index: FileIndex,
    table: CsvTableIndex,
    lines: RecordLengths,
    several_lines: bool,
    /// Bytes of the file so far, until it is known not to begin with a mark.
    at: usize,
    /// Bytes and line ends since the last record ended.
    bytes: u64,
    line_ends: u32,
    /// Line ends of the file before that.
    lines_before: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct State {
    /// There is something in the line at hand.
    begun: bool,
    /// Not at the start of a value.
    within: bool,
    quoted: bool,
    /// A quote within quotes: the end of the value, or the first of two.
    quote: bool,
    /// The last byte was a CR that ended a line.
    cr: bool,
    has_header: bool,
}

impl CsvScanner {
    pub(crate) fn new(layout: CsvLayout, limits: SourceLimits) -> Self {
        CsvScanner {
            limits,
            layout,
            index: FileIndex::new(0),
            table: CsvTableIndex { layout, header: Vec::new(), lines: None },
            lines: RecordLengths::new(0, 0),
            several_lines: false,
            at: 0,
            bytes: 0,
            line_ends: 0,
            lines_before: 0,
            state: State { has_header: !layout.header, ..State::default() },
        }
    }

    fn take(&mut self, byte: u8) -> Result<(), SourceError> {
        if self.state.cr && byte != b'\n' {
            self.line_end()?;
        }
        self.bytes += 1;
        if !self.state.has_header {
            self.table.header.push(byte);
            if self.table.header.len() > MAX_HEADER_BYTES {
                return Err(self.error("the line that names the columns is too long"));
            }
        }
        if self.bytes > u64::from(self.limits.record_bytes) {
            let most = self.limits.record_bytes;
            let what = format!("it has more than {most} bytes, the limit; does a quote not end?");
            return Err(self.error(&what));
        }
        let state = &mut self.state;
        if BYTE_ORDER_MARK.get(self.at) == Some(&byte) {
            self.at += 1;
            return Ok(());
        }
        self.at = usize::MAX;
        if state.quoted && !state.quote {
            state.quote = byte == b'"';
            self.line_ends += u32::from(byte == b'\n');
            return Ok(());
        }
        if state.quote {
            state.quote = false;
            if byte == b'"' {
                return Ok(());
            }
            state.quoted = false;
        }
        match byte {
            b'\n' => return self.line_end(),
            b'\r' => state.cr = true,
            b'"' if self.layout.quotes && !state.within => {
                (state.quoted, state.within, state.begun) = (true, true, true);
            }
            byte => {
                state.begun = true;
                state.within = byte != self.layout.delimiter;
            }
        }
        Ok(())
    }

    /// A line has ended outside quotes.
    fn line_end(&mut self) -> Result<(), SourceError> {
        self.line_ends += 1;
        (self.state.cr, self.state.within) = (false, false);
        if std::mem::take(&mut self.state.begun) { self.close() } else { Ok(()) }
    }

    fn close(&mut self) -> Result<(), SourceError> {
        self.lines_before += u64::from(self.line_ends);
        if !std::mem::replace(&mut self.state.has_header, true) {
            (self.bytes, self.line_ends) = (0, 0);
            return Ok(());
        }
        // In range: `take` compared it with a limit of this type.
        let pushed = self.index.push(self.bytes as u32, self.limits);
        pushed.map_err(|what| self.error(&what))?;
        self.lines.push(self.line_ends);
        self.several_lines |= self.line_ends != 1;
        (self.bytes, self.line_ends) = (0, 0);
        Ok(())
    }

    fn error(&self, what: &str) -> SourceError {
        let (line, record) = (self.lines_before + 1, self.index.len());
        SourceError(format!("line {line}, record {record}: {what}"))
    }
}

impl RecordScanner for CsvScanner {
    fn push(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        bytes.iter().try_for_each(|byte| self.take(*byte))
    }

    fn records(&self) -> u32 {
        self.index.len()
    }

    fn stop(self: Box<Self>) -> FileIndex {
        let lines = self.several_lines.then_some(self.lines);
        self.index.table(CsvTableIndex { lines, ..self.table })
    }

    fn check_end(&self) -> Result<(), SourceError> {
        if self.state.quoted && !self.state.quote {
            return Err(self.error(
                "a quote does not end; are quotes of another use in it? then say `quotes: false`",
            ));
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<FileIndex, SourceError> {
        if self.state.cr {
            self.line_end()?;
        }
        if self.state.begun {
            self.line_ends += 1;
            self.close()?;
        }
        Ok(self.stop())
    }
}

/// Finds the features of a pipeline in lines; feature i goes to cell i.
#[derive(Debug)]
pub struct CsvRecordReader {
    layout: CsvLayout,
    /// In the order of the field names.
    wanted: Vec<Feature>,
    missing: Vec<String>,
}

impl CsvRecordReader {
    pub(crate) fn new(format: &Csv, features: &FeatureMap) -> Self {
        let Csv { layout, missing, .. } = format;
        let wanted = features.values().cloned().collect();
        CsvRecordReader { layout: *layout, wanted, missing: missing.clone() }
    }

    /// The line as it stands in its file.
    pub(crate) fn line<'a>(&self, stored: &'a [u8]) -> &'a [u8] {
        stored.get(8 + 4 * self.wanted.len()..).unwrap_or_default()
    }

    fn read(
        &self,
        feature: &Feature,
        value: &[u8],
        stored: &[u8],
        cell: &mut FieldCell,
    ) -> Result<(), String> {
        let trimmed = value.trim_ascii();
        let is_missing =
            trimmed.is_empty() || self.missing.iter().any(|text| text.as_bytes() == trimmed);
        if is_missing && words::put_default(feature, cell) {
            return Ok(());
        }
        match feature.dtype {
            FeatureDType::Bytes => {
                let start = value.as_ptr().addr().wrapping_sub(stored.as_ptr().addr());
                let range = start..start.saturating_add(value.len());
                // A part of the record is used where it is.
                if stored.get(range.clone()).is_some_and(|part| std::ptr::eq(part, value)) {
                    cell.place = CellStorage::Record(range);
                    return Ok(());
                }
                cell.fill(|buffer| {
                    buffer.extend_from_slice(value);
                    Ok(())
                })
            }
            _ if is_missing && feature.values().is_some() => {
                Err("is missing; `defaults` may say what to read in its place".to_owned())
            }
            _ => words::numbers(feature, value, cell).map(|_| ()),
        }
    }
}

impl ReadRecord for CsvRecordReader {
    fn find(&self, stored: &[u8], cells: &mut [FieldCell]) -> Result<usize, String> {
        let number = |at: usize| {
            let bytes = stored.get(at..).and_then(|rest| rest.first_chunk());
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize
        };
        let line = self.line(stored);
        // Blank lines stand before it.
        let blank = line.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let first = number(0) + count_lines(&line[..blank]) as usize;
        let at_line = |what: String| format!("line {first}: {what}");
        let values = values(line, self.layout).map_err(at_line)?;
        let columns = number(4);
        if values.len() != columns {
            let found = values.len();
            return Err(at_line(format!("it has {found} values, and there are {columns} columns")));
        }
        for (i, (feature, cell)) in self.wanted.iter().zip(cells.iter_mut()).enumerate() {
            // No value has the place `NO_COLUMN`: it is missing.
            let value = values.get(number(8 + 4 * i)).map_or(&b""[..], |value| &**value);
            let read = self.read(feature, value, stored, cell);
            read.map_err(|what| at_line(format!("column `{}` {what}", feature.key)))?;
        }
        Ok(cells.iter().take(self.wanted.len()).map(|cell| cell.place.bytes()).sum())
    }

    fn raw<'a>(&self, stored: &'a [u8]) -> &'a [u8] {
        self.line(stored)
    }
}

/// The values of a line, without their quotes.
fn values(line: &[u8], layout: CsvLayout) -> Result<Vec<Cow<'_, [u8]>>, String> {
    // Line ends of blank lines stand before it.
    let blank = line.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let line = &line[blank..];
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let (mut values, mut rest) = (Vec::new(), line);
    loop {
        let (value, after) = match (rest.split_first(), layout.quotes) {
            (Some((b'"', inner)), true) => quoted(inner, layout.delimiter)?,
            _ => {
                let end = memchr::memchr(layout.delimiter, rest).unwrap_or(rest.len());
                (Cow::Borrowed(&rest[..end]), &rest[end..])
            }
        };
        values.push(value);
        match after.split_first() {
            // The delimiter.
            Some((_, after)) => rest = after,
            None => return Ok(values),
        }
    }
}

/// A value whose quote was opened, and what follows it.
fn quoted(inner: &[u8], delimiter: u8) -> Result<(Cow<'_, [u8]>, &[u8]), String> {
    let mut out: Option<Vec<u8>> = None;
    let (mut from, mut at) = (0, 0);
    loop {
        let quote = memchr::memchr(b'"', &inner[at..]).ok_or("a quote does not end")? + at;
        match inner.get(quote + 1) {
            Some(b'"') => {
                out.get_or_insert_default().extend_from_slice(&inner[from..=quote]);
                (from, at) = (quote + 2, quote + 2);
            }
            _ => {
                let after = &inner[quote + 1..];
                // Text after the closing quote belongs to the value.
                let end = memchr::memchr(delimiter, after).unwrap_or(after.len());
                let value = match (out, end) {
                    (None, 0) => Cow::Borrowed(&inner[..quote]),
                    (out, _) => {
                        let mut out = out.unwrap_or_default();
                        out.extend_from_slice(&inner[from..quote]);
                        out.extend_from_slice(&after[..end]);
                        Cow::Owned(out)
                    }
                };
                return Ok((value, &after[end..]));
            }
        }
    }
}
