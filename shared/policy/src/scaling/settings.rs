//! Settings by the user, and the limits of every decision.

use super::{Limit, coverage::whole};
use serde::{Deserialize, Serialize};

/// Settings of the policy; the defaults suit most jobs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Hold this many workers; disables the policy.
    pub fixed: Option<u32>,
    /// Workers before anything is measured.
    pub start: u32,
    /// Most workers of this job.
    pub max_workers: u32,
    /// Functions that may run in the account at once, minus those promised to other jobs.
    pub concurrency: u32,
    /// Most dollars per hour for workers; needs `usd_per_worker_hour`.
    pub budget_usd_per_hour: Option<f64>,
    /// Price of one worker for an hour.
    pub usd_per_worker_hour: f64,
    /// Relative excess batch time that counts as equal to the best (Cachew: 3 %).
    pub tolerance: f64,
    /// Reports between two checks of a converged count (Cachew: 10, that is 1,000 batches).
    pub revisit_reports: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            fixed: None,
            start: 1,
            max_workers: 1_000,
            // The default of a new AWS account.
            concurrency: 1_000,
            budget_usd_per_hour: None,
            usd_per_worker_hour: 0.0,
            tolerance: 0.03,
            revisit_reports: 10,
        }
    }
}

impl Settings {
    /// The most workers allowed, at least 1, and the limit that applies.
    pub fn cap(&self) -> (u32, Limit) {
        let affordable = match self.budget_usd_per_hour {
            Some(budget) if self.usd_per_worker_hour > 0.0 => {
                // The cast saturates; a budget that is NaN buys nothing.
                (budget / self.usd_per_worker_hour).floor() as u32
            }
            _ => u32::MAX,
        };
        let limits = [
            (self.max_workers, Limit::MaxWorkers),
            (self.concurrency, Limit::Concurrency),
            (affordable, Limit::Budget),
        ];
        let (least, limit) =
            limits.into_iter().min_by_key(|(most, _)| *most).unwrap_or((1, Limit::MaxWorkers));
        (least.max(1), limit)
    }

    /// The fewest workers equivalent, within the tolerance, to the most allowed.
    pub(super) fn enough(&self) -> u32 {
        whole(f64::from(self.cap().0) * self.goal())
    }

    /// `tolerance`, clamped to a sensible range.
    pub(super) fn tolerance(&self) -> f64 {
        if self.tolerance.is_finite() { self.tolerance.clamp(0.005, 0.5) } else { 0.03 }
    }

    /// Share of the demand to aim for: the least that the tolerance allows, so that errors in either
    /// direction cost the same.
    pub(super) fn goal(&self) -> f64 {
        1.0 / (1.0 + self.tolerance())
    }
}
