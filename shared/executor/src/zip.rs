//! Reads records of the further datasets of a zip into cells of their own.

use crate::{
    CompiledPipeline, ExecError, SplitInput,
    split::{InputRecord, InputRecords, ZippedInput, records},
};
use bytes::Bytes;
use gristmill_kernel::FieldCell;
use gristmill_model::RecordKey;
use gristmill_pipeline::PipelineSource;
use gristmill_sources::RecordReader;
use std::ops::Range;

/// Reads the records of a further dataset of a zip.
#[derive(Debug)]
pub(crate) struct ZippedReader {
    reader: RecordReader,
    /// Cells of its features in the element.
    cells: Range<usize>,
}

/// Readers of all datasets but the first, whose features have the first cells.
pub(crate) fn readers(source: &PipelineSource) -> Vec<ZippedReader> {
    let mut start = source.features.len();
    let reader = |source: &PipelineSource| {
        let cells = start..start + source.features.len();
        start = cells.end;
        ZippedReader { reader: RecordReader::new(source), cells }
    };
    source.zipped.iter().map(reader).collect()
}

/// The record of a further dataset that is zipped to one of the first.
#[derive(Clone, Copy)]
pub(crate) struct ZippedRecord<'a> {
    by: &'a ZippedReader,
    record: InputRecord<'a>,
    /// Name of its file in error messages.
    file: &'a str,
}

/// The records of a further dataset, in order.
pub(crate) struct ZippedRecords<'a> {
    by: &'a ZippedReader,
    zipped: &'a ZippedInput<'a>,
    records: InputRecords<'a>,
}

/// Prepares the records of each further dataset.
pub(crate) fn besides<'a>(
    program: &'a CompiledPipeline,
    input: &'a SplitInput<'a>,
) -> Result<Vec<ZippedRecords<'a>>, ExecError> {
    let (wanted, read) = (program.zipped.len(), input.zipped.len());
    if wanted != read {
        let what = format!("{wanted} datasets are zipped with the first, but {read} were read");
        return Err(ExecError::Source(what));
    }
    let n_records = input.n_records();
    let of_one = |(by, zipped): (&'a ZippedReader, &'a ZippedInput<'a>)| match zipped.n_records() {
        found if found == n_records => Ok(ZippedRecords {
            by,
            zipped,
            records: records(&zipped.parts, zipped.picks.as_deref(), 0),
        }),
        found => {
            let what = format!("{found} records were read for {n_records}");
            Err(ExecError::Source(what))
        }
    };
    program.zipped.iter().zip(&input.zipped).map(of_one).collect()
}

impl<'a> ZippedRecords<'a> {
    pub(crate) fn next(&mut self) -> Result<ZippedRecord<'a>, ExecError> {
        let missing = || ExecError::Source("a record has no counterpart".into());
        let record = self.records.next().ok_or_else(missing)??;
        let file = self.zipped.files.get(record.part as usize).map_or("", String::as_str);
        Ok(ZippedRecord { by: self.by, record, file })
    }
}

impl ZippedRecord<'_> {
    pub(crate) fn stored_bytes(&self) -> usize {
        self.record.stored.len()
    }

    /// Reads the features into their cells among `cells`, which are those of the element. Returns
    /// the bytes of their values. An error has file and record: the caller's names the record of the
    /// first dataset.
    pub(crate) fn read(&self, cells: &mut [FieldCell]) -> Result<usize, String> {
        let named = |reason| {
            let RecordKey { record, .. } = self.record.key;
            format!("{} record {record}, which goes with it: {reason}", self.file)
        };
        let cells = cells.get_mut(self.by.cells.clone()).unwrap_or_default();
        let (bytes, kept_bytes) = self.record.read(&self.by.reader, cells).map_err(named)?;
        // An element refers to the bytes of one record only, that of the first dataset.
        cells.iter_mut().try_for_each(|cell| cell.own(bytes)).map_err(named)?;
        Ok(kept_bytes)
    }

    /// The payload of the record, for people to inspect.
    pub(crate) fn raw(&self) -> (RecordKey, Bytes) {
        // A copy: a slice would keep the whole split's bytes alive.
        let raw = Bytes::copy_from_slice(self.by.reader.raw(self.record.stored));
        (self.record.key, raw)
    }
}

#[cfg(test)]
mod tests;
