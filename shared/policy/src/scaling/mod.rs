//! The number of workers of a job, decided from its trainer's reports.
//!
//! A policy implements [`ScalingPolicy`]: its name, its state, and one decision per report, within the
//! limits of [`Settings`]. The list at the end of this file names every policy; `--policy` selects one
//! for a job. [`top_up`] holds the target while there is work.

mod cachew;
mod coverage;
mod decision;
mod facts;
mod hpa;
mod registry;
mod settings;
mod tfdata;
mod top_up;

pub use cachew::Cachew;
pub use coverage::{Coverage, Phase, State, decide};
pub use decision::{Decision, Limit, Reason};
pub use facts::ScalerFacts;
pub use registry::{PolicyName, ScalingPolicy, UnknownPolicy};
pub use settings::Settings;
pub use tfdata::estimate_workers;
pub use top_up::{TopUp, top_up};

use gristmill_model::wire::TrainingReport;

// The first is the default.
registry::policies! {
    coverage::Coverage,
    cachew::Cachew,
    hpa::Hpa,
    tfdata::TfData,
}
