//! How long an epoch takes where everything shares one machine: workers, service, fetcher and trainer.
//!
//! The longest of four counts. *Processors*: all processor time of the epoch, whoever's, divided among
//! the cores. *Workers*: each split's computing, waiting and calls, one after the other, divided among
//! the workers; waiting (`sleep`) takes a worker but no core. *Trainer*: its steps one after the other.
//! *Fetcher*: its batches one after the other.
//! Where processors and workers come close to each other, an epoch takes longer than either: workers
//! that find a core taken lose time that nobody gives back.

use super::{Job, Measured};
use crate::cost::{quantity, ratio};
use serde::{Deserialize, Serialize};

/// How sharply the longer of processors and workers decides: their sum in this power. At 6 an epoch
/// takes 12 % longer than either where both are equal, and 0.3 % where one is twice the other. On
/// simulated machines (see the tests) 8 fits slightly better and 4 worse; those have no caches to
/// share and no other load.
const SHARPNESS: f64 = 6.0;

/// Processor seconds of everything around a pipeline.
///
/// The defaults are of runs of `gristmill demo` on two shared cores of an x86-64 server in November 2026: 112
/// splits of 18 elements for what a split costs, 32 of 62 JPEGs for what bytes cost. Whoever knows
/// better replaces them; `demo --json` has them as `cpu_ms_per_sample`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LocalCosts {
    /// Of a worker for a split, beside its operators.
    pub worker_s_per_split: f64,
    /// Of coordinator, scaler and stand-ins for a split: the worker waits for these.
    pub service_s_per_split: f64,
    /// Of stand-ins for a byte that is put or got.
    pub service_s_per_byte: f64,
    /// Of the fetcher for a batch, and for a byte of it.
    pub fetcher_s_per_batch: f64,
    pub fetcher_s_per_byte: f64,
    /// From the start of a job to its first split being run.
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
pub struct LocalRun {
    /// Cores that are free for it; a fraction if others use the machine too.
    pub cores: f64,
    pub workers: u32,
    pub splits: u64,
    pub batches: u64,
    /// Of an epoch, in all its operators: seconds of a core, and seconds of waiting without one.
    pub cpu_s: f64,
    pub wait_s: f64,
    /// Of an epoch: bytes read of the source, and delivered.
    pub source_bytes: f64,
    pub delivered_bytes: f64,
    /// Of the trainer's step: seconds of a core, and seconds in which it needs none (an accelerator
    /// works, or it sleeps).
    pub step_cpu_s: f64,
    pub step_wait_s: f64,
}

impl LocalRun {
    /// `job` on the machine that `measured` is of, with `workers` on `cores` free ones and a trainer that
    /// sleeps or lets an accelerator work. Splits of files of any length are not known here: whoever has
    /// counted them sets them.
    pub fn of(measured: &Measured, job: &Job, cores: f64, workers: u32) -> LocalRun {
        let work = job.epoch_work(measured);
        let records = job.records as f64;
        LocalRun {
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

/// What an epoch on one machine waits for.
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
    /// Of the second epoch and later ones.
    pub seconds: f64,
    /// Of the first, which starts everything.
    pub first_seconds: f64,
    pub bound: LocalBound,
    /// What each would take alone.
    pub trainer_s: f64,
    pub processors_s: f64,
    pub workers_s: f64,
    pub fetcher_s: f64,
}

/// Predicts an epoch of `run`.
pub fn predict_local(run: &LocalRun, costs: &LocalCosts) -> LocalEstimate {
    let splits = run.splits as f64;
    let batches = run.batches as f64;
    let (source, delivered) = (quantity(run.source_bytes), quantity(run.delivered_bytes));
    // A delivered byte is put and got.
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
    // Reads and puts go on beside computing; calls of the coordinator stand between splits. On less
    // than a core everything that computes takes longer.
    let pace = quantity(run.cores).min(1.0);
    let workers_s = (ratio(worker_cpu_s + service_s, pace) + quantity(run.wait_s)) / at_work;
    // Handing a batch over interrupts training.
    let trainer_s =
        trainer_cpu_s + batches * (quantity(run.step_wait_s) + quantity(costs.fetcher_s_per_batch));
    let fetcher_s = ratio(fetcher_cpu_s, pace);
    let made_s = quantity(longer(processors_s, workers_s));
    let made_by = match processors_s >= workers_s {
        true => LocalBound::Processors,
        false => LocalBound::Workers,
    };
    let trainer = (trainer_s, LocalBound::Trainer);
    let (seconds, bound) = [(fetcher_s, LocalBound::Fetcher), (made_s, made_by)]
        .into_iter()
        .fold(trainer, |longest, other| if other.0 > longest.0 { other } else { longest });
    let first_split_s = workers_s * ratio(at_work, splits);
    let first_seconds = seconds + quantity(costs.startup_s) + first_split_s;
    LocalEstimate { seconds, first_seconds, bound, trainer_s, processors_s, workers_s, fetcher_s }
}

/// The longer of two, and more of it the closer the other is.
fn longer(a: f64, b: f64) -> f64 {
    let (long, short) = (a.max(b), a.min(b));
    long * (1.0 + ratio(short, long).powf(SHARPNESS)).powf(1.0 / SHARPNESS)
}
