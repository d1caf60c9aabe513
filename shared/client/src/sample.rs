//! The first elements of a dataset, run in this process to measure sizes, cost and output of operators.

use crate::{
    DatasetFiles, DatasetLocation, LeftOutFiles, ProgramFailure, service::ambient_objects,
};
use bytes::Bytes;
use gristmill_executor::{
    AssetLoader, CompiledPipeline, InputRange, PipelineCompiler, RecordPick, SplitInput,
    SplitOutput, ZippedInput,
};
use gristmill_model::{ErrorPolicy, RecordKey, wire::ImagePack};
use gristmill_pipeline::passes::MeasuredBytes;
use gristmill_pipeline::{Cardinality, Pipeline, PipelineSource};
use gristmill_ports::{ObjectInfo, ObjectPath, ObjectStore, get_long_range};
use gristmill_sources::{FileIndex, IndexBuilder, OpenedRecords, SourceError, images};
use gristmill_web::WebRoutedStore;
use std::{fmt, fs::File, io, ops::Range, os::unix::fs::FileExt};

/// Most files that are searched for one with records.
const MAX_FILES: usize = 100;

/// A sample of elements that was run.
pub struct SampledRun {
    /// Name of the first dataset's file.
    name: String,
    pub output: SplitOutput,
    pub n_records: u32,
    /// Stored bytes of the sampled records.
    pub stored_bytes: f64,
    /// Bytes per record in the sampled file of each dataset.
    pub bytes_per_record: Vec<f64>,
}

/// Datasets to sample: one, unless they are zipped.
pub struct SampledDatasets {
    place: DatasetLocation,
    bucket: String,
    /// The files of each.
    members: Vec<Vec<ObjectInfo>>,
    /// The images to read, if each file is one.
    pack: Option<ImagePack>,
    /// Files that are not read.
    pub left_out: LeftOutFiles,
    /// Those on S3 and on web servers.
    objects: WebRoutedStore,
}

impl fmt::Display for SampledDatasets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

impl SampledDatasets {
    /// Lists the files at `place` that `pipeline` reads.
    ///
    /// # Errors
    /// There are none, or they cannot be listed.
    pub async fn find(pipeline: &Pipeline, place: DatasetLocation) -> Result<Self, ProgramFailure> {
        let objects = ambient_objects()?;
        let source = pipeline.source();
        let found = place.find(&objects, source).await.map_err(ProgramFailure::from)?;
        let pack = if source.format.definition().is_packed {
            place.first_pack(&found, source).map_err(ProgramFailure::from)?
        } else {
            None
        };
        let DatasetFiles { bucket, members, left_out, .. } = found;
        Ok(Self { place, bucket, members, pack, left_out, objects })
    }

    /// The number of files, those of the first dataset of a zip.
    pub fn n_files(&self) -> u64 {
        self.members.first().map_or(0, |files| files.len() as u64)
    }

    /// Estimated number of records; of a zip, that of its shortest dataset.
    pub fn records(&self, pipeline: &Pipeline, sample: &SampledRun) -> u64 {
        let of_one =
            |((source, files), per_record): ((&PipelineSource, &Vec<ObjectInfo>), &f64)| {
                let bytes = files.iter().map(|file| file.size).sum::<u64>();
                bytes as f64 / per_record.max(1.0) * f64::from(source.repeat)
            };
        let datasets = pipeline.source().members().zip(&self.members).zip(&sample.bytes_per_record);
        datasets.map(of_one).fold(f64::INFINITY, f64::min).round() as u64
    }
}

impl SampledRun {
    /// This sample, unless all of its records are bad.
    ///
    /// # Errors
    /// The reason why the first one is.
    pub fn with_elements(self) -> Result<Self, ProgramFailure> {
        if self.output.rows == 0 {
            let why = self.output.skipped.first().map_or(String::new(), |record| {
                format!(": {} ({}): {}", record.key, record.op, record.reason)
            });
            let why = format!("{}: the sample has no elements{why}", self.name);
            return Err(ProgramFailure::failed(why));
        }
        Ok(self)
    }
}

/// How a sample is run.
#[derive(Clone, Copy, Debug, Default)]
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
    let name = first.name.clone();
    let output = program.run_split(&mut program.scratch(), &input, &|| false);
    let output = output.map_err(|error| ProgramFailure::failed(format!("{name}: {error}")))?;
    let bytes_per_record = shards.iter().map(|shard| shard.bytes_per_record).collect();
    Ok(SampledRun { name, output, n_records, stored_bytes, bytes_per_record })
}

/// Runs the operators over the first `most` elements of the dataset, one by one: the mean bytes of their fields, and the
/// sample. Bad records have no size.
pub async fn measure(
    pipeline: &Pipeline,
    assets: &dyn AssetLoader,
    data: &SampledDatasets,
    most: u32,
) -> Result<(MeasuredBytes, SampledRun), ProgramFailure> {
    let compiler = PipelineCompiler { assets, fuse: false };
    let program = compiler.compile(pipeline).map_err(ProgramFailure::usage)?;
    let first = first_files(pipeline, data, most).await?;
    let draws = SampledDraws { most, ..SampledDraws::default() };
    let sample = run_from(&program, pipeline, &first, draws)?;
    let mut measured = MeasuredBytes::new();
    for metric in &sample.output.metrics {
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
    Ok((measured, sample))
}

/// The first records of each dataset, from its first file that has any.
pub async fn first_files(
    pipeline: &Pipeline,
    data: &SampledDatasets,
    most: u32,
) -> Result<Vec<SampledFile>, ProgramFailure> {
    if let Some(pack) = &data.pack {
        return Ok(vec![SampledFile::images(pack, data, most).await?]);
    }
    let mut shards = Vec::new();
    for (source, files) in pipeline.source().members().zip(&data.members) {
        let mut first = None;
        for info in files.iter().take(MAX_FILES) {
            let reader = FileReader::open(data, info).map_err(ProgramFailure::failed)?;
            let shard = SampledFile::open(reader, source, most).await?;
            if first.insert(shard).n_records > 0 {
                break;
            }
        }
        let none = || ProgramFailure::usage(format!("{} names no file", data.place));
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
        pack: &ImagePack,
        data: &SampledDatasets,
        most: u32,
    ) -> Result<Self, ProgramFailure> {
        let name = data.place.to_string();
        let named = |error: SourceError| ProgramFailure::failed(format!("{name}: {error}"));
        let (mut records, mut sizes) = (Vec::new(), Vec::new());
        for image in pack.images.iter().take(most as usize) {
            let info =
                ObjectInfo { key: image.key.clone(), size: image.size, etag: image.etag.clone() };
            let reader = FileReader::open(data, &info).map_err(ProgramFailure::failed)?;
            records.extend_from_slice(&i64::from(image.label).to_le_bytes());
            records.extend_from_slice(&reader.read(0..reader.bytes).await?);
            sizes.push(reader.bytes);
            if records.len() as u64 > MAX_HELD_BYTES {
                break;
            }
        }
        let index = images::index(sizes.iter().copied()).map_err(named)?;
        let (n_records, stored_bytes) = (index.len(), sizes.iter().sum::<u64>());
        let files = data.members.iter().flatten();
        let all: u64 = files.clone().map(|file| file.size).sum();
        let bytes_per_record = all as f64 / files.count().max(1) as f64;
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
    fn open(data: &'a SampledDatasets, info: &'a ObjectInfo) -> io::Result<Self> {
        let Some(path) = data.place.path_of(&info.key) else {
            let path = ObjectPath::new(&data.bucket, &info.key);
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
