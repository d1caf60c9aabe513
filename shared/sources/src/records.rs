//! The interface of a format that can be read: finding records in a file, and features in a record.

use crate::{FeatureMap, FileIndex, SourceFormat, csv::CsvLayout};
use bytes::Bytes;
use gristmill_kernel::FieldCell;
use std::{fmt::Debug, ops::Range};

/// Caps that are checked before anything is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLimits {
    /// Bytes of one record, without framing.
    pub record_bytes: u32,
    /// Records of one file.
    pub records: u32,
}

impl Default for SourceLimits {
    fn default() -> Self {
        SourceLimits { record_bytes: 256 << 20, records: 1 << 26 }
    }
}

/// A source file, its index, or the bytes read of it are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);

/// A format whose files can be read.
pub trait ReadableFormat: SourceFormat {
    type Reader: ReadRecord;

    /// Bytes that every record has in its file beside those that its index counts.
    const FRAMING_BYTES: u32 = 0;

    /// The reader of records with these features.
    fn reader(&self, features: &FeatureMap) -> Self::Reader;

    /// How the records of a file are found.
    fn index_kind(&self, limits: SourceLimits) -> IndexKind;

    /// Whether a file that begins with `head`, 12 bytes, is of this format for certain, although it
    /// looks like one within gzip.
    fn begins(_head: &[u8]) -> bool {
        false
    }

    /// A file of these records, which have the same keys; none if the format cannot hold them. For
    /// tests.
    #[cfg(any(test, feature = "samples"))]
    fn sample(&self, _rows: &[crate::samples::SampleRow]) -> Option<Vec<u8>> {
        None
    }

    /// The names of columns, for files that do not name them.
    fn columns(&self) -> &[String] {
        &[]
    }
}

/// Finds the features of a pipeline in records; feature i, by name, goes to cell i.
pub trait ReadRecord: Debug + Send + Sync {
    /// Finds the features in a record, to which cells refer. Returns the bytes of their values.
    ///
    /// # Errors
    /// The record's fault, in one line.
    fn find(&self, record: &[u8], cells: &mut [FieldCell]) -> Result<usize, String>;

    /// The record in its stored form.
    fn checked<'a>(&self, stored: &'a [u8]) -> Result<&'a [u8], String> {
        Ok(stored)
    }

    /// The record as a person wants to see it; any bytes are accepted.
    fn raw<'a>(&self, stored: &'a [u8]) -> &'a [u8] {
        stored
    }
}

/// How the records of a file are found, and what its index holds beside their lengths.
#[derive(Debug)]
pub enum IndexKind {
    /// By reading the file, unpacked, from its start.
    Scan(Box<dyn RecordScanner>),
    /// The same, of a text, whose encoding is checked.
    ScanText(Box<dyn RecordScanner>),
    /// The same, of a table of text; the index keeps its header.
    ScanTable(CsvLayout, Box<dyn RecordScanner>),
    /// By the file's own footer.
    Footer(Box<dyn FooterIndexer>),
    /// Each file is one record, whose pack is its index.
    Packed,
}

/// Finds records by what a file says of itself, from the parts that it asks for.
pub trait FooterIndexer: Debug + Send {
    /// Begins with a file of so many bytes.
    fn begin(&mut self, file_bytes: u64);

    /// The range to push next; none when all is known.
    fn wants(&self) -> Option<Range<u64>>;

    /// Takes the bytes that were wanted.
    ///
    /// # Errors
    /// The damage that was found; the indexer is of no use after that.
    fn push(&mut self, bytes: Bytes) -> Result<(), String>;

    /// The index, once all is known.
    ///
    /// # Errors
    /// If it is not.
    fn finish(self: Box<Self>) -> Result<FileIndex, String>;
}

/// Finds records in the bytes of an unpacked file, pushed in order in pieces of any size.
pub trait RecordScanner: Debug + Send {
    /// Takes the next bytes of the file.
    ///
    /// # Errors
    /// [`SourceError`] naming the record and its place; the scan is of no use after that.
    fn push(&mut self, bytes: &[u8]) -> Result<(), SourceError>;

    /// Records found whole so far.
    fn records(&self) -> u32;

    /// An index by which those can be read.
    fn stop(self: Box<Self>) -> FileIndex;

    /// Checks that the file may end here.
    ///
    /// # Errors
    /// [`SourceError`] if it is cut short.
    fn check_end(&self) -> Result<(), SourceError> {
        Ok(())
    }

    /// The index, now that all bytes have been pushed and the end has been checked.
    ///
    /// # Errors
    /// [`SourceError`] for the last record.
    fn finish(self: Box<Self>) -> Result<FileIndex, SourceError>;
}
