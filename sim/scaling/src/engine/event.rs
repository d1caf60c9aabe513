//! Events of workers, ordered by time.

use std::cmp::Ordering;

/// An event of a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct EngineEvent {
    pub at_s: f64,
    /// Order of creation, which orders simultaneous events.
    pub number: u64,
    pub what: EngineEventKind,
    pub worker: u32,
    /// The worker's turn when the event was created; the event is void if it has changed.
    pub turn: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EngineEventKind {
    /// Its environment has started.
    Ready,
    /// Its split is computed; the put is next.
    Computed,
    /// Its split is committed.
    Committed,
    /// It dies while working.
    Died,
    /// Its death is detected.
    Noticed,
}

impl Eq for EngineEvent {}
impl PartialOrd for EngineEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for EngineEvent {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at_s.total_cmp(&other.at_s).then(self.number.cmp(&other.number))
    }
}
