//! The files of a dataset that a split reads, with their indices.

use crate::LeaseError;
use gristmill_model::splits::RecordRange;
use gristmill_model::wire::ImagePack;
use gristmill_ports::{ChangeStamp, ObjectPath};
use gristmill_sources::FileIndex;
use std::{collections::HashMap, sync::Arc};

/// A file with the index of its records.
#[derive(Debug)]
pub(crate) struct IndexedFile {
    pub path: ObjectPath,
    pub index: FileIndex,
    /// The change stamp of the file that the index was made of.
    pub stamp: Option<ChangeStamp>,
    /// The list of images, if the records are images.
    pub pack: Option<ImagePack>,
}

/// Files by number in the dataset.
pub(crate) type IndexedFiles = HashMap<u32, Arc<IndexedFile>>;

pub(crate) fn file_of(files: &IndexedFiles, file: u32) -> Result<&Arc<IndexedFile>, LeaseError> {
    files.get(&file).ok_or_else(|| LeaseError::fatal(format!("file {file} has no index")))
}

impl IndexedFile {
    /// Approximate bytes in memory of a run of records.
    pub fn bytes_of(&self, run: &RecordRange) -> u64 {
        self.index.weight(run.first_record, run.records)
    }
}
