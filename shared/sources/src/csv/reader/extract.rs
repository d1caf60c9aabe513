//! The values of one line.

use crate::{
    Feature, FeatureDType, FeatureMap, ReadRecord,
    csv::{Csv, CsvLayout},
    words,
};
use gristmill_kernel::{CellStorage, FieldCell};
use std::borrow::Cow;

/// Finds the features of a pipeline in lines; feature i goes to cell i.
#[derive(Debug)]
pub struct CsvRecordReader {
    layout: CsvLayout,
    /// In the order of the field names: the feature, and what stands in for a missing value.
    wanted: Vec<(Feature, Option<String>)>,
    missing: Vec<String>,
}

impl CsvRecordReader {
    pub(crate) fn new(format: &Csv, features: &FeatureMap) -> Self {
        let Csv { layout, defaults, missing, .. } = format;
        let wanted =
            |(name, feature): (&String, &Feature)| (feature.clone(), defaults.get(name).cloned());
        let wanted = features.iter().map(wanted).collect();
        CsvRecordReader { layout: *layout, wanted, missing: missing.clone() }
    }

    /// The line as it stands in its file.
    pub(crate) fn line<'a>(&self, stored: &'a [u8]) -> &'a [u8] {
        stored.get(8 + 4 * self.wanted.len()..).unwrap_or_default()
    }

    /// Finds every wanted feature in `stored`; returns the bytes of their values.
    pub(crate) fn extract(&self, stored: &[u8], cells: &mut [FieldCell]) -> Result<usize, String> {
        let number = |at: usize| {
            let bytes = stored.get(at..).and_then(|rest| rest.first_chunk());
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize
        };
        let at_line = |what: String| format!("line {}: {what}", number(0));
        let line = self.line(stored);
        let values = values(line, self.layout).map_err(at_line)?;
        let columns = number(4);
        if values.len() != columns {
            let found = values.len();
            return Err(at_line(format!("it has {found} values, and there are {columns} columns")));
        }
        for (i, ((feature, default), cell)) in self.wanted.iter().zip(cells.iter_mut()).enumerate()
        {
            let value = values.get(number(8 + 4 * i)).map_or(&b""[..], |value| &**value);
            let read = self.read(feature, default.as_deref(), (value, stored), cell);
            read.map_err(|what| at_line(format!("column `{}` {what}", feature.key)))?;
        }
        Ok(cells.iter().take(self.wanted.len()).map(|cell| cell.place.bytes()).sum())
    }

    fn read(
        &self,
        feature: &Feature,
        default: Option<&str>,
        (value, stored): (&[u8], &[u8]),
        cell: &mut FieldCell,
    ) -> Result<(), String> {
        let trimmed = value.trim_ascii();
        let is_missing =
            trimmed.is_empty() || self.missing.iter().any(|text| text.as_bytes() == trimmed);
        let value = match default {
            Some(default) if is_missing => default.as_bytes(),
            _ => value,
        };
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
            _ if is_missing && default.is_none() && feature.values().is_some() => {
                Err("is missing; `defaults` may say what to read in its place".to_owned())
            }
            _ => words::numbers(feature, value, cell).map(|_| ()),
        }
    }
}

impl ReadRecord for CsvRecordReader {
    fn read<'a>(
        &self,
        stored: &'a [u8],
        cells: &mut [FieldCell],
    ) -> Result<(&'a [u8], usize), String> {
        Ok((stored, self.extract(stored, cells)?))
    }

    fn raw<'a>(&self, stored: &'a [u8]) -> &'a [u8] {
        self.line(stored)
    }
}

/// The values of a line, without their quotes.
pub(super) fn values(line: &[u8], layout: CsvLayout) -> Result<Vec<Cow<'_, [u8]>>, String> {
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
