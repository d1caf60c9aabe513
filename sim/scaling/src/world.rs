//! What is modelled: a trainer, workers, data, limits and a platform, as numbers in base units.

/// One state of the world; a change of load makes another. Times are seconds, sizes bytes, rates per
/// second; an absent limit is infinite.
#[derive(Debug, Clone, PartialEq)]
pub struct World {
    /// Clients that train in step, each on its own batch.
    pub clients: u32,
    /// The trainer's own time for a batch, and its noise from batch to batch (relative deviation).
    pub step_s: f64,
    pub step_noise: f64,
    /// Bytes the trainer's host takes in.
    pub ingest_per_s: f64,
    /// One vCPU's time for one batch, and its noise from split to split.
    pub compute_s: f64,
    pub worker_noise: f64,
    pub vcpus: f64,
    /// What one worker reads or puts.
    pub network_per_s: f64,
    pub cold_start_s: f64,
    /// Factors on the compute time, one drawn for each environment.
    pub speeds: Vec<f64>,
    /// Mean time of work until a worker dies, and until that is noticed.
    pub mean_life_s: f64,
    pub death_notice_s: f64,
    /// Share by which each further worker at work slows the computing of all.
    pub interference: f64,
    /// What a worker does beside its splits: claim and flush, once a split.
    pub call_s: f64,
    /// Bytes read and put for a batch.
    pub source_bytes: f64,
    pub batch_bytes: f64,
    pub split_batches: u32,
    /// Splits in a lease.
    pub lease_splits: u32,
    /// Splits of an epoch, and whether the next one waits until the last is delivered.
    pub epoch_splits: u64,
    pub epoch_barrier: bool,
    /// Batches workers may be ahead of the trainer.
    pub window_batches: u64,
    pub source_per_s: f64,
    pub gets_per_s: f64,
    pub puts_per_s: f64,
    pub table_per_s: f64,
    pub invoke_delay_s: f64,
    /// Functions the account runs at once, and how many are other jobs'.
    pub concurrency: u32,
    pub others: u32,
    /// Environments a function may add in 10 s.
    pub scale_up_per_10s: f64,
    /// Time a worker may live.
    pub lifetime_s: f64,
    pub poll_s: f64,
    pub report_batches: u32,
    /// Relative deviation of every measured number of a report.
    pub report_noise: f64,
    pub mode: u32,
}

impl World {
    /// Seconds of one worker for one batch when it is alone, noise apart. Of mixed speeds, those workers
    /// count that make more: the harmonic mean.
    pub fn worker_batch_s(&self) -> f64 {
        let rates: f64 = self.speeds.iter().map(|speed| 1.0 / speed).sum();
        let speed = if rates > 0.0 { self.speeds.len() as f64 / rates } else { 1.0 };
        let network_s = (self.source_bytes + self.batch_bytes) / self.network_per_s;
        let calls_s = 2.0 * self.call_s / f64::from(self.split_batches);
        self.compute_s * speed / self.vcpus + network_s + calls_s
    }

    /// Workers that keep up with the trainer if they never meet.
    pub fn need(&self) -> f64 {
        self.worker_batch_s() * f64::from(self.clients) / self.step_s
    }

    /// Functions this job may run at once.
    pub fn grantable(&self) -> u32 {
        self.concurrency.saturating_sub(self.others).max(1)
    }

    /// The same without noise.
    pub fn quiet(&self) -> Self {
        Self { step_noise: 0.0, worker_noise: 0.0, report_noise: 0.0, ..self.clone() }
    }
}
