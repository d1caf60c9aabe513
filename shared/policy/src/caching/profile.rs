//! What is measured of a job before it is decided what to cache.

use crate::cost::{quantity, ratio};
use serde::{Deserialize, Serialize};

/// GETs to time for each of [`Profile::probe_sizes`]: single ones scatter by 10 %, the median of these
/// by 2.6 %, less than what counts as a tie. They cost as much as two puts.
pub const PROBES: u32 = 24;

/// Totals of one operator over what was profiled; what the executor reports of splits, added up.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct OpProfile {
    /// As the pipeline file names it; `source` for the first.
    pub op: String,
    /// Its own seconds, those of the operators before it not counted.
    pub active_s: f64,
    /// Elements it yielded.
    pub elements: f64,
    /// Bytes of the values it yielded: what caching there would store. (An operator that changes one
    /// field reports that field; whoever fills this adds up the element.)
    pub bytes: f64,
}

/// One `autocache` point.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PointProfile {
    /// Index in [`Profile::ops`] of the operator whose output would be cached; the last one's is what
    /// is delivered, which is stored anyway.
    pub after_op: usize,
    /// Whether an operator up to there draws at random.
    pub random: bool,
    /// The author allows to reuse what was drawn, at the price of less variety (Cachew 4.2, 7).
    pub reuse_random: bool,
    /// Objects that what was profiled would be read from: one for each split.
    pub objects: f64,
}

/// How reads of a cache and computing share a worker's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reads {
    /// One after the other, as Cachew's formula has it.
    InTurn,
    /// The next split is read while this one is computed, as our workers do: the longer counts.
    Ahead,
}

/// Everything measured while a job was profiled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Batches it covers.
    pub batches: u32,
    /// Source records it covers.
    pub records: f64,
    /// Source records of an epoch.
    pub epoch_records: f64,
    /// The source, then every operator in the order they run.
    pub ops: Vec<OpProfile>,
    /// Seconds for which workers had to wait for the source's bytes.
    pub source_wait_s: f64,
    /// In the order they stand in the pipeline.
    pub points: Vec<PointProfile>,
    pub reads: Reads,
}

impl Profile {
    /// Seconds of a worker for all of it: Cachew's `N x active_time(last)`, the wait for the source
    /// included.
    pub fn compute_s(&self) -> f64 {
        quantity(self.source_wait_s) + self.active_s(self.ops.len())
    }

    /// Seconds that are left of it when `point` is read instead of computed: `compute - M x
    /// active_time(A)`.
    pub fn after_s(&self, point: &PointProfile) -> f64 {
        let computed_s = self.active_s(point.after_op.saturating_add(1));
        (self.active_s(self.ops.len()) - computed_s).max(0.0)
    }

    /// Whether caching at `point` stores what is delivered.
    pub fn is_last(&self, point: &PointProfile) -> bool {
        point.after_op + 1 >= self.ops.len()
    }

    /// Bytes of one object at each point: the sizes at which GETs should be timed before it is decided
    /// (ranged ones of delivered objects will do; [`PROBES`] each), since what small and large reads
    /// take says little about those between.
    pub fn probe_sizes(&self) -> Vec<f64> {
        let size = |point: &PointProfile| {
            let op = self.ops.get(point.after_op)?;
            Some(ratio(quantity(op.bytes), quantity(point.objects))).filter(|bytes| *bytes > 0.0)
        };
        self.points.iter().filter_map(size).collect()
    }

    /// Own seconds of the first `ops` operators.
    fn active_s(&self, ops: usize) -> f64 {
        self.ops.iter().take(ops).map(|op| quantity(op.active_s)).sum()
    }
}
