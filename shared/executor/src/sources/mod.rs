//! How records are stored, one file per format.

mod csv;
mod encoding;
pub(crate) mod example;
mod file_index;
mod gzip;
pub mod images;
mod index_builder;
pub(crate) mod jsonl;
mod lengths;
mod parquet;
mod tar;
mod tfrecord;
mod varint;
mod webdataset;
pub(crate) mod words;

pub use file_index::{FileIndex, Records};
pub use index_builder::IndexBuilder;

use crate::cell::Cell;
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
        // Headers, line ends and blank lines belong to the record: how many there are differs.
        Format::WebDataset | Format::Images | Format::Jsonl | Format::Csv(_) | Format::Parquet => 0,
    }
}

/// Bytes of a value that was read.
fn held(cell: &Cell) -> usize {
    cell.place.bytes()
}

/// Finds the features of a pipeline in stored records; feature i goes to cell i.
#[derive(Debug)]
pub(crate) enum Reader {
    TfRecord(example::Extractor),
    WebDataset(webdataset::Extractor),
    Images(images::Extractor),
    Jsonl(jsonl::Extractor),
    Csv(csv::Extractor),
    Parquet(parquet::Extractor),
}

impl Reader {
    pub(crate) fn new(source: &Source) -> Self {
        let features = &source.features;
        match source.format {
            Format::TfRecord => Reader::TfRecord(example::Extractor::new(features)),
            Format::WebDataset => Reader::WebDataset(webdataset::Extractor::new(features)),
            Format::Images => Reader::Images(images::Extractor::new(features)),
            Format::Jsonl => Reader::Jsonl(jsonl::Extractor::new(features)),
            Format::Csv(_) => Reader::Csv(csv::Extractor::new(source)),
            Format::Parquet => Reader::Parquet(parquet::Extractor::new(features)),
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
            Reader::Csv(extractor) => Ok((stored, extractor.extract(stored, cells)?)),
            Reader::Parquet(extractor) => Ok((stored, extractor.extract(stored, cells)?)),
        }
    }

    /// The record as a person would want to look at it, whatever it holds.
    pub(crate) fn raw<'a>(&self, stored: &'a [u8]) -> &'a [u8] {
        match self {
            Reader::TfRecord(_) => tfrecord::unchecked_payload(stored),
            Reader::WebDataset(_) | Reader::Parquet(_) => stored,
            Reader::Images(_) => images::content(stored),
            Reader::Jsonl(_) => stored.trim_ascii(),
            Reader::Csv(extractor) => extractor.line(stored),
        }
    }
}

#[cfg(test)]
mod equality;

#[cfg(test)]
pub(crate) mod tests {
    pub(crate) use super::tfrecord::tests::{framed, index};
}
