//! The modelled host of the trainer: processors that training, decoding and local workers share.

/// A host. Without processors it is not modelled: nothing slows the step, and there is no local worker.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ModelHost {
    pub cores: f64,
    /// Processors that training itself keeps busy.
    pub trainer_cores: f64,
    /// Share of the processors that may be busy before the step becomes longer.
    pub knee: f64,
    /// Processor seconds to receive and decode a gigabyte from remote workers.
    pub ingest_cpu_per_gb: f64,
    /// Speed of a local worker, as a multiple of one vCPU of a function.
    pub local_speed: f64,
}

impl ModelHost {
    /// Whether there is a host.
    pub fn is_modelled(&self) -> bool {
        self.cores > 0.0
    }

    /// Processor seconds for a batch from remote workers.
    pub fn decoding_s(&self, batch_bytes: f64) -> f64 {
        self.ingest_cpu_per_gb * batch_bytes / 1e9
    }

    /// Factor on the step while local workers and decoding keep so many processors busy.
    pub fn slowing(&self, others: f64) -> f64 {
        if !self.is_modelled() {
            return 1.0;
        }
        ((self.trainer_cores + others) / (self.knee * self.cores)).max(1.0)
    }

    /// Factor on the time of one of `local` workers at work: training and decoding come first.
    pub fn local_slowing(&self, local: f64, decoding: f64) -> f64 {
        let free = (self.knee * self.cores - self.trainer_cores - decoding).max(0.1);
        (local / free).max(1.0)
    }
}
