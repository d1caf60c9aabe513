//! The policy's output: a target, and the reason in one line with its numbers.

use gristmill_model::wire::MetricsOrigin;
use std::fmt;

/// Workers to hold from now on, and why; shown in one line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    pub target: u32,
    pub reason: Reason,
}

/// Limit that keeps the target from being higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    MaxWorkers,
    Concurrency,
    Budget,
}

/// Reason for the target. Times are in seconds, shares from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reason {
    /// A move from another count, or none, without further reason.
    Moved { from: u32 },
    /// This job has measured nothing yet.
    Start { origin: MetricsOrigin },
    /// The first target, from the times of one worker and of the trainer.
    Estimate { worker_batch_s: f64, step_s: f64 },
    /// The trainer waits: the workers before cover `covered` of its demand.
    Stalled { covered: f64, from: u32 },
    /// More workers make no more batches.
    Contention { from: u32 },
    /// The trainer's own step changed.
    StepChanged { before_s: f64, after_s: f64 },
    /// A worker's computing time per batch changed.
    WorkerChanged { before_s: f64, after_s: f64 },
    /// Another execution mode: measurement restarts.
    ModeChanged,
    /// This job differs from the measurements of earlier ones: measurement restarts.
    Discarded,
    /// The account refuses further invocations.
    Throttled,
    /// The account may allow more again.
    Retry,
    /// More workers would help but are not allowed.
    Limited { limit: Limit, desired: u32 },
    /// The count is good; it is checked again later.
    Converged { covered: f64 },
    /// The report says nothing of this count, because..
    Held(&'static str),
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = WorkerCount(self.target);
        match self.reason {
            Reason::Moved { from } if from == self.target => write!(f, "hold: {target}"),
            Reason::Moved { from } => write!(f, "move: from {} to {target}", WorkerCount(from)),
            Reason::Start { origin: MetricsOrigin::Measured } => {
                write!(f, "start: {target}, nothing measured")
            }
            Reason::Start { origin: MetricsOrigin::Stored } => {
                write!(f, "start: {target}, as earlier jobs of this pipeline")
            }
            Reason::Estimate { worker_batch_s, step_s } => {
                let (batch, step) = (ShortTime(worker_batch_s), ShortTime(step_s));
                write!(
                    f,
                    "estimate: a worker makes a batch in {batch}, the trainer takes {step}: {target}"
                )
            }
            Reason::Stalled { covered, from } => {
                let (from, covered) = (WorkerCount(from), 100.0 * covered);
                write!(f, "stalled: {from} cover {covered:.0} % of the demand: {target}")
            }
            Reason::Contention { from } => {
                let from = WorkerCount(from);
                write!(f, "contention: beyond some count {from} make no more than fewer: {target}")
            }
            Reason::StepChanged { before_s, after_s } => {
                let (before, after) = (ShortTime(before_s), ShortTime(after_s));
                write!(f, "load: the trainer's step went from {before} to {after}: {target}")
            }
            Reason::WorkerChanged { before_s, after_s } => {
                let (before, after) = (ShortTime(before_s), ShortTime(after_s));
                write!(f, "load: a worker's batch went from {before} to {after}: {target}")
            }
            Reason::ModeChanged => write!(f, "mode changed: {target} until measured again"),
            Reason::Discarded => {
                let why = "three reports differ from them by over 20 %";
                write!(f, "stored metrics discarded: {why}: {target}")
            }
            Reason::Throttled => write!(f, "throttled: the account grants {target}"),
            Reason::Retry => write!(f, "retry: the account may grant {target} now"),
            Reason::Limited { limit, desired } => {
                let (desired, most) = (WorkerCount(desired), self.target);
                let limit = match limit {
                    Limit::MaxWorkers => "the job's maximum",
                    Limit::Concurrency => "the account's concurrency",
                    Limit::Budget => "the budget",
                };
                write!(f, "limit: {desired} would be needed, {limit} allows {most}")
            }
            Reason::Converged { covered } => {
                write!(f, "converged: {target} cover {:.0} % of the demand", 100.0 * covered)
            }
            Reason::Held(why) => write!(f, "hold: {target}, {why}"),
        }
    }
}

/// "1 worker", "2 workers".
struct WorkerCount(u32);

impl fmt::Display for WorkerCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} worker{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// Three digits, in seconds, milliseconds or microseconds.
struct ShortTime(f64);

impl fmt::Display for ShortTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            s if s >= 1.0 => write!(f, "{s:.2} s"),
            s if s >= 0.01 => write!(f, "{:.0} ms", s * 1e3),
            s if s >= 0.001 => write!(f, "{:.1} ms", s * 1e3),
            s => write!(f, "{:.0} us", s * 1e6),
        }
    }
}
