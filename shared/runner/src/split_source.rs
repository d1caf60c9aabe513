//! The input of a split: what was read of its records, and what that decodes to.

use crate::{
    RunError,
    block_cache::{self, RecordBlock},
    indexed_file::IndexedFile,
};
use bytes::Bytes;
use gristmill_executor::{Part, Pick, Zipped};
use gristmill_model::RecordKey;
use gristmill_model::wire::Pack;
use gristmill_pipeline::Source;
use gristmill_ports::ObjectPath;
use gristmill_sources::OpenedRecords;
use std::sync::Arc;

/// The input of a split.
#[derive(Debug, Clone)]
pub struct SplitSource {
    pub(crate) first: SplitReading,
    /// Inputs from the other datasets of a zip.
    pub(crate) zipped: Vec<SplitReading>,
    /// Index of this copy of the records among an epoch's copies, taken from the first run.
    pub(crate) copy: u32,
}

/// The input from one dataset.
#[derive(Debug, Clone)]
pub(crate) struct SplitReading {
    pub stretches: Vec<ReadStretch>,
    /// Records to run, in order; none for all of them in stored order.
    pub picks: Option<Vec<Pick>>,
    pub source: Arc<Source>,
}

/// Neighbouring records of a file, as read.
#[derive(Debug, Clone)]
pub(crate) struct ReadStretch {
    pub first: RecordKey,
    pub n_records: u32,
    pub stored: StretchContent,
    /// Bytes that were read.
    pub read_bytes: u64,
    pub file: Arc<IndexedFile>,
}

/// The content of a stretch.
#[derive(Debug, Clone)]
pub(crate) enum StretchContent {
    /// The byte ranges of the file that its index asked for.
    Parts(Vec<Bytes>),
    /// Blocks that hold the records among others.
    Blocks(Vec<Arc<RecordBlock>>),
}

/// The opened records of a split: per dataset, one element per stretch.
#[derive(Debug)]
pub struct OpenedSplit {
    first: Vec<OpenedRecords>,
    zipped: Vec<Vec<OpenedRecords>>,
}

impl SplitSource {
    /// Decodes what was read. Slow for compressed files and Parquet.
    ///
    /// # Errors
    /// [`RunError::Fatal`], naming the file, if its content does not match its index.
    pub fn open(&self) -> Result<OpenedSplit, RunError> {
        let zipped = self.zipped.iter().map(SplitReading::open).collect::<Result<_, _>>()?;
        Ok(OpenedSplit { first: self.first.open()?, zipped })
    }

    /// Number of bytes that were read.
    pub(crate) fn bytes(&self) -> u64 {
        let all = std::iter::once(&self.first).chain(&self.zipped);
        all.flat_map(|read| &read.stretches).map(|stretch| stretch.read_bytes).sum()
    }

    /// The first dataset's input, as the executor takes it.
    pub fn parts<'a>(&'a self, opened: &'a OpenedSplit) -> Vec<Part<'a>> {
        self.first.parts(&opened.first)
    }

    /// Records of the first dataset to run, in order; none for all of them in stored order.
    pub(crate) fn picks(&self) -> Option<Vec<Pick>> {
        self.first.picks.clone()
    }

    /// The inputs of the other datasets, as the executor takes them.
    pub(crate) fn zipped<'a>(&'a self, opened: &'a OpenedSplit) -> Vec<Zipped<'a>> {
        let zipped = |(read, records): (&'a SplitReading, &'a Vec<OpenedRecords>)| Zipped {
            parts: read.parts(records),
            files: read.stretches.iter().map(|stretch| stretch.file.path.to_string()).collect(),
            picks: read.picks.clone(),
        };
        self.zipped.iter().zip(&opened.zipped).map(zipped).collect()
    }

    /// Location of a record for messages: the image, or the file with the record's number.
    pub fn describe(&self, key: RecordKey) -> String {
        let of_file = |stretch: &&ReadStretch| stretch.first.file == key.file;
        let Some(ReadStretch { file, .. }) = self.first.stretches.iter().find(of_file) else {
            return key.to_string();
        };
        let image = |pack: &Pack| {
            let image = pack.images.get(key.record as usize)?;
            Some(ObjectPath::new(&pack.bucket, &image.key).to_string())
        };
        let image = file.pack.as_ref().and_then(image);
        image.unwrap_or_else(|| format!("{} record {}", file.path, key.record))
    }
}

impl SplitReading {
    fn open(&self) -> Result<Vec<OpenedRecords>, RunError> {
        let open = |stretch: &ReadStretch| {
            let ReadStretch { first, n_records, stored, file, .. } = stretch;
            match stored {
                StretchContent::Parts(parts) => {
                    let opened = file.index.open(first.record, *n_records, &*self.source, parts);
                    opened.map_err(|error| RunError::fatal(format!("{}: {error}", file.path)))
                }
                StretchContent::Blocks(blocks) => {
                    block_cache::open(blocks, (first.record, *n_records), &self.source)
                }
            }
        };
        self.stretches.iter().map(open).collect()
    }

    fn parts<'a>(&'a self, opened: &'a [OpenedRecords]) -> Vec<Part<'a>> {
        let part = |(stretch, records): (&'a ReadStretch, &'a OpenedRecords)| Part {
            first: stretch.first,
            n_records: stretch.n_records,
            data: records.data.clone(),
            index: records.index.as_ref().unwrap_or(&stretch.file.index),
        };
        self.stretches.iter().zip(opened).map(part).collect()
    }
}
