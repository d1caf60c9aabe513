//! Running a few elements of a dataset here, to see what operators cost and make of them.

use crate::{bench::thread_cpu, failure::Failure, job::unlisted, operators};
use bytes::Bytes;
use gristmill_aws::Aws;
use gristmill_executor::{
    Assets, Compiler, ExecError, OpMetrics, Part, Pick, Program, SplitInput, SplitOutput, Zipped,
    sources::{FileIndex, IndexBuilder, Records},
};
use gristmill_fetcher::{Found, LeftOut};
use gristmill_pipeline::{Cardinality, Format, Op, Pipeline, Source, Stage, passes::Measured};
use gristmill_policy::plan;
use gristmill_ports::{ObjectInfo, ObjectPath, Objects, memory::MemoryObjects};
use gristmill_types::{ErrorPolicy, RecordKey};
use gristmill_web::{Reach, WithWeb};
use std::{fmt, fs::File, io::Read, ops::Range, path::Path, sync::Arc, time::Duration};

/// Elements that are looked at unless told how many.
pub const ELEMENTS: u32 = 300;

/// Most bytes of a file that are read for it.
const MAX_BYTES: u64 = 512 << 20;
const TOO_LARGE: &str = "it is larger than 512 MiB: sample a smaller file";
/// Bytes of an object asked for at a time.
const PIECE_BYTES: u64 = 32 << 20;

/// Elements of a dataset that were run, and what that took.
struct Sample {
    output: SplitOutput,
    n_records: u32,
    /// Their bytes where they are stored.
    stored_bytes: u64,
    /// Of the file of each dataset, its bytes for each of its records.
    bytes_per_record: Vec<f64>,
    /// Of this thread, for all of them.
    cpu: Duration,
}

/// A file that was read.
struct Shard {
    /// How messages call it.
    name: String,
    bytes: Bytes,
    index: FileIndex,
}

/// Its first records.
struct Opened<'a> {
    shard: &'a Shard,
    n_records: u32,
    records: Records,
    /// Bytes of the file that hold them.
    stored_bytes: u64,
}

impl Shard {
    /// Its first records, as far as it has so many.
    fn first(&self, n_records: u32, source: &Source) -> Result<Opened<'_>, Failure> {
        let named = |error| Failure::failed(format!("{}: {error}", self.name));
        let n_records = self.index.len().min(n_records);
        let ranges = self.index.stored_ranges(0, n_records, source).map_err(named)?;
        let stored_bytes = ranges.iter().map(|range| range.end - range.start).sum();
        // They lie in the file, of which this is all.
        let part = |range: &Range<u64>| self.bytes.slice(range.start as usize..range.end as usize);
        let parts: Vec<Bytes> = ranges.iter().map(part).collect();
        let records = self.index.open(0, n_records, source, &parts).map_err(named)?;
        Ok(Opened { shard: self, n_records, records, stored_bytes })
    }
}

impl Opened<'_> {
    fn part(&self, file: u32) -> Part<'_> {
        let index = self.records.index.as_ref().unwrap_or(&self.shard.index);
        let first = RecordKey { file, record: 0 };
        Part { first, n_records: self.n_records, data: self.records.data.clone(), index }
    }
}

/// Datasets to look at: one, unless they are zipped.
pub struct Data {
    members: Vec<Member>,
    /// Files that are not read.
    pub left_out: LeftOut,
    /// There, if any of them is on S3.
    objects: Option<Arc<dyn Objects>>,
}

struct Member {
    place: gristmill_fetcher::Source,
    bucket: String,
    files: Vec<ObjectInfo>,
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Member { place, .. }) in self.members.iter().enumerate() {
            write!(f, "{}{place}", if i == 0 { "" } else { " and " })?;
        }
        Ok(())
    }
}

/// Lists what to look at: `data`, or what the pipeline, a file in `dir`, says that its datasets are.
pub async fn data(pipeline: &Pipeline, data: Option<&str>, dir: &Path) -> Result<Data, Failure> {
    let source = pipeline.source();
    let places = match data {
        Some(_) if source.is_zip() => Err(Failure::usage(
            "the pipeline zips datasets, whose paths stand in its file: leave out `--data`",
        )),
        Some(data) => Ok(vec![gristmill_fetcher::Source::parse(data, Path::new("."))]),
        None => {
            let place = |member: &Source| gristmill_fetcher::Source::parse_all(&member.paths, dir);
            Ok(source.members().map(place).collect())
        }
    }?;
    let places: Vec<_> = places.into_iter().collect::<Result<_, _>>().map_err(Failure::usage)?;
    let on_s3 =
        |place: &gristmill_fetcher::Source| matches!(place, gristmill_fetcher::Source::S3 { .. });
    let on_web =
        |place: &gristmill_fetcher::Source| matches!(place, gristmill_fetcher::Source::Web { .. });
    let objects: Option<Arc<dyn Objects>> = match places.iter().any(on_s3) {
        true => Some(Arc::new(Aws::ambient().await.objects())),
        false if places.iter().any(on_web) => Some(Arc::new(MemoryObjects::default())),
        false => None,
    };
    let objects = match objects {
        Some(objects) => {
            let web = WithWeb::from_env(objects, Reach::Any).map_err(Failure::usage)?;
            Some(Arc::new(web) as Arc<dyn Objects>)
        }
        None => None,
    };
    let (mut members, mut left_out) = (Vec::new(), LeftOut::default());
    for (place, member) in places.into_iter().zip(source.members()) {
        let alone = Source { zipped: Vec::new(), ..member.clone() };
        let none = MemoryObjects::default();
        let objects = objects.as_deref().unwrap_or(&none);
        let found = place.find(objects, &alone).await.map_err(unlisted)?;
        let Found { bucket, members: files, left_out: left } = found;
        left_out.join(left);
        members.push(Member { place, bucket, files: files.concat() });
    }
    if !left_out.is_empty() {
        eprintln!("{left_out}");
    }
    Ok(Data { members, left_out, objects })
}

/// Runs the first `most` records of files, one of each dataset; bad ones are left out.
fn run(
    program: &Program,
    pipeline: &Pipeline,
    shards: &[Shard],
    most: u32,
) -> Result<Sample, Failure> {
    let members = || pipeline.source().members();
    let [first, others @ ..] = shards else {
        return Err(Failure::usage("there is no file to look at"));
    };
    let lengths = members().skip(1).zip(others);
    let lengths = lengths.map(|(source, shard)| shard.index.len().saturating_mul(source.repeat));
    let n_records = lengths.fold(first.index.len().min(most), u32::min);
    let opened = members().zip(shards).map(|(source, shard)| shard.first(n_records, source));
    let opened: Vec<Opened<'_>> = opened.collect::<Result<_, _>>()?;
    let zipped = (1..).zip(&opened[1..]).map(|(file, opened)| {
        let length = opened.shard.index.len().max(1);
        let pick = |i| Pick { part: 0, record: i % length, copy: 0 };
        Zipped {
            parts: vec![opened.part(file)],
            files: vec![opened.shard.name.clone()],
            picks: Some((0..n_records).map(pick).collect()),
        }
    });
    let zipped: Vec<Zipped<'_>> = zipped.collect();
    let part = opened[0].part(0);
    let stored_bytes = opened.iter().map(|opened| opened.stored_bytes).sum();
    // What cannot be decoded has no size.
    let input = SplitInput { on_error: ErrorPolicy::Skip, zipped, ..SplitInput::whole(part) };
    let named = &first.name;
    let before = thread_cpu();
    let output = program.run_split(&mut program.scratch(), &input, &|| false);
    let cpu = thread_cpu().saturating_sub(before);
    let output = output.map_err(|error| Failure::failed(format!("{named}: {error}")))?;
    if output.rows == 0 {
        let why = output.skipped.first().map_or(String::new(), |record| {
            format!(": {} ({}): {}", record.key, record.op, record.reason)
        });
        return Err(Failure::failed(format!("{named}: no element came through{why}")));
    }
    let each = |shard: &Shard| shard.bytes.len() as f64 / f64::from(shard.index.len().max(1));
    let bytes_per_record = shards.iter().map(each).collect();
    Ok(Sample { output, n_records, stored_bytes, bytes_per_record, cpu })
}

/// What operators did to the first `most` elements of the dataset, and how many those were.
pub async fn measure(
    (pipeline, assets): (&Pipeline, &dyn Assets),
    data: &Data,
    most: u32,
) -> Result<(Measured, u32), Failure> {
    let operators = operators::get();
    let compiler = Compiler::new().assets(assets).operators(&operators).apart();
    let program = compiler.compile(pipeline).map_err(Failure::usage)?;
    let first = first_files(pipeline, data).await?;
    let Sample { output, n_records, .. } = run(&program, pipeline, &first, most)?;
    let mut measured = Measured::new();
    for metric in &output.metrics {
        let Some(stage) = metric.stage.and_then(|stage| pipeline.stages().get(stage as usize))
        else {
            continue;
        };
        let transforms = stage.op.declaration().cardinality == Cardinality::OneToOne
            && stage.op.field().is_some();
        if transforms && metric.num_elements > 0 && metric.bytes_in > 0 {
            let mean = |bytes: u64| bytes as f64 / metric.num_elements as f64;
            // The first of several fields counts: the factor is its own.
            let of_bytes = (mean(metric.bytes_in), mean(metric.bytes_produced));
            measured.entry(stage.ordinal).or_insert(of_bytes);
        }
    }
    Ok((measured, n_records))
}

/// What the first `most` records cost, operator by operator as they run, and the records of all files,
/// as far as their bytes tell.
pub async fn profile(
    (pipeline, assets): (&Pipeline, &dyn Assets),
    data: &Data,
    most: u32,
) -> Result<(plan::Measured, u64), Failure> {
    let operators = operators::get();
    let compiler = Compiler::new().assets(assets).operators(&operators);
    let program = compiler.compile(pipeline).map_err(Failure::usage)?;
    let first = first_files(pipeline, data).await?;
    // Once to warm up: what is measured is the steady state.
    run(&program, pipeline, &first, most.min(16))?;
    let sample = run(&program, pipeline, &first, most)?;
    let stage = |metric: &OpMetrics| pipeline.stages().get(metric.stage? as usize);
    let waits = |metric: &OpMetrics| matches!(stage(metric), Some(Stage { op: Op::Sleep(_), .. }));
    let metrics = &sample.output.metrics;
    // Others on this machine lengthen the time of an operator, not the processor time of all.
    let busy = metrics.iter().filter(|metric| !waits(metric)).map(|metric| metric.active_ns);
    let busy_ns = busy.sum::<u64>().max(1) as f64;
    let mut bytes = 0.0;
    let ops = metrics.iter().map(|metric| {
        let seconds = metric.active_ns as f64 / 1e9;
        let (cpu_s, wait_s) = match waits(metric) {
            true => (0.0, seconds),
            false => (sample.cpu.as_secs_f64() * metric.active_ns as f64 / busy_ns, 0.0),
        };
        let (read, made) = (metric.bytes_in as f64, metric.bytes_produced as f64);
        bytes = match stage(metric) {
            None => made,
            Some(stage) if stage.op.batching().is_some() => sample.output.object.len() as f64,
            Some(_) => f64::max(bytes + made - read, 0.0),
        };
        let elements = metric.num_elements as f64;
        plan::OpCost { op: metric.op.to_owned(), cpu_s, wait_s, elements, bytes }
    });
    let ops = ops.collect();
    let measured = plan::Measured {
        records: f64::from(sample.n_records),
        source_bytes: sample.stored_bytes as f64,
        rows: f64::from(sample.output.rows),
        row_bytes: sample.output.object.len() as f64,
        ops,
        ..plan::Measured::default()
    };
    // A zip is as long as the shortest of its datasets.
    let of_one = |((source, member), per_record): ((&Source, &Member), &f64)| {
        let sizes = member.files.iter().map(|file| file.size);
        sizes.sum::<u64>() as f64 / per_record.max(1.0) * f64::from(source.repeat)
    };
    let datasets = pipeline.source().members().zip(&data.members).zip(&sample.bytes_per_record);
    let records = datasets.map(of_one).fold(f64::INFINITY, f64::min);
    Ok((measured, records.round() as u64))
}

/// The first file of each dataset.
async fn first_files(pipeline: &Pipeline, data: &Data) -> Result<Vec<Shard>, Failure> {
    let mut shards = Vec::new();
    for (source, member) in pipeline.source().members().zip(&data.members) {
        let first = member.files.first();
        let first =
            first.ok_or_else(|| Failure::usage(format!("{} names no file", member.place)))?;
        let path = ObjectPath::new(&member.bucket, &first.key);
        let (name, bytes) = match (member.place.path_of(&first.key), &data.objects) {
            (Some(path), _) => (path.display().to_string(), read(&path)?),
            (None, Some(objects)) => (path.to_string(), fetch(&**objects, &path, first).await?),
            (None, None) => return Err(Failure::failed(format!("{path} is out of reach"))),
        };
        let named = |error: ExecError| Failure::failed(format!("{name}: {error}"));
        if source.format == Format::Images {
            return Err(Failure::usage(format!(
                "{name}: images of a folder are not sampled: name an archive of some with --data, and its kind in a \
                 copy of the pipeline"
            )));
        }
        let mut builder = IndexBuilder::new(source.format).map_err(named)?;
        builder.push(&bytes).map_err(named)?;
        let index = builder.finish().map_err(named)?;
        shards.push(Shard { name, bytes, index });
    }
    Ok(shards)
}

fn read(path: &Path) -> Result<Bytes, Failure> {
    let named = |error: &dyn fmt::Display| Failure::failed(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(|error| named(&error))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| named(&error))?;
    match bytes.len() as u64 > MAX_BYTES {
        true => Err(named(&TOO_LARGE)),
        false => Ok(bytes.into()),
    }
}

async fn fetch(
    objects: &dyn Objects,
    path: &ObjectPath,
    info: &ObjectInfo,
) -> Result<Bytes, Failure> {
    if info.size > MAX_BYTES {
        return Err(Failure::failed(format!("{path}: {TOO_LARGE}")));
    }
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < info.size {
        let start = bytes.len() as u64;
        let range = start..info.size.min(start + PIECE_BYTES);
        let piece = objects.get_range(path, range, Some(&info.etag)).await;
        bytes.extend_from_slice(&piece.map_err(Failure::failed)?);
    }
    Ok(bytes.into())
}
