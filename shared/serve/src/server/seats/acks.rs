//! Acknowledgements: what ranks say is safe in their checkpoints.

use super::{RankStates, Seat};
use gristmill_model::Visitation;
use gristmill_model::splits::Cursor;

/// When a step counts as acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AckTiming {
    /// When its rank says so.
    Said,
    /// Before it is sent: it is never sent twice.
    HandedOver,
    /// Once it is written, as to a client that says nothing.
    Taken,
}

impl AckTiming {
    pub fn from_visitation(visitation: Visitation) -> Self {
        match visitation {
            Visitation::ExactlyOnce => Self::Said,
            Visitation::AtMostOnce | Visitation::ZeroOnceOrMore => Self::HandedOver,
        }
    }
}

impl RankStates {
    /// The checkpoint of a rank contains its own `batch` and all before.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn acknowledge(&mut self, seat: usize, batch: Cursor) -> Result<(), String> {
        let rank = self.rank(seat);
        let Seat { durable, handed, .. } = self.seats[seat];
        if batch < durable {
            return Ok(());
        }
        let start = batch.batch_index.checked_sub(u64::from(rank));
        let start = start.map(|batch_index| Cursor { batch_index, ..batch });
        let not_own = || format!("rank {rank} acknowledges {batch}, which is not one of its own");
        let start = start.ok_or_else(not_own)?;
        if start >= self.passed.normal(handed) {
            return Err(format!(
                "rank {rank} acknowledges {batch}, and was handed only what comes before {handed}: nothing of \
                 it is kept"
            ));
        }
        match self.passed.find(start) {
            Some(step) if seat < step.given => self.seats[seat].durable = step.next,
            None if start >= self.passed.head() => self.seats[seat].early_ack = Some(batch),
            _ => return Err(not_own()),
        }
        self.drop_taken();
        Ok(())
    }

    /// The rank's checkpoint contains everything before `at`.
    pub fn keep(&mut self, seat: usize, at: Cursor) {
        if self.passed.normal(self.seats[seat].durable) < self.passed.normal(at) {
            self.seats[seat].durable = at;
            self.drop_taken();
        }
    }

    /// The checkpoint of the whole job at `at` is durable, as one rank says.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn acknowledge_job(&mut self, seat: usize, at: Cursor) -> Result<(), String> {
        let rank = self.rank(seat);
        let place = self.passed.normal(at);
        let lacks = |seat: &&Seat| seat.link.is_some() && place > self.passed.normal(seat.next);
        if let Some(lacking) = self.seats.iter().find(lacks) {
            return Err(format!(
                "rank {rank} says that the job is safe up to {at}, and a rank was handed only what comes before \
                 {}",
                lacking.next
            ));
        }
        if !self.passed.is_boundary(at) && place < self.passed.head() && at > self.durable() {
            return Err(format!(
                "rank {rank} says that the job is safe up to {at}, where no step ends"
            ));
        }
        for seat in &mut self.seats {
            if self.passed.normal(seat.durable) < place {
                seat.durable = at;
                (seat.next, seat.handed) = (seat.next.max(at), seat.handed.max(at));
            }
        }
        self.drop_taken();
        Ok(())
    }
}
