//! Events of workers, ordered by time.

use std::cmp::Ordering;

/// An event of a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Event {
    pub at_s: f64,
    /// Order of creation, which orders simultaneous events.
    pub number: u64,
    pub what: What,
    pub worker: u32,
    /// The worker's turn when the event was created; the event is void if it has changed.
    pub turn: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
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

impl Eq for Event {}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at_s.total_cmp(&other.at_s).then(self.number.cmp(&other.number))
    }
}
