//! The number of workers of a job, decided from its trainer's reports.
//!
//! A policy implements [`ScalingPolicy`]: its name, its state, and one decision per report, within the
//! limits of [`Settings`]. The list at the end of this file names every policy; `--policy` selects one
//! for a job. [`top_up`] holds the target while there is work.

mod baselines;
mod coverage;
mod decision;
mod facts;
mod law;
mod measurement;
mod registry;
mod settings;
mod throttle;
mod top_up;
mod trend;
mod tuning;

pub use baselines::{Cachew, estimate_workers};
pub use coverage::{Coverage, CoverageState, SearchPhase, decide};
pub use decision::{Decision, Limit, Reason};
pub use facts::ScalerFacts;
pub use registry::{ScalingPolicy, UnknownPolicy};
pub use settings::Settings;
pub use top_up::{TopUp, top_up};

use baselines::{cachew, fastflow, hpa, pecan, tfdata};
use gristmill_model::wire::{MetricsOrigin, TrainingReport, WorkerMetrics};

// The first is the default.
registry::policies! {
    coverage::Coverage: "the workers at which a batch costs least, from measured times",
    cachew::Cachew: "one worker more while batch time improves by 3 % (Cachew, section 4.3)",
    hpa::Hpa: "the number at which the workers' CPUs are busy for 80 % of the time (Kubernetes)",
    tfdata::TfData: "the trainer's rate divided by a worker's, without feedback (tf.data service)",
    pecan::Pecan: "workers added while batch time falls, then removed while cost does (Pecan, remote only)",
    fastflow::FastFlow: "the number by a profile of one worker, which is then held (FastFlow, remote only)",
}
