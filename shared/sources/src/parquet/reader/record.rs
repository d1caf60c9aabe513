//! A row as a record: for each feature its length (u32, little-endian) and its value; or, with the
//! highest bit of the length set, what is wrong with it.

use super::reading::ColumnValues;
use crate::{FeatureMap, ReadRecord};
use gristmill_kernel::{CellStorage, FieldCell};

/// Set in the length of what is no value.
const FAULT: u32 = 1 << 31;

/// Appends the value of a row.
pub(super) fn put(record: &mut Vec<u8>, values: &ColumnValues, row: usize) {
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

    /// Finds every feature in `record`; returns the bytes of their values.
    pub(crate) fn extract(&self, record: &[u8], cells: &mut [FieldCell]) -> Result<usize, String> {
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

impl ReadRecord for ParquetRecordReader {
    fn read<'a>(
        &self,
        stored: &'a [u8],
        cells: &mut [FieldCell],
    ) -> Result<(&'a [u8], usize), String> {
        Ok((stored, self.extract(stored, cells)?))
    }
}
