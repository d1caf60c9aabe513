//! Reads an indexed dataset: the manifest, cached file indices, and the records of splits. Neighbouring
//! records take one ranged read; Parquet takes a few, and each image its own. Zipped datasets are read concurrently.

use crate::{
    ComputeMode, LeaseError, Runner, RunnerConfig,
    block_cache::{self, BlockCache},
    described::{damaged, read_manifest, read_pack},
    images::read_images,
    indexed_file::{IndexedFile, IndexedFiles, file_of},
    indexing::{FormattedFile, IndexStore, StampedIndex},
    portions::{PORTION_BYTES, portions},
    split_source::{DatasetInput, FetchedContent, FetchedRecords, SplitSource},
    stretches::{self, PlannedRead},
};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, future::try_join_all, stream};
use gristmill_model::splits::{
    RecordRange, SplitPlan, SplitVisit, ZipMember, order::KeyedPermutation,
};
use gristmill_model::stored::keys;
use gristmill_model::wire::{DatasetManifest, ManifestFile};
use gristmill_model::{DatasetOp, Fingerprint, Namespace, RecordKey};
use gristmill_pipeline::{FileFormat, PipelineSource};
use gristmill_ports::{ObjectPath, ObjectStore, get_long_range};
use gristmill_sources::{BlockRange, images};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

/// Most file indices in the cache: a permuted epoch touches all files of a dataset in turn.
const CACHED_INDICES: usize = 512;
/// Most bytes of cached file indices, apart from the most recent one.
const CACHED_BYTES: usize = 64 << 20;
/// Concurrent reads of file parts or indices: enough to hide the time to first byte, few enough for the memory.
const READS_AHEAD: usize = 16;
/// Reads of records that find their file changed, and with the same content, before the work is given back.
const LOOKS: usize = 3;
/// Concurrent reads of spans, such as the blocks of a shuffled split; each span may take several reads.
const SPANS_AHEAD: usize = 8;

/// Reader of one dataset version, shared by all jobs and invocations of a process.
pub struct DatasetCache {
    ns: Namespace,
    bucket: String,
    /// Makes an index that is missing.
    compute: ComputeMode,
    version: Fingerprint,
    /// One source per dataset of the zip, in order.
    sources: Vec<Arc<PipelineSource>>,
    manifest: DatasetManifest,
    indices: Mutex<VecDeque<(u32, Arc<IndexedFile>)>>,
    blocks: BlockCache,
}

impl DatasetCache {
    /// Reads the manifest of dataset `version`.
    pub async fn open(
        runner: &Runner,
        source: &PipelineSource,
        version: Fingerprint,
    ) -> Result<Self, LeaseError> {
        let Runner { objects, compute, config, .. } = runner;
        let RunnerConfig { ns, bucket, shape, .. } = config;
        let path = ObjectPath::new(bucket, keys::manifest(ns, version));
        let manifest = read_manifest(&**objects, &path, version, &source.stored_as()).await?;
        let sources: Vec<_> = source.members().cloned().map(Arc::new).collect();
        if manifest.members.count() != sources.len() {
            return Err(LeaseError::fatal(format!("{path} lists another number of datasets")));
        }
        let (ns, bucket, compute) = (ns.clone(), bucket.clone(), *compute);
        let (indices, blocks) = (Mutex::default(), BlockCache::for_process(*shape));
        Ok(Self { ns, bucket, compute, version, sources, manifest, indices, blocks })
    }

    /// The dataset version this cache reads.
    pub fn version(&self) -> Fingerprint {
        self.version
    }

    /// Divides the dataset, as transformed by `ops`, into splits of `split_records`.
    pub fn split_plan(
        &self,
        split_records: u32,
        ops: &[DatasetOp],
    ) -> Result<SplitPlan, LeaseError> {
        let records = self.manifest.records();
        let divided = self.manifest.members.divide(&records).ok_or_else(|| {
            LeaseError::fatal("the manifest lacks files of its datasets".to_owned())
        })?;
        let sources = divided.into_iter().zip(&self.sources);
        let member = |(records_per_file, source): (_, &Arc<PipelineSource>)| ZipMember {
            records_per_file,
            times: source.repeat,
        };
        let members: Vec<ZipMember<'_>> = sources.map(member).collect();
        SplitPlan::from_zip(&members, split_records, ops)
            .map_err(|error| LeaseError::fatal(error.to_string()))
    }

    /// Reads the records of a visit from the registered versions of the files. If the records are too large
    /// to hold at once, reads only the first portion, and returns the others to be [`read`](Self::read) one by one.
    pub async fn begin(
        &self,
        objects: &dyn ObjectStore,
        visit: SplitVisit,
    ) -> Result<(SplitSource, VecDeque<SplitVisit>), LeaseError> {
        let files = self.files(objects, &visit).await?;
        let file = |run: &RecordRange| file_of(&files, run.file);
        let mut bytes = 0_u64;
        for run in visit.runs.iter().chain(visit.zipped.iter().flatten()) {
            bytes = bytes.saturating_add(file(run)?.bytes_of(run));
        }
        if bytes <= PORTION_BYTES {
            return Ok((self.read_of(objects, &visit, &files).await?, VecDeque::new()));
        }
        let weigh = |run: &RecordRange| Ok(file(run)?.index.weights(run.first_record, run.records));
        let mut rest = VecDeque::from(portions::<LeaseError>(&visit, PORTION_BYTES, weigh)?);
        let first = rest.pop_front().unwrap_or(visit);
        Ok((self.read_of(objects, &first, &files).await?, rest))
    }

    /// Reads the records of a portion.
    pub async fn read(
        &self,
        objects: &dyn ObjectStore,
        portion: &SplitVisit,
    ) -> Result<SplitSource, LeaseError> {
        let files = self.files(objects, portion).await?;
        self.read_of(objects, portion, &files).await
    }

    /// The files that hold the records of a visit.
    async fn files(
        &self,
        objects: &dyn ObjectStore,
        visit: &SplitVisit,
    ) -> Result<IndexedFiles, LeaseError> {
        let datasets = std::iter::once(&visit.runs).chain(&visit.zipped).zip(&self.sources);
        let formats: BTreeMap<u32, &FileFormat> = datasets
            .flat_map(|(runs, source)| runs.iter().map(|run| (run.file, &source.format)))
            .collect();
        let reads = formats.iter().map(async |(&file, &format)| {
            Ok::<_, LeaseError>((file, self.indexed(objects, format, file).await?))
        });
        let reads = stream::iter(reads.collect::<Vec<_>>()).buffered(READS_AHEAD);
        reads.try_collect().await
    }

    async fn read_of(
        &self,
        objects: &dyn ObjectStore,
        visit: &SplitVisit,
        files: &IndexedFiles,
    ) -> Result<SplitSource, LeaseError> {
        let shuffled = visit.shuffled.as_ref();
        let runs = std::iter::once(&visit.runs).chain(&visit.zipped);
        let reads = self.sources.iter().zip(runs);
        let reads =
            reads.map(|(source, runs)| self.read_runs(objects, source, runs, shuffled, files));
        let mut zipped = try_join_all(reads).await?;
        if zipped.len() != self.sources.len() {
            return Err(LeaseError::fatal(
                "a split covers fewer datasets than are zipped".to_owned(),
            ));
        }
        let first = zipped.remove(0);
        let copy = visit.runs.first().map_or(0, |run| run.copy);
        Ok(SplitSource { first, zipped, copy })
    }

    /// Reads the records of `runs` from one dataset, neighbours together.
    async fn read_runs(
        &self,
        objects: &dyn ObjectStore,
        source: &Arc<PipelineSource>,
        runs: &[RecordRange],
        shuffled: Option<&KeyedPermutation>,
        files: &IndexedFiles,
    ) -> Result<DatasetInput, LeaseError> {
        let spans = stretches::spans(runs);
        let shares = self.blocks.admits(shared_bytes(source, &spans, files)?);
        let reads =
            spans.iter().map(|&span| self.read_span(objects, source, (span, shares), files));
        let reads: Vec<_> = reads.collect();
        let stretches = stream::iter(reads).buffered(SPANS_AHEAD).try_collect().await?;
        let picks = stretches::picks(&spans, runs, shuffled);
        Ok(DatasetInput { stretches, picks, source: Arc::clone(source) })
    }

    async fn read_span(
        &self,
        objects: &dyn ObjectStore,
        source: &PipelineSource,
        (span, shares): (PlannedRead, bool),
        files: &IndexedFiles,
    ) -> Result<FetchedRecords, LeaseError> {
        let PlannedRead { file: number, first_record, records } = span;
        let mut file = Arc::clone(file_of(files, number)?);
        let first = RecordKey { file: number, record: first_record };
        for _ in 0..LOOKS {
            let blocks = file.index.blocks(first_record, records, source).filter(|_| shares);
            let (stored, read_bytes) = match blocks {
                Some(blocks) => self.read_blocks(objects, source, (number, blocks), &file).await?,
                None => {
                    let parts = self.read_parts(objects, source, span, &file).await?;
                    let bytes = parts.iter().map(|part| part.len() as u64).sum();
                    (FetchedContent::Parts(parts), bytes)
                }
            };
            // A file may have been rewritten since it was indexed.
            if file.stamp.is_none() || objects.change_stamp(&file.path).await? == file.stamp {
                return Ok(FetchedRecords { first, n_records: records, stored, read_bytes, file });
            }
            self.lock().retain(|(cached, _)| *cached != number);
            file = self.indexed(objects, &source.format, number).await?;
        }
        Err(LeaseError::Passing(format!("{} is written to again and again", file.path)))
    }

    /// The blocks of a file, read but for those that are here, and the bytes that were read.
    async fn read_blocks(
        &self,
        objects: &dyn ObjectStore,
        source: &PipelineSource,
        (number, blocks): (u32, Vec<BlockRange>),
        file: &Arc<IndexedFile>,
    ) -> Result<(FetchedContent, u64), LeaseError> {
        let (mut found, mut bytes) = (Vec::with_capacity(blocks.len()), 0);
        for BlockRange { rows, .. } in blocks {
            let block = self.blocks.block(number, rows, file);
            let read = async |span| self.read_parts(objects, source, span, file).await;
            bytes += block.fetch(read, number).await?;
            found.push(block);
        }
        Ok((FetchedContent::Blocks(found), bytes))
    }

    async fn read_parts(
        &self,
        objects: &dyn ObjectStore,
        source: &PipelineSource,
        span: PlannedRead,
        file: &IndexedFile,
    ) -> Result<Vec<Bytes>, LeaseError> {
        let PlannedRead { file: number, first_record, records } = span;
        let not_there =
            || LeaseError::fatal(format!("the index of {} does not hold {span:?}", file.path));
        if let Some(pack) = &file.pack {
            let bytes = file.index.byte_range(first_record, records).ok_or_else(not_there)?;
            let images = &pack.images[first_record as usize..][..records as usize];
            let bytes = bytes.end - bytes.start;
            return Ok(vec![read_images(objects, &pack.bucket, images, bytes).await?]);
        }
        let etag = self.manifest.files[number as usize].file.etag.as_str();
        let ranges = file.index.stored_ranges(first_record, records, source);
        let ranges =
            ranges.map_err(|error| LeaseError::fatal(format!("{}: {error}", file.path)))?;
        let reads =
            ranges.into_iter().map(|range| get_long_range(objects, &file.path, range, Some(etag)));
        Ok(stream::iter(reads).buffered(READS_AHEAD).try_collect().await?)
    }

    async fn indexed(
        &self,
        objects: &dyn ObjectStore,
        format: &FileFormat,
        file: u32,
    ) -> Result<Arc<IndexedFile>, LeaseError> {
        let cached = |indices: &VecDeque<(u32, Arc<IndexedFile>)>| {
            indices.iter().find(|(f, _)| *f == file).map(|(_, index)| Arc::clone(index))
        };
        if let Some(index) = cached(&self.lock()) {
            return Ok(index);
        }
        let indexed = Arc::new(self.read_index(objects, format, file).await?);
        let mut indices = self.lock();
        indices.push_front((file, Arc::clone(&indexed)));
        let mut bytes = 0;
        let kept = indices.iter().take(CACHED_INDICES).take_while(|(_, indexed)| {
            bytes += indexed.index.memory_bytes();
            bytes <= CACHED_BYTES
        });
        let kept = kept.count().max(1);
        indices.truncate(kept);
        Ok(indexed)
    }

    async fn read_index(
        &self,
        objects: &dyn ObjectStore,
        format: &FileFormat,
        file: u32,
    ) -> Result<IndexedFile, LeaseError> {
        let ManifestFile { file: source, records } = &self.manifest.files[file as usize];
        let path = ObjectPath::new(&self.manifest.bucket, &source.key);
        if format.definition().is_packed {
            let pack = read_pack(objects, &path, &source.etag).await?;
            let index = images::pack_index(&pack)
                .map_err(|error| LeaseError::fatal(format!("{path}: {error}")))?;
            return Ok(IndexedFile { path, index, stamp: None, pack: Some(pack) });
        }
        let Self { ns, bucket, compute, .. } = self;
        let indices = IndexStore { objects, compute: *compute, ns, bucket };
        let bucket = &self.manifest.bucket;
        let source = FormattedFile { format, bucket, file: source };
        let StampedIndex { index, stamp } = indices.load(source).await?;
        if index.len() != *records {
            // The file is as it was listed, so the number is not.
            let manifest = ObjectPath::new(&self.bucket, keys::manifest(ns, self.version));
            return Err(damaged(objects, &manifest).await);
        }
        Ok(IndexedFile { path, index, stamp, pack: None })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(u32, Arc<IndexedFile>)>> {
        self.indices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// About how many bytes the blocks take that a split of these spans, in order, shares with others.
fn shared_bytes(
    source: &PipelineSource,
    spans: &[PlannedRead],
    files: &IndexedFiles,
) -> Result<u64, LeaseError> {
    let mut blocks = Vec::new();
    for &PlannedRead { file, first_record, records } in spans {
        let of_span = file_of(files, file)?.index.blocks(first_record, records, source);
        blocks.extend(of_span.into_iter().flatten().map(|block| (file, block)));
    }
    Ok(block_cache::distinct_bytes(&blocks))
}
