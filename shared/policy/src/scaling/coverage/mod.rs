//! `coverage`, the default policy: the fewest workers whose mean batch time is within a tolerance of the
//! best possible.
//!
//! [`decide`] is pure and takes constant time. One report covers about a hundred batches. The policy differs from climbing by one (Cachew, section 4.3) in four points:
//!
//! 1. It starts from an estimate: a worker makes a batch in `w` seconds, the trainer takes `s`, so
//!    `w / s` workers keep up (Pecan, section 5.1; FastFlow, section 9). One report at one worker gives both.
//! 2. It refines by measured coverage, not by trial. If the trainer waits for a share `f` of its time,
//!    the workers cover `1 - f` of the demand; if the queue grows by `x` batches for each one
//!    delivered, they cover `1 + x`. Both are small differences measured directly, so an error of 10 %
//!    in every number changes the answer by a tenth of the correction, not by a tenth of the count.
//! 3. It waits until the measurements are of the current count: until the trainer is past everything
//!    that was handed out when the count changed. This needs no clock.
//! 4. Contention (for a source, a network or a table at its limit) shows as capacity that does not grow
//!    with the count; the policy then searches for the knee from both sides.
//!
//! Backpressure, cold starts and the ends of bundles are not stalls: a full window never adds workers.

mod block;
mod capacity;
mod contention;
mod crowd;
mod decide;
mod estimate;
mod load;
mod refine;
mod state;
mod target;
mod thresholds;
mod throttle;
mod tracker;

pub(super) use capacity::whole;
pub use decide::decide;
pub use state::{Phase, State};

use super::{Decision, Reason, ScalerFacts, ScalingPolicy, Settings, TrainingReport};
use serde::{Deserialize, Serialize};

/// The policy with its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Coverage(Box<State>);

impl ScalingPolicy for Coverage {
    const NAME: &'static str = "coverage";
    const ABOUT: &'static str =
        "the fewest workers with which the trainer hardly waits, from measured times";

    fn begin(settings: &Settings) -> Self {
        Self(Box::new(State::begin(settings)))
    }

    fn target(&self) -> u32 {
        self.0.target
    }

    fn decide(
        &mut self,
        report: &TrainingReport,
        facts: &ScalerFacts,
        settings: &Settings,
    ) -> Decision {
        let (next, decision) = decide(report, facts, &self.0, settings);
        *self.0 = next;
        decision
    }

    fn has_converged(&self) -> bool {
        self.0.phase == Phase::Converged
    }
}
