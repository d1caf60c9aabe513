//! One image a file. Many are read as one run of records: each is its label (i64, little-endian) and
//! then the file.

use super::IMAGE_KEY;
use crate::{FeatureMap, FileIndex, ReadRecord, SourceError, SourceLimits};
use gristmill_kernel::{CellStorage, FieldCell};

/// Bytes of the label before a file's content.
pub const LABEL_BYTES: usize = 8;

/// Bytes of the record that a file of this size makes.
///
/// # Errors
/// [`SourceError`] if the file is larger than records may be.
pub fn record_bytes(file_bytes: u64) -> Result<u32, SourceError> {
    let most = u64::from(SourceLimits::default().record_bytes);
    let bytes = file_bytes.checked_add(LABEL_BYTES as u64).filter(|bytes| *bytes <= most);
    // In range: the limit is a u32.
    bytes.map(|bytes| bytes as u32).ok_or_else(|| {
        SourceError(format!("it has {file_bytes} bytes; the limit of an image is {most}"))
    })
}

/// The index of records made of files of these sizes.
///
/// # Errors
/// As [`record_bytes`].
pub fn index(file_bytes: impl IntoIterator<Item = u64>) -> Result<FileIndex, SourceError> {
    let mut index = FileIndex::new(0);
    for bytes in file_bytes {
        index.push(record_bytes(bytes)?, SourceLimits::default()).map_err(SourceError)?;
    }
    Ok(index)
}

/// The file in a record.
pub(crate) fn content(stored: &[u8]) -> &[u8] {
    stored.get(LABEL_BYTES..).unwrap_or_default()
}

/// Finds what a pipeline wants of an image's record; feature i goes to cell i.
#[derive(Debug)]
pub struct ImageRecordReader {
    /// In the order of the field names: whether it is the image, else it is the label.
    is_image: Vec<bool>,
}

impl ImageRecordReader {
    pub(crate) fn new(features: &FeatureMap) -> Self {
        ImageRecordReader {
            is_image: features.values().map(|feature| feature.key == IMAGE_KEY).collect(),
        }
    }

    pub(crate) fn extract(&self, stored: &[u8], cells: &mut [FieldCell]) -> Result<usize, String> {
        let cut = || "the file was read short".to_owned();
        let label = stored.get(..LABEL_BYTES).ok_or_else(cut)?;
        let mut found = 0;
        for (cell, is_image) in cells.iter_mut().zip(&self.is_image) {
            let range = if *is_image { LABEL_BYTES..stored.len() } else { 0..label.len() };
            found += range.len();
            cell.place = CellStorage::Record(range);
        }
        Ok(found)
    }
}

impl ReadRecord for ImageRecordReader {
    fn read<'a>(
        &self,
        stored: &'a [u8],
        cells: &mut [FieldCell],
    ) -> Result<(&'a [u8], usize), String> {
        Ok((stored, self.extract(stored, cells)?))
    }

    fn raw<'a>(&self, stored: &'a [u8]) -> &'a [u8] {
        content(stored)
    }
}
