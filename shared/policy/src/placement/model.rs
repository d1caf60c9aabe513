//! An epoch that functions and local workers make together: its batch time, its workers and its dollars.
//!
//! The cost model of a split is [`crate::cost`]'s. Here are the trainer's host, whose processors local workers share with
//! training and with the decoding of remote batches, and the share of the batches that each kind of worker makes.

use crate::cost::{
    CostBreakdown, EpochBound, EpochWork, FunctionArchitecture, FunctionShape, PriceList,
    SplitOrigin, TrainerDemand, quantity, ratio,
};
use crate::plan::{LocalCosts, MeasuredSample, PlanLimits, PlannedJob};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Share of the host's processors that may be busy before the step becomes longer, until it is measured.
pub(super) const KNEE: f64 = 0.9;
/// Remote workers for so much of the demand: one too few costs the trainer, one too many leaves.
const COVERED: f64 = 1.02;
/// Rounds after which batch time and share agree.
const ROUNDS: usize = 4;

/// The host of the trainer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlacedHost {
    pub cores: f64,
    /// Processors that training itself keeps busy.
    pub trainer_cores: f64,
    /// Share of the processors that may be busy before the step becomes longer.
    pub knee: f64,
    /// Functions beside local workers have the same instruction set: floating point differs between them.
    pub architecture: FunctionArchitecture,
}

impl Default for PlacedHost {
    /// A host of which nothing is known gets no local worker.
    fn default() -> Self {
        Self {
            cores: 0.0,
            trainer_cores: 0.0,
            knee: KNEE,
            architecture: FunctionArchitecture::default(),
        }
    }
}

impl PlacedHost {
    /// A host with so many idle processors, all of which local workers may use.
    pub fn with_idle(cores: f64) -> Self {
        Self { cores: quantity(cores) / KNEE, ..Self::default() }
    }

    /// Processors that may be busy.
    fn usable(&self) -> f64 {
        quantity(self.knee) * quantity(self.cores)
    }

    /// Processors for local workers and decoding.
    pub fn idle(&self) -> f64 {
        (self.usable() - quantity(self.trainer_cores)).max(0.0)
    }

    /// The trainer's step while `busy_s` seconds of other work are done for each batch.
    fn step_s(&self, step_s: f64, busy_s: f64) -> f64 {
        let busy = quantity(self.trainer_cores) + ratio(busy_s, step_s);
        step_s * ratio(busy, self.usable()).max(1.0)
    }
}

/// Processor seconds of the trainer's host for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct HostWork {
    /// For one that a local worker makes.
    pub local_s: f64,
    /// For one that arrives from remote workers: decoding, and the operators that they leave.
    pub remote_s: f64,
}

/// Prices, limits and the kind of function that an epoch is placed with.
#[derive(Debug, Clone, Copy)]
pub struct PlacementTerms<'t> {
    pub shape: FunctionShape,
    pub trainer: TrainerDemand,
    pub host: PlacedHost,
    pub limits: &'t PlanLimits,
    pub prices: &'t PriceList,
}

/// An epoch with its workers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PlacedEpoch {
    pub remote: u32,
    pub local: u32,
    /// Share of the batches that local workers make.
    pub share_local: f64,
    /// Seconds from one batch to the next, and of the step in it.
    pub batch_time_s: f64,
    pub step_s: f64,
    /// Share of the time in which the trainer waits.
    pub stall: f64,
    pub bound: EpochBound,
    pub cost: CostBreakdown,
}

/// Places an epoch of `work` on `local` workers of the host and as many functions as the rest of the demand needs.
pub fn place_epoch(
    work: &EpochWork,
    host_work: &HostWork,
    local: u32,
    terms: &PlacementTerms<'_>,
) -> PlacedEpoch {
    let PlacementTerms { shape, trainer, host, .. } = terms;
    let batches = work.batches.max(1) as f64;
    let worker_s = work.split.worker_s(shape) * work.splits as f64 / batches;
    let batch_bytes = quantity(work.split.bytes_out) * work.splits as f64 / batches;
    let HostWork { local_s, remote_s } = *host_work;
    let cached = work.origin == SplitOrigin::Cache;
    let local = if cached { 0 } else { local };
    let alone_s = quantity(trainer.step_s);
    let (mut share, mut batch_s, mut step_s, mut remote) = (0.0, alone_s, alone_s, 0);
    let mut bound = EpochBound::Trainer;
    for _ in 0..ROUNDS {
        step_s = host.step_s(alone_s, share * local_s + (1.0 - share) * remote_s);
        let decoding = ratio((1.0 - share) * remote_s, batch_s);
        let free = (host.idle() - decoding).clamp(0.0, f64::from(local));
        let made_local = ratio(free, local_s);
        remote = if cached { 0 } else { remote_workers(work, step_s, made_local, worker_s, terms) };
        let made = made_local + ratio(f64::from(remote), worker_s);
        let ingest_s = ratio((1.0 - share) * batch_bytes, quantity(trainer.ingest_bytes_per_s));
        (batch_s, bound) = (step_s, EpochBound::Trainer);
        if step_s > alone_s {
            bound = EpochBound::TrainerHost;
        }
        if !cached && made * batch_s < 1.0 - 1e-9 {
            (batch_s, bound) = (quantity(1.0 / made), work.split.bound(shape));
        }
        if ingest_s > batch_s {
            (batch_s, bound) = (ingest_s, EpochBound::TrainerNetwork);
        }
        share = (made_local * batch_s).min(1.0);
    }
    PlacedEpoch {
        remote,
        local,
        share_local: share,
        batch_time_s: batch_s,
        step_s,
        stall: 1.0 - ratio(step_s, batch_s).min(1.0),
        bound,
        cost: cost(work, share, batch_s * batches, terms),
    }
}

/// Functions for the batches that local workers do not make.
fn remote_workers(
    work: &EpochWork,
    step_s: f64,
    made_local: f64,
    worker_s: f64,
    terms: &PlacementTerms<'_>,
) -> u32 {
    let left = if step_s > 0.0 { (1.0 / step_s - made_local).max(0.0) } else { f64::MAX };
    // The cast saturates; the small part absorbs rounding.
    let desired = (COVERED * left * worker_s - 1e-9).ceil() as u32;
    if desired == 0 {
        return 0;
    }
    let most = u32::try_from(work.splits.max(1)).unwrap_or(u32::MAX);
    terms.limits.apply(desired.min(most), &terms.shape, terms.prices).0
}

/// Dollars of an epoch of `seconds`, of whose splits local workers make a share.
fn cost(
    work: &EpochWork,
    share_local: f64,
    seconds: f64,
    terms: &PlacementTerms<'_>,
) -> CostBreakdown {
    let PlacementTerms { shape, prices, .. } = terms;
    let splits = work.splits as f64;
    let of = |origin, share: f64| work.split.cost(origin, shape, prices) * (splits * share);
    let held = CostBreakdown {
        storage: prices.stored(work.held_bytes * (1.0 - share_local), seconds),
        accelerator: prices.accelerator(seconds),
        ..CostBreakdown::default()
    };
    of(work.origin, 1.0 - share_local) + of(SplitOrigin::TrainerHost, share_local) + held
}

/// Compression of delivered bytes at the fastest level.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PackedBytes {
    /// Stored bytes for each byte.
    pub ratio: f64,
    /// Processor seconds of a worker and of the trainer's host for each byte before compression.
    pub pack_s_per_byte: f64,
    pub unpack_s_per_byte: f64,
}

/// The part of a pipeline that workers run, and how its output travels.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WorkerPart<'p> {
    /// Operators of the workers; the trainer's host runs those after them.
    pub ops: Range<usize>,
    pub packed: Option<&'p PackedBytes>,
}

impl WorkerPart<'_> {
    /// The work of an epoch, for functions and for the trainer's host.
    pub fn work(&self, measured: &MeasuredSample, job: &PlannedJob) -> (EpochWork, HostWork) {
        let Range { start, end } = self.ops.clone();
        let bytes_in = match start {
            0 => measured.source_bytes_per_record(),
            _ => measured.bytes_per_record(start - 1),
        };
        let is_whole = end >= measured.ops.len();
        let raw = if is_whole {
            measured.delivered_bytes_per_record()
        } else {
            measured.bytes_per_record(end - 1)
        };
        let (stored, pack_s, unpack_s) = match self.packed {
            Some(packed) => {
                (raw * packed.ratio, raw * packed.pack_s_per_byte, raw * packed.unpack_s_per_byte)
            }
            None => (raw, 0.0, 0.0),
        };
        let mut work = job.epoch_between(measured, start..end, bytes_in, stored);
        let per_split = ratio(work.records as f64, work.splits as f64);
        work.split.cpu_s += pack_s * per_split * quantity(measured.function_slowdown);
        let per_batch = ratio(work.records as f64, work.batches as f64);
        let taken_s = raw * LocalCosts::default().fetcher_s_per_byte + unpack_s;
        let host = HostWork {
            local_s: measured.cpu_s_per_record(start) * per_batch,
            remote_s: (taken_s + measured.cpu_s_per_record(end)) * per_batch,
        };
        (work, host)
    }
}
