//! Cost model of an epoch: its duration with a number of workers, its bottleneck and its price.

use super::{
    BilledRequests, CostBreakdown, FunctionShape, PriceList, SplitBound, SplitWork, quantity, ratio,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// An epoch's work, divided into splits of one size.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct EpochWork {
    pub splits: u64,
    pub batches: u64,
    /// Source records of the epoch: the denominator of "per million samples".
    pub records: u64,
    pub split: SplitWork,
    pub requests: BilledRequests,
    /// Mean object bytes that wait for the trainer or its checkpoint.
    pub held_bytes: f64,
}

/// The trainer's demand.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TrainerDemand {
    /// Seconds of a step without waiting.
    pub step_s: f64,
    /// Bytes per second that its host can receive; 0 is no limit.
    pub ingest_bytes_per_s: f64,
}

/// Bottleneck of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpochBound {
    /// Training itself: data is always ready.
    Trainer,
    /// The workers' computing.
    Workers,
    /// The workers' network.
    WorkerNetwork,
    /// The network of the trainer's host.
    TrainerNetwork,
}

impl fmt::Display for EpochBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            EpochBound::Trainer => "the trainer",
            EpochBound::Workers => "the workers' computing",
            EpochBound::WorkerNetwork => "the workers' network",
            EpochBound::TrainerNetwork => "the trainer's network",
        })
    }
}

/// An epoch in seconds and dollars.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EpochEstimate {
    pub workers: u32,
    /// Seconds of an epoch among many; a job's first begins later by a cold start and a split.
    pub seconds: f64,
    /// Seconds of training alone.
    pub trainer_s: f64,
    pub bound: EpochBound,
    pub cost: CostBreakdown,
    /// `cost` per million source records.
    pub per_million: CostBreakdown,
}

impl EpochWork {
    /// Seconds that `workers` of `shape` take, regardless of the trainer. At most one worker per split is
    /// useful; none waits at an epoch's end, because the next epoch is already open. With 0 workers the
    /// result is 0: ask only if something else does the work.
    pub fn workers_s(&self, workers: u32, shape: &FunctionShape) -> f64 {
        let at_work = u64::from(workers).min(self.splits) as f64;
        ratio(self.splits as f64 * self.split.worker_s(shape), at_work)
    }

    /// Seconds of the epoch, and its bottleneck. More workers never make it longer.
    pub fn seconds(
        &self,
        workers: u32,
        shape: &FunctionShape,
        trainer: &TrainerDemand,
    ) -> (f64, EpochBound) {
        let trainer_s = self.batches as f64 * quantity(trainer.step_s);
        let bytes = self.splits as f64 * quantity(self.split.bytes_out);
        let ingest_s = ratio(bytes, quantity(trainer.ingest_bytes_per_s));
        let worker_bound = match self.split.bound(shape) {
            SplitBound::Compute => EpochBound::Workers,
            SplitBound::Network => EpochBound::WorkerNetwork,
        };
        // The first of equal bounds is named.
        let bounds = [
            (trainer_s, EpochBound::Trainer),
            (ingest_s, EpochBound::TrainerNetwork),
            (self.workers_s(workers, shape), worker_bound),
        ];
        bounds
            .into_iter()
            .fold(bounds[0], |longest, bound| if bound.0 > longest.0 { bound } else { longest })
    }

    /// Duration and cost on `workers` functions. Workers leave when the window is full, so those beyond
    /// the trainer's demand cost no more than their start.
    pub fn on_functions(
        &self,
        workers: u32,
        shape: &FunctionShape,
        trainer: &TrainerDemand,
        prices: &PriceList,
    ) -> EpochEstimate {
        let (seconds, bound) = self.seconds(workers, shape, trainer);
        let of_splits = self.split.cost(shape, &self.requests, 0.0, prices) * self.splits as f64;
        let cost = CostBreakdown {
            storage: prices.stored(self.held_bytes, seconds),
            accelerator: prices.accelerator(seconds),
            ..of_splits
        };
        self.estimate(workers, seconds, bound, trainer, cost)
    }

    /// Assembles an estimate.
    pub(crate) fn estimate(
        &self,
        workers: u32,
        seconds: f64,
        bound: EpochBound,
        trainer: &TrainerDemand,
        cost: CostBreakdown,
    ) -> EpochEstimate {
        let trainer_s = self.batches as f64 * quantity(trainer.step_s);
        let per_million = cost.per_million(self.records as f64);
        EpochEstimate { workers, seconds, trainer_s, bound, cost, per_million }
    }

    /// Fewest workers that make the epoch as short as it can be: limited by the trainer's step (Pecan 5.1;
    /// FastFlow 9), its network, or one worker per split. At least 1, at most `most`.
    pub fn workers_needed(&self, shape: &FunctionShape, trainer: &TrainerDemand, most: u32) -> u32 {
        let (least_s, _) = self.seconds(u32::MAX, shape, trainer);
        // Slightly less, to absorb rounding.
        let needed = ratio(self.workers_s(1, shape), least_s) * (1.0 - 1e-9);
        (needed.ceil() as u32).clamp(1, most.max(1))
    }
}
