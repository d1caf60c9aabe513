//! Destinations of finished splits: what they let a worker claim, and how they store a result.

use crate::{FinishedSplit, LeaseError, Runner, SplitName};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_chunk::{Chunk, ChunkLimits, FrameCodec, compressed_bytes};
use gristmill_executor::OpMetrics;
use gristmill_model::{
    Compression, Epoch, JobName, Position,
    splits::{SplitCommit, SplitKind, SplitPlace},
    stored::keys,
    wire::ClaimReply,
};
use gristmill_policy::{
    compression::{CompressionSample, CompressionTrial},
    cost::FunctionShape,
};
use gristmill_ports::{ObjectError, ObjectPath, PutOutcome};
use parking_lot::Mutex;
use std::{ops::RangeInclusive, sync::Arc, time::Duration};

/// The bundles that a worker may claim now.
pub enum ClaimableBundles {
    /// Any bundle.
    Any,
    /// Only the bundle of this split, for which the trainer waits. Others ask once `turn` is dropped.
    Needed {
        place: SplitPlace,
        turn: Box<dyn Send>,
    },
    Nothing,
}

/// Destination of finished splits.
#[async_trait]
pub trait SplitSink: Send + Sync {
    /// The bundles that the worker may claim now.
    fn claimable(&self) -> ClaimableBundles {
        ClaimableBundles::Any
    }

    /// Takes note of the answer to a claim.
    fn answered(&self, _reply: &ClaimReply) {}

    /// Whether the worker goes on with a lease of which the splits at `rest` are left. It gives them back otherwise.
    fn goes_on(&self, _epoch: Epoch, _rest: &[Position]) -> bool {
        true
    }

    /// Says, from now on, whether the worker is not wanted any more by other word than a flush's answer.
    fn dismissal(&self) -> WorkerDismissal {
        Arc::new(|| false)
    }

    /// Stores the split's result as durably as its commit promises, and returns the commit.
    async fn store(
        &self,
        name: &SplitName,
        split: &FinishedSplit,
    ) -> Result<SplitCommit, LeaseError>;

    /// Whether the trainer waits for the split, so that its commit does not wait for others.
    fn is_awaited(&self, _name: &SplitName) -> bool {
        false
    }

    /// The split was stored, and its commit did not become known.
    fn discard(&self, _name: &SplitName) {}
}

/// Asked while a split is computed: whether its worker is not wanted any more.
pub type WorkerDismissal = Arc<dyn Fn() -> bool + Send + Sync>;

/// Puts each split as one object, under a key that no other attempt uses.
pub struct ObjectSink {
    pub runner: Arc<Runner>,
    pub job: JobName,
}

#[async_trait]
impl SplitSink for ObjectSink {
    async fn store(
        &self,
        name: &SplitName,
        split: &FinishedSplit,
    ) -> Result<SplitCommit, LeaseError> {
        if split.indexed {
            return Ok(split.commit(name.split_index, SplitKind::Object, 0));
        }
        let own =
            || keys::bundle_prefix(&self.runner.config.ns, &self.job, name.epoch, name.bundle);
        let cache_prefix = split.cache_prefix.as_ref();
        let prefix = cache_prefix
            .map_or_else(own, |cache_prefix| keys::cached_bundle(cache_prefix, name.bundle));
        let key = keys::chunk(&prefix, name.position, name.attempt, name.nonce);
        let checksum = gristmill_chunk::checksum(&split.object)
            .map_err(|error| LeaseError::Passing(error.to_string()))?;
        let commit = split.commit(name.split_index, SplitKind::Object, checksum);
        let path = ObjectPath::new(&self.runner.config.bucket, &key);
        match put(&self.runner, &path, &split.object, &name.nonce.to_string()).await? {
            PutOutcome::Created => Ok(commit),
            PutOutcome::Exists => Err(LeaseError::Passing(format!(
                "{key} was put by another worker of the same nonce"
            ))),
        }
    }
}

/// How long to retry a put. A store that throttles its clients does so for seconds or minutes, and
/// computing the object again costs more than waiting.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time between two attempts, at first and at most.
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(5);

/// Puts `body` like [`gristmill_ports::Objects::put_if_absent`], and retries with growing pauses while the
/// store is unavailable or full.
pub(crate) async fn put(
    runner: &Runner,
    path: &ObjectPath,
    body: &Bytes,
    put_id: &str,
) -> Result<PutOutcome, LeaseError> {
    Ok(put_patiently(runner, path, body, put_id, true).await?)
}

/// As [`put`], for a cached object, which only saves work: what is not stored is computed again. If the store is full,
/// the put ends, and not the work. Returns whether the object is stored.
pub(crate) async fn put_cached(
    runner: &Runner,
    path: &ObjectPath,
    body: &Bytes,
) -> Result<bool, LeaseError> {
    match put_patiently(runner, path, body, "cached", false).await {
        Err(ObjectError::Full(why)) => {
            tracing::warn!(why, "{path} is not cached");
            Ok(false)
        }
        outcome => Ok(outcome.map(|_| true)?),
    }
}

async fn put_patiently(
    runner: &Runner,
    path: &ObjectPath,
    body: &Bytes,
    put_id: &str,
    waits_for_room: bool,
) -> Result<PutOutcome, ObjectError> {
    let give_up = runner.clock.monotonic() + PATIENCE;
    let mut rest = FIRST_REST;
    loop {
        let outcome = runner.objects.put_if_absent(path, body.clone(), put_id).await;
        let why = match &outcome {
            Err(ObjectError::Unavailable(why)) => why,
            Err(ObjectError::Full(why)) if waits_for_room => why,
            _ => return outcome,
        };
        if runner.clock.monotonic() >= give_up {
            return outcome;
        }
        tracing::info!(rest_ms = rest.as_millis(), why, "waiting for the object store");
        runner.clock.sleep(rest).await;
        rest = (rest * 2).min(LONGEST_REST);
    }
}

/// Level for `compress: zstd`. On f32 pixels, the output of level 1 is a third larger, and level 3 takes
/// half as long again.
const LEVEL: i32 = 2;
/// Levels that workers may choose from.
pub const LEVELS: RangeInclusive<i32> = 1..=3;
/// Bytes of frames to try compression on.
const TRIED_BYTES: usize = 2 << 20;

#[derive(Clone, Copy)]
pub(crate) struct UncompressedSplit<'a> {
    pub object: &'a Bytes,
    pub read_bytes: u64,
    pub metrics: &'a [OpMetrics],
}

/// The codec for frames, once it is decided.
#[derive(Debug)]
pub(crate) struct CodecChoice {
    /// None until the first split was examined; that one is stored uncompressed.
    codec: Mutex<Option<FrameCodec>>,
    shape: Option<FunctionShape>,
}

impl CodecChoice {
    /// The packing for a worker on a function of `shape`; none for a machine whose objects stay there.
    pub fn new(asked: Compression, shape: Option<FunctionShape>) -> Self {
        let codec = match (asked, shape) {
            (Compression::Zstd, _) => Some(FrameCodec::Zstd { level: LEVEL }),
            (Compression::None, _) | (Compression::Auto, None) => Some(FrameCodec::Stored),
            (Compression::Auto, Some(_)) => None,
        };
        Self { codec: Mutex::new(codec), shape }
    }

    /// The codec of the next split.
    pub fn codec(&self) -> FrameCodec {
        self.codec.lock().unwrap_or(FrameCodec::Stored)
    }

    /// Decides the codec from an uncompressed split, if it is undecided. `now` is a monotonic clock.
    pub fn learn(&self, split: UncompressedSplit<'_>, now: impl Fn() -> Duration) {
        let (None, Some(shape)) = (*self.codec.lock(), self.shape) else { return };
        let Some(sample) = sample(split, now) else { return };
        let level = sample.best_level(&shape);
        let codec = level.map_or(FrameCodec::Stored, |level| FrameCodec::Zstd { level });
        tracing::info!(?codec, ?sample, "how frames are kept from here on");
        *self.codec.lock() = Some(codec);
    }
}

/// Compresses the first frames of a split at every level; none if it has no frame.
fn sample(split: UncompressedSplit<'_>, now: impl Fn() -> Duration) -> Option<CompressionSample> {
    let UncompressedSplit { object, read_bytes, metrics } = split;
    let chunk = Chunk::open(object.clone(), &ChunkLimits::default()).ok()?;
    let raw_bytes = chunk.frames().iter().map(|frame| frame.raw_bytes).sum();
    let (mut tried, mut tried_bytes) = (Vec::new(), 0);
    for i in 0..chunk.frames().len() {
        let frame = chunk.frame(i).ok()?;
        let frame = frame.slice(..frame.len().min(TRIED_BYTES - tried_bytes));
        tried_bytes += frame.len();
        tried.push(frame);
        if tried_bytes == TRIED_BYTES {
            break;
        }
    }
    let attempt = |level| {
        let began = now();
        let bytes = tried.iter().map(|frame| compressed_bytes(frame, level).unwrap_or(frame.len()));
        let bytes = bytes.sum::<usize>() as u64;
        CompressionTrial { level, bytes, seconds: now().saturating_sub(began).as_secs_f64() }
    };
    let compute_ns: u64 = metrics.iter().map(|op| op.active_ns).sum();
    (tried_bytes > 0).then(|| CompressionSample {
        read_bytes,
        raw_bytes,
        compute_s: compute_ns as f64 / 1e9,
        tried_bytes: tried_bytes as u64,
        tries: LEVELS.map(attempt).collect(),
    })
}

#[cfg(test)]
mod packing_tests {
    use super::*;
    use gristmill_chunk::{ChunkFrameKind, ChunkWriter, FrameSchema, TensorDType, TensorSpec};

    /// Learns from one frame of 1 MiB of zeros, with a clock that stands still.
    fn learn(packing: &CodecChoice) {
        let schema =
            FrameSchema::new(vec![TensorSpec::fixed("x", TensorDType::U8, [1 << 20])]).unwrap();
        let mut writer = ChunkWriter::new(FrameCodec::Stored);
        writer.begin_frame(&schema, 1).unwrap();
        writer.row_mut(0, 0).unwrap().fill(0);
        writer.end_frame(ChunkFrameKind::Batch, 1).unwrap();
        let object = Bytes::from(writer.finish().unwrap());
        packing.learn(UncompressedSplit { object: &object, read_bytes: 0, metrics: &[] }, || {
            Duration::ZERO
        });
    }

    #[test]
    fn auto_learns_from_the_first_split_where_a_network_is_short() {
        let shape = Some(FunctionShape::default());
        for (asked, codec) in [
            (Compression::None, FrameCodec::Stored),
            (Compression::Zstd, FrameCodec::Zstd { level: LEVEL }),
        ] {
            let packing = CodecChoice::new(asked, shape);
            assert_eq!(packing.codec(), codec);
            learn(&packing);
            assert_eq!(packing.codec(), codec);
        }
        let packing = CodecChoice::new(Compression::Auto, shape);
        assert_eq!(packing.codec(), FrameCodec::Stored);
        learn(&packing);
        assert!(matches!(packing.codec(), FrameCodec::Zstd { .. }));
        let here = CodecChoice::new(Compression::Auto, None);
        learn(&here);
        assert_eq!(here.codec(), FrameCodec::Stored);
    }
}
