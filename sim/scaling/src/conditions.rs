//! Modelled conditions of a run: trainer, workers, data, limits and platform, in base units.

/// Conditions of a phase; a change of load makes another. Times are in seconds, sizes in bytes, rates per second; an
/// absent limit is infinite.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelConditions {
    /// Clients that train in lockstep, each on its own batch.
    pub clients: u32,
    /// The trainer's own time per batch, and its relative deviation between batches.
    pub step_s: f64,
    pub step_noise: f64,
    /// Receiving rate of the trainer's host.
    pub ingest_per_s: f64,
    /// One vCPU's time per batch, and its relative deviation between splits.
    pub compute_s: f64,
    pub worker_noise: f64,
    pub vcpus: f64,
    /// Network rate of one worker.
    pub network_per_s: f64,
    pub cold_start_s: f64,
    /// Factors on the compute time, one drawn for each environment.
    pub speeds: Vec<f64>,
    /// Mean working time until a worker dies, and time until that is detected.
    pub mean_life_s: f64,
    pub death_notice_s: f64,
    /// Share by which each further worker at work slows the computing of all.
    pub interference: f64,
    /// Overhead of a worker per split: claim and flush.
    pub call_s: f64,
    /// Bytes read and put per batch.
    pub source_bytes: f64,
    pub batch_bytes: f64,
    pub split_batches: u32,
    /// Splits in a lease.
    pub lease_splits: u32,
    /// Splits of an epoch, and whether the next epoch waits until the last is delivered.
    pub epoch_splits: u64,
    pub epoch_barrier: bool,
    /// Batches that workers may be ahead of the trainer.
    pub window_batches: u64,
    pub source_per_s: f64,
    pub gets_per_s: f64,
    pub puts_per_s: f64,
    pub table_per_s: f64,
    pub invoke_delay_s: f64,
    /// Concurrency of the account, and the part used by other jobs.
    pub concurrency: u32,
    pub others: u32,
    /// Environments that a function may add in 10 s.
    pub scale_up_per_10s: f64,
    /// Time limit of a worker.
    pub lifetime_s: f64,
    pub poll_s: f64,
    pub report_batches: u32,
    /// Relative deviation of every measured number in a report.
    pub report_noise: f64,
    pub mode: u32,
}

impl ModelConditions {
    /// Seconds of a single worker per batch, without noise. For mixed speeds the harmonic mean, because faster workers make
    /// more.
    pub fn worker_batch_s(&self) -> f64 {
        let rates: f64 = self.speeds.iter().map(|speed| 1.0 / speed).sum();
        let speed = if rates > 0.0 { self.speeds.len() as f64 / rates } else { 1.0 };
        let network_s = (self.source_bytes + self.batch_bytes) / self.network_per_s;
        let calls_s = 2.0 * self.call_s / f64::from(self.split_batches);
        self.compute_s * speed / self.vcpus + network_s + calls_s
    }

    /// Workers that keep up with the trainer without contention.
    pub fn need(&self) -> f64 {
        self.worker_batch_s() * f64::from(self.clients) / self.step_s
    }

    /// Concurrency available to this job.
    pub fn grantable(&self) -> u32 {
        self.concurrency.saturating_sub(self.others).max(1)
    }

    /// The same conditions without noise.
    pub fn quiet(&self) -> Self {
        Self { step_noise: 0.0, worker_noise: 0.0, report_noise: 0.0, ..self.clone() }
    }
}
