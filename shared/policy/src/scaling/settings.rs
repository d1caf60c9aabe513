//! Settings by the user, and the limits of every decision.

use super::Limit;
use serde::{Deserialize, Serialize};

/// Settings of the policy; the defaults suit most jobs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Workers before anything is measured.
    pub start: u32,
    /// Most workers of this job.
    pub max_workers: u32,
    /// Functions that may run in the account at once, minus those promised to other jobs.
    pub concurrency: u32,
    /// Workers that the budget pays for.
    pub budget_workers: Option<u32>,
    /// Price of one worker for an hour.
    pub usd_per_worker_hour: f64,
    /// Price of the trainer with its accelerators for an hour: a wait costs it.
    pub usd_per_trainer_hour: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            start: 1,
            max_workers: 1_000,
            // The default of a new AWS account.
            concurrency: 1_000,
            budget_workers: None,
            // A function of 1,769 MB on arm.
            usd_per_worker_hour: 0.083,
            // A host with one accelerator (Pecan, section 6.1).
            usd_per_trainer_hour: 4.96,
        }
    }
}

impl Settings {
    /// The most workers allowed, at least 1, and the limit that applies.
    pub fn cap(&self) -> (u32, Limit) {
        let limits = [
            (self.max_workers, Limit::MaxWorkers),
            (self.concurrency, Limit::Concurrency),
            (self.budget_workers.unwrap_or(u32::MAX), Limit::Budget),
        ];
        let (least, limit) =
            limits.into_iter().min_by_key(|(most, _)| *most).unwrap_or((1, Limit::MaxWorkers));
        (least.max(1), limit)
    }
}
