//! Ranks of a restarted fetcher that have yet to come back to it.

use super::RankStates;
use gristmill_model::splits::Cursor;

impl RankStates {
    /// A rank wants `at` next, so all ranks took the step before it from an earlier fetcher. They need not have
    /// noticed that it is gone: those that took this step too wait for this rank in their collective operation,
    /// and connect again only after it.
    pub(super) fn expect_others(&mut self, at: Cursor) {
        for seat in self.seats.iter_mut().filter(|seat| !seat.is_known) {
            seat.next = seat.next.max(at);
        }
    }

    /// Whether ranks that have never connected keep the others waiting.
    pub fn is_waiting_for_unknown(&self) -> bool {
        self.waits_for_unknown && self.seats.iter().any(|seat| !seat.is_known)
    }

    /// Ranks that have yet to connect keep nobody waiting from now on. They may still read what an earlier fetcher
    /// wrote to them, and wait in their collective operation for a rank that is connected here. One that is not that
    /// far makes the stream begin again.
    pub fn stop_waiting_for_unknown(&mut self) {
        self.waits_for_unknown = false;
        self.drop_taken();
    }
}
