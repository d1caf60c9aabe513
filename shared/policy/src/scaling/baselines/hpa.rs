//! The Kubernetes Horizontal Pod Autoscaler on CPU utilisation, with the target of Cachew's evaluation.

use crate::scaling::{ScalerFacts, ScalingPolicy, Settings, TrainingReport, WorkerMetrics};
use serde::{Deserialize, Serialize};

/// Target utilisation (Cachew, section 6.1).
const UTILISATION: f64 = 0.8;
/// Ratios within 10 % of 1 are left alone (Kubernetes' default).
const TOLERANCE: f64 = 0.1;
/// Reports whose highest recommendation counts when scaling down: a stabilisation window of 5 minutes,
/// in reports of about half a minute.
const STABILISATION_REPORTS: usize = 10;

/// State of the autoscaler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hpa {
    pub target: u32,
    recommended: Vec<u32>,
}

impl Default for Hpa {
    fn default() -> Self {
        Self { target: 1, recommended: Vec::new() }
    }
}

impl ScalingPolicy for Hpa {
    fn begin(_: &Settings, _: Option<&WorkerMetrics>) -> Self {
        Self::default()
    }

    fn target(&self) -> u32 {
        self.target
    }

    /// A worker's CPU is busy while it computes, and idle while it reads, puts or finds nothing to claim.
    fn next_target(&mut self, report: &TrainingReport, _: &ScalerFacts, most: u32) -> u32 {
        let Some(total_s) = report.remote_batch_s() else { return self.target };
        let at_work = (report.remote_workers / f64::from(self.target)).clamp(0.0, 1.0);
        let ratio = at_work * report.remote_compute_s / total_s / UTILISATION;
        let desired = if (ratio - 1.0).abs() <= TOLERANCE {
            self.target
        } else {
            (f64::from(self.target) * ratio).ceil().max(1.0) as u32
        };
        self.recommended.push(desired);
        let excess = self.recommended.len().saturating_sub(STABILISATION_REPORTS);
        self.recommended.drain(..excess);
        let highest = self.recommended.iter().copied().max().unwrap_or(desired);
        // Scales up at once, at most twofold; down only if no recent report recommended more.
        let target = if desired > self.target {
            desired.min(self.target.saturating_mul(2).max(4))
        } else {
            highest.min(self.target)
        };
        self.target = target.clamp(1, most);
        self.target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_cpu_and_is_blind_to_what_waits_elsewhere() {
        let report = |compute_s: f64, workers: f64| TrainingReport {
            remote_workers: workers,
            remote_source_s: 1.0 - compute_s,
            remote_compute_s: compute_s,
            ..TrainingReport::default()
        };
        let facts = ScalerFacts::default();
        let mut busy = Hpa { target: 4, recommended: Vec::new() };
        assert_eq!(busy.next_target(&report(1.0, 4.0), &facts, 100), 5);
        let mut waiting = Hpa { target: 4, recommended: Vec::new() };
        assert_eq!(
            waiting.next_target(&report(0.3, 4.0), &facts, 100),
            2,
            "a slow source looks like leisure"
        );
    }
}
