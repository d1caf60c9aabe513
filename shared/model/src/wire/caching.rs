//! Autocaching on the wire: the mode of each epoch at a job's `autocache` points, and where cached
//! data is stored (Cachew 4.4).

use crate::splits::SplitOutcome;
use crate::{Attempt, BundleIndex, Epoch, Fingerprint, Nonce, Position};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Mode of a job's `autocache` points. `point` counts the pipeline's points from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "mode")]
pub enum CacheMode {
    /// Computes, with scaling held so that it skews no measurement.
    #[default]
    Profile,
    /// Computes.
    Compute,
    /// Computes, and stores the output at the point.
    Put { point: u32 },
    /// Reads the stored output at the point, and computes the rest of the pipeline.
    Get { point: u32 },
}

impl CacheMode {
    /// The mode's name.
    pub fn name(&self) -> &'static str {
        match self {
            CacheMode::Profile => "profile",
            CacheMode::Compute => "compute",
            CacheMode::Put { .. } => "put",
            CacheMode::Get { .. } => "get",
        }
    }
}

impl fmt::Display for CacheMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CacheMode::Put { point } | CacheMode::Get { point } => {
                f.pad(&format!("{} at point {point}", self.name()))
            }
            mode => f.pad(mode.name()),
        }
    }
}

/// One `autocache` point of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachePointView {
    /// The operator before it.
    pub after: String,
    /// Fingerprint of the prefix that ends there.
    pub fingerprint: Fingerprint,
    /// Whether an operator of the prefix draws at random.
    pub random: bool,
    /// Whether its random draws may be reused.
    pub reuse_random: bool,
    /// Whether it stands after the batch: then the delivered batches are cached.
    pub whole: bool,
}

/// The mode of a job's epochs from epoch `from` on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochCacheMode {
    pub from: Epoch,
    #[serde(flatten)]
    pub mode: CacheMode,
    /// The reason, with the predictions.
    pub reason: String,
    /// Key prefix of the objects that the mode stores or reads.
    #[serde(default)]
    #[serde(rename = "shelf")]
    pub cache_prefix: Option<String>,
}

/// The caching of a job, by epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachingView {
    /// In the order they stand in the pipeline.
    pub points: Vec<CachePointView>,
    /// By epoch, ascending; the first starts at epoch 0.
    pub modes: Vec<EpochCacheMode>,
    /// The first epoch whose mode is not decided yet: none of its splits are handed out.
    pub unsettled: Option<Epoch>,
}

impl CachingView {
    /// The mode of `epoch`.
    pub fn mode_at(&self, epoch: Epoch) -> Option<&EpochCacheMode> {
        self.modes.iter().rev().find(|mode| mode.from <= epoch)
    }

    /// The prefix under which the chunks of `epoch` are put if they are, or may become, part of the
    /// cache; `None` for the job's own chunks.
    pub fn chunks_prefix(&self, epoch: Epoch) -> Option<&str> {
        let mode = self.mode_at(epoch)?;
        match mode.mode {
            CacheMode::Profile => mode.cache_prefix.as_deref(),
            CacheMode::Put { point } if self.is_whole(point) => mode.cache_prefix.as_deref(),
            _ => None,
        }
    }

    /// The prefix that already holds all chunks that `epoch` delivers, so that no worker is needed.
    pub fn delivered_prefix(&self, epoch: Epoch) -> Option<&str> {
        let mode =
            self.mode_at(epoch).filter(|_| self.unsettled.is_none_or(|first| epoch < first))?;
        match mode.mode {
            CacheMode::Get { point } if self.is_whole(point) => mode.cache_prefix.as_deref(),
            _ => None,
        }
    }

    /// The cache prefix from which epochs are delivered without workers, if there is one.
    pub fn whole_prefix(&self) -> Option<&str> {
        self.modes.iter().find_map(|mode| self.delivered_prefix(mode.from))
    }

    /// The orders of a worker for an epoch.
    pub fn orders(&self, epoch: Epoch) -> CacheOrders {
        let Some(EpochCacheMode { mode, cache_prefix, .. }) = self.mode_at(epoch) else {
            return CacheOrders::default();
        };
        let profile = *mode == CacheMode::Profile;
        let chunks = self.chunks_prefix(epoch).map(str::to_owned);
        let inner = |point: u32| {
            let cache_prefix = cache_prefix.clone().filter(|_| !self.is_whole(point))?;
            let random = self.points.get(point as usize).is_some_and(|point| point.random);
            Some(CachePointOrder { point, cache_prefix, random })
        };
        let (put, get) = match *mode {
            CacheMode::Put { point } => (inner(point), None),
            CacheMode::Get { point } => (None, inner(point)),
            CacheMode::Profile | CacheMode::Compute => (None, None),
        };
        CacheOrders { profile, chunks, put, get }
    }

    /// Whether the output at `point` is what the job delivers.
    pub fn is_whole(&self, point: u32) -> bool {
        self.points.get(point as usize).is_some_and(|point| point.whole)
    }
}

/// Caching orders of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheOrders {
    /// Reports times and yields of its operators with each flush.
    pub profile: bool,
    /// Key prefix of the chunks, if they are not put among the job's own.
    pub chunks: Option<String>,
    /// Stores the output at a point.
    pub put: Option<CachePointOrder>,
    /// Starts with the stored output at a point.
    pub get: Option<CachePointOrder>,
}

/// A point within the pipeline, and the cache prefix of its objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachePointOrder {
    pub point: u32,
    #[serde(rename = "shelf")]
    pub cache_prefix: String,
    /// The prefix draws as in epoch 0, in any epoch that stores it.
    pub random: bool,
}

/// The chunks of a cached epoch, by visit: split x copies + copy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CacheManifest {
    pub copies: u32,
    /// Whether splits are delivered in the order of the dataset.
    pub in_order: bool,
    pub chunks: Vec<CachedChunk>,
}

/// One chunk of a cached epoch: the parts of its object's name, and its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedChunk {
    /// As in the epoch that stored it.
    pub bundle: BundleIndex,
    pub position: Position,
    pub attempt: Attempt,
    pub nonce: Nonce,
    pub outcome: SplitOutcome,
}

fn is_unknown(us: &u64) -> bool {
    *us == 0
}

/// Times and yields of operators over some splits: the basis of caching decisions.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkProfile {
    pub splits: u32,
    pub batches: u32,
    /// Source records read.
    pub records: u64,
    /// Bytes of the chunks.
    pub object_bytes: u64,
    /// Processor time of computing them; 0 if not known.
    #[serde(skip_serializing_if = "is_unknown")]
    pub cpu_us: u64,
    /// The source, then every operator in the order they run.
    pub ops: Vec<OpWork>,
    /// Reads of a split's source: (bytes, microseconds).
    pub reads: Vec<(u64, u64)>,
    /// Time that computing waited for those reads.
    pub source_wait_ms: u64,
}

impl WorkProfile {
    /// Most reads that are kept individually.
    const MAX_READS: usize = 256;

    /// Adds another measurement of the same pipeline.
    pub fn add(&mut self, other: &WorkProfile) {
        self.splits += other.splits;
        self.batches += other.batches;
        self.records += other.records;
        self.object_bytes += other.object_bytes;
        self.cpu_us += other.cpu_us;
        self.source_wait_ms += other.source_wait_ms;
        let room = Self::MAX_READS.saturating_sub(self.reads.len());
        self.reads.extend(other.reads.iter().take(room));
        if self.ops.is_empty() {
            self.ops.clone_from(&other.ops);
            return;
        }
        for (mine, theirs) in self.ops.iter_mut().zip(&other.ops) {
            mine.active_us += theirs.active_us;
            mine.elements += theirs.elements;
            mine.bytes += theirs.bytes;
        }
    }
}

/// Totals of one operator.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OpWork {
    /// The operator's name in the pipeline file; `source` for the first.
    pub op: String,
    /// Index in the pipeline's stages; none for the source.
    pub stage: Option<u32>,
    /// Whether it is a cache point.
    pub is_point: bool,
    /// Whether `active_us` is spent waiting, without a processor.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
    pub active_us: u64,
    /// Elements it yielded.
    pub elements: u64,
    /// Bytes of the elements it yielded; where no cache point measured them, estimated from what it read and wrote.
    pub bytes: u64,
}

/// A cached prefix, as `gristmill cache ls` shows it. The entry is written once, when all of the
/// prefix is stored: its existence means that the prefix is complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CacheEntry {
    pub fingerprint: Fingerprint,
    /// Prefix of the keys of its objects.
    #[serde(rename = "shelf")]
    pub cache_prefix: String,
    /// Whether it holds delivered chunks rather than the output at an inner point.
    pub whole: bool,
    /// The operator before the point.
    pub after: String,
    pub job: crate::JobName,
    pub bytes: u64,
    pub splits: u32,
    /// Division of the dataset; a job that reads the entry divides it likewise.
    pub split_records: u32,
    pub copies: u32,
    pub rows: u64,
    pub skipped: u64,
    pub stored_ms: u64,
    /// Predicted rate of one worker that reads it, in delivered elements per second.
    pub elements_per_s: f64,
    /// Predicted worker seconds that it saves per epoch.
    pub saved_s: f64,
    /// The inputs of its fingerprint, for explaining misses: JSON defined by the policy.
    pub described: Option<serde_json::Value>,
}

/// An entry, and how it is used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ListedCacheEntry {
    #[serde(flatten)]
    pub entry: CacheEntry,
    /// Epochs that read it, recent ones weighted more.
    pub uses: f64,
    /// Living jobs that read it.
    pub readers: Vec<crate::JobName>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(modes: Vec<EpochCacheMode>) -> CachingView {
        let point = |whole| CachePointView {
            after: "op".into(),
            fingerprint: Fingerprint([0; 32]),
            random: false,
            reuse_random: false,
            whole,
        };
        CachingView { points: vec![point(false), point(true)], modes, unsettled: None }
    }

    fn from(from: Epoch, mode: CacheMode, cache_prefix: &str) -> EpochCacheMode {
        EpochCacheMode {
            from,
            mode,
            reason: String::new(),
            cache_prefix: Some(cache_prefix.to_owned()),
        }
    }

    #[test]
    fn an_epoch_does_what_the_last_change_before_it_says() {
        let modes = vec![
            from(0, CacheMode::Profile, "a/"),
            from(1, CacheMode::Put { point: 0 }, "b/"),
            from(2, CacheMode::Get { point: 0 }, "b/"),
        ];
        let view = view(modes);
        assert_eq!(view.chunks_prefix(0), Some("a/"));
        assert_eq!((view.chunks_prefix(1), view.delivered_prefix(2)), (None, None));
        assert!(view.orders(0).profile && view.orders(0).put.is_none());
        assert_eq!(view.orders(1).put.map(|order| order.cache_prefix).as_deref(), Some("b/"));
        assert_eq!(view.orders(9).get.map(|order| order.point), Some(0));
        assert_eq!(view.orders(9).chunks, None);
    }

    #[test]
    fn whole_cache_is_read_by_the_trainer_alone() {
        let modes = vec![
            from(0, CacheMode::Put { point: 1 }, "a/"),
            from(3, CacheMode::Get { point: 1 }, "a/"),
        ];
        let mut view = view(modes);
        assert_eq!((view.chunks_prefix(2), view.delivered_prefix(2)), (Some("a/"), None));
        assert_eq!((view.chunks_prefix(3), view.delivered_prefix(3)), (None, Some("a/")));
        assert_eq!(view.orders(3), CacheOrders::default());
        view.unsettled = Some(4);
        assert_eq!((view.delivered_prefix(3), view.delivered_prefix(4)), (Some("a/"), None));
    }

    #[test]
    fn profiles_add_up() {
        let op = OpWork {
            op: "decode".into(),
            stage: Some(0),
            active_us: 5,
            elements: 2,
            bytes: 9,
            ..OpWork::default()
        };
        let one = WorkProfile {
            splits: 1,
            ops: vec![op],
            reads: vec![(1, 2); 200],
            ..WorkProfile::default()
        };
        let mut sum = WorkProfile::default();
        sum.add(&one);
        sum.add(&one);
        assert_eq!((sum.splits, sum.ops[0].active_us, sum.reads.len()), (2, 10, 256));
    }
}
