//! Runs a few elements of a dataset in this process, to measure the cost and the output of
//! operators.

use crate::thread_cpu;
use bytes::Bytes;
use gristmill_aws::S3Objects;
use gristmill_client::{
    DatasetFiles, DatasetLocation, LeftOutFiles, ProgramFailure, report::DatasetDivision,
};
use gristmill_executor::{
    AssetLoader, CompiledPipeline, InputRange, PipelineCompiler, RecordPick, SplitInput,
    SplitOutput, ZippedInput,
};
use gristmill_model::{
    ErrorPolicy, RecordKey,
    wire::{ImagePack, WorkProfile},
};
use gristmill_pipeline::passes::MeasuredBytes;
use gristmill_pipeline::{Cardinality, Pipeline, PipelineSource};
use gristmill_ports::{ObjectInfo, ObjectPath, ObjectStore, get_long_range};
use gristmill_sources::{FileIndex, IndexBuilder, OpenedRecords, SourceError, images};
use gristmill_web::{AllowedServers, WebRoutedStore};
use std::{
    fmt, fs::File, io, ops::Range, os::unix::fs::FileExt, path::Path, sync::Arc, time::Duration,
};

/// Default number of elements to run.
pub const ELEMENTS: u32 = 300;

/// Most files that are searched for one with records.
const MAX_FILES: usize = 100;

/// A sample of elements, and the cost of running them.
pub struct SampledRun {
    pub output: SplitOutput,
    n_records: u32,
    /// Stored bytes of the sampled records.
    stored_bytes: f64,
    /// Bytes per record in the sampled file of each dataset.
    bytes_per_record: Vec<f64>,
    /// CPU time of this thread for the whole sample.
    cpu: Duration,
}

/// Datasets to sample: one, unless they are zipped.
pub struct SampledDatasets {
    members: Vec<Member>,
    /// Files that are not read.
    pub left_out: LeftOutFiles,
    /// Those on S3 and on web servers.
    objects: WebRoutedStore,
}

struct Member {
    place: DatasetLocation,
    bucket: String,
    files: Vec<ObjectInfo>,
    /// The images to read, if each file is one.
    pack: Option<ImagePack>,
}

impl fmt::Display for SampledDatasets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Member { place, .. }) in self.members.iter().enumerate() {
            write!(f, "{}{place}", if i == 0 { "" } else { " and " })?;
        }
        Ok(())
    }
}

/// Lists the datasets to sample: `data`, or those that the pipeline, a file in `dir`, names.
pub async fn data(
    pipeline: &Pipeline,
    data: Option<&str>,
    dir: &Path,
) -> Result<SampledDatasets, ProgramFailure> {
    let source = pipeline.source();
    let places = match data {
        Some(_) if source.is_zip() => Err(ProgramFailure::usage(
            "the pipeline zips datasets, and its file names their paths: leave out `--data`",
        )),
        Some(data) => Ok(vec![DatasetLocation::parse(data, Path::new("."))]),
        None => {
            let place = |member: &PipelineSource| DatasetLocation::parse_all(&member.paths, dir);
            Ok(source.members().map(place).collect())
        }
    }?;
    let places: Vec<_> =
        places.into_iter().collect::<Result<_, _>>().map_err(ProgramFailure::usage)?;
    let objects = WebRoutedStore::from_env(Arc::new(S3Objects::ambient()), AllowedServers::Any);
    let objects = objects.map_err(ProgramFailure::usage)?;
    let (mut members, mut left_out) = (Vec::new(), LeftOutFiles::default());
    for (place, member) in places.into_iter().zip(source.members()) {
        let alone = PipelineSource { zipped: Vec::new(), ..member.clone() };
        let found = place.find(&objects, &alone).await.map_err(ProgramFailure::from)?;
        let pack = if member.format.definition().is_packed {
            place.first_pack(&found, &alone).map_err(ProgramFailure::from)?
        } else {
            None
        };
        let DatasetFiles { bucket, members: files, left_out: left, .. } = found;
        left_out.join(left);
        members.push(Member { place, bucket, files: files.concat(), pack });
    }
    if !left_out.is_empty() {
        gristmill_client::complain!("{left_out}");
    }
    Ok(SampledDatasets { members, left_out, objects })
}

/// Runs the first `most` records of one file of each dataset, and fails if all of them are bad.
fn run(
    program: &CompiledPipeline,
    pipeline: &Pipeline,
    shards: &[SampledFile],
    most: u32,
) -> Result<SampledRun, ProgramFailure> {
    let sample = run_from(program, pipeline, shards, SampledDraws { most, seed: 0, put: None })?;
    if sample.output.rows == 0 {
        let why = sample.output.skipped.first().map_or(String::new(), |record| {
            format!(": {} ({}): {}", record.key, record.op, record.reason)
        });
        let name = shards.first().map_or("", |file| &file.name);
        return Err(ProgramFailure::failed(format!("{name}: the sample has no elements{why}")));
    }
    Ok(sample)
}

/// How a sample is run.
#[derive(Clone, Copy, Debug)]
pub struct SampledDraws {
    /// Most records.
    pub most: u32,
    /// Seed of random operators; the epoch is 0.
    pub seed: u64,
    /// The cache point at which elements are captured.
    pub put: Option<u32>,
}

/// Runs the first records of one file of each dataset; bad records are left out.
pub fn run_from(
    program: &CompiledPipeline,
    pipeline: &Pipeline,
    shards: &[SampledFile],
    SampledDraws { most, seed, put }: SampledDraws,
) -> Result<SampledRun, ProgramFailure> {
    let members = || pipeline.source().members();
    let [first, others @ ..] = shards else {
        return Err(ProgramFailure::usage("the dataset has no file to sample"));
    };
    let lengths = members().skip(1).zip(others);
    let lengths = lengths.map(|(source, shard)| shard.n_records.saturating_mul(source.repeat));
    let n_records = lengths.fold(first.n_records.min(most), u32::min);
    let zipped = (1..).zip(others).map(|(file, shard)| {
        let length = shard.n_records.max(1);
        let pick = |i| RecordPick { part: 0, record: i % length, copy: 0 };
        ZippedInput {
            parts: vec![shard.part(file, shard.n_records)],
            files: vec![shard.name.clone()],
            picks: Some((0..n_records).map(pick).collect()),
        }
    });
    let zipped: Vec<ZippedInput<'_>> = zipped.collect();
    let part = first.part(0, n_records);
    let of_run = |shard: &SampledFile| {
        let share = f64::from(n_records) / f64::from(shard.n_records.max(1));
        shard.stored_bytes as f64 * share.min(1.0)
    };
    let stored_bytes = shards.iter().map(of_run).sum();
    // A record that cannot be decoded has no size, so it is skipped.
    let on_error = ErrorPolicy::Skip;
    let input = SplitInput { on_error, zipped, seed, put, ..SplitInput::whole(part) };
    let named = &first.name;
    let before = thread_cpu();
    let output = program.run_split(&mut program.scratch(), &input, &|| false);
    let cpu = thread_cpu().saturating_sub(before);
    let output = output.map_err(|error| ProgramFailure::failed(format!("{named}: {error}")))?;
    let bytes_per_record = shards.iter().map(|shard| shard.bytes_per_record).collect();
    Ok(SampledRun { output, n_records, stored_bytes, bytes_per_record, cpu })
}

/// Findings about a dataset.
pub struct DatasetFindings {
    /// The work of operators on the first elements.
    pub measured: MeasuredBytes,
    /// Number of elements measured.
    pub elements: u32,
    pub division: DatasetDivision,
}

/// Runs the operators over the first `most` elements of the dataset; also finds its division.
pub async fn measure(
    pipeline: &Pipeline,
    assets: &dyn AssetLoader,
    data: &SampledDatasets,
    most: u32,
) -> Result<DatasetFindings, ProgramFailure> {
    let compiler = PipelineCompiler { assets, fuse: false };
    let program = compiler.compile(pipeline).map_err(ProgramFailure::usage)?;
    let first = first_files(pipeline, data, most).await?;
    let sample = run(&program, pipeline, &first, most)?;
    let (records, division) = (sample.n_records, division(pipeline, data, &sample));
    let output = sample.output;
    let mut measured = MeasuredBytes::new();
    for metric in &output.metrics {
        let Some(stage) = metric.stage.and_then(|stage| pipeline.stages().get(stage as usize))
        else {
            continue;
        };
        let transforms = stage.op.declaration().cardinality == Cardinality::OneToOne
            && stage.op.field().is_some();
        if transforms && metric.num_elements > 0 && metric.bytes_in > 0 {
            let mean = |bytes: u64| bytes as f64 / metric.num_elements as f64;
            // With several fields the first counts, since the factor is its own.
            let of_bytes = (mean(metric.bytes_in), mean(metric.bytes_produced));
            measured.entry(stage.ordinal).or_insert(of_bytes);
        }
    }
    Ok(DatasetFindings { measured, elements: records, division })
}

/// The division that jobs choose for the dataset, estimated from the bytes of its files.
fn division(pipeline: &Pipeline, data: &SampledDatasets, sample: &SampledRun) -> DatasetDivision {
    let files = data.members.first().map_or(0, |member| member.files.len() as u64);
    let stored_bytes = sample.stored_bytes / f64::from(sample.n_records.max(1));
    chosen_division(pipeline, records(pipeline, data, sample), files, stored_bytes as u64)
}

/// The division that jobs choose; `stored_bytes` are the bytes of one record.
pub fn chosen_division(
    pipeline: &Pipeline,
    records: u64,
    files: u64,
    stored_bytes: u64,
) -> DatasetDivision {
    let batches = pipeline.split_batches(records, stored_bytes);
    let split_records = batches.saturating_mul(u64::from(pipeline.batch_size()));
    DatasetDivision { records, files, split_records, is_given: false }
}

/// Estimated number of records; of a zip, that of its shortest dataset.
fn records(pipeline: &Pipeline, data: &SampledDatasets, sample: &SampledRun) -> u64 {
    let of_one = |((source, member), per_record): ((&PipelineSource, &Member), &f64)| {
        let sizes = member.files.iter().map(|file| file.size);
        sizes.sum::<u64>() as f64 / per_record.max(1.0) * f64::from(source.repeat)
    };
    let datasets = pipeline.source().members().zip(&data.members).zip(&sample.bytes_per_record);
    datasets.map(of_one).fold(f64::INFINITY, f64::min).round() as u64
}

/// Measures the first `most` records, operator by operator as they run; also finds the dataset's
/// division.
pub async fn profile(
    pipeline: &Pipeline,
    assets: &dyn AssetLoader,
    data: &SampledDatasets,
    most: u32,
) -> Result<(WorkProfile, DatasetDivision), ProgramFailure> {
    let compiler = PipelineCompiler { assets, fuse: true };
    let program = compiler.compile(pipeline).map_err(ProgramFailure::usage)?;
    let first = first_files(pipeline, data, most).await?;
    // A warm-up run first: the steady state is measured.
    run(&program, pipeline, &first, most.min(16))?;
    let sample = run(&program, pipeline, &first, most)?;
    let profile = WorkProfile {
        cpu_us: sample.cpu.as_micros() as u64,
        reads: vec![(sample.stored_bytes as u64, 0)],
        ..sample.output.work_profile(pipeline)
    };
    Ok((profile, division(pipeline, data, &sample)))
}

/// The first records of each dataset, from its first file that has any.
pub async fn first_files(
    pipeline: &Pipeline,
    data: &SampledDatasets,
    most: u32,
) -> Result<Vec<SampledFile>, ProgramFailure> {
    let mut shards = Vec::new();
    for (source, member) in pipeline.source().members().zip(&data.members) {
        if let Some(pack) = &member.pack {
            shards.push(SampledFile::images(member, pack, data, most).await?);
            continue;
        }
        let mut first = None;
        for info in member.files.iter().take(MAX_FILES) {
            let reader = FileReader::open(data, member, info).map_err(ProgramFailure::failed)?;
            let shard = SampledFile::open(reader, source, most).await?;
            if first.insert(shard).n_records > 0 {
                break;
            }
        }
        let none = || ProgramFailure::usage(format!("{} names no file", member.place));
        shards.push(first.ok_or_else(none)?);
    }
    Ok(shards)
}

/// Most bytes of a file that are searched for its first records. The search goes on until one is
/// found in any case.
const MAX_BYTES: u64 = 128 << 20;
/// Most bytes of records that are held, beyond the first.
const MAX_HELD_BYTES: u64 = 128 << 20;

/// The first records of a file.
pub struct SampledFile {
    /// Name of the file in messages.
    name: String,
    n_records: u32,
    /// Bytes of the file that hold them.
    stored_bytes: u64,
    /// Average over the part of the file that was searched.
    bytes_per_record: f64,
    index: FileIndex,
    records: OpenedRecords,
}

impl SampledFile {
    /// The first `most` records of a file, or fewer if it has fewer or they are large.
    async fn open(
        reader: FileReader<'_>,
        source: &PipelineSource,
        most: u32,
    ) -> Result<Self, ProgramFailure> {
        let named = |error: SourceError| reader.failed(&error);
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
        let name = reader.name;
        Ok(Self { name, n_records, stored_bytes, bytes_per_record, index, records })
    }

    /// The first `most` images of a folder, each a file of its own.
    async fn images(
        member: &Member,
        pack: &ImagePack,
        data: &SampledDatasets,
        most: u32,
    ) -> Result<Self, ProgramFailure> {
        let name = member.place.to_string();
        let named = |error: SourceError| ProgramFailure::failed(format!("{name}: {error}"));
        let (mut records, mut sizes) = (Vec::new(), Vec::new());
        for image in pack.images.iter().take(most as usize) {
            let info =
                ObjectInfo { key: image.key.clone(), size: image.size, etag: image.etag.clone() };
            let reader = FileReader::open(data, member, &info).map_err(ProgramFailure::failed)?;
            records.extend_from_slice(&i64::from(image.label).to_le_bytes());
            records.extend_from_slice(&reader.read(0..reader.bytes).await?);
            sizes.push(reader.bytes);
            if records.len() as u64 > MAX_HELD_BYTES {
                break;
            }
        }
        let index = images::index(sizes.iter().copied()).map_err(named)?;
        let (n_records, stored_bytes) = (index.len(), sizes.iter().sum::<u64>());
        let all: u64 = member.files.iter().map(|file| file.size).sum();
        let bytes_per_record = all as f64 / member.files.len().max(1) as f64;
        let records = OpenedRecords { data: records.into(), index: None };
        Ok(Self { name, n_records, stored_bytes, bytes_per_record, index, records })
    }

    /// The first `n_records` of the shard, as part of file number `file`.
    fn part(&self, file: u32, n_records: u32) -> InputRange<'_> {
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

/// A file, here or on S3, that is read in ranges.
struct FileReader<'a> {
    name: String,
    bytes: u64,
    place: FilePlace<'a>,
}

enum FilePlace<'a> {
    Local(File),
    Object(&'a dyn ObjectStore, ObjectPath, &'a str),
}

impl<'a> FileReader<'a> {
    fn open(data: &'a SampledDatasets, of: &Member, info: &'a ObjectInfo) -> io::Result<Self> {
        let Some(path) = of.place.path_of(&info.key) else {
            let path = ObjectPath::new(&of.bucket, &info.key);
            let name = path.to_string();
            let place = FilePlace::Object(&data.objects, path, &info.etag);
            return Ok(Self { name, bytes: info.size, place });
        };
        let name = path.display().to_string();
        let open = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (bytes, file) = open.map_err(|error| io::Error::other(format!("{name}: {error}")))?;
        Ok(Self { name, bytes, place: FilePlace::Local(file) })
    }

    fn failed(&self, error: &dyn fmt::Display) -> ProgramFailure {
        ProgramFailure::failed(format!("{}: {error}", self.name))
    }

    async fn read(&self, range: Range<u64>) -> Result<Bytes, ProgramFailure> {
        let bytes = range.end.saturating_sub(range.start);
        match &self.place {
            _ if bytes == 0 => Ok(Bytes::new()),
            FilePlace::Local(file) => {
                let mut part = vec![0; bytes as usize];
                let read = file.read_exact_at(&mut part, range.start);
                read.map_err(|error| self.failed(&error))?;
                Ok(part.into())
            }
            FilePlace::Object(objects, path, etag) => {
                let part = get_long_range(*objects, path, range, Some(etag)).await;
                part.map_err(ProgramFailure::failed)
            }
        }
    }
}
