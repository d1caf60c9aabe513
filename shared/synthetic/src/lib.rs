//! Generated datasets: the demo's ImageNet-like images and integers, in TFRecord shards, once per machine.
//!
//! Element `i` depends on (seed, i) alone. A dataset appears under its name only when complete: it is
//! written to `<dir>.partial`, under a lock, and renamed at the end. A manifest with a hash over the
//! shard sizes identifies a finished dataset.

mod image;
mod random;
pub mod tfrecord;

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use image::ImagePainter;
pub use random::RandomStream;
use tfrecord::{RecordWriter, TfExample};

/// Incremented whenever the same spec would give other bytes.
const VERSION: u32 = 2;
const MANIFEST: &str = "manifest.json";
/// A manifest has about 200 bytes; a larger file is something else.
const MANIFEST_BYTES_MAX: u64 = 4096;
const SHARDS_MAX: u32 = 99_999;
/// Default shards, as many as keep indexing and reading parallel.
const SHARDS: u64 = 16;
/// Least records of a shard.
const SHARD_RECORDS_MIN: u64 = 100;
/// Records between two progress reports of a thread.
const REPORT_RECORDS: u64 = 8;

/// Content of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DatasetContent {
    /// JPEGs of about 100 KB under `image/encoded`, beside `image/class/label` (0..1000),
    /// `image/height`, `image/width`, `image/filename` and `image/format`.
    Images,
    /// One int64 under `value`: the record's index. For studies of everything but the data.
    Ints,
}

/// Everything that decides a dataset's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetSpec {
    pub content: DatasetContent,
    pub records: u64,
    pub shards: u32,
    pub seed: u64,
}

impl DatasetSpec {
    /// `records` JPEG images in the default number of shards.
    pub fn images(records: u64, seed: u64) -> Self {
        Self { content: DatasetContent::Images, records, shards: default_shards(records), seed }
    }

    /// `records` integers in the default number of shards.
    pub fn ints(records: u64, seed: u64) -> Self {
        Self { content: DatasetContent::Ints, records, shards: default_shards(records), seed }
    }

    /// Name of shard `index` inside the directory, as TensorFlow names them.
    pub fn shard_name(&self, index: u32) -> String {
        format!("train-{index:05}-of-{:05}", self.shards)
    }

    /// Records of a shard; counts differ by at most one between shards.
    fn shard_records(&self, index: u32) -> Range<u64> {
        let bound = |shard: u32| {
            (u128::from(self.records) * u128::from(shard) / u128::from(self.shards)) as u64
        };
        bound(index)..bound(index + 1)
    }

    fn check(&self) -> Result<()> {
        ensure!(self.records > 0, "a dataset of 0 records is of no use; ask for at least 1");
        ensure!(
            (1..=SHARDS_MAX).contains(&self.shards) && u64::from(self.shards) <= self.records,
            "{} records cannot be cut into {} shards; ask for 1 to {}",
            self.records,
            self.shards,
            self.records.min(u64::from(SHARDS_MAX)),
        );
        Ok(())
    }
}

/// 16 shards, fewer if there are few records. Avoids shards of a multiple of 64 records where possible:
/// real shards do not end on a batch boundary, so the demo's should not.
fn default_shards(records: u64) -> u32 {
    let most = (records / SHARD_RECORDS_MIN).clamp(1, SHARDS);
    let uneven = |&shards: &u64| {
        !(records / shards).is_multiple_of(64) && !records.div_ceil(shards).is_multiple_of(64)
    };
    (most / 2 + 1..=most).rev().find(uneven).unwrap_or(most) as u32
}

/// Default folder of generated data, in the user's cache.
///
/// # Errors
/// Neither `XDG_CACHE_HOME` nor `HOME` names an absolute directory.
pub fn cache_dir() -> Result<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let cache = cache.context(
        "no place for the dataset: neither XDG_CACHE_HOME nor HOME is an absolute path; \
         set one, or name data of your own with --data",
    )?;
    Ok(cache.join("gristmill"))
}

/// Default folder of one dataset, named by its spec.
///
/// # Errors
/// As [`cache_dir`].
pub fn default_dir(spec: &DatasetSpec) -> Result<PathBuf> {
    Ok(cache_dir()?.join("datasets").join(dir_name(spec)))
}

fn dir_name(spec: &DatasetSpec) -> String {
    let kind = match spec.content {
        DatasetContent::Images => "imagenet-like",
        DatasetContent::Ints => "ints",
    };
    let shards = match spec.shards {
        shards if shards == default_shards(spec.records) => String::new(),
        shards => format!("-{shards}shards"),
    };
    format!("{kind}-{}-{}{shards}-v{VERSION}", spec.records, spec.seed)
}

/// Makes sure that `dir` holds the dataset of `spec`, generating it on all cores if absent.
///
/// `progress(done, total)` is called on the caller's thread as records are made, and not at all if
/// the dataset exists. `Break` stops the work, removes what was made and is an error. A second
/// process that asks for the same directory waits for the first.
///
/// # Errors
/// `dir` holds something else (it is left alone), the disk refuses, or `progress` broke off.
pub fn ensure(
    dir: &Path,
    spec: &DatasetSpec,
    progress: &dyn Fn(u64, u64) -> ControlFlow<()>,
) -> Result<()> {
    spec.check()?;
    let name = dir
        .file_name()
        .with_context(|| format!("`{}` cannot be made a dataset: it has no name", dir.display()))?;
    let mut partial_name = name.to_owned();
    partial_name.push(".partial");
    let partial = dir.with_file_name(partial_name);
    let _lock = loop {
        if is_complete(dir, spec)? {
            return Ok(());
        }
        if let Some(lock) = lock_partial(&partial)? {
            // Another process may have finished between the check and the lock.
            if is_complete(dir, spec)? {
                return fs::remove_dir(&partial)
                    .with_context(|| format!("cannot remove `{}`", partial.display()));
            }
            break lock;
        }
    };
    let made = make(&partial, spec, progress).and_then(|()| {
        fs::rename(&partial, dir)
            .with_context(|| format!("cannot move the finished dataset to `{}`", dir.display()))
    });
    if made.is_err() {
        // A failed cleanup must not hide the error.
        let _ = fs::remove_dir_all(&partial);
    }
    made
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    #[serde(flatten)]
    spec: DatasetSpec,
    /// Size of all shards together.
    bytes: u64,
    /// BLAKE3 over the shard sizes in order, each a little-endian u64.
    sizes_blake3: String,
}

impl Manifest {
    fn new(spec: &DatasetSpec, sizes: &[u64]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for size in sizes {
            hasher.update(&size.to_le_bytes());
        }
        let sizes_blake3 = hasher.finalize().to_hex().to_string();
        Self { version: VERSION, spec: *spec, bytes: sizes.iter().sum(), sizes_blake3 }
    }
}

/// Whether the dataset exists. An error if `dir` holds anything else.
fn is_complete(dir: &Path, spec: &DatasetSpec) -> Result<bool> {
    let shown = dir.display();
    let mut entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.with_context(|| format!("cannot look into `{shown}`"))?,
    };
    if entries.next().is_none() {
        // Renaming replaces an empty directory.
        return Ok(false);
    }
    let manifest = read_manifest(&dir.join(MANIFEST)).with_context(|| {
        format!("`{shown}` is not a generated dataset and is left alone; remove it or name another")
    })?;
    ensure!(
        manifest.version == VERSION && manifest.spec == *spec,
        "`{shown}` holds another dataset ({} {:?}, seed {}, version {}); remove it or name another",
        manifest.spec.records,
        manifest.spec.content,
        manifest.spec.seed,
        manifest.version,
    );
    let sizes = (0..spec.shards)
        .map(|index| fs::metadata(dir.join(spec.shard_name(index))).map(|file| file.len()))
        .collect::<io::Result<Vec<u64>>>();
    let intact = sizes.is_ok_and(|sizes| Manifest::new(spec, &sizes) == manifest);
    ensure!(intact, "`{shown}` is damaged: its shards are not what its manifest says; remove it");
    Ok(true)
}

fn read_manifest(path: &Path) -> Result<Manifest> {
    let shown = path.display();
    let size = fs::metadata(path).with_context(|| format!("cannot read `{shown}`"))?.len();
    ensure!(size <= MANIFEST_BYTES_MAX, "`{shown}` is {size} bytes, too many for a manifest");
    let text = fs::read(path).with_context(|| format!("cannot read `{shown}`"))?;
    serde_json::from_slice(&text).with_context(|| format!("cannot parse `{shown}`"))
}

/// Locks and empties the directory that datasets are made in. `None` if another process finished or
/// gave up in the meantime: check again.
fn lock_partial(partial: &Path) -> Result<Option<File>> {
    let context = || format!("cannot prepare `{}`", partial.display());
    match fs::create_dir_all(partial) {
        // The directory was just removed by its owner, who has finished.
        Err(error)
            if error.kind() == io::ErrorKind::AlreadyExists
                && fs::symlink_metadata(partial).is_ok_and(|found| !found.is_dir()) =>
        {
            return Err(error).with_context(context);
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        made => made.with_context(context)?,
    }
    let lock = match File::open(partial) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.with_context(context)?,
    };
    // The system releases the lock when its holder ends, so this never waits forever.
    lock.lock().with_context(context)?;
    let held = lock.metadata().with_context(context)?;
    match fs::metadata(partial) {
        Ok(found) if (found.dev(), found.ino()) == (held.dev(), held.ino()) => {}
        _ => return Ok(None),
    }
    for entry in fs::read_dir(partial).with_context(context)? {
        let path = entry.with_context(context)?.path();
        fs::remove_file(&path).with_context(|| format!("cannot remove `{}`", path.display()))?;
    }
    Ok(Some(lock))
}

/// Generates every shard and the manifest into `partial`, one thread per core.
fn make(
    partial: &Path,
    spec: &DatasetSpec,
    progress: &dyn Fn(u64, u64) -> ControlFlow<()>,
) -> Result<()> {
    let threads = thread::available_parallelism()?.get().min(spec.shards as usize);
    let next_shard = AtomicU32::new(0);
    let stop = AtomicBool::new(false);
    let (reports, made) = channel();
    let maker = |reports: Sender<u64>| -> Result<Vec<(u32, u64)>> {
        let mut painter = ImagePainter::default();
        let mut sizes = Vec::new();
        loop {
            let index = next_shard.fetch_add(1, Ordering::Relaxed);
            if index >= spec.shards {
                return Ok(sizes);
            }
            let made = make_shard(partial, spec, index, &mut painter, &reports, &stop);
            // One failed shard makes the others useless.
            sizes.push((index, made.inspect_err(|_| stop.store(true, Ordering::Relaxed))?));
        }
    };
    let mut sizes = thread::scope(|scope| -> Result<Vec<(u32, u64)>> {
        let makers: Vec<_> = (0..threads)
            .map(|_| {
                let reports = reports.clone();
                scope.spawn(|| maker(reports))
            })
            .collect();
        drop(reports);
        let mut done = 0;
        for records in made {
            done += records;
            if progress(done, spec.records).is_break() {
                stop.store(true, Ordering::Relaxed);
            }
        }
        let mut sizes = Vec::new();
        for maker in makers {
            match maker.join() {
                Ok(made) => sizes.extend(made?),
                Err(_) => bail!("a thread making `{}` panicked", partial.display()),
            }
        }
        Ok(sizes)
    })?;
    sizes.sort_unstable();
    let sizes: Vec<u64> = sizes.into_iter().map(|(_, size)| size).collect();
    let mut manifest = serde_json::to_vec_pretty(&Manifest::new(spec, &sizes))?;
    manifest.push(b'\n');
    let path = partial.join(MANIFEST);
    fs::write(&path, manifest).with_context(|| format!("cannot write `{}`", path.display()))
}

/// Writes one shard; returns its size in bytes.
fn make_shard(
    partial: &Path,
    spec: &DatasetSpec,
    index: u32,
    painter: &mut ImagePainter,
    reports: &Sender<u64>,
    stop: &AtomicBool,
) -> Result<u64> {
    let path = partial.join(spec.shard_name(index));
    let context = || format!("cannot write `{}`", path.display());
    let file = File::create_new(&path).with_context(context)?;
    let mut writer = RecordWriter::new(BufWriter::with_capacity(1 << 20, file));
    let mut unreported = 0;
    for record in spec.shard_records(index) {
        ensure!(!stop.load(Ordering::Relaxed), "making `{}` was broken off", partial.display());
        let example = match spec.content {
            DatasetContent::Images => image_example(painter, spec.seed, record)?,
            DatasetContent::Ints => TfExample::default().with_int("value", record.cast_signed()),
        };
        writer.write(&example).with_context(context)?;
        unreported += 1;
        if unreported == REPORT_RECORDS {
            report(reports, &mut unreported);
        }
    }
    report(reports, &mut unreported);
    writer.finish().with_context(context)
}

fn report(reports: &Sender<u64>, unreported: &mut u64) {
    // The receiver outlives the threads; if it is gone, the reports have no reader.
    let _ = reports.send(std::mem::take(unreported));
}

fn image_example(painter: &mut ImagePainter, seed: u64, record: u64) -> Result<TfExample> {
    let mut jpeg = Vec::with_capacity(128 << 10);
    let painted = painter.paint(seed, record, &mut jpeg)?;
    Ok(TfExample::default()
        .with_bytes("image/encoded", jpeg)
        .with_bytes("image/filename", format!("{record:08}.JPEG"))
        .with_bytes("image/format", &b"JPEG"[..])
        .with_int("image/class/label", painted.label.cast_signed())
        .with_int("image/height", i64::from(painted.height))
        .with_int("image/width", i64::from(painted.width)))
}

#[cfg(test)]
mod tests;
