//! Records of further datasets beside those of the first, read into cells of their own.

use crate::{
    ExecError, Program, SplitInput,
    split::{Record, Records, Zipped, records},
};
use bytes::Bytes;
use gristmill_kernel::Cell;
use gristmill_model::RecordKey;
use gristmill_pipeline::Source;
use gristmill_sources::Reader;
use std::ops::Range;

/// Reads the records of a further dataset of a zip.
#[derive(Debug)]
pub(crate) struct ZippedReader {
    reader: Reader,
    /// The cells of its features, among those of the element.
    cells: Range<usize>,
}

/// The readers of all datasets but the first, whose features have the first cells.
pub(crate) fn readers(source: &Source) -> Vec<ZippedReader> {
    let mut start = source.features.len();
    let reader = |source: &Source| {
        let cells = start..start + source.features.len();
        start = cells.end;
        ZippedReader { reader: Reader::new(source), cells }
    };
    source.zipped.iter().map(reader).collect()
}

/// A record that goes with one of the first dataset.
#[derive(Clone, Copy)]
pub(crate) struct Beside<'a> {
    by: &'a ZippedReader,
    record: Record<'a>,
    /// What errors call its file.
    file: &'a str,
}

/// The records of a further dataset, one after the other.
pub(crate) struct Besides<'a> {
    by: &'a ZippedReader,
    zipped: &'a Zipped<'a>,
    records: Records<'a>,
}

/// What goes with the records of the first dataset: of each further one.
pub(crate) fn besides<'a>(
    program: &'a Program,
    input: &'a SplitInput<'a>,
) -> Result<Vec<Besides<'a>>, ExecError> {
    let (wanted, read) = (program.zipped.len(), input.zipped.len());
    if wanted != read {
        let what = format!("{wanted} datasets are zipped to the first, and {read} were read");
        return Err(ExecError::Source(what));
    }
    let n_records = input.n_records();
    let of_one = |(by, zipped): (&'a ZippedReader, &'a Zipped<'a>)| match zipped.n_records() {
        found if found == n_records => {
            Ok(Besides { by, zipped, records: records(&zipped.parts, zipped.picks.as_deref(), 0) })
        }
        found => {
            let what = format!("{found} records were read to go with {n_records}");
            Err(ExecError::Source(what))
        }
    };
    program.zipped.iter().zip(&input.zipped).map(of_one).collect()
}

impl<'a> Besides<'a> {
    pub(crate) fn next(&mut self) -> Result<Beside<'a>, ExecError> {
        let missing = || ExecError::Source("a record has none that goes with it".into());
        let record = self.records.next().ok_or_else(missing)??;
        let file = self.zipped.files.get(record.part as usize).map_or("", String::as_str);
        Ok(Beside { by: self.by, record, file })
    }
}

impl Beside<'_> {
    pub(crate) fn stored_bytes(&self) -> usize {
        self.record.stored.len()
    }

    /// Finds its features among `cells`, those of the element; returns the bytes of their values.
    ///
    /// # Errors
    /// What is wrong with the record, which is not the one that errors name.
    pub(crate) fn read(&self, cells: &mut [Cell]) -> Result<usize, String> {
        let named = |reason| {
            let RecordKey { record, .. } = self.record.key;
            format!("{} record {record}, which goes with it: {reason}", self.file)
        };
        let cells = cells.get_mut(self.by.cells.clone()).unwrap_or_default();
        let (bytes, kept_bytes) = self.by.reader.read(self.record.stored, cells).map_err(named)?;
        // An element refers to one record, the first dataset's.
        cells.iter_mut().try_for_each(|cell| cell.own(bytes)).map_err(named)?;
        Ok(kept_bytes)
    }

    /// The record as a person would want to look at it.
    pub(crate) fn raw(&self) -> (RecordKey, Bytes) {
        // A copy: a slice would keep the whole split's bytes alive.
        let raw = Bytes::copy_from_slice(self.by.reader.raw(self.record.stored));
        (self.record.key, raw)
    }
}

#[cfg(test)]
mod tests;
