//! A job as described by its user, and its epoch's work in the cost model.

use super::MeasuredSample;
use crate::cost::{
    BilledRequests, CostBreakdown, DAY_S, EpochWork, FunctionShape, PriceList, SplitOrigin,
    SplitWork, TrainerDemand, quantity, ratio,
};
use gristmill_model::wire::{CacheMode, EpochPlan, JobSpec, WorkProfile};
use gristmill_pipeline::Pipeline;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Default delivered bytes of a split.
const SPLIT_BYTES: f64 = (64u64 << 20) as f64;
/// Overhead of a split, neither computing nor moving bytes: two coordinator calls of about 10 ms, and an
/// eighth of a lease's first read and last put at 71 MB/s for 16 MiB. An estimate, not measured on
/// AWS.
const SPLIT_OVERHEAD_S: f64 = 0.05;
/// Object bytes that wait for the trainer: the run-ahead window.
const WINDOW_BYTES: f64 = (2u64 << 30) as f64;

/// Days for which a cache is kept: a working week, time for a second job over the same data.
const KEPT_DAYS: f64 = 7.0;

/// An `autocache` point that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PlannedCachePoint {
    /// Index in [`MeasuredSample::ops`] of the point, or of the operator before it.
    pub after_op: usize,
    /// Whether an operator up to this point is random, and whether its author allows reuse.
    pub random: bool,
    pub reuse_random: bool,
}

impl PlannedCachePoint {
    /// The points of `pipeline`, whose operators `profile` lists.
    pub fn all(pipeline: &Pipeline, profile: &WorkProfile) -> Vec<PlannedCachePoint> {
        let last = profile.ops.len().saturating_sub(1);
        let points = pipeline.cache_points().into_iter().map(|point| {
            let within = |stage: u32| stage as usize == point.stage;
            let at = profile.ops.iter().position(|op| op.stage.is_some_and(within));
            PlannedCachePoint {
                after_op: at.filter(|_| !point.whole).unwrap_or(last),
                random: point.random,
                reuse_random: point.reuse_random,
            }
        });
        points.collect()
    }

    /// Whether it stores the delivered output.
    pub(crate) fn is_last(&self, measured: &MeasuredSample) -> bool {
        self.after_op + 1 >= measured.ops.len()
    }

    /// "cache after `resize`".
    pub(crate) fn name(&self, measured: &MeasuredSample) -> String {
        let before = measured.ops.iter().take(self.after_op.saturating_add(1));
        let op = before.rev().find(|op| !op.is_point).map_or("?", |op| &op.op);
        format!("cache after `{op}`")
    }

    /// Why it may not be used, if so.
    pub(crate) fn refused(&self, measured: &MeasuredSample) -> Option<&'static str> {
        if self.after_op >= measured.ops.len() {
            Some("no such operator")
        } else if self.random && !self.reuse_random {
            Some("random: `reuse_random: true` allows it")
        } else {
            None
        }
    }
}

/// The job, its trainer and its prices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlannedJob {
    /// Source records of an epoch.
    pub records: u64,
    /// Elements of a batch.
    pub batch_size: u32,
    pub epochs: u32,
    /// Seconds of the trainer's step without waiting.
    pub step_s: f64,
    /// Processors of the trainer's host that training leaves idle.
    pub spare_cores: f64,
    /// Bytes per second that the trainer's host can receive; 0 is no limit.
    pub ingest_bytes_per_s: f64,
    /// Splits of an epoch; by default as many as make 64 MiB each.
    pub splits: Option<u64>,
    /// Splits of an epoch of a million such records, likewise: a small dataset has small splits.
    pub million_splits: Option<u64>,
    pub points: Vec<PlannedCachePoint>,
    /// Days for which a cache is kept, from its first epoch on; includes the job's own epochs.
    pub kept_days: f64,
    pub shape: FunctionShape,
    pub prices: PriceList,
}

impl Default for PlannedJob {
    fn default() -> Self {
        PlannedJob {
            records: 0,
            batch_size: 1,
            epochs: 1,
            step_s: 0.0,
            spare_cores: 0.0,
            ingest_bytes_per_s: 0.0,
            splits: None,
            million_splits: None,
            points: Vec::new(),
            kept_days: KEPT_DAYS,
            shape: FunctionShape::default(),
            prices: PriceList::default(),
        }
    }
}

impl PlannedJob {
    /// A job that runs, whose first splits made `profile`.
    pub fn running(
        pipeline: &Pipeline,
        spec: &JobSpec,
        plan: Option<&EpochPlan>,
        profile: &WorkProfile,
    ) -> PlannedJob {
        PlannedJob {
            records: plan.map_or(0, |plan| plan.records),
            splits: plan.map(|plan| plan.n_splits.into()),
            batch_size: pipeline.batch_size(),
            epochs: spec.epochs,
            points: PlannedCachePoint::all(pipeline, profile),
            ..PlannedJob::default()
        }
    }

    /// The job's trainer.
    pub fn trainer(&self) -> TrainerDemand {
        TrainerDemand { step_s: self.step_s, ingest_bytes_per_s: self.ingest_bytes_per_s }
    }

    /// Splits of an epoch: of as many whole batches as are closest to 64 MiB, if their number is not given.
    fn epoch_splits(&self, measured: &MeasuredSample) -> u64 {
        if let Some(splits) = self.splits {
            return splits;
        }
        let rows = measured.rows_per_record();
        let batch_records = ratio(f64::from(self.batch_size.max(1)), rows).max(1.0);
        let batch_bytes = batch_records * measured.delivered_bytes_per_record();
        let batches = ratio(SPLIT_BYTES, batch_bytes).floor().max(1.0);
        (self.records as f64 / (batch_records * batches)).ceil() as u64
    }

    /// An epoch computed by functions.
    pub fn epoch_work(&self, measured: &MeasuredSample) -> EpochWork {
        let source_bytes = measured.source_bytes_per_record();
        self.epoch_of(measured, 0, source_bytes)
    }

    /// An epoch that reads what is stored at `point`, and computes the rest.
    pub fn epoch_reading(&self, measured: &MeasuredSample, point: &PlannedCachePoint) -> EpochWork {
        let op = point.after_op;
        if !point.is_last(measured) {
            return self.epoch_of(measured, op + 1, measured.bytes_per_record(op));
        }
        let computed = self.epoch_work(measured);
        let split = SplitWork { bytes_out: computed.split.bytes_out, ..SplitWork::default() };
        EpochWork { split, origin: SplitOrigin::Cache, held_bytes: 0.0, ..computed }
    }

    /// Dollars that an epoch costs more because it stores its elements at `point`, and to keep them.
    pub fn storing(&self, measured: &MeasuredSample, point: &PlannedCachePoint) -> CostBreakdown {
        // The delivered output is put anyway.
        let puts = if point.is_last(measured) { 0 } else { self.epoch_splits(measured) };
        let puts = BilledRequests { puts: puts as f64, ..BilledRequests::default() };
        CostBreakdown {
            requests: puts.usd(&self.prices),
            storage: self.prices.stored(self.stored_bytes(measured, point), self.kept_days * DAY_S),
            ..CostBreakdown::default()
        }
    }

    /// Cost of all epochs with a cache at `point`: the first are `computed` until it is complete, the others `read` it.
    pub(crate) fn with_cache(
        &self,
        measured: &MeasuredSample,
        point: &PlannedCachePoint,
        computed: CostBreakdown,
        read: CostBreakdown,
    ) -> CostBreakdown {
        // The profiled epoch is delivered, and so stored where that is what is cached; else the next one is.
        let made = if point.is_last(measured) { 1 } else { 2 };
        let made = self.epochs.min(made);
        computed * f64::from(made)
            + self.storing(measured, point)
            + read * f64::from(self.epochs - made)
    }

    /// Bytes of an epoch's elements at `point`.
    pub(crate) fn stored_bytes(&self, measured: &MeasuredSample, point: &PlannedCachePoint) -> f64 {
        let per_record = if point.is_last(measured) {
            measured.delivered_bytes_per_record()
        } else {
            measured.bytes_per_record(point.after_op)
        };
        per_record * self.records as f64
    }

    fn epoch_of(&self, measured: &MeasuredSample, first_op: usize, bytes_in: f64) -> EpochWork {
        let bytes_out = measured.delivered_bytes_per_record();
        self.epoch_between(measured, first_op..usize::MAX, bytes_in, bytes_out)
    }

    /// An epoch in which workers run the operators `ops`, with the bytes of a record before and after them.
    pub(crate) fn epoch_between(
        &self,
        measured: &MeasuredSample,
        ops: Range<usize>,
        bytes_in: f64,
        bytes_out: f64,
    ) -> EpochWork {
        let records = self.records as f64;
        let splits = self.epoch_splits(measured);
        let per_split = ratio(records, splits as f64);
        let rows = records * measured.rows_per_record();
        let Range { start, end } = ops;
        let cpu_s = measured.cpu_s_per_record(start) - measured.cpu_s_per_record(end);
        let wait_s = measured.wait_s_per_record(start) - measured.wait_s_per_record(end);
        let split = SplitWork {
            cpu_s: cpu_s * per_split * quantity(measured.function_slowdown),
            wait_s: wait_s * per_split,
            bytes_in: bytes_in * per_split,
            bytes_out: bytes_out * per_split,
            overhead_s: SPLIT_OVERHEAD_S,
        };
        let delivered = records * measured.delivered_bytes_per_record();
        EpochWork {
            splits,
            batches: (rows / f64::from(self.batch_size.max(1))).ceil() as u64,
            records: self.records,
            split,
            origin: SplitOrigin::Function,
            held_bytes: delivered.min(WINDOW_BYTES),
        }
    }
}

/// An epoch as it was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DeliveredEpoch {
    pub mode: CacheMode,
    pub seconds: f64,
    /// Its splits, and those of them that workers on the trainer's host made.
    pub splits: u64,
    pub local_splits: u64,
    /// Bytes of its objects.
    pub object_bytes: f64,
    /// Seconds of functions, where functions ran and were measured.
    pub function_s: Option<f64>,
}

impl PlannedJob {
    /// The cost of `epoch`, by the same arithmetic as a plan, with the counts that are known now.
    pub fn spent(&self, measured: &MeasuredSample, epoch: &DeliveredEpoch) -> CostBreakdown {
        let DeliveredEpoch { mode, seconds, splits, local_splits, object_bytes, function_s } =
            *epoch;
        let read = match mode {
            CacheMode::Get { point } => self.points.get(point as usize),
            _ => None,
        };
        // A job that began with a cached prefix has measured what follows it alone.
        let read = read.filter(|point| {
            point.is_last(measured) || measured.bytes_per_record(point.after_op) > 0.0
        });
        let mut work = match read {
            Some(point) => self.epoch_reading(measured, point),
            None => self.epoch_work(measured),
        };
        let remote_splits = splits.saturating_sub(local_splits);
        work.split.bytes_out = ratio(object_bytes, splits as f64);
        if let Some(function_s) = function_s {
            let wait_s = ratio(function_s, remote_splits as f64);
            work.split = SplitWork { cpu_s: 0.0, wait_s, overhead_s: 0.0, ..work.split };
        }
        // The time of functions includes their network.
        let network_bytes_per_s =
            if function_s.is_some() { 0.0 } else { self.shape.network_bytes_per_s };
        let shape = FunctionShape { network_bytes_per_s, ..self.shape };
        let held_bytes = (work.split.bytes_out * remote_splits as f64).min(work.held_bytes);
        let remote = EpochWork { splits: remote_splits, held_bytes, ..work };
        let local = EpochWork {
            splits: local_splits,
            origin: SplitOrigin::TrainerHost,
            held_bytes: 0.0,
            ..work
        };
        let stored = match mode {
            CacheMode::Put { point } => self.points.get(point as usize),
            _ => None,
        };
        let stored = stored.map(|point| self.storing(measured, point)).unwrap_or_default();
        let prices = &self.prices;
        remote.cost(seconds, &shape, prices) + local.cost(0.0, &shape, prices) + stored
    }
}

/// Limits of a job.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanLimits {
    /// Most concurrent workers, of the job or of the account.
    pub max_workers: u32,
    /// Budget for workers; `None` is no limit.
    pub budget_usd_per_hour: Option<f64>,
}

impl Default for PlanLimits {
    /// Default concurrency of an AWS account.
    fn default() -> Self {
        PlanLimits { max_workers: 1000, budget_usd_per_hour: None }
    }
}

impl PlanLimits {
    /// The allowed number of workers, at least one, and the limit that reduced it.
    pub(crate) fn apply(
        &self,
        desired: u32,
        shape: &FunctionShape,
        prices: &PriceList,
    ) -> (u32, Option<String>) {
        let (mut workers, mut limit) = (desired.max(1), None);
        let most = self.max_workers.max(1);
        if workers > most {
            workers = most;
            limit = Some(format!("the limit of {most} workers at a time"));
        }
        if let Some(usd) = self.budget_usd_per_hour {
            let affordable = shape.affordable(usd, prices).max(1);
            if workers > affordable {
                workers = affordable;
                limit = Some(format!("the budget of ${usd} an hour"));
            }
        }
        (workers, limit)
    }
}
