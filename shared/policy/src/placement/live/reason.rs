//! The decision, and its reason in one line with its numbers.

use super::WorkerTarget;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Workers to hold from now on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PlacementDecision {
    pub target: WorkerTarget,
    pub reason: PlacementReason,
}

/// Reason for the number of local workers. Shares are from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum PlacementReason {
    /// No other count is being tried.
    Held,
    /// Another count is tried from now on.
    Tried { from: u32, to: u32 },
    /// The step with this count is being measured.
    Compared { from: u32, to: u32 },
    /// The trial's result: the step was longer by `slowdown` with the greater count, which pays up to `break_even`.
    Decided { from: u32, to: u32, local: u32, slowdown: f64, break_even: f64 },
    /// The load is another: earlier trials are void.
    LoadChanged { local: u32 },
}

impl fmt::Display for PlacementReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Held => f.write_str("hold"),
            Self::Tried { from, to } => {
                write!(f, "try: {} instead of {from}", LocalWorkers(to))
            }
            Self::Compared { from, to } => {
                write!(f, "hold: {} are compared with {from}", LocalWorkers(to))
            }
            Self::Decided { from, to, local, slowdown, break_even } => write!(
                f,
                "{}: with {} instead of {} the step takes {:+.1} %, and up to {:.1} % pays",
                LocalWorkers(local),
                from.max(to),
                from.min(to),
                1e2 * slowdown,
                1e2 * break_even,
            ),
            Self::LoadChanged { local } => {
                write!(f, "load: another one: {} until measured again", LocalWorkers(local))
            }
        }
    }
}

/// "1 local worker", "2 local workers".
struct LocalWorkers(u32);

impl fmt::Display for LocalWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} local worker{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}
