//! How records are stored, one file per format.

pub(crate) mod example;
mod file_index;
pub mod images;
mod jsonl;
mod tar;
mod tfrecord;
mod webdataset;

pub use file_index::FileIndex;

use crate::{
    ExecError,
    cell::{Cell, Place},
};
use gristmill_pipeline::{Format, Source};

/// Caps that are checked before anything is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// One record, without framing.
    pub record_bytes: u32,
    /// Records of one file.
    pub records: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { record_bytes: 256 << 20, records: 1 << 26 }
    }
}

/// Bytes a record of `format` has in its file beside what its index calls its length.
fn framing_bytes(format: Format) -> u32 {
    match format {
        Format::TfRecord => tfrecord::FRAMING_BYTES as u32,
        // Headers belong to the record: how many there are differs.
        Format::WebDataset | Format::Images => 0,
        // So do the end of a line and the blank lines before it.
        Format::Jsonl => 0,
        Format::Parquet => 0,
    }
}

/// Builds the index of a file from its bytes, pushed in order in pieces of any size.
#[derive(Debug)]
pub struct IndexBuilder(Builder);

#[derive(Debug)]
enum Builder {
    TfRecord(tfrecord::IndexBuilder),
    WebDataset(webdataset::IndexBuilder),
    Jsonl(jsonl::IndexBuilder),
}

impl IndexBuilder {
    /// A builder with default limits.
    ///
    /// # Errors
    /// [`ExecError::Source`] for a format whose files are not indexed by reading them.
    pub fn new(format: Format) -> Result<Self, ExecError> {
        Self::with_limits(format, Limits::default())
    }

    /// A builder that refuses larger records and files with more of them.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_limits(format: Format, limits: Limits) -> Result<Self, ExecError> {
        match format {
            Format::TfRecord => Ok(Self(Builder::TfRecord(tfrecord::IndexBuilder::new(limits)))),
            Format::WebDataset => {
                Ok(Self(Builder::WebDataset(webdataset::IndexBuilder::new(limits))))
            }
            Format::Jsonl => Ok(Self(Builder::Jsonl(jsonl::IndexBuilder::new(limits)))),
            Format::Parquet => Err(ExecError::Source("not yet".into())),
            Format::Images => Err(ExecError::Source("a file of one image needs no index".into())),
        }
    }

    /// Takes the next bytes of the file.
    ///
    /// # Errors
    /// [`ExecError::Source`] naming record and byte offset; the builder is of no use after that.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), ExecError> {
        match &mut self.0 {
            Builder::TfRecord(builder) => builder.push(bytes),
            Builder::WebDataset(builder) => builder.push(bytes),
            Builder::Jsonl(builder) => builder.push(bytes),
        }
    }

    /// The index, now that all bytes have been pushed.
    ///
    /// # Errors
    /// [`ExecError::Source`] if the file ends inside a record.
    pub fn finish(self) -> Result<FileIndex, ExecError> {
        match self.0 {
            Builder::TfRecord(builder) => builder.finish(),
            Builder::WebDataset(builder) => builder.finish(),
            Builder::Jsonl(builder) => builder.finish(),
        }
    }
}

/// Bytes of a value that was read.
fn held(cell: &Cell) -> usize {
    match &cell.place {
        Place::Record(range) => range.len(),
        Place::Buffer { bytes, .. } => *bytes,
        Place::Row => 0,
    }
}

/// Finds the features of a pipeline in stored records; feature i goes to cell i.
#[derive(Debug)]
pub(crate) enum Reader {
    TfRecord(example::Extractor),
    WebDataset(webdataset::Extractor),
    Images(images::Extractor),
    Jsonl(jsonl::Extractor),
}

impl Reader {
    pub(crate) fn new(source: &Source) -> Self {
        match source.format {
            Format::TfRecord => Reader::TfRecord(example::Extractor::new(&source.features)),
            Format::WebDataset => Reader::WebDataset(webdataset::Extractor::new(&source.features)),
            Format::Images => Reader::Images(images::Extractor::new(&source.features)),
            Format::Jsonl | Format::Parquet => Reader::Jsonl(jsonl::Extractor::new(&source.features)),
        }
    }

    /// Checks a stored record and finds its features. Returns what cells refer to, and the bytes of
    /// the features' values.
    ///
    /// # Errors
    /// What is wrong with the record, in one line.
    pub(crate) fn read<'a>(
        &self,
        stored: &'a [u8],
        cells: &mut [Cell],
    ) -> Result<(&'a [u8], usize), String> {
        match self {
            Reader::TfRecord(extractor) => {
                let record = tfrecord::payload(stored)?;
                Ok((record, extractor.extract(record, cells)?))
            }
            Reader::WebDataset(extractor) => Ok((stored, extractor.extract(stored, cells)?)),
            Reader::Images(extractor) => Ok((stored, extractor.extract(stored, cells)?)),
            Reader::Jsonl(extractor) => Ok((stored, extractor.extract(stored, cells)?)),
        }
    }

    /// The record as a person would want to look at it, whatever it holds.
    pub(crate) fn raw<'a>(&self, stored: &'a [u8]) -> &'a [u8] {
        match self {
            Reader::TfRecord(_) => tfrecord::unchecked_payload(stored),
            Reader::WebDataset(_) => stored,
            Reader::Images(_) => images::content(stored),
            Reader::Jsonl(_) => stored.trim_ascii(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    pub(crate) use super::tfrecord::tests::{framed, index};
}
