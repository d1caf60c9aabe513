//! The policy's output: a target, and the reason in one line with its numbers.

use gristmill_model::wire::MetricsOrigin;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Workers to hold from now on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    pub target: u32,
    pub reason: Reason,
}

impl Decision {
    /// The number that the user set.
    pub(super) fn fixed(workers: u32) -> Self {
        Self { target: workers, reason: Reason::Fixed { workers } }
    }

    /// A move from one count to another, or none, by a policy that gives no measurement as its reason.
    pub(super) fn moved(from: u32, workers: u32) -> Self {
        Self { target: workers, reason: Reason::Moved { from, workers } }
    }
}

/// Limit that keeps the target from being higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    MaxWorkers,
    Concurrency,
    Budget,
}

/// Reason for the target. Times are in seconds, shares from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum Reason {
    /// The count was set by the user.
    Fixed { workers: u32 },
    /// Another target, without further reason.
    Moved { from: u32, workers: u32 },
    /// This job has measured nothing yet.
    Start { workers: u32, origin: MetricsOrigin },
    /// The first target, from the times of one worker and of the trainer.
    Estimate { worker_batch_s: f64, step_s: f64, workers: u32 },
    /// The trainer waits: the workers cover `covered` of its demand.
    Stalled { covered: f64, from: u32, workers: u32 },
    /// More is made than used: the queue grows or the window is full.
    Surplus { covered: f64, from: u32, workers: u32 },
    /// Contention: more workers make no more batches.
    Contention { from: u32, workers: u32 },
    /// The trainer's own step changed.
    StepChanged { before_s: f64, after_s: f64, workers: u32 },
    /// A worker's time per batch changed.
    WorkerChanged { before_s: f64, after_s: f64, workers: u32 },
    /// Another execution mode: measurement restarts.
    ModeChanged { workers: u32 },
    /// This job differs from the measurements of earlier ones: measurement restarts.
    Discarded { workers: u32 },
    /// The account refuses further invocations.
    Throttled { granted: u32 },
    /// The account may allow more again.
    Retry { workers: u32 },
    /// More workers would help but are not allowed.
    Limited { limit: Limit, desired: u32, workers: u32 },
    /// The count is good; it is checked again later.
    Converged { covered: f64, workers: u32 },
    /// Workers of this target are not all at work yet, or their batches have not arrived.
    Settling { workers: u32 },
    /// The job has no work left to hand out.
    NothingLeft { workers: u32 },
    /// Too few reports to decide.
    Measuring { reports: u32, workers: u32 },
    /// The report has no new batches.
    Repeated { workers: u32 },
    /// The report's numbers are impossible.
    Implausible { workers: u32 },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = Workers;
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let hold = |workers, why: &str| format!("hold: {}, {why}", count(workers));
        let covers = |covered, from, workers| {
            format!("{} cover {} of the demand: {}", count(from), percent(covered), count(workers))
        };
        let load = |what: &str, before_s, after_s, workers| {
            let (before, after, workers) = (Seconds(before_s), Seconds(after_s), count(workers));
            format!("load: {what} went from {before} to {after}: {workers}")
        };
        f.write_str(&match *self {
            Self::Fixed { workers } => format!("fixed: {}", count(workers)),
            Self::Moved { from, workers } if from == workers => format!("hold: {}", count(workers)),
            Self::Moved { from, workers } => {
                format!("move: from {} to {}", count(from), count(workers))
            }
            Self::Start { workers, origin } => {
                format!("start: {}, {}", count(workers), started_by(origin))
            }
            Self::Estimate { worker_batch_s, step_s, workers } => {
                let (batch, step) = (Seconds(worker_batch_s), Seconds(step_s));
                let times = format!("a worker makes a batch in {batch}, the trainer takes {step}");
                format!("estimate: {times}: {}", count(workers))
            }
            Self::Stalled { covered, from, workers } => {
                format!("stalled: {}", covers(covered, from, workers))
            }
            Self::Surplus { covered, from, workers } => {
                format!("surplus: {}", covers(covered, from, workers))
            }
            Self::Contention { from, workers } => {
                let (from, workers) = (count(from), count(workers));
                format!("contention: beyond some count {from} make no more than fewer: {workers}")
            }
            Self::StepChanged { before_s, after_s, workers } => {
                load("the trainer's step", before_s, after_s, workers)
            }
            Self::WorkerChanged { before_s, after_s, workers } => {
                load("a worker's batch", before_s, after_s, workers)
            }
            Self::ModeChanged { workers } => {
                format!("mode changed: {} until measured again", count(workers))
            }
            Self::Discarded { workers } => format!(
                "stored metrics discarded: three reports differ from them by over 20 %: {}",
                count(workers)
            ),
            Self::Throttled { granted } => {
                format!("throttled: the account grants {}", count(granted))
            }
            Self::Retry { workers } => {
                format!("retry: the account may grant {} now", count(workers))
            }
            Self::Limited { limit, desired, workers } => {
                format!("limit: {} would be needed, {limit} allows {workers}", count(desired))
            }
            Self::Converged { covered, workers } => {
                format!("converged: {} cover {} of the demand", count(workers), percent(covered))
            }
            Self::Settling { workers } => hold(workers, "their batches have yet to arrive"),
            Self::NothingLeft { workers } => hold(workers, "nothing left to hand out"),
            Self::Measuring { reports, workers } => {
                format!("hold: {} measured for {reports} reports", count(workers))
            }
            Self::Repeated { workers } => hold(workers, "no batch since the report before"),
            Self::Implausible { workers } => hold(workers, "the report's numbers are impossible"),
        })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MaxWorkers => "the job's maximum",
            Self::Concurrency => "the account's concurrency",
            Self::Budget => "the budget",
        })
    }
}

fn started_by(origin: MetricsOrigin) -> &'static str {
    match origin {
        MetricsOrigin::Measured => "nothing measured",
        MetricsOrigin::Stored => "as earlier jobs of this pipeline",
    }
}

/// "1 worker", "2 workers".
struct Workers(u32);

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} worker{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// Three digits, in seconds, milliseconds or microseconds.
struct Seconds(f64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            s if s >= 1.0 => write!(f, "{s:.2} s"),
            s if s >= 0.01 => write!(f, "{:.0} ms", s * 1e3),
            s if s >= 0.001 => write!(f, "{:.1} ms", s * 1e3),
            s => write!(f, "{:.0} us", s * 1e6),
        }
    }
}
