//! Duration of an epoch where workers, service, fetcher and trainer share one machine.
//!
//! The longest of four counts. *Processors*: all processor time of the epoch, divided among the cores. *Workers*: each
//! split's computing, waiting and calls in sequence, divided among the workers; waiting (`sleep`) takes a worker but no
//! core. *Trainer*: its steps in sequence. *Fetcher*: its batches in sequence.
//! If processors and workers are close to each other, an epoch takes longer than either: a worker that finds no free
//! core loses that time.

use super::{MeasuredSample, PlannedJob};
use crate::cost::{longest, quantity, ratio};
use serde::{Deserialize, Serialize};

/// Exponent of the combination of processors and workers, a power mean without the division. At 6 an epoch
/// takes 12 % longer than either if both are equal, and 0.3 % if one is twice the other. On simulated
/// machines (see the tests) 8 fits slightly better and 4 worse; those have no shared caches and no
/// other load.
const SHARPNESS: f64 = 6.0;

/// Processor seconds of everything around a pipeline.
///
/// The defaults are from runs of `gristmill demo` on two shared cores of an x86-64 server in November 2026: 112
/// splits of 18 elements for the cost of a split, 32 of 62 JPEGs for the cost of bytes. Replace them with
/// measurements of your machine: `demo --json` prints them as `cpu_ms_per_sample`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LocalCosts {
    /// Worker time per split, beside its operators.
    pub worker_s_per_split: f64,
    /// Time of coordinator, scaler and stand-ins per split; the worker waits for it.
    pub service_s_per_split: f64,
    /// Time of the stand-ins per byte of a put or get.
    pub service_s_per_byte: f64,
    /// Time of the fetcher per batch, and per byte of it.
    pub fetcher_s_per_batch: f64,
    pub fetcher_s_per_byte: f64,
    /// Seconds from the start of a job until its first split runs.
    pub startup_s: f64,
}

impl Default for LocalCosts {
    fn default() -> Self {
        LocalCosts {
            worker_s_per_split: 0.0035,
            service_s_per_split: 0.0117,
            service_s_per_byte: 0.9e-9,
            fetcher_s_per_batch: 0.0013,
            fetcher_s_per_byte: 2.2e-9,
            startup_s: 0.5,
        }
    }
}

/// A job on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LocalJob {
    /// Cores available to it; a fraction if others use the machine too.
    pub cores: f64,
    pub workers: u32,
    pub splits: u64,
    pub batches: u64,
    /// Totals of an epoch over all operators: seconds of a core, and seconds of waiting without one.
    pub cpu_s: f64,
    pub wait_s: f64,
    /// Totals of an epoch: bytes read of the source, and bytes delivered.
    pub source_bytes: f64,
    pub delivered_bytes: f64,
    /// Seconds of the trainer's step: on a core, and without one (an accelerator works, or it sleeps).
    pub step_cpu_s: f64,
    pub step_wait_s: f64,
}

impl LocalJob {
    /// `job` on the machine that `measured` describes, with `workers` on `cores` free ones and a trainer that
    /// sleeps or uses an accelerator. Does not know the actual splits of the files: set them if they have been
    /// counted.
    pub fn from_measured(
        measured: &MeasuredSample,
        job: &PlannedJob,
        cores: f64,
        workers: u32,
    ) -> LocalJob {
        let work = job.epoch_work(measured);
        let records = job.records as f64;
        LocalJob {
            cores,
            workers,
            splits: work.splits,
            batches: work.batches,
            cpu_s: measured.cpu_s_per_record(0) * records,
            wait_s: measured.wait_s_per_record(0) * records,
            source_bytes: measured.source_bytes_per_record() * records,
            delivered_bytes: measured.delivered_bytes_per_record() * records,
            step_cpu_s: 0.0,
            step_wait_s: job.step_s,
        }
    }
}

/// Bottleneck of an epoch on one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LocalBound {
    Trainer,
    Processors,
    Workers,
    Fetcher,
}

/// An epoch on one machine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LocalEstimate {
    /// Seconds of the second and later epochs.
    pub seconds: f64,
    /// Seconds of the first epoch, including all startup.
    pub first_seconds: f64,
    pub bound: LocalBound,
    /// Duration of each part alone.
    pub trainer_s: f64,
    pub processors_s: f64,
    pub workers_s: f64,
    pub fetcher_s: f64,
}

/// Predicts an epoch of `run`.
pub fn predict_local(run: &LocalJob, costs: &LocalCosts) -> LocalEstimate {
    let splits = run.splits as f64;
    let batches = run.batches as f64;
    let (source, delivered) = (quantity(run.source_bytes), quantity(run.delivered_bytes));
    // A delivered byte is put once and got once.
    let moved_s = (source + 2.0 * delivered) * quantity(costs.service_s_per_byte);
    let service_s = splits * quantity(costs.service_s_per_split);
    let worker_cpu_s = quantity(run.cpu_s) + splits * quantity(costs.worker_s_per_split);
    let fetcher_cpu_s = batches * quantity(costs.fetcher_s_per_batch)
        + delivered * quantity(costs.fetcher_s_per_byte);
    let trainer_cpu_s = batches * quantity(run.step_cpu_s);
    let processors_s = ratio(
        worker_cpu_s + moved_s + service_s + fetcher_cpu_s + trainer_cpu_s,
        quantity(run.cores),
    );
    let at_work = u64::from(run.workers.max(1)).min(run.splits.max(1)) as f64;
    // Reads and puts overlap computing; coordinator calls come between splits. On less than a core
    // everything that computes takes longer.
    let pace = quantity(run.cores).min(1.0);
    let workers_s = (ratio(worker_cpu_s + service_s, pace) + quantity(run.wait_s)) / at_work;
    // Delivering a batch interrupts training.
    let trainer_s =
        trainer_cpu_s + batches * (quantity(run.step_wait_s) + quantity(costs.fetcher_s_per_batch));
    let fetcher_s = ratio(fetcher_cpu_s, pace);
    let made_s = quantity(longer(processors_s, workers_s));
    let made_by =
        if processors_s >= workers_s { LocalBound::Processors } else { LocalBound::Workers };
    let (seconds, bound) = longest([
        (trainer_s, LocalBound::Trainer),
        (fetcher_s, LocalBound::Fetcher),
        (made_s, made_by),
    ]);
    let first_split_s = workers_s * ratio(at_work, splits);
    let first_seconds = seconds + quantity(costs.startup_s) + first_split_s;
    LocalEstimate { seconds, first_seconds, bound, trainer_s, processors_s, workers_s, fetcher_s }
}

/// The larger of two, increased the closer the other is.
fn longer(a: f64, b: f64) -> f64 {
    let (long, short) = (a.max(b), a.min(b));
    long * (1.0 + ratio(short, long).powf(SHARPNESS)).powf(1.0 / SHARPNESS)
}
