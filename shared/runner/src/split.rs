//! One split: reads its input, from the dataset or from a cache, and computes its result.

use crate::{
    FinishedSplit, JobContext, LeaseError, Runner,
    compute::join,
    parts,
    sink::{UncompressedSplit, put_cached},
    split_source::SplitSource,
};
use bytes::Bytes;
use futures::future::Either;
use gristmill_executor::{
    CACHED_PART_BYTES, ExecError, ExecutorScratch, ResumeInput, SplitInput, UnfinishedSplit,
};
use gristmill_model::{
    RecordKey, SkippedRecord,
    splits::{SplitKind, SplitOutcome, SplitPlace, SplitVisit, WorkerTimes},
    stored::keys,
    wire::{CacheOrders, CachePointOrder, SkippedRecordLocation, WorkProfile},
};
use gristmill_ports::{ObjectError, ObjectPath, get_long_range};
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// A split of at most this many stored bytes runs in one go: its cached output is about one part.
const FEW_BYTES: u64 = 64 << 10;

/// The input of a split, with orders for side outputs.
pub struct SplitTask {
    content: Content,
    extras: Extras,
}

enum Content {
    /// The first portion of records, and the portions to read after it.
    Source { first: SplitSource, rest: VecDeque<SplitVisit> },
    /// The output at a point of the pipeline: the first part, and keys and sizes of the other parts.
    Cached { point: u32, object: Bytes, rest: VecDeque<(String, u64)> },
}

/// Side outputs of a split, and what they need.
#[derive(Debug, Clone)]
struct Extras {
    /// Prefix of the chunk's key; none for the job's own prefix.
    cache_prefix: Option<String>,
    /// Point whose output to cache, and its key.
    put: Option<(u32, String)>,
    profile: bool,
    /// Sizes of the parts of the cached output that are already stored; none if the store had no room for one.
    stored: Option<Vec<u64>>,
    /// Bytes that were read, and the time in microseconds.
    took: (u64, u64),
}

impl SplitTask {
    /// Number of bytes that were read.
    pub(crate) fn bytes(&self) -> u64 {
        self.extras.took.0
    }
}

/// A computed split, and the time it took.
pub(crate) type TimedSplit = (FinishedSplit, Duration);

/// A split with some portions run.
struct Begun {
    scratch: ExecutorScratch,
    unfinished: UnfinishedSplit,
    skipped: Vec<SkippedRecordLocation>,
    /// Processor time so far.
    cpu: Duration,
}

/// One split to compute.
#[derive(Clone)]
struct Task {
    context: JobContext,
    place: SplitPlace,
    cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl JobContext {
    /// Reads and computes a split that was computed before; from its source, if what is cached of it is damaged.
    pub async fn compute_again(
        &self,
        orders: &CacheOrders,
        place: SplitPlace,
    ) -> Result<FinishedSplit, LeaseError> {
        let compute = async |orders: &CacheOrders| {
            let read = self.read(orders, place).await?;
            self.compute(place, read, Arc::new(|| false)).await
        };
        let (computed, _) = match compute(orders).await {
            Err(LeaseError::BadCache(why)) if orders.get.is_some() => {
                compute(&from_the_source(orders, place, &why)).await?
            }
            computed => computed?,
        };
        Ok(computed)
    }

    /// Computes what a split has before its first bad record, and names that record in the result.
    ///
    /// # Errors
    /// Why nothing of the split can be computed.
    pub async fn compute_before_bad(
        &self,
        orders: &CacheOrders,
        place: SplitPlace,
    ) -> Result<FinishedSplit, LeaseError> {
        self.until_bad().compute_again(orders, place).await
    }

    /// Starts to run the pipeline over one split. Pure except for timings: all hosts compute the same bytes
    /// from the same arguments, which the redelivery of local splits relies on.
    pub(crate) fn compute(
        &self,
        place: SplitPlace,
        read: SplitTask,
        cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
    ) -> impl Future<Output = Result<TimedSplit, LeaseError>> + use<> {
        let task = Task { context: self.clone(), place, cancelled };
        let SplitTask { content, extras } = read;
        match content {
            Content::Source { first, rest }
                if !rest.is_empty() || (extras.put.is_some() && first.bytes() > FEW_BYTES) =>
            {
                Either::Left(join(tokio::spawn(task.in_portions(first, rest, extras))))
            }
            Content::Cached { point, object, rest } if !rest.is_empty() => {
                Either::Left(join(tokio::spawn(task.in_parts(point, object, rest, extras))))
            }
            content => Either::Right(self.runner.compute.run(move || {
                task.timed(|| {
                    let all = match content {
                        Content::Source { first, .. } => {
                            task.portion(&extras, &first, None, None, 0)?.0
                        }
                        Content::Cached { point, object, .. } => {
                            task.resume(point, object, None, true)?
                        }
                    };
                    task.finish(&extras, all)
                })
            })),
        }
    }
}

impl Task {
    /// Runs `work`, and measures it.
    fn timed<T>(
        &self,
        work: impl FnOnce() -> Result<T, LeaseError>,
    ) -> Result<(T, Duration), LeaseError> {
        let clock = &self.context.runner.clock;
        let began = clock.monotonic();
        let done = work()?;
        Ok((done, clock.monotonic().saturating_sub(began)))
    }

    /// Reads each portion while the one before runs, and puts completed parts of the cached output.
    async fn in_portions(
        self,
        first: SplitSource,
        mut rest: VecDeque<SplitVisit>,
        mut extras: Extras,
    ) -> Result<TimedSplit, LeaseError> {
        let Runner { clock, compute, .. } = &*self.context.runner;
        let (mut source, mut begun, mut took) = (Arc::new(first), None, Duration::ZERO);
        let begun = loop {
            let more = rest.iter().flat_map(|portion| &portion.runs).map(|run| run.records).sum();
            let running = self.in_turns(&source, more, begun, extras.clone());
            let reading = async {
                let Some(portion) = rest.pop_front() else { return Ok(None) };
                let began = clock.monotonic();
                let read = self.context.read_portion(&portion).await?;
                Ok(Some((read, micros(clock.monotonic().saturating_sub(began)))))
            };
            let ((after, stored, computed), next) = tokio::try_join!(running, reading)?;
            took += computed;
            extras.stored = stored;
            let Some((next, reading)) = next else { break after };
            extras.took.0 += next.bytes();
            extras.took.1 += reading;
            (source, begun) = (Arc::new(next), Some(after));
        };
        let task = self.clone();
        let split = compute.run(move || task.finish(&extras, begun)).await?;
        Ok((split, took))
    }

    /// Runs the records of a portion. Puts the parts of the cached output at once, because all of them may
    /// be too large to hold. Returns the sizes of all parts so far, and the compute time.
    async fn in_turns(
        &self,
        source: &Arc<SplitSource>,
        more: u32,
        mut begun: Option<Begun>,
        mut extras: Extras,
    ) -> Result<(Begun, Option<Vec<u64>>, Duration), LeaseError> {
        let runner = &self.context.runner;
        let (mut begin, mut took) = (0, Duration::ZERO);
        loop {
            let (task, source, extras_of) = (self.clone(), Arc::clone(source), extras.clone());
            let before = begun.take();
            let running = runner.compute.run(move || {
                task.timed(|| task.portion(&extras_of, &source, before, Some(begin), more))
            });
            let ((mut after, is_last), computed) = running.await?;
            took += computed;
            if let Some((_, key)) = &extras.put {
                for made in after.unfinished.take_cached() {
                    let Some(sizes) = &mut extras.stored else { continue };
                    let (key, content) = parts::object(key, sizes, made);
                    let path = ObjectPath::new(&runner.config.bucket, key);
                    if !put_cached(runner, &path, &content).await? {
                        extras.stored = None;
                    }
                }
            }
            if is_last {
                return Ok((after, extras.stored, took));
            }
            begin = after.unfinished.ran();
            begun = Some(after);
        }
    }

    /// Runs records of `source`, after those of `before` and with `more` to come: all of them, or from
    /// `begin` on until a part of the cached output is complete. Returns whether it reached the end.
    fn portion(
        &self,
        extras: &Extras,
        source: &SplitSource,
        before: Option<Begun>,
        begin: Option<u32>,
        more: u32,
    ) -> Result<(Begun, bool), LeaseError> {
        let spec = &self.context.view.spec;
        let opened = source.open()?;
        let input = SplitInput {
            epoch: self.place.epoch,
            seed: spec.seed,
            on_error: spec.settings.on_error,
            ends_at_bad: self.context.ends_at_bad,
            parts: source.parts(&opened),
            copy: source.copy,
            picks: source.picks(),
            zipped: source.zipped(&opened),
            put: extras.put.as_ref().map(|(point, _)| *point),
            put_bytes: CACHED_PART_BYTES,
            begin: begin.unwrap_or(0),
            in_turns: begin.is_some(),
        };
        let run = |scratch: &mut ExecutorScratch, before| {
            self.context.program.run_portion(scratch, before, &input, more, &*self.cancelled)
        };
        let begun = self.go_on(before, run, &|key| source.describe(key))?;
        let is_last = begun.unfinished.ran() >= input.n_records();
        Ok((begun, is_last))
    }

    /// Runs a portion or part of the split after those of `before`; `describe` locates a record for messages.
    fn go_on(
        &self,
        before: Option<Begun>,
        run: impl FnOnce(
            &mut ExecutorScratch,
            Option<UnfinishedSplit>,
        ) -> Result<UnfinishedSplit, ExecError>,
        describe: &dyn Fn(RecordKey) -> String,
    ) -> Result<Begun, LeaseError> {
        let (mut scratch, before, mut skipped, cpu) = match before {
            Some(Begun { scratch, unfinished, skipped, cpu }) => {
                (scratch, Some(unfinished), skipped, cpu)
            }
            None => (self.context.take_scratch(), None, Vec::new(), Duration::ZERO),
        };
        let clock = &self.context.runner.clock;
        let began = clock.thread_cpu();
        let unfinished = run(&mut scratch, before).map_err(|error| run_error(error, describe))?;
        let cpu = cpu + clock.thread_cpu().saturating_sub(began);
        let new = &unfinished.skipped()[skipped.len()..];
        skipped.extend(new.iter().map(|record| SkippedRecordLocation {
            source: describe(record.key),
            record: record.clone(),
        }));
        Ok(Begun { scratch, unfinished, skipped, cpu })
    }

    /// Ends a split after all of it was run.
    fn finish(&self, extras: &Extras, begun: Begun) -> Result<FinishedSplit, LeaseError> {
        let Begun { mut scratch, unfinished, skipped, cpu } = begun;
        let context = &self.context;
        let clock = &context.runner.clock;
        let began = clock.thread_cpu();
        let output = context.program.end_split(&mut scratch, unfinished);
        let output = output.map_err(|error| run_error(error, &|key| key.to_string()))?;
        context.return_scratch(scratch);
        let cpu = cpu + clock.thread_cpu().saturating_sub(began);
        let profile = extras.profile.then(|| WorkProfile {
            cpu_us: micros(cpu),
            reads: vec![extras.took],
            ..output.work_profile(&context.pipeline)
        });
        let object = Bytes::from(output.object);
        let (read_bytes, metrics) = (extras.took.0, &*output.metrics);
        let stored = UncompressedSplit { object: &object, read_bytes, metrics };
        context.packing.learn(stored, || clock.monotonic());
        let cached = match (&extras.put, output.cached, extras.stored.clone()) {
            (Some((_, key)), Some(last), Some(stored)) => {
                parts::objects(key, stored, output.cached_before, last)
            }
            _ => Vec::new(),
        };
        let outcome = SplitOutcome {
            kind: SplitKind::Object,
            object_bytes: object.len() as u64,
            crc32c: 0,
            rows: output.rows,
            batches: output.batches,
            remainder_rows: output.remainder_rows,
            skipped_records: u32::try_from(skipped.len()).unwrap_or(u32::MAX),
        };
        Ok(FinishedSplit {
            position: self.place.position,
            object,
            outcome,
            skipped,
            quarantined: output.quarantined,
            times: WorkerTimes::default(),
            indexed: false,
            cache_prefix: extras.cache_prefix.clone(),
            cached,
            profile,
        })
    }

    /// Runs the pipeline after `point` over the parts, reading each while the one before runs.
    async fn in_parts(
        self,
        point: u32,
        first: Bytes,
        mut rest: VecDeque<(String, u64)>,
        mut extras: Extras,
    ) -> Result<TimedSplit, LeaseError> {
        let runner = &*self.context.runner;
        let (mut object, mut begun, mut took) = (first, None, Duration::ZERO);
        let begun = loop {
            let (task, is_last) = (self.clone(), rest.is_empty());
            let running = runner
                .compute
                .run(move || task.timed(|| task.resume(point, object, begun, is_last)));
            let reading = async {
                let Some(next) = rest.pop_front() else { return Ok(None) };
                let began = runner.clock.monotonic();
                let read = part(runner, &next).await.map_err(|error| match error {
                    // A part that is shorter than its index says is damaged.
                    ObjectError::NotFound(_) | ObjectError::Rejected(_) => {
                        LeaseError::BadCache(error.to_string())
                    }
                    error => error.into(),
                })?;
                extras.took.0 += read.len() as u64;
                extras.took.1 += micros(runner.clock.monotonic().saturating_sub(began));
                Ok(Some(read))
            };
            let ((after, computed), next) = tokio::try_join!(running, reading)?;
            took += computed;
            let Some(next) = next else { break after };
            (object, begun) = (next, Some(after));
        };
        let task = self.clone();
        let split = runner.compute.run(move || task.finish(&extras, begun)).await?;
        Ok((split, took))
    }

    /// Runs the pipeline after `point` over one part of a split, after those of `before`.
    fn resume(
        &self,
        point: u32,
        object: Bytes,
        before: Option<Begun>,
        is_last: bool,
    ) -> Result<Begun, LeaseError> {
        let spec = &self.context.view.spec;
        let (epoch, seed, on_error) = (self.place.epoch, spec.seed, spec.settings.on_error);
        let ends_at_bad = self.context.ends_at_bad;
        let input = ResumeInput { point, object, epoch, seed, on_error, ends_at_bad };
        let run = |scratch: &mut ExecutorScratch, before| {
            self.context.program.resume_part(scratch, before, &input, is_last, &*self.cancelled)
        };
        self.go_on(before, run, &|key| key.to_string())
    }
}

fn micros(taken: Duration) -> u64 {
    u64::try_from(taken.as_micros()).unwrap_or(u64::MAX)
}

/// The same orders without reading the cache, for a cached split that is damaged, as `why` says.
pub(crate) fn from_the_source(orders: &CacheOrders, place: SplitPlace, why: &str) -> CacheOrders {
    let SplitPlace { epoch, position } = place;
    tracing::warn!("{why}: split {position} of epoch {epoch} is computed from its source");
    // The damaged object stays; the split is computed with the draws that it should have had.
    CacheOrders { get: None, put: orders.get.clone(), ..orders.clone() }
}

fn run_error(error: ExecError, describe: &dyn Fn(RecordKey) -> String) -> LeaseError {
    match error {
        ExecError::Cancelled => LeaseError::OutOfTime,
        ExecError::Record(record) => {
            let SkippedRecord { key, op, reason } = &record;
            let message = format!("{} ({op}): {reason}", describe(*key));
            LeaseError::Fatal { message, record: Some(record) }
        }
        ExecError::Cache { .. } => LeaseError::BadCache(error.to_string()),
        other => LeaseError::fatal(other.to_string()),
    }
}

impl JobContext {
    pub(crate) async fn read(
        &self,
        orders: &CacheOrders,
        place: SplitPlace,
    ) -> Result<SplitTask, LeaseError> {
        let runner = &*self.runner;
        let began = runner.clock.monotonic();
        let order = orders.get.as_ref().or(orders.put.as_ref());
        // A random prefix that is cached for reuse always has the draws of the first epoch.
        let drawn = if order.is_some_and(|order| order.random) { 0 } else { place.epoch };
        let key = match order {
            Some(CachePointOrder { cache_prefix, .. }) => {
                Some(keys::cached_split(cache_prefix, self.visit_number(place).await?))
            }
            None => None,
        };
        let cached = match (&orders.get, &key) {
            (Some(order), Some(key)) => cached(runner, order.point, key).await?,
            _ => None,
        };
        let (content, put) = match cached {
            Some(cached) => (cached, None),
            None => {
                let (first, rest) = self.read_source(place, drawn).await?;
                // If the cached object was missing, store it again.
                (Content::Source { first, rest }, order.map(|order| order.point).zip(key))
            }
        };
        let bytes = match &content {
            Content::Source { first, .. } => first.bytes(),
            Content::Cached { object, .. } => object.len() as u64,
        };
        let took = (bytes, micros(runner.clock.monotonic().saturating_sub(began)));
        let (cache_prefix, profile) = (orders.chunks.clone(), orders.profile);
        let extras = Extras { cache_prefix, put, profile, stored: Some(Vec::new()), took };
        Ok(SplitTask { content, extras })
    }
}

/// The cached output under `key`; none if it is gone, or shorter than it should be.
async fn cached(runner: &Runner, point: u32, key: &str) -> Result<Option<Content>, LeaseError> {
    let path = ObjectPath::new(&runner.config.bucket, key);
    let read = async {
        let object = runner.objects.get(&path).await?;
        let mut parts = VecDeque::from(parts::index_parts(key, &object).unwrap_or_default());
        match parts.pop_front() {
            Some(first) => Ok((part(runner, &first).await?, parts)),
            None => Ok((object, parts)),
        }
    };
    match read.await {
        Ok((object, rest)) => Ok(Some(Content::Cached { point, object, rest })),
        Err(error @ (ObjectError::NotFound(_) | ObjectError::Rejected(_))) => {
            tracing::warn!("{error}: this cached split is computed and stored again");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads a stored part, given its key and size.
async fn part(runner: &Runner, (key, bytes): &(String, u64)) -> Result<Bytes, ObjectError> {
    let path = ObjectPath::new(&runner.config.bucket, key);
    get_long_range(&*runner.objects, &path, 0..*bytes, None).await
}

/// Most splits to read ahead: concurrent reads are faster, up to the limit of a function's network.
const MAX_SPLITS: usize = 4;
/// Memory for splits read ahead, in bytes; it limits their number further.
const MAX_BYTES: u64 = 128 << 20;
/// A wait below this share of the compute time counts as early enough.
const WAIT_SHARE: f64 = 0.1;

/// The number of splits to read ahead, learned while a job runs and kept from lease to lease. One split
/// hides a read that takes no longer than computing; slower reads need more at a time.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    splits: AtomicUsize,
}

impl Default for ReadAhead {
    fn default() -> Self {
        ReadAhead { splits: AtomicUsize::new(1) }
    }
}

impl ReadAhead {
    /// Number of splits to read while one is computed.
    pub(crate) fn splits(&self) -> usize {
        self.splits.load(Ordering::Relaxed)
    }

    /// Learns from a split: how long the computation waited for its source, how long it was `computed`, and
    /// how many bytes were read. Reads one more split ahead if the wait was long and memory allows.
    pub(crate) fn observe(&self, waited: Duration, computed: Duration, read_bytes: u64) {
        let fits = (MAX_BYTES / read_bytes.max(1)).clamp(1, MAX_SPLITS as u64) as usize;
        let splits = self.splits();
        let late = waited.as_secs_f64() > WAIT_SHARE * computed.as_secs_f64();
        let target = if late { splits + 1 } else { splits };
        self.splits.store(target.min(fits), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod read_ahead_tests {
    use super::*;

    const COMPUTED: Duration = Duration::from_millis(700);

    #[test]
    fn it_grows_while_splits_wait_and_as_far_as_memory_goes() {
        let ahead = ReadAhead::default();
        ahead.observe(Duration::from_millis(60), COMPUTED, 16 << 20);
        assert_eq!(ahead.splits(), 1);
        for expected in [2, 3, 4, 4] {
            ahead.observe(Duration::from_millis(80), COMPUTED, 16 << 20);
            assert_eq!(ahead.splits(), expected);
        }
        // Larger splits leave room for fewer.
        ahead.observe(Duration::from_millis(80), COMPUTED, 64 << 20);
        assert_eq!(ahead.splits(), 2);
        ahead.observe(Duration::from_millis(80), COMPUTED, 1 << 40);
        assert_eq!(ahead.splits(), 1);
    }
}
