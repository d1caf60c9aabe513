//! Pecan's AutoPlacement (Graur et al., ATC 2024, algorithm 1), for remote workers only: local ones stay at 0.

use crate::scaling::{
    Decision, Reason, ScalerFacts, ScalingPolicy, Settings, TrainingReport, WorkerMetrics,
};
use serde::{Deserialize, Serialize};

/// Relative change of batch time that counts (section 5.1: `T`).
const THRESHOLD: f64 = 0.03;
/// Batches that a measurement is averaged over (section 5.1: `X`).
const BATCHES: f64 = 500.0;

/// The step of the algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PlacementStep {
    /// Cachew's autoscaling: one worker more while batch time falls by the threshold.
    #[default]
    Adding,
    /// One worker less while a batch costs no more.
    Removing,
    Converged,
}

/// State of the policy.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Pecan {
    target: u32,
    step: PlacementStep,
    /// Seconds and batches of the measurement under way, and the batches at the last report.
    seconds: f64,
    measured: f64,
    batches: u64,
    /// Batches before this one were handed out under another count.
    settled_at: u64,
    /// The last measurement at the count before, in seconds.
    before_s: Option<f64>,
    mode: u32,
}

impl ScalingPolicy for Pecan {
    fn begin(_: &Settings, _: Option<&WorkerMetrics>) -> Self {
        Self { target: 1, ..Self::default() }
    }

    fn target(&self) -> u32 {
        self.target
    }

    fn decide(
        &mut self,
        report: &TrainingReport,
        facts: &ScalerFacts,
        settings: &Settings,
    ) -> Decision {
        let from = self.target;
        if facts.mode != self.mode {
            *self =
                Self { mode: facts.mode, batches: report.batches, ..Self::begin(settings, None) };
        } else if report.is_plausible() && report.batches > self.batches {
            let before = std::mem::replace(&mut self.batches, report.batches);
            if before >= self.settled_at {
                let batches = (report.batches - before) as f64;
                self.measured += batches;
                self.seconds += batches * report.batch_time_s();
            }
            if self.measured >= BATCHES {
                self.measured(report, settings);
            }
        }
        self.target = self.target.clamp(1, settings.cap().0);
        Decision { target: self.target, reason: Reason::Moved { from } }
    }

    fn has_converged(&self) -> bool {
        self.step == PlacementStep::Converged
    }
}

impl Pecan {
    /// A whole measurement is done: the next step of the algorithm.
    fn measured(&mut self, report: &TrainingReport, settings: &Settings) {
        let batch_s = self.seconds / self.measured;
        let usd = |batch_s: f64, workers: u32| {
            let worker_usd = settings.usd_per_worker_hour * f64::from(workers);
            batch_s * (settings.usd_per_trainer_hour + worker_usd)
        };
        let most = settings.cap().0;
        let next = match (self.step, self.before_s) {
            (PlacementStep::Adding, Some(before_s)) if batch_s > before_s * (1.0 - THRESHOLD) => {
                self.step = PlacementStep::Removing;
                self.target - 1
            }
            (PlacementStep::Adding, _) if self.target < most => self.target + 1,
            (PlacementStep::Adding, _) => {
                self.step = PlacementStep::Removing;
                self.target - 1
            }
            (PlacementStep::Removing, Some(before_s))
                if usd(batch_s, self.target) > usd(before_s, self.target + 1) =>
            {
                self.step = PlacementStep::Converged;
                self.target + 1
            }
            (PlacementStep::Removing, _) => self.target - 1,
            (PlacementStep::Converged, _) => self.target,
        };
        (self.before_s, self.measured, self.seconds) = (Some(batch_s), 0.0, 0.0);
        if next == 0 {
            self.step = PlacementStep::Converged;
        } else if next != self.target {
            self.target = next;
            self.settled_at = report.batches.saturating_add(report.ahead_batches);
        }
    }
}
