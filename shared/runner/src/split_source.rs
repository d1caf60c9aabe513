//! The input of a split: what was read of its records, and what that decodes to.

use crate::{
    LeaseError,
    block_cache::{self, RecordBlock},
    indexing::IndexedFile,
};
use bytes::Bytes;
use gristmill_executor::{InputRange, RecordPick, ZippedInput};
use gristmill_model::{RecordKey, wire::ImagePack};
use gristmill_pipeline::PipelineSource;
use gristmill_ports::ObjectPath;
use gristmill_sources::OpenedRecords;
use std::sync::Arc;

/// The input of a split.
#[derive(Clone)]
pub struct SplitSource {
    pub(crate) first: DatasetInput,
    /// Inputs from the other datasets of a zip.
    pub(crate) zipped: Vec<DatasetInput>,
    /// Index of this copy of the records among an epoch's copies, taken from the first run.
    pub(crate) copy: u32,
}

#[derive(Clone)]
pub(crate) struct DatasetInput {
    pub fetched: Vec<FetchedRecords>,
    /// Records to run, in order; none for all of them in stored order.
    pub picks: Option<Vec<RecordPick>>,
    pub source: Arc<PipelineSource>,
}

/// Neighbouring records of a file, as read.
#[derive(Clone)]
pub(crate) struct FetchedRecords {
    pub first: RecordKey,
    pub n_records: u32,
    pub stored: FetchedContent,
    pub read_bytes: u64,
    pub file: Arc<IndexedFile>,
}

/// The content of a span.
#[derive(Clone)]
pub(crate) enum FetchedContent {
    /// The byte ranges of the file that its index asked for.
    Parts(Vec<Bytes>),
    /// Blocks that hold the records among others.
    Blocks(Vec<Arc<RecordBlock>>),
}

/// The opened records of a split: per dataset, one element per span.
#[derive(Debug)]
pub struct OpenedSplit {
    first: Vec<OpenedRecords>,
    zipped: Vec<Vec<OpenedRecords>>,
}

impl SplitSource {
    /// Decodes what was read. Slow for compressed files and Parquet.
    pub fn open(&self) -> Result<OpenedSplit, LeaseError> {
        let zipped = self.zipped.iter().map(DatasetInput::open).collect::<Result<_, _>>()?;
        Ok(OpenedSplit { first: self.first.open()?, zipped })
    }

    /// Number of bytes that were read.
    pub(crate) fn bytes(&self) -> u64 {
        let all = std::iter::once(&self.first).chain(&self.zipped);
        all.flat_map(|read| &read.fetched).map(|part| part.read_bytes).sum()
    }

    /// The first dataset's input, as the executor takes it.
    pub fn parts<'a>(&'a self, opened: &'a OpenedSplit) -> Vec<InputRange<'a>> {
        self.first.parts(&opened.first)
    }

    /// Records of the first dataset to run, in order; none for all of them in stored order.
    pub(crate) fn picks(&self) -> Option<Vec<RecordPick>> {
        self.first.picks.clone()
    }

    /// The inputs of the other datasets, as the executor takes them.
    pub(crate) fn zipped<'a>(&'a self, opened: &'a OpenedSplit) -> Vec<ZippedInput<'a>> {
        let zipped = |(read, records): (&'a DatasetInput, &'a Vec<OpenedRecords>)| ZippedInput {
            parts: read.parts(records),
            files: read.fetched.iter().map(|part| part.file.path.to_string()).collect(),
            picks: read.picks.clone(),
        };
        self.zipped.iter().zip(&opened.zipped).map(zipped).collect()
    }

    /// Location of a record for messages: the image, or the file with the record's number, and its line.
    pub fn describe(&self, key: RecordKey) -> String {
        let of_file = |part: &&FetchedRecords| part.first.file == key.file;
        let Some(FetchedRecords { file, .. }) = self.first.fetched.iter().find(of_file) else {
            return key.to_string();
        };
        let image = |pack: &ImagePack| {
            let image = pack.images.get(key.record as usize)?;
            Some(ObjectPath::new(&pack.bucket, &image.key).to_string())
        };
        let image = file.pack.as_ref().and_then(image);
        let line =
            file.index.line(key.record).map_or(String::new(), |line| format!(" line {line},"));
        image.unwrap_or_else(|| format!("{}{line} record {}", file.path, key.record))
    }
}

impl DatasetInput {
    fn open(&self) -> Result<Vec<OpenedRecords>, LeaseError> {
        let open = |part: &FetchedRecords| {
            let FetchedRecords { first, n_records, stored, file, .. } = part;
            match stored {
                FetchedContent::Parts(parts) => {
                    let opened =
                        file.index.open_each(first.record, *n_records, &*self.source, parts);
                    opened.map_err(|error| LeaseError::fatal(format!("{}: {error}", file.path)))
                }
                FetchedContent::Blocks(blocks) => {
                    block_cache::open(blocks, first.record, *n_records, &self.source)
                }
            }
        };
        self.fetched.iter().map(open).collect()
    }

    fn parts<'a>(&'a self, opened: &'a [OpenedRecords]) -> Vec<InputRange<'a>> {
        let part = |(part, records): (&'a FetchedRecords, &'a OpenedRecords)| InputRange {
            first: part.first,
            n_records: part.n_records,
            data: records.data.clone(),
            index: records.index.as_ref().unwrap_or(&part.file.index),
        };
        self.fetched.iter().zip(opened).map(part).collect()
    }
}
