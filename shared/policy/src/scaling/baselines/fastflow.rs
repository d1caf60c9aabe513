//! FastFlow's number of workers (Um et al., VLDB 2023, section 9), for remote workers only: what one worker makes is
//! profiled once, and the number that its `Lower` needs is held.

use crate::scaling::{ScalerFacts, ScalingPolicy, Settings, TrainingReport, WorkerMetrics};
use serde::{Deserialize, Serialize};

/// State of the policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FastFlow {
    target: u32,
    is_profiled: bool,
}

impl ScalingPolicy for FastFlow {
    fn begin(_: &Settings, _: Option<&WorkerMetrics>) -> Self {
        Self { target: 1, is_profiled: false }
    }

    fn target(&self) -> u32 {
        self.target
    }

    fn next_target(&mut self, report: &TrainingReport, facts: &ScalerFacts, most: u32) -> u32 {
        let profile =
            report.remote_batch_s().filter(|_| !self.is_profiled && report.is_plausible());
        if let Some(worker_s) = profile {
            self.is_profiled = true;
            // The cast saturates.
            self.target = (facts.clients() * worker_s / report.step_s).ceil() as u32;
        }
        self.target = self.target.clamp(1, most);
        self.target
    }
}
