//! The first records of a file, read without reading more of it than necessary.

use bytes::Bytes;
use gristmill_client::ProgramFailure;
use gristmill_executor::InputRange;
use gristmill_model::RecordKey;
use gristmill_pipeline::PipelineSource;
use gristmill_ports::{ObjectInfo, ObjectPath, ObjectStore, get_long_range};
use gristmill_sources::{FileIndex, IndexBuilder, OpenedRecords, SourceError};
use std::{fmt, fs::File, ops::Range, os::unix::fs::FileExt, path::Path};

/// Most bytes of a file that are searched for its first records. The search goes on until one is
/// found in any case.
const MAX_BYTES: u64 = 128 << 20;
/// Most bytes of records that are held, beyond the first.
const MAX_HELD_BYTES: u64 = 128 << 20;

/// The first records of a file.
pub(super) struct SampledFile {
    /// Name of the file in messages.
    pub(super) name: String,
    pub(super) n_records: u32,
    /// Bytes of the file that hold them.
    pub(super) stored_bytes: u64,
    /// Average over the part of the file that was searched.
    pub(super) bytes_per_record: f64,
    index: FileIndex,
    records: OpenedRecords,
}

/// A file, here or on S3.
pub(super) enum SampledFileLocation<'a> {
    Local(&'a Path),
    Object(&'a dyn ObjectStore, ObjectPath, &'a ObjectInfo),
}

impl SampledFile {
    /// The first `most` records of a file, or fewer if it has fewer or they are large.
    pub(super) async fn open(
        place: &SampledFileLocation<'_>,
        source: &PipelineSource,
        most: u32,
    ) -> Result<Self, ProgramFailure> {
        let name = place.to_string();
        let named = |error: SourceError| ProgramFailure::failed(format!("{name}: {error}"));
        let reader = place.open()?;
        let mut builder = IndexBuilder::for_file(&source.format, reader.bytes).map_err(named)?;
        let mut looked = 0;
        let is_all = loop {
            let Some(range) = builder.wants() else { break true };
            let found = builder.records();
            if found >= most || (found > 0 && looked >= MAX_BYTES) {
                break false;
            }
            looked += range.end - range.start;
            builder.push(&reader.read(range).await?).map_err(named)?;
        };
        let (index, found, bytes) = if is_all {
            let index = builder.finish().map_err(named)?;
            let records = index.len();
            (index, records, reader.bytes)
        } else {
            let found = builder.records();
            let index = builder.stop().map_err(named)?;
            // Decompressed records may be larger than the bytes that were read.
            let end = index.byte_range(0, found).map_or(looked, |range| range.end);
            (index, found, end.min(looked))
        };
        let bytes_per_record = bytes as f64 / f64::from(found.max(1));
        let n_records = held(&index, found.min(most));
        let ranges = index.stored_ranges(0, n_records, source).map_err(named)?;
        let stored_bytes = ranges.iter().map(|range| range.end - range.start).sum();
        let mut parts = Vec::new();
        for range in ranges {
            parts.push(reader.read(range).await?);
        }
        let records = index.open(0, n_records, source, &parts).map_err(named)?;
        Ok(Self { name, n_records, stored_bytes, bytes_per_record, index, records })
    }

    /// The first `n_records` of the shard, as part of file number `file`.
    pub(super) fn part(&self, file: u32, n_records: u32) -> InputRange<'_> {
        let index = self.records.index.as_ref().unwrap_or(&self.index);
        let first = RecordKey { file, record: 0 };
        let bytes = index.byte_range(0, n_records).map_or(0, |range| range.end - range.start);
        // Less than is held, unless all records are asked for.
        let end = self.records.data.len().min(bytes as usize);
        InputRange { first, n_records, data: self.records.data.slice(..end), index }
    }
}

/// Number of the first `most` records that are held.
fn held(index: &FileIndex, most: u32) -> u32 {
    let mut held = 0_u64;
    let weights = index.weights(0, most).into_iter();
    let fit = weights.take_while(|bytes| {
        held = held.saturating_add(*bytes);
        held <= MAX_HELD_BYTES
    });
    (fit.count() as u32).max(most.min(1))
}

impl fmt::Display for SampledFileLocation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => path.display().fmt(f),
            Self::Object(_, path, _) => path.fmt(f),
        }
    }
}

/// A file that is read in ranges.
struct Reader<'a> {
    place: &'a SampledFileLocation<'a>,
    file: Option<File>,
    bytes: u64,
}

impl SampledFileLocation<'_> {
    fn open(&self) -> Result<Reader<'_>, ProgramFailure> {
        match self {
            Self::Object(_, _, info) => Ok(Reader { place: self, file: None, bytes: info.size }),
            Self::Local(path) => {
                let file = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
                let (bytes, file) = file.map_err(|error| self.failed(&error))?;
                Ok(Reader { place: self, file: Some(file), bytes })
            }
        }
    }

    fn failed(&self, error: &dyn fmt::Display) -> ProgramFailure {
        ProgramFailure::failed(format!("{self}: {error}"))
    }
}

impl Reader<'_> {
    async fn read(&self, range: Range<u64>) -> Result<Bytes, ProgramFailure> {
        let bytes = range.end.saturating_sub(range.start);
        match (&self.file, self.place) {
            _ if bytes == 0 => Ok(Bytes::new()),
            (Some(file), _) => {
                let mut part = vec![0; bytes as usize];
                let read = file.read_exact_at(&mut part, range.start);
                read.map_err(|error| self.place.failed(&error))?;
                Ok(part.into())
            }
            (None, SampledFileLocation::Object(objects, path, info)) => {
                let part = get_long_range(*objects, path, range, Some(&info.etag)).await;
                part.map_err(ProgramFailure::failed)
            }
            (None, SampledFileLocation::Local(_)) => Err(self.place.failed(&"it is not open")),
        }
    }
}
