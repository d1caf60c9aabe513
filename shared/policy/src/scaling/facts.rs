//! Facts that the scaler knows, and no trainer reports.

/// A job's state when the scaler runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScalerFacts {
    /// Trainers that take batches in lockstep; 0 counts as one.
    pub clients: u32,
    /// Positions that may be claimed now.
    pub claimable: u32,
    /// Workers invoked and not known to have ended.
    pub outstanding: u32,
    /// Invocations that the platform refused since the report before.
    pub throttled: u32,
    /// Changes when the work for a batch changes: earlier measurements of workers are then void.
    pub mode: u32,
}

impl ScalerFacts {
    /// Trainers, at least 1.
    pub(crate) fn clients(&self) -> f64 {
        f64::from(self.clients.max(1))
    }
}
