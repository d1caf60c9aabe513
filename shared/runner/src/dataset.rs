//! Reads an indexed dataset: the manifest, cached file indices, and the records of splits. Neighbouring
//! records take one ranged read; Parquet takes a few, and each image its own. Zipped datasets are read concurrently.

use crate::{
    ComputeMode, LeaseError, Runner, RunnerConfig,
    block_cache::{self, BlockCache},
    described::{damaged, read_manifest, read_pack},
    indexing::{FormattedFile, IndexStore, IndexedFile, IndexedFiles, StampedIndex, file_of},
    split_source::{DatasetInput, FetchedContent, FetchedRecords, SplitSource},
};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, future::try_join_all, stream};
use gristmill_executor::RecordPick;
use gristmill_model::{
    DatasetOp, Fingerprint, Namespace, RecordKey,
    splits::{RecordRange, SplitPlan, SplitVisit, ZipMember, order::KeyedPermutation},
    stored::keys,
    wire::{DatasetManifest, ManifestFile, PackedImage},
};
use gristmill_pipeline::{FileFormat, PipelineSource};
use gristmill_ports::{ObjectPath, ObjectStore, get_long_range};
use gristmill_sources::{BlockRange, images};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// Most file indices in the cache: a permuted epoch touches all files of a dataset in turn.
const CACHED_INDICES: usize = 512;
/// Most bytes of cached file indices, apart from the most recent one.
const CACHED_BYTES: usize = 64 << 20;
/// Concurrent reads of file parts, indices or images: enough to hide the time to first byte, few enough for the memory.
const READS_AHEAD: usize = 16;
/// Reads of records that find their file changed, and with the same content, before the work is given back.
const LOOKS: usize = 3;
/// Concurrent reads of spans, such as the blocks of a shuffled split; each span may take several reads.
const SPANS_AHEAD: usize = 8;

/// Reader of one dataset version, shared by all jobs and invocations of a process.
pub struct DatasetCache {
    objects: Arc<dyn ObjectStore>,
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
        Ok(Self {
            objects: Arc::clone(objects),
            ns: ns.clone(),
            bucket: bucket.clone(),
            compute: *compute,
            version,
            sources,
            manifest,
            indices: Mutex::default(),
            blocks: BlockCache::for_process(*shape),
        })
    }

    /// Divides the dataset, as transformed by `ops`, into splits of `split_records`.
    pub fn split_plan(
        &self,
        split_records: u32,
        ops: &[DatasetOp],
    ) -> Result<SplitPlan, LeaseError> {
        let records = self.manifest.records();
        let lacks = || LeaseError::fatal("the manifest lacks files of its datasets");
        let divided = self.manifest.members.divide(&records).ok_or_else(lacks)?;
        let members = divided.into_iter().zip(&self.sources);
        let members = members
            .map(|(records_per_file, source)| ZipMember { records_per_file, times: source.repeat });
        let members: Vec<ZipMember<'_>> = members.collect();
        SplitPlan::from_zip(&members, split_records, ops)
            .map_err(|error| LeaseError::fatal(error.to_string()))
    }

    /// Reads the records of a visit from the registered versions of the files. If the records are too large
    /// to hold at once, reads only the first portion, and returns the others to be [`read`](Self::read) one by one.
    pub async fn begin(
        &self,
        visit: SplitVisit,
    ) -> Result<(SplitSource, VecDeque<SplitVisit>), LeaseError> {
        let files = self.files(&visit).await?;
        let file = |run: &RecordRange| file_of(&files, run.file);
        let mut bytes = 0_u64;
        for run in visit.runs.iter().chain(visit.zipped.iter().flatten()) {
            bytes = bytes.saturating_add(file(run)?.bytes_of(run));
        }
        if bytes <= PORTION_BYTES {
            return Ok((self.read_of(&visit, &files).await?, VecDeque::new()));
        }
        let weigh = |run: &RecordRange| Ok(file(run)?.index.weights(run.first_record, run.records));
        let mut rest = VecDeque::from(portions::<LeaseError>(&visit, PORTION_BYTES, weigh)?);
        let first = rest.pop_front().unwrap_or(visit);
        Ok((self.read_of(&first, &files).await?, rest))
    }

    /// Reads the records of a portion.
    pub async fn read(&self, portion: &SplitVisit) -> Result<SplitSource, LeaseError> {
        let files = self.files(portion).await?;
        self.read_of(portion, &files).await
    }

    /// The files that hold the records of a visit.
    async fn files(&self, visit: &SplitVisit) -> Result<IndexedFiles, LeaseError> {
        let datasets = std::iter::once(&visit.runs).chain(&visit.zipped).zip(&self.sources);
        let formats: BTreeMap<u32, &FileFormat> = datasets
            .flat_map(|(runs, source)| runs.iter().map(|run| (run.file, &source.format)))
            .collect();
        let reads = formats.iter().map(async |(&file, &format)| {
            Ok::<_, LeaseError>((file, self.indexed(format, file).await?))
        });
        let reads = stream::iter(reads.collect::<Vec<_>>()).buffered(READS_AHEAD);
        reads.try_collect().await
    }

    async fn read_of(
        &self,
        visit: &SplitVisit,
        files: &IndexedFiles,
    ) -> Result<SplitSource, LeaseError> {
        let shuffled = visit.shuffled.as_ref();
        let runs = std::iter::once(&visit.runs).chain(&visit.zipped);
        let reads = self.sources.iter().zip(runs);
        let reads = reads.map(|(source, runs)| self.read_runs(source, runs, shuffled, files));
        let mut zipped = try_join_all(reads).await?;
        if zipped.len() != self.sources.len() {
            return Err(LeaseError::fatal("a split covers fewer datasets than are zipped"));
        }
        let first = zipped.remove(0);
        let copy = visit.runs.first().map_or(0, |run| run.copy);
        Ok(SplitSource { first, zipped, copy })
    }

    /// Reads the records of `runs` from one dataset, neighbours together.
    async fn read_runs(
        &self,
        source: &Arc<PipelineSource>,
        runs: &[RecordRange],
        shuffled: Option<&KeyedPermutation>,
        files: &IndexedFiles,
    ) -> Result<DatasetInput, LeaseError> {
        let spans = spans(runs);
        let shares = self.blocks.admits(shared_bytes(source, &spans, files)?);
        let reads = spans.iter().map(|&span| self.read_span(source, span, shares, files));
        let reads: Vec<_> = reads.collect();
        let fetched = stream::iter(reads).buffered(SPANS_AHEAD).try_collect().await?;
        let picks = picks(&spans, runs, shuffled);
        Ok(DatasetInput { fetched, picks, source: Arc::clone(source) })
    }

    async fn read_span(
        &self,
        source: &PipelineSource,
        span: PlannedRead,
        shares: bool,
        files: &IndexedFiles,
    ) -> Result<FetchedRecords, LeaseError> {
        let PlannedRead { file: number, first_record, records } = span;
        let mut file = Arc::clone(file_of(files, number)?);
        let first = RecordKey { file: number, record: first_record };
        for _ in 0..LOOKS {
            let blocks = file.index.blocks(first_record, records, source).filter(|_| shares);
            let (stored, read_bytes) = match blocks {
                Some(blocks) => self.read_blocks(source, number, blocks, &file).await?,
                None => {
                    let parts = self.read_parts(source, span, &file).await?;
                    let bytes = parts.iter().map(|part| part.len() as u64).sum();
                    (FetchedContent::Parts(parts), bytes)
                }
            };
            // A file may have been rewritten since it was indexed.
            if file.stamp.is_none() || self.objects.change_stamp(&file.path).await? == file.stamp {
                return Ok(FetchedRecords { first, n_records: records, stored, read_bytes, file });
            }
            self.indices.lock().retain(|(cached, _)| *cached != number);
            file = self.indexed(&source.format, number).await?;
        }
        Err(LeaseError::Passing(format!("{} is written to again and again", file.path)))
    }

    /// The blocks of a file, read but for those that are here, and the bytes that were read.
    async fn read_blocks(
        &self,
        source: &PipelineSource,
        number: u32,
        blocks: Vec<BlockRange>,
        file: &Arc<IndexedFile>,
    ) -> Result<(FetchedContent, u64), LeaseError> {
        let (mut found, mut bytes) = (Vec::with_capacity(blocks.len()), 0);
        for BlockRange { rows, .. } in blocks {
            let block = self.blocks.block(number, rows, file);
            let read = async |span| self.read_parts(source, span, file).await;
            bytes += block.fetch(read, number).await?;
            found.push(block);
        }
        Ok((FetchedContent::Blocks(found), bytes))
    }

    async fn read_parts(
        &self,
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
            return Ok(vec![read_images(&*self.objects, &pack.bucket, images, bytes).await?]);
        }
        let etag = self.manifest.files[number as usize].file.etag.as_str();
        let ranges = file.index.stored_ranges(first_record, records, source);
        let ranges =
            ranges.map_err(|error| LeaseError::fatal(format!("{}: {error}", file.path)))?;
        let read = |range| get_long_range(&*self.objects, &file.path, range, Some(etag));
        let reads = ranges.into_iter().map(read);
        Ok(stream::iter(reads).buffered(READS_AHEAD).try_collect().await?)
    }

    async fn indexed(
        &self,
        format: &FileFormat,
        file: u32,
    ) -> Result<Arc<IndexedFile>, LeaseError> {
        if let Some((_, index)) = self.indices.lock().iter().find(|(number, _)| *number == file) {
            return Ok(Arc::clone(index));
        }
        let indexed = Arc::new(self.read_index(format, file).await?);
        let mut indices = self.indices.lock();
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

    async fn read_index(&self, format: &FileFormat, file: u32) -> Result<IndexedFile, LeaseError> {
        let objects = &*self.objects;
        let ManifestFile { file: source, records } = &self.manifest.files[file as usize];
        let path = ObjectPath::new(&self.manifest.bucket, &source.key);
        if format.definition().is_packed {
            let pack = read_pack(objects, &path, &source.etag).await?;
            let index = images::pack_index(&pack)
                .map_err(|error| LeaseError::fatal(format!("{path}: {error}")))?;
            return Ok(IndexedFile { path, index, stamp: None, pack: Some(pack) });
        }
        let Self { ns, bucket, compute, .. } = self;
        let indices = IndexStore { objects, compute: *compute, ns, bucket, rescues: true };
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

/// Neighbouring records of one file that are read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlannedRead {
    /// Index of the file in the dataset.
    pub file: u32,
    pub first_record: u32,
    pub records: u32,
}

impl PlannedRead {
    fn from_range(run: &RecordRange) -> Self {
        let RecordRange { file, first_record, records, .. } = *run;
        PlannedRead { file, first_record, records }
    }

    fn end(&self) -> u64 {
        u64::from(self.first_record) + u64::from(self.records)
    }
}

/// The reads for `runs`, sorted by file and record; runs that touch or overlap become one read.
pub(crate) fn spans(runs: &[RecordRange]) -> Vec<PlannedRead> {
    let mut all: Vec<PlannedRead> = runs.iter().map(PlannedRead::from_range).collect();
    all.sort_unstable_by_key(|span| (span.file, span.first_record));
    let mut spans: Vec<PlannedRead> = Vec::with_capacity(all.len());
    for span in all {
        let touches = |last: &&mut PlannedRead| {
            last.file == span.file && u64::from(span.first_record) <= last.end()
        };
        match spans.last_mut().filter(touches) {
            Some(last) => {
                last.records = (last.end().max(span.end()) - u64::from(last.first_record)) as u32;
            }
            None => spans.push(span),
        }
    }
    spans
}

/// The records of `runs` in the order in which to run them, shuffled if `shuffled` is given; none if
/// `spans` hold them in that order.
pub(crate) fn picks(
    spans: &[PlannedRead],
    runs: &[RecordRange],
    shuffled: Option<&KeyedPermutation>,
) -> Option<Vec<RecordPick>> {
    let as_read = runs.iter().map(PlannedRead::from_range).eq(spans.iter().copied());
    let one_copy = runs.windows(2).all(|pair| pair[0].copy == pair[1].copy);
    if as_read && one_copy && shuffled.is_none() {
        return None;
    }
    let picks = runs.iter().flat_map(|run| {
        // The last span that begins at or before the run.
        let after =
            |span: &PlannedRead| (span.file, span.first_record) <= (run.file, run.first_record);
        let part = spans.partition_point(after).saturating_sub(1);
        let offset = run.first_record - spans[part].first_record;
        let copy = run.copy;
        (0..run.records).map(move |i| RecordPick { part: part as u32, record: offset + i, copy })
    });
    let picks: Vec<RecordPick> = picks.collect();
    let Some(order) = shuffled else { return Some(picks) };
    let shuffled = (0..picks.len() as u32).filter_map(|at| picks.get(order.split_at(at)? as usize));
    Some(shuffled.copied().collect())
}

/// Most unpacked bytes of a portion, unless one record alone is larger. Planned splits stay below this; a
/// split of one batch of large records may not.
pub(crate) const PORTION_BYTES: u64 = 96 << 20;

/// Divides `visit` into portions of at most `most` bytes, or of one record, in the order in which its
/// records are run. `weigh` returns the bytes of each record of a run.
pub(crate) fn portions<E>(
    visit: &SplitVisit,
    most: u64,
    weigh: impl Fn(&RecordRange) -> Result<Vec<u64>, E>,
) -> Result<Vec<SplitVisit>, E> {
    let datasets: Vec<&[RecordRange]> =
        std::iter::once(&visit.runs).chain(&visit.zipped).map(Vec::as_slice).collect();
    let mut weights: Vec<u64> = Vec::new();
    for runs in &datasets {
        let mut place = 0;
        for run in *runs {
            for bytes in weigh(run)? {
                match weights.get_mut(place) {
                    Some(weight) => *weight = weight.saturating_add(bytes),
                    None => weights.push(bytes),
                }
                place += 1;
            }
        }
    }
    let order = |i: usize| match &visit.shuffled {
        Some(order) => order.split_at(i as u32).map_or(i, |at| at as usize),
        None => i,
    };
    let places: Vec<usize> = (0..weights.len()).map(order).collect();
    let records: Vec<Vec<RecordRange>> = datasets.iter().map(|runs| each(runs)).collect();
    let mut portions = Vec::new();
    let mut first = 0;
    while first < places.len() {
        let mut bytes = 0_u64;
        let fits = places[first..].iter().take_while(|place| {
            bytes = bytes.saturating_add(weights[**place]);
            bytes <= most
        });
        let end = first + fits.count().max(1);
        let of = |records: &Vec<RecordRange>| {
            let chosen = places[first..end].iter().filter_map(|place| records.get(*place));
            together(chosen.copied())
        };
        let mut zipped: Vec<Vec<RecordRange>> = records.iter().map(of).collect();
        let runs = zipped.remove(0);
        portions.push(SplitVisit { runs, zipped, shuffled: None });
        first = end;
    }
    Ok(portions)
}

fn each(runs: &[RecordRange]) -> Vec<RecordRange> {
    let of_run = |run: &RecordRange| {
        let run = *run;
        (0..run.records).map(move |i| RecordRange {
            first_record: run.first_record + i,
            records: 1,
            ..run
        })
    };
    runs.iter().flat_map(of_run).collect()
}

/// The same records as few runs: neighbours are joined.
fn together(records: impl Iterator<Item = RecordRange>) -> Vec<RecordRange> {
    let mut runs: Vec<RecordRange> = Vec::new();
    for run in records {
        let follows = |last: &&mut RecordRange| {
            (last.file, last.copy) == (run.file, run.copy)
                && last.first_record + last.records == run.first_record
        };
        match runs.last_mut().filter(follows) {
            Some(last) => last.records += run.records,
            None => runs.push(run),
        }
    }
    runs
}

/// Reads `images` into consecutive records, `bytes` in total; each record is the label (i64, little-endian)
/// and the image's content.
pub(crate) async fn read_images(
    objects: &dyn ObjectStore,
    bucket: &str,
    images: &[PackedImage],
    bytes: u64,
) -> Result<Bytes, LeaseError> {
    let read = async |image: &PackedImage| {
        let path = ObjectPath::new(bucket, &image.key);
        let content = match image.size {
            // An empty range cannot be requested.
            0 => Bytes::new(),
            size => objects.get_range(&path, 0..size, Some(&image.etag)).await?,
        };
        Ok::<_, LeaseError>((i64::from(image.label), content))
    };
    let mut reads = stream::iter(images.iter().map(read)).buffered(READS_AHEAD);
    let mut data = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
    while let Some((label, content)) = reads.try_next().await? {
        data.extend_from_slice(&label.to_le_bytes());
        data.extend_from_slice(&content);
    }
    Ok(Bytes::from(data))
}

#[cfg(test)]
mod ranges_tests {
    use super::*;

    const fn run(file: u32, first_record: u32, records: u32, copy: u32) -> RecordRange {
        RecordRange { file, first_record, records, copy }
    }

    #[test]
    fn records_are_read_once_and_neighbours_together() {
        let span = |file, first_record, records| PlannedRead { file, first_record, records };
        let runs = [run(1, 4, 2, 0), run(0, 0, 3, 0), run(1, 6, 1, 0), run(1, 5, 4, 1)];
        assert_eq!(spans(&runs), [span(0, 0, 3), span(1, 4, 5)]);
        assert_eq!(spans(&[run(0, u32::MAX - 1, 1, 0), run(0, 0, 1, 0)]).len(), 2);
        assert_eq!(spans(&[]), []);
    }

    #[test]
    fn sequential_read_needs_no_picks() {
        let runs = [run(0, 2, 3, 4), run(1, 0, 2, 4)];
        assert_eq!(picks(&spans(&runs), &runs, None), None);
    }

    #[test]
    fn picks_follow_the_runs() {
        let runs = [run(1, 4, 2, 0), run(0, 0, 1, 0), run(1, 5, 1, 1)];
        let pick = |part, record, copy| RecordPick { part, record, copy };
        let expected = [pick(1, 0, 0), pick(1, 1, 0), pick(0, 0, 0), pick(1, 1, 1)];
        assert_eq!(picks(&spans(&runs), &runs, None).unwrap(), expected);
        let order = KeyedPermutation::new(4, 5, 0);
        let mut found = picks(&spans(&runs), &runs, Some(&order)).unwrap();
        assert_ne!(found, expected);
        let by_place = |pick: &RecordPick| (pick.part, pick.record, pick.copy);
        found.sort_unstable_by_key(by_place);
        let mut sorted = expected;
        sorted.sort_unstable_by_key(by_place);
        assert_eq!(found, sorted);
    }
}

#[cfg(test)]
mod portions_tests {
    use super::*;
    use gristmill_model::splits::order::KeyedPermutation;
    use std::convert::Infallible;

    const fn run(file: u32, first_record: u32, records: u32) -> RecordRange {
        RecordRange { file, first_record, records, copy: 0 }
    }

    /// Divides `visit`; record i of a file has i bytes.
    fn cut(visit: &SplitVisit, most: u64) -> Vec<SplitVisit> {
        let weigh = |run: &RecordRange| {
            let end = run.first_record + run.records;
            Ok::<_, Infallible>((run.first_record..end).map(u64::from).collect())
        };
        portions(visit, most, weigh).unwrap()
    }

    #[test]
    fn a_portion_has_as_many_records_as_fit() {
        let visit =
            SplitVisit { runs: vec![run(0, 1, 4), run(1, 9, 2)], zipped: vec![], shuffled: None };
        let runs = |most| cut(&visit, most).into_iter().map(|part| part.runs).collect::<Vec<_>>();
        assert_eq!(runs(1000), [vec![run(0, 1, 4), run(1, 9, 2)]]);
        assert_eq!(runs(10), [vec![run(0, 1, 4)], vec![run(1, 9, 1)], vec![run(1, 10, 1)]]);
        assert_eq!(
            runs(6),
            [vec![run(0, 1, 3)], vec![run(0, 4, 1)], vec![run(1, 9, 1)], vec![run(1, 10, 1)]]
        );
    }

    #[test]
    fn zipped_records_stay_together_and_a_shuffle_keeps_its_order() {
        let order = KeyedPermutation::new(6, 3, 1);
        let zipped = vec![vec![run(2, 0, 3), run(3, 5, 3)]];
        let runs = vec![run(0, 10, 6)];
        let visit = SplitVisit { runs, zipped, shuffled: Some(order.clone()) };
        let parts = cut(&visit, 30);
        assert!(parts.len() > 2 && parts.iter().all(|part| part.shuffled.is_none()));
        let places: Vec<u32> = parts
            .iter()
            .flat_map(|part| each(&part.runs))
            .map(|run| run.first_record - 10)
            .collect();
        let expected: Vec<u32> = (0..6).filter_map(|i| order.split_at(i)).collect();
        assert_eq!(places, expected);
        let beside: Vec<_> = parts.iter().flat_map(|part| each(&part.zipped[0])).collect();
        let all = each(&visit.zipped[0]);
        let expected: Vec<_> = expected.iter().map(|place| all[*place as usize]).collect();
        assert_eq!(beside, expected);
    }
}
