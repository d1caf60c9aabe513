//! The progress of each rank, and the steps that are kept for ranks which have yet to take them.
//!
//! Cursors are first batches of steps. The end of an epoch has two: one behind its last step, which ranks save
//! before it is known that no step follows, and the start of the next epoch. [`PassedSteps::normal`] makes them one.

mod acks;
mod sitting;
mod turns;
mod unknown;

pub(super) use acks::AckTiming;

use super::passed::{PassedStep, PassedSteps};
use gristmill_model::Epoch;
use gristmill_model::splits::ranks::RunRanks;
use gristmill_model::splits::{Cursor, readers::RankRange};
use gristmill_stream::{RankBatch, ServedRanks};
use std::collections::{BTreeMap, VecDeque};
use turns::WaitCounts;

/// Steps that are kept for ranks which have yet to take them.
const MAX_KEPT: usize = 2;

/// A connection.
pub(super) type RankLinkId = u64;

/// The place of one rank.
#[derive(Debug, Clone, Copy)]
struct Seat {
    link: Option<RankLinkId>,
    /// Whether its rank has ever been connected to this fetcher.
    is_known: bool,
    /// Whether its rank may return to a place before steps in which it has no batch, because it was handed the
    /// step before them or named that place.
    may_return: bool,
    /// The step to hand over next.
    next: Cursor,
    /// Steps before this one were handed over, now or by an earlier fetcher.
    handed: Cursor,
    /// Steps before this one are in the rank's checkpoint.
    durable: Cursor,
    /// An acknowledgement of a step that this fetcher has yet to pass.
    early_ack: Option<Cursor>,
    /// Whether a step is on its way.
    is_sending: bool,
    was_sent_end: bool,
    turns: WaitCounts,
}

/// A step that was released, and not yet taken by all.
#[derive(Debug)]
struct Kept {
    step: PassedStep,
    batches: Vec<Option<RankBatch>>,
}

/// The next thing for a rank.
#[derive(Debug)]
pub(super) enum RankOutput {
    Step { batch: RankBatch, next: Cursor },
    End,
}

/// The next use of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamAction {
    Release,
    /// A rank went back to a step that is no longer kept, or no rank needs what comes next. The stream begins again
    /// at what is durable for all ranks, as it counts as durable what comes before its beginning.
    Reopen(Cursor),
    /// Some rank has yet to take what is kept.
    Hold,
}

/// The ranks that one fetcher serves.
#[derive(Debug)]
pub(super) struct RankStates {
    ranks: RunRanks,
    range: RankRange,
    epochs: Epoch,
    /// Whether ranks may have been handed more by an earlier fetcher.
    is_successor: bool,
    acknowledged: AckTiming,
    seats: Vec<Seat>,
    /// Whether ranks that have never connected keep the others waiting, as those that are slow do.
    waits_for_unknown: bool,
    /// Whether everything was durable before, so that the ranks may be gone.
    has_nothing_left: bool,
    passed: PassedSteps,
    /// Batches of the epochs that have ended.
    ended: BTreeMap<Epoch, u64>,
    kept: VecDeque<Kept>,
    /// Whether the stream has come to its end, so that the totals of all epochs are known.
    is_at_end: bool,
}

impl RankStates {
    /// Ranks that begin at `at`, of a run of `epochs` epochs.
    pub fn new(own: ServedRanks, (epochs, at): (Epoch, Cursor), acknowledged: AckTiming) -> Self {
        let ServedRanks { run, range, is_successor, .. } = own;
        let seat = Seat {
            link: None,
            is_known: false,
            may_return: false,
            next: at,
            handed: at,
            durable: at,
            early_ack: None,
            is_sending: false,
            was_sent_end: false,
            turns: WaitCounts::default(),
        };
        let seats = vec![seat; range.count.get() as usize];
        Self {
            ranks: run.ranks,
            range,
            epochs,
            is_successor,
            acknowledged,
            seats,
            waits_for_unknown: true,
            has_nothing_left: false,
            passed: PassedSteps::new(at),
            ended: BTreeMap::new(),
            kept: VecDeque::new(),
            is_at_end: false,
        }
    }

    /// The epoch of `end` has ended there.
    pub fn know_end(&mut self, end: Option<Cursor>) {
        self.ended.extend(end.map(|end| (end.epoch, end.batch_index)));
    }

    /// The place at which a rank goes on that wants `at` next: the next epoch, if it has no batch left in that of `at`.
    pub fn past_end(&self, seat: usize, mut at: Cursor) -> Cursor {
        while let Some(batches) = self.ended.get(&at.epoch) {
            let end = Cursor::new(at.epoch, *batches);
            let next = self.ranks.past_end(self.rank(seat), at, end);
            if next == at {
                break;
            }
            at = next;
        }
        at
    }

    /// Everything was durable before: ranks that have gone need not come back.
    pub fn expect_nobody(&mut self) {
        self.has_nothing_left = true;
    }

    pub fn len(&self) -> usize {
        self.seats.len()
    }

    /// Whether all steps are released.
    pub fn are_at_end(&self) -> bool {
        self.is_at_end
    }

    pub fn rank(&self, seat: usize) -> u32 {
        self.range.first.saturating_add(u32::try_from(seat).unwrap_or(u32::MAX))
    }

    fn end(&self) -> Cursor {
        Cursor::start_of(self.epochs)
    }

    /// The connection of a rank.
    pub fn link(&self, seat: usize) -> Option<RankLinkId> {
        self.seats.get(seat)?.link
    }

    /// Ranks without a connection that have yet to acknowledge something.
    pub fn absent(&self) -> Vec<u32> {
        self.ranks_where(|seats, seat| {
            seat.link.is_none() && seats.passed.normal(seat.durable) < seats.end()
        })
    }

    /// Ranks that have yet to acknowledge their last step.
    pub fn unacknowledged(&self) -> Vec<u32> {
        self.ranks_where(|seats, seat| seats.passed.normal(seat.durable) < seats.end())
    }

    /// Ranks that have yet to take a step which others have taken.
    pub fn slowest(&self) -> Vec<u32> {
        let least = self.least_next();
        if self.kept.len() < self.most_kept() {
            Vec::new()
        } else {
            self.ranks_where(|seats, seat| seats.passed.normal(seat.next) == least)
        }
    }

    fn ranks_where(&self, is_one: impl Fn(&Self, &Seat) -> bool) -> Vec<u32> {
        let seats = self.seats.iter().enumerate();
        seats.filter(|(_, seat)| is_one(self, seat)).map(|(i, _)| self.rank(i)).collect()
    }

    /// A rank's connection is gone.
    pub fn leave(&mut self, seat: usize) {
        self.seats[seat].link = None;
        self.seats[seat].is_sending = false;
    }

    /// A rank waits for its next step from now on.
    pub fn waits(&mut self, seat: usize) {
        self.seats[seat].turns.announce();
    }

    /// A rank has taken the step that was on its way.
    pub fn taken(&mut self, seat: usize) {
        self.seats[seat].is_sending = false;
        if self.acknowledged == AckTiming::Taken {
            self.keep(seat, self.seats[seat].next);
        }
        if self.seats[seat].was_sent_end {
            self.seats[seat].may_return = false;
            self.drop_taken();
        }
    }

    /// Whether the ranks compute, so that the stream keeps nobody waiting.
    pub fn compute(&self) -> bool {
        let head = self.passed.head();
        let waits = |seat: &Seat| {
            let is_next = self.passed.normal(seat.next) == head;
            seat.link.is_some() && is_next && !seat.turns.trainer_computes()
        };
        !self.seats.iter().any(waits)
    }

    fn least_next(&self) -> Cursor {
        let holds = |seat: &&Seat| seat.is_known || self.waits_for_unknown;
        let next = self.seats.iter().filter(holds).map(|seat| self.passed.normal(seat.next));
        next.min().unwrap_or_default()
    }

    /// The next use of the stream.
    pub fn wanted(&self) -> StreamAction {
        let head = self.passed.head();
        let first = self.kept.front().map_or(head, |kept| kept.step.start);
        let least = self.least_next();
        match () {
            () if least < first || head < self.passed.normal(self.durable()) => {
                StreamAction::Reopen(self.durable())
            }
            () if self.kept.len() < self.most_kept() && !self.is_at_end => StreamAction::Release,
            () => StreamAction::Hold,
        }
    }

    /// Most steps to keep. One that is released may count as acknowledged, and would be lost with this process.
    fn most_kept(&self) -> usize {
        match self.acknowledged {
            AckTiming::Said => MAX_KEPT,
            AckTiming::HandedOver | AckTiming::Taken => {
                usize::from(self.seats.iter().all(|seat| seat.link.is_some()))
            }
        }
    }

    /// The stream begins again at `at`.
    pub fn reopened(&mut self, at: Cursor) {
        self.kept.clear();
        self.is_at_end = false;
        self.passed.reopened(at);
        if self.acknowledged != AckTiming::Said {
            // It goes on no earlier than with what has not counted as acknowledged.
            for seat in &mut self.seats {
                seat.next = seat.next.max(at);
                (seat.handed, seat.durable) = (seat.handed.max(at), seat.durable.max(at));
            }
        }
    }

    /// A step from `start` up to `next` was released; whether for the first time.
    pub fn release(
        &mut self,
        (start, next): (Cursor, Cursor),
        batches: Vec<Option<RankBatch>>,
    ) -> bool {
        let given = batches.iter().flatten().count();
        let step = PassedStep { start, next, given };
        let is_first = self.passed.push(step);
        self.kept.push_back(Kept { step, batches });
        for seat in 0..self.seats.len() {
            if let Some(batch) = self.seats[seat].early_ack {
                self.seats[seat].early_ack = None;
                let _ = self.acknowledge(seat, batch);
            }
        }
        self.drop_taken();
        is_first
    }

    /// The steps of `epoch` are over.
    pub fn end_epoch(&mut self, epoch: Epoch) {
        self.passed.end_epoch(epoch);
        self.drop_taken();
    }

    /// The steps of all epochs are over.
    pub fn end_all(&mut self) {
        self.passed.go_to(self.end());
        self.is_at_end = true;
        self.drop_taken();
    }

    /// The next thing to send to some rank, and its connection.
    pub fn hand_over(&mut self) -> Option<(RankLinkId, RankOutput)> {
        for index in 0..self.seats.len() {
            let seat = &mut self.seats[index];
            let (Some(link), false) = (seat.link, seat.is_sending) else { continue };
            let place = self.passed.normal(seat.next);
            let is_over = self.is_at_end && place >= Cursor::start_of(self.epochs);
            if is_over && !seat.was_sent_end {
                seat.was_sent_end = true;
                seat.is_sending = true;
                return Some((link, RankOutput::End));
            }
            let Some(kept) = self.kept.iter().find(|kept| kept.step.start == place) else {
                continue;
            };
            let Some(batch) = kept.batches.get(index).cloned().flatten() else { continue };
            let next = kept.step.next;
            seat.next = next;
            seat.handed = seat.handed.max(next);
            (seat.is_sending, seat.may_return) = (true, true);
            seat.turns.send();
            if self.acknowledged == AckTiming::HandedOver {
                seat.durable = next;
            }
            self.drop_taken();
            return Some((link, RankOutput::Step { batch, next }));
        }
        None
    }

    /// Passes ranks over steps in which they have no batch, and forgets steps that all have taken.
    fn drop_taken(&mut self) {
        for index in 0..self.seats.len() {
            let seat = &mut self.seats[index];
            while let Some(step) = self.passed.find(self.passed.normal(seat.next))
                && step.given <= index
            {
                seat.next = step.next;
                seat.handed = seat.handed.max(step.next);
            }
            let handed = self.passed.normal(seat.handed);
            let is_free = seat.is_known && !seat.may_return;
            while is_free
                && let Some(step) = self.passed.find(self.passed.normal(seat.durable))
                && step.given <= index
                && self.passed.normal(step.next) <= handed
            {
                seat.durable = step.next;
            }
        }
        let least = self.least_next();
        while self.kept.front().is_some_and(|kept| self.passed.normal(kept.step.next) <= least) {
            self.kept.pop_front();
        }
        let durable = self.durable();
        self.passed.forget_before(durable);
    }

    /// Steps before this one are in the checkpoints of all ranks.
    pub fn durable(&self) -> Cursor {
        let durable = self.seats.iter().map(|seat| seat.durable);
        durable.min_by_key(|durable| (self.passed.normal(*durable), *durable)).unwrap_or_default()
    }

    /// Whether every step is in the checkpoints of all ranks, and each rank has come: one without any batch has
    /// nothing to acknowledge, and waits for the end all the same.
    pub fn are_done(&self) -> bool {
        let have_come = self.has_nothing_left || self.seats.iter().all(|seat| seat.is_known);
        self.is_at_end && have_come && self.passed.normal(self.durable()) >= self.end()
    }
}

#[cfg(test)]
mod tests;
