//! A job as described by its user, and its epoch's work in the cost model.

use super::MeasuredSample;
use crate::cost::{
    BilledRequests, EpochWork, FunctionShape, PriceList, SplitWork, TrainerDemand, quantity, ratio,
};
use serde::{Deserialize, Serialize};

/// Default delivered bytes of a split.
const SPLIT_BYTES: f64 = (64u64 << 20) as f64;
/// Overhead of a split, neither computing nor moving bytes: two coordinator calls of about 10 ms, and an
/// eighth of a lease's first read and last put at 71 MB/s for 16 MiB. An estimate, not measured on
/// AWS.
const SPLIT_OVERHEAD_S: f64 = 0.05;
/// Object bytes that wait for the trainer: the run-ahead window.
const WINDOW_BYTES: f64 = (2u64 << 30) as f64;

/// An `autocache` point that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PlannedCachePoint {
    /// Index in [`MeasuredSample::ops`] of the operator before it.
    pub after_op: usize,
    /// Whether an operator up to this point is random, and whether its author allows reuse.
    pub random: bool,
    pub reuse_random: bool,
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
    /// Source records of a split; by default as many as make 64 MiB.
    pub split_records: Option<u32>,
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
            split_records: None,
            points: Vec::new(),
            kept_days: 1.0,
            shape: FunctionShape::default(),
            prices: PriceList::default(),
        }
    }
}

impl PlannedJob {
    /// The job's trainer.
    pub fn trainer(&self) -> TrainerDemand {
        TrainerDemand { step_s: self.step_s, ingest_bytes_per_s: self.ingest_bytes_per_s }
    }

    /// Records of a split: the whole number of batches closest to 64 MiB.
    pub fn records_per_split(&self, measured: &MeasuredSample) -> f64 {
        if let Some(records) = self.split_records {
            return f64::from(records.max(1));
        }
        let rows = measured.rows_per_record();
        let batch_records = ratio(f64::from(self.batch_size.max(1)), rows).max(1.0);
        let batch_bytes = batch_records * measured.delivered_bytes_per_record();
        if batch_bytes > 0.0 {
            batch_records * (SPLIT_BYTES / batch_bytes).floor().max(1.0)
        } else {
            batch_records
        }
    }

    /// An epoch computed by functions.
    pub fn epoch_work(&self, measured: &MeasuredSample) -> EpochWork {
        let source_bytes = measured.source_bytes_per_record();
        self.epoch_of(measured, 0, source_bytes)
    }

    /// An epoch that reads the cache after operator `op` and computes the rest.
    pub(super) fn epoch_after(&self, measured: &MeasuredSample, op: usize) -> EpochWork {
        self.epoch_of(measured, op + 1, measured.bytes_per_record(op))
    }

    /// An epoch read as delivered: nothing to compute.
    pub(super) fn epoch_delivered(&self, measured: &MeasuredSample) -> EpochWork {
        let computed = self.epoch_work(measured);
        let split = SplitWork { bytes_out: computed.split.bytes_out, ..SplitWork::default() };
        EpochWork { split, requests: BilledRequests::CACHED_SPLIT, held_bytes: 0.0, ..computed }
    }

    fn epoch_of(&self, measured: &MeasuredSample, first_op: usize, bytes_in: f64) -> EpochWork {
        let per_split = self.records_per_split(measured).min((self.records as f64).max(1.0));
        let records = self.records as f64;
        let rows = records * measured.rows_per_record();
        let split = SplitWork {
            cpu_s: measured.cpu_s_per_record(first_op)
                * per_split
                * quantity(measured.function_slowdown),
            wait_s: measured.wait_s_per_record(first_op) * per_split,
            bytes_in: bytes_in * per_split,
            bytes_out: measured.delivered_bytes_per_record() * per_split,
            overhead_s: SPLIT_OVERHEAD_S,
        };
        let delivered = records * measured.delivered_bytes_per_record();
        EpochWork {
            splits: (records / per_split).ceil() as u64,
            batches: (rows / f64::from(self.batch_size.max(1))).ceil() as u64,
            records: self.records,
            split,
            requests: BilledRequests::SPLIT,
            held_bytes: delivered.min(WINDOW_BYTES),
        }
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
    pub(super) fn apply(
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
