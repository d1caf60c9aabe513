//! One split: what is read for it, from the dataset or from a cache, and what becomes of it.

use crate::{JobContext, RunError, Runner, SplitSource};
use bytes::Bytes;
use gristmill_executor::{ExecError, ResumeInput, SplitInput, SplitOutput};
use gristmill_ports::{ObjectError, ObjectPath};
use gristmill_protocol::{
    CacheOrders, Commit, OpWork, PointOrder, SkippedAt, WorkProfile, WorkerCost, keys,
};
use gristmill_types::{Epoch, Position, RecordKey, SkippedRecord};

/// A split that has been run and awaits its commit.
#[derive(Debug)]
pub struct FinishedSplit {
    pub position: Position,
    /// The chunk object; empty for an indexed file.
    pub object: Bytes,
    pub rows: u32,
    pub batches: u32,
    pub remainder_rows: u32,
    pub skipped: Vec<SkippedAt>,
    /// Raw records to set aside, under the `quarantine` policy.
    pub quarantined: Vec<(RecordKey, Bytes)>,
    pub cost: WorkerCost,
    /// Nothing to store: the result is in the index, and `rows` counts the file's records.
    pub indexed: bool,
    /// Prefix of the object's key, if it is not put among the job's own.
    pub shelf: Option<String>,
    /// What came out at an `autocache` point, and the key it is stored under.
    pub cached: Option<(String, Bytes)>,
    /// What its operators took and made, where the lease asks for it.
    pub profile: Option<WorkProfile>,
}

impl FinishedSplit {
    /// A file that is indexed.
    pub(crate) fn indexed(position: Position, records: u32, source_ms: u32) -> Self {
        Self {
            position,
            object: Bytes::new(),
            rows: records,
            batches: 0,
            remainder_rows: 0,
            skipped: Vec::new(),
            quarantined: Vec::new(),
            cost: WorkerCost { source_ms, ..WorkerCost::default() },
            indexed: true,
            shelf: None,
            cached: None,
            profile: None,
        }
    }

    /// The commit of this split, given where its object went.
    pub fn commit(&self, index: u8, local: bool, crc32c: u32) -> Commit {
        Commit {
            index,
            local,
            object_bytes: self.object.len() as u64,
            crc32c,
            rows: self.rows,
            batches: self.batches,
            remainder_rows: self.remainder_rows,
            skipped: u32::try_from(self.skipped.len()).unwrap_or(u32::MAX),
        }
    }
}

/// What was read for a split, and what is to be done with it beside computing.
#[derive(Debug, Clone)]
pub struct SplitRead {
    content: Content,
    /// Prefix of the chunk's key, if it is not put among the job's own.
    shelf: Option<String>,
    /// Where what comes out at a point is to be stored.
    put: Option<(u32, String)>,
    profile: bool,
    /// Of the read: bytes and microseconds.
    took: (u64, u64),
}

#[derive(Debug, Clone)]
enum Content {
    Source(SplitSource),
    /// What a point of the pipeline yielded.
    Cached {
        point: u32,
        object: Bytes,
    },
}

impl SplitRead {
    /// Bytes that were read.
    pub(crate) fn bytes(&self) -> u64 {
        self.took.0
    }
}

impl JobContext {
    /// Reads what the split at `position` of `epoch` is made of.
    pub async fn read(
        &self,
        runner: &Runner,
        orders: &CacheOrders,
        epoch: Epoch,
        position: Position,
    ) -> Result<SplitRead, RunError> {
        let began = runner.clock.monotonic();
        let order = orders.get.as_ref().or(orders.put.as_ref());
        // A random prefix that is stored once is that of the first epoch, for ever.
        let drawn = if order.is_some_and(|order| order.random) { 0 } else { epoch };
        let key = match order {
            Some(PointOrder { shelf, .. }) => {
                let visit = self.visit_number(runner, epoch, position).await?;
                Some(keys::cached_split(shelf, visit))
            }
            None => None,
        };
        let cached = match (&orders.get, &key) {
            (Some(order), Some(key)) => cached(runner, order.point, key).await?,
            _ => None,
        };
        let content = match cached {
            Some(cached) => cached,
            None => Content::Source(self.read_source(runner, (epoch, drawn), position).await?),
        };
        // What should have been there and is not is stored again.
        let missing = matches!(content, Content::Source(_));
        let put = order.filter(|_| missing).map(|order| order.point).zip(key);
        let bytes = match &content {
            Content::Source(source) => source.bytes(),
            Content::Cached { object, .. } => object.len() as u64,
        };
        let elapsed = runner.clock.monotonic().saturating_sub(began);
        let took = (bytes, u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX));
        let (shelf, profile) = (orders.chunks.clone(), orders.profile);
        Ok(SplitRead { content, shelf, put, profile, took })
    }
}

/// What is stored under `key`; none if it is gone.
async fn cached(runner: &Runner, point: u32, key: &str) -> Result<Option<Content>, RunError> {
    let path = ObjectPath::new(&runner.config.bucket, key);
    match runner.objects.get(&path).await {
        Ok(object) => Ok(Some(Content::Cached { point, object })),
        Err(ObjectError::NotFound(path)) => {
            tracing::warn!(%path, "what was cached is gone: computed, and stored again");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Runs the pipeline over one split. Pure but for op timings: the same arguments give the same
/// bytes on every host, which is what redelivery of a local split relies on.
pub fn run_split(
    context: &JobContext,
    epoch: Epoch,
    position: Position,
    read: &SplitRead,
    cancelled: &dyn Fn() -> bool,
) -> Result<FinishedSplit, RunError> {
    let (output, records) = match &read.content {
        Content::Source(source) => from_source(context, epoch, read, source, cancelled)?,
        Content::Cached { point, object } => {
            let input = ResumeInput {
                point: *point,
                object: object.clone(),
                epoch,
                seed: context.view.spec.seed,
                on_error: context.view.spec.on_error,
            };
            let resumed = with_buffers(context, |scratch| {
                context.program.resume_split(scratch, &input, cancelled)
            });
            (resumed.map_err(|error| run_error(error, &|key| key.to_string()))?, None)
        }
    };
    let located = |record: SkippedRecord| {
        let source = records.map_or_else(|| record.key.to_string(), |s| s.describe(record.key));
        SkippedAt { source, record }
    };
    let profile = read.profile.then(|| profile_of(&output, read.took));
    let put = read.put.as_ref().map(|(_, key)| key.clone());
    Ok(FinishedSplit {
        position,
        object: Bytes::from(output.object),
        rows: output.rows,
        batches: output.batches,
        remainder_rows: output.remainder_rows,
        skipped: output.skipped.into_iter().map(located).collect(),
        quarantined: output.quarantined,
        cost: WorkerCost::default(),
        indexed: false,
        shelf: read.shelf.clone(),
        cached: put.zip(output.cached.map(Bytes::from)),
        profile,
    })
}

fn from_source<'a>(
    context: &JobContext,
    epoch: Epoch,
    read: &SplitRead,
    source: &'a SplitSource,
    cancelled: &dyn Fn() -> bool,
) -> Result<(SplitOutput, Option<&'a SplitSource>), RunError> {
    let opened = source.open()?;
    let input = SplitInput {
        epoch,
        seed: context.view.spec.seed,
        on_error: context.view.spec.on_error,
        parts: source.parts(&opened),
        copy: source.copy,
        picks: source.picks(),
        zipped: source.zipped(&opened),
        put: read.put.as_ref().map(|(point, _)| *point),
    };
    let output =
        with_buffers(context, |scratch| context.program.run_split(scratch, &input, cancelled));
    let output = output.map_err(|error| run_error(error, &|key| source.describe(key)))?;
    Ok((output, Some(source)))
}

/// Runs `work` with the buffers of an earlier split.
fn with_buffers<T>(
    context: &JobContext,
    work: impl FnOnce(&mut gristmill_executor::Scratch) -> T,
) -> T {
    context.with_scratch(|scratch| {
        if let Some(buffer) = context.recycled() {
            scratch.recycle(buffer);
        }
        work(scratch)
    })
}

/// The same, without reading what is cached: where that is damaged.
pub(crate) fn from_the_source(orders: &CacheOrders) -> CacheOrders {
    // What is there stays, but the draws are those of what should be.
    CacheOrders { get: None, put: orders.get.clone(), ..orders.clone() }
}

fn run_error(error: ExecError, describe: &dyn Fn(RecordKey) -> String) -> RunError {
    match error {
        ExecError::Cancelled => RunError::OutOfTime,
        ExecError::Record(record) => {
            let SkippedRecord { key, op, reason } = &record;
            let message = format!("{} ({op}): {reason}", describe(*key));
            RunError::Fatal { message, record: Some(record) }
        }
        ExecError::Cache { .. } => RunError::BadCache(error.to_string()),
        other => RunError::fatal(other.to_string()),
    }
}

fn profile_of(output: &SplitOutput, took: (u64, u64)) -> WorkProfile {
    let op = |op: &gristmill_executor::OpMetrics| OpWork {
        op: op.op.to_owned(),
        stage: op.stage,
        active_us: op.active_ns / 1000,
        elements: op.num_elements,
        bytes: op.bytes_produced,
    };
    WorkProfile {
        splits: 1,
        batches: output.batches + u32::from(output.remainder_rows > 0),
        records: output.metrics.first().map_or(0, |source| source.num_elements),
        object_bytes: output.object.len() as u64,
        ops: output.metrics.iter().map(op).collect(),
        reads: vec![took],
        source_wait_ms: 0,
    }
}
