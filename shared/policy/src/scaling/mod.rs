//! The number of workers of a job: the fewest whose mean batch time is within a tolerance of the best
//! possible.
//!
//! `decide(&Report, &State, &Settings) -> (State, Decision)` is pure and takes constant time. One report covers
//! about a hundred batches. The policy differs from climbing by one (Cachew, section 4.3) in four points:
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

pub mod baselines;
mod block;
mod capacity;
mod contention;
mod crowd;
mod decide;
mod decision;
mod estimate;
mod load;
mod refine;
mod report;
mod settings;
mod state;
mod target;
mod thresholds;
mod throttle;
mod top_up;
mod tracker;

pub use baselines::{Cachew, Hpa, Policy, TfData, estimate_workers};
pub use decide::decide;
pub use decision::{Decision, Limit, Reason};
pub use report::{Report, WorkerTimes};
pub use settings::Settings;
pub use state::{Phase, State};
pub use top_up::{Observation, TopUp, top_up};
