//! Policies of other systems, for comparison in the simulator only.

mod cachew;
mod hpa;
mod tfdata;

pub use cachew::Cachew;
pub use hpa::Hpa;
pub use tfdata::{TfData, estimate_workers};

use super::{Decision, Reason, Report, Settings, State, decide};
use serde::{Deserialize, Serialize};

/// A policy with its state: ours or another's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    Ours(Box<State>),
    Cachew(Cachew),
    Hpa(Hpa),
    TfData(TfData),
    /// The initial number of workers, unchanged.
    Fixed(u32),
}

impl Policy {
    /// Workers to hold before the first report.
    pub fn target(&self, settings: &Settings) -> u32 {
        let (most, _) = settings.cap();
        let target = match self {
            Self::Ours(state) => state.target.max(State::begin(settings).target),
            Self::Cachew(cachew) => cachew.target,
            Self::Hpa(hpa) => hpa.target,
            Self::TfData(estimator) => estimator.target,
            Self::Fixed(workers) => *workers,
        };
        target.clamp(1, most)
    }

    /// Takes one report, and decides.
    pub fn decide(&mut self, report: &Report, settings: &Settings) -> Decision {
        let (most, _) = settings.cap();
        let target = match self {
            Self::Ours(state) => {
                let (next, decision) = decide(report, state, settings);
                **state = next;
                return decision;
            }
            Self::Cachew(cachew) => cachew.decide(report, most),
            Self::Hpa(hpa) => hpa.decide(report, most),
            Self::TfData(estimator) => estimator.decide(report, most),
            Self::Fixed(workers) => (*workers).clamp(1, most),
        };
        Decision { target, reason: Reason::Fixed { workers: target } }
    }

    /// Whether the policy has converged.
    pub fn has_converged(&self) -> bool {
        match self {
            Self::Ours(state) => state.phase == super::Phase::Converged,
            Self::Cachew(cachew) => cachew.converged.is_some(),
            Self::Hpa(_) | Self::TfData(_) | Self::Fixed(_) => true,
        }
    }
}
