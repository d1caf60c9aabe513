//! Measurements of a job that the caching decision needs.

use crate::cost::quantity;
use serde::{Deserialize, Serialize};

/// Totals of one operator over the profile: the executor's reports of splits, summed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct OpProfile {
    /// Name in the pipeline file; `source` for the first.
    pub op: String,
    /// Seconds of this operator alone.
    pub active_s: f64,
    /// Elements it yielded.
    pub elements: f64,
    /// Bytes of the elements it yielded: the size of a cache there. (An operator that changes one field
    /// reports that field; the caller sums the element.)
    pub bytes: f64,
}

/// One `autocache` point.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PointProfile {
    /// Index in [`CachingProfile::ops`] of the operator whose output would be cached. After the last operator
    /// this is the delivered output, which is stored anyway.
    pub after_op: usize,
    /// Whether an operator up to this point is random.
    pub random: bool,
    /// Whether the author allows reuse of random draws, at the price of less variety (Cachew 4.2, 7).
    pub reuse_random: bool,
    /// Objects of the profile at this point: one for each split.
    pub objects: f64,
}

/// How a worker combines cache reads and computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadOverlap {
    /// Sequentially, as in Cachew's formula.
    InTurn,
    /// The next split is read while this one is computed, as in our workers: the longer counts.
    Ahead,
}

/// All measurements of a profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CachingProfile {
    /// Batches covered.
    pub batches: u32,
    /// Source records covered.
    pub records: f64,
    /// Source records of an epoch.
    pub epoch_records: f64,
    /// The source, then every operator in execution order.
    pub ops: Vec<OpProfile>,
    /// Seconds that workers waited for the source's bytes.
    pub source_wait_s: f64,
    /// Points in pipeline order.
    pub points: Vec<PointProfile>,
    pub reads: ReadOverlap,
}

impl CachingProfile {
    /// Worker seconds of the whole profile: Cachew's `N x active_time(last)`, plus the wait for the
    /// source.
    pub fn compute_s(&self) -> f64 {
        quantity(self.source_wait_s) + self.active_s(self.ops.len())
    }

    /// Worker seconds that remain if `point` is read instead of computed: `compute - M x
    /// active_time(A)`.
    pub fn after_s(&self, point: &PointProfile) -> f64 {
        let computed_s = self.active_s(point.after_op.saturating_add(1));
        (self.active_s(self.ops.len()) - computed_s).max(0.0)
    }

    /// Whether a cache at `point` is the delivered output.
    pub fn is_last(&self, point: &PointProfile) -> bool {
        point.after_op + 1 >= self.ops.len()
    }

    /// Seconds of the first `ops` operators.
    fn active_s(&self, ops: usize) -> f64 {
        self.ops.iter().take(ops).map(|op| quantity(op.active_s)).sum()
    }
}
