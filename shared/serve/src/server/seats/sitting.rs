//! Ranks that connect, and where they go on.

use super::{AckTiming, RankLinkId, RankStates, Seat, WaitCounts};
use gristmill_model::splits::Cursor;

impl RankStates {
    /// Refuses a place behind the end of the job, which no run may begin at.
    ///
    /// # Errors
    /// The rank wants such a place.
    pub fn check_end(&self, seat: usize, at: Option<Cursor>) -> Result<(), String> {
        let end = self.end();
        match at.filter(|at| *at > end) {
            None => Ok(()),
            Some(at) => Err(format!(
                "rank {} wants {at}, and this run ends at {end}: read on with a larger --epochs, or restore another \
                 checkpoint",
                self.rank(seat)
            )),
        }
    }

    /// Connects a rank that wants the step at `at` next; without it, the first one that is not durable.
    ///
    /// # Errors
    /// Why the rank cannot go on there.
    pub fn sit(&mut self, seat: usize, at: Option<Cursor>, link: RankLinkId) -> Result<(), String> {
        let rank = self.rank(seat);
        let Seat { durable, handed, .. } = self.seats[seat];
        let may_return = at.is_some();
        let at = at.unwrap_or(durable);
        // A step that counts as acknowledged without a word is not given again.
        let at = if self.acknowledged == AckTiming::Said { at } else { at.max(durable) };
        let at = self.past_end(seat, at);
        let place = self.passed.normal(at);
        let end_before = self.ended.get(&at.epoch).filter(|end| at.batch_index > **end).copied();
        if let Some(end) = end_before.or(self.passed.end_before(at)) {
            return Err(format!(
                "rank {rank} wants {at}, and the steps of that epoch end before batch {end}: restore another checkpoint"
            ));
        }
        if place < self.passed.normal(durable) {
            return Err(format!(
                "rank {rank} wants {at}, and its run is safe up to {durable}, of which nothing is kept: restore \
                 a checkpoint at or after that on all ranks, or begin a new run (another --run)"
            ));
        }
        if !self.is_successor && place > self.passed.normal(handed) {
            return Err(format!(
                "rank {rank} wants {at}, and was handed only what comes before {handed} in this run: restore \
                 the same checkpoint on all ranks, or begin a new run (another --run)"
            ));
        }
        let step =
            self.ranks.step_of(at).filter(|step| self.ranks.first_of(*step) == at.batch_index);
        if step.is_none() && at != self.end() {
            return Err(format!(
                "rank {rank} wants {at}, and no step of {} begins there",
                self.ranks
            ));
        }
        let handed = handed.max(at);
        let (turns, is_sending, was_sent_end) = (WaitCounts::default(), false, false);
        self.seats[seat] = Seat {
            link: Some(link),
            is_known: true,
            may_return,
            next: at,
            handed,
            turns,
            is_sending,
            was_sent_end,
            ..self.seats[seat]
        };
        if self.is_successor {
            self.expect_others(at);
        }
        self.drop_taken();
        Ok(())
    }
}
