//! The progress of each rank, and the steps that are kept for ranks which have yet to take them.
//!
//! Cursors are first batches of steps. The end of an epoch has two: one behind its last step, which ranks save
//! before it is known that no step follows, and the start of the next epoch. [`PassedSteps::normal`] makes them one.

use gristmill_model::splits::Cursor;
use gristmill_model::splits::ranks::RunRanks;
use gristmill_model::splits::readers::RankRange;
use gristmill_model::{Epoch, Visitation};
use gristmill_stream::{RankBatch, ServedRanks};
use std::collections::{BTreeMap, VecDeque};

/// Steps that are kept for ranks which have yet to take them.
const MAX_KEPT: usize = 2;

/// A connection.
pub(super) type RankLinkId = u64;

/// The place of one rank.
#[derive(Debug, Clone, Copy)]
struct RankState {
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
    states: Vec<RankState>,
    /// Whether ranks that have never connected keep the others waiting, as those that are slow do.
    waits_for_unknown: bool,
    /// Whether everything was durable before, so that the ranks may be gone.
    pub has_nothing_left: bool,
    passed: PassedSteps,
    ended: BTreeMap<Epoch, u64>,
    kept: VecDeque<Kept>,
    /// Whether the stream has come to its end, so that the totals of all epochs are known.
    pub is_at_end: bool,
}

impl RankStates {
    /// Ranks that begin at `at`, of a run of `epochs` epochs.
    pub fn new(own: ServedRanks, epochs: Epoch, at: Cursor, acknowledged: AckTiming) -> Self {
        let ServedRanks { run, range, is_successor, .. } = own;
        let rank_index = RankState {
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
        let states = vec![rank_index; range.count.get() as usize];
        Self {
            ranks: run.ranks,
            range,
            epochs,
            is_successor,
            acknowledged,
            states,
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
    pub fn past_end(&self, rank_index: usize, mut at: Cursor) -> Cursor {
        while let Some(batches) = self.ended.get(&at.epoch) {
            let end = Cursor::new(at.epoch, *batches);
            let next = self.ranks.past_end(self.rank(rank_index), at, end);
            if next == at {
                break;
            }
            at = next;
        }
        at
    }

    /// Number of ranks that this fetcher serves.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// The number, in the run, of the rank at `rank_index`.
    pub fn rank(&self, rank_index: usize) -> u32 {
        self.range.first.saturating_add(u32::try_from(rank_index).unwrap_or(u32::MAX))
    }

    /// The place of the batch of the rank at `rank_index` among those of a step.
    fn data_rank(&self, rank_index: usize) -> u32 {
        self.ranks.data_rank(self.rank(rank_index))
    }

    fn end(&self) -> Cursor {
        Cursor::start_of(self.epochs)
    }

    /// The ranks that are connected, by index.
    pub fn links(&self) -> Vec<(usize, RankLinkId)> {
        let states = self.states.iter().enumerate();
        states.filter_map(|(rank_index, state)| Some((rank_index, state.link?))).collect()
    }

    /// The connection of a rank.
    pub fn link(&self, rank_index: usize) -> Option<RankLinkId> {
        self.states.get(rank_index)?.link
    }

    /// Ranks without a connection that have yet to acknowledge something.
    pub fn absent(&self) -> Vec<u32> {
        self.ranks_where(|states, rank_index| {
            rank_index.link.is_none() && states.passed.normal(rank_index.durable) < states.end()
        })
    }

    /// Ranks that have yet to acknowledge their last step.
    pub fn unacknowledged(&self) -> Vec<u32> {
        self.ranks_where(|states, rank_index| {
            states.passed.normal(rank_index.durable) < states.end()
        })
    }

    /// Ranks that have yet to take a step which others have taken.
    pub fn slowest(&self) -> Vec<u32> {
        let least = self.least_next();
        if self.kept.len() < self.most_kept() {
            Vec::new()
        } else {
            self.ranks_where(|states, rank_index| states.passed.normal(rank_index.next) == least)
        }
    }

    fn ranks_where(&self, is_one: impl Fn(&Self, &RankState) -> bool) -> Vec<u32> {
        let states = self.states.iter().enumerate();
        states
            .filter(|(_, rank_index)| is_one(self, rank_index))
            .map(|(i, _)| self.rank(i))
            .collect()
    }

    /// A rank's connection is gone.
    pub fn leave(&mut self, rank_index: usize) {
        self.states[rank_index].link = None;
        self.states[rank_index].is_sending = false;
    }

    /// A rank waits for its next step from now on.
    pub fn waits(&mut self, rank_index: usize) {
        self.states[rank_index].turns.announced += 1;
    }

    /// A rank has taken the step that was on its way.
    pub fn taken(&mut self, rank_index: usize) {
        self.states[rank_index].is_sending = false;
        if self.acknowledged == AckTiming::Taken {
            self.keep(rank_index, self.states[rank_index].next);
        }
        if self.states[rank_index].was_sent_end {
            self.states[rank_index].may_return = false;
            self.drop_taken();
        }
    }

    /// Whether the ranks compute, so that the stream keeps nobody waiting.
    pub fn compute(&self) -> bool {
        let head = self.passed.head();
        let waits = |rank_index: &RankState| {
            let is_next = self.passed.normal(rank_index.next) == head;
            rank_index.link.is_some() && is_next && !rank_index.turns.trainer_computes()
        };
        !self.states.iter().any(waits)
    }

    fn least_next(&self) -> Cursor {
        let holds = |rank_index: &&RankState| rank_index.is_known || self.waits_for_unknown;
        let held = self.states.iter().filter(holds);
        held.map(|rank_index| self.passed.normal(rank_index.next)).min().unwrap_or_default()
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
                usize::from(self.states.iter().all(|rank_index| rank_index.link.is_some()))
            }
        }
    }

    /// The stream begins again at `at`.
    pub fn reopened(&mut self, at: Cursor) {
        self.kept.clear();
        self.is_at_end = false;
        self.passed.head = at;
        if self.acknowledged != AckTiming::Said {
            // It goes on no earlier than with what has not counted as acknowledged.
            for rank_index in &mut self.states {
                rank_index.next = rank_index.next.max(at);
                (rank_index.handed, rank_index.durable) =
                    (rank_index.handed.max(at), rank_index.durable.max(at));
            }
        }
    }

    /// A step from `start` up to `next` was released; whether for the first time.
    pub fn release(
        &mut self,
        start: Cursor,
        next: Cursor,
        batches: Vec<Option<RankBatch>>,
    ) -> bool {
        let with_batch = (0..).zip(&batches).filter(|(_, batch)| batch.is_some());
        let given = with_batch.map(|(index, _)| self.data_rank(index) + 1).max().unwrap_or(0);
        let step = PassedStep { start, next, given };
        let is_first = self.passed.push(step);
        self.kept.push_back(Kept { step, batches });
        for rank_index in 0..self.states.len() {
            if let Some(batch) = self.states[rank_index].early_ack {
                self.states[rank_index].early_ack = None;
                let _ = self.acknowledge(rank_index, batch);
            }
        }
        self.drop_taken();
        is_first
    }

    /// The steps of `epoch` are over.
    pub fn end_epoch(&mut self, epoch: Epoch) {
        self.passed.go_to(Cursor::start_of(epoch.saturating_add(1)));
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
        for index in 0..self.states.len() {
            let rank_index = &mut self.states[index];
            let (Some(link), false) = (rank_index.link, rank_index.is_sending) else { continue };
            let place = self.passed.normal(rank_index.next);
            let is_over = self.is_at_end && place >= Cursor::start_of(self.epochs);
            if is_over && !rank_index.was_sent_end {
                rank_index.was_sent_end = true;
                rank_index.is_sending = true;
                return Some((link, RankOutput::End));
            }
            let Some(kept) = self.kept.iter().find(|kept| kept.step.start == place) else {
                continue;
            };
            let Some(batch) = kept.batches.get(index).cloned().flatten() else { continue };
            let next = kept.step.next;
            rank_index.next = next;
            rank_index.handed = rank_index.handed.max(next);
            (rank_index.is_sending, rank_index.may_return) = (true, true);
            rank_index.turns.sent += 1;
            if self.acknowledged == AckTiming::HandedOver {
                rank_index.durable = next;
            }
            self.drop_taken();
            return Some((link, RankOutput::Step { batch, next }));
        }
        None
    }

    /// Passes ranks over steps in which they have no batch, and forgets steps that all have taken.
    fn drop_taken(&mut self) {
        for index in 0..self.states.len() {
            let data_rank = self.data_rank(index);
            let rank_index = &mut self.states[index];
            while let Some(step) = self.passed.find(self.passed.normal(rank_index.next))
                && step.given <= data_rank
            {
                rank_index.next = step.next;
                rank_index.handed = rank_index.handed.max(step.next);
            }
            let handed = self.passed.normal(rank_index.handed);
            let is_free = rank_index.is_known && !rank_index.may_return;
            while is_free
                && let Some(step) = self.passed.find(self.passed.normal(rank_index.durable))
                && step.given <= data_rank
                && self.passed.normal(step.next) <= handed
            {
                rank_index.durable = step.next;
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
        let durable = self.states.iter().map(|rank_index| rank_index.durable);
        durable.min_by_key(|durable| (self.passed.normal(*durable), *durable)).unwrap_or_default()
    }

    /// Whether every step is in the checkpoints of all ranks, and each rank has come: one without any batch has
    /// nothing to acknowledge, and waits for the end all the same.
    pub fn are_done(&self) -> bool {
        let have_come =
            self.has_nothing_left || self.states.iter().all(|rank_index| rank_index.is_known);
        self.is_at_end && have_come && self.passed.normal(self.durable()) >= self.end()
    }
}

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
    /// The moment of acknowledgement that keeps the guarantee of `visitation`.
    pub fn from_visitation(visitation: Visitation) -> Self {
        match visitation {
            Visitation::ExactlyOnce => Self::Said,
            Visitation::AtMostOnce | Visitation::ZeroOnceOrMore => Self::HandedOver,
        }
    }
}

impl RankStates {
    /// The checkpoint of a rank contains its own `batch` and all before.
    pub fn acknowledge(&mut self, rank_index: usize, batch: Cursor) -> Result<(), String> {
        let rank = self.rank(rank_index);
        let RankState { durable, handed, .. } = self.states[rank_index];
        if batch < durable {
            return Ok(());
        }
        let data_rank = self.data_rank(rank_index);
        let start = batch.batch_index.checked_sub(u64::from(data_rank));
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
            Some(step) if data_rank < step.given => self.states[rank_index].durable = step.next,
            None if start >= self.passed.head() => self.states[rank_index].early_ack = Some(batch),
            _ => return Err(not_own()),
        }
        self.drop_taken();
        Ok(())
    }

    /// The rank's checkpoint contains everything before `at`.
    pub fn keep(&mut self, rank_index: usize, at: Cursor) {
        if self.passed.normal(self.states[rank_index].durable) < self.passed.normal(at) {
            self.states[rank_index].durable = at;
            self.drop_taken();
        }
    }

    /// The checkpoint of the whole job at `at` is durable, as one rank says.
    pub fn acknowledge_job(&mut self, rank_index: usize, at: Cursor) -> Result<(), String> {
        let rank = self.rank(rank_index);
        let place = self.passed.normal(at);
        let lacks = |rank_index: &&RankState| {
            rank_index.link.is_some() && place > self.passed.normal(rank_index.next)
        };
        if let Some(lacking) = self.states.iter().find(lacks) {
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
        for rank_index in &mut self.states {
            if self.passed.normal(rank_index.durable) < place {
                rank_index.durable = at;
                (rank_index.next, rank_index.handed) =
                    (rank_index.next.max(at), rank_index.handed.max(at));
            }
        }
        self.drop_taken();
        Ok(())
    }

    /// Refuses a place behind the end of the job, which no run may begin at.
    pub fn check_end(&self, rank_index: usize, at: Option<Cursor>) -> Result<(), String> {
        let end = self.end();
        match at.filter(|at| *at > end) {
            None => Ok(()),
            Some(at) => Err(format!(
                "rank {} wants {at}, and this run ends at {end}: read on with a larger --epochs, or restore another \
                 checkpoint",
                self.rank(rank_index)
            )),
        }
    }

    /// Connects a rank that wants the step at `at` next; without it, the first one that is not durable.
    pub fn sit(
        &mut self,
        rank_index: usize,
        at: Option<Cursor>,
        link: RankLinkId,
    ) -> Result<(), String> {
        let rank = self.rank(rank_index);
        let RankState { durable, handed, .. } = self.states[rank_index];
        let may_return = at.is_some();
        let at = at.unwrap_or(durable);
        // A step that counts as acknowledged without a word is not given again.
        let at = if self.acknowledged == AckTiming::Said { at } else { at.max(durable) };
        let at = self.past_end(rank_index, at);
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
        self.states[rank_index] = RankState {
            link: Some(link),
            is_known: true,
            may_return,
            next: at,
            handed: handed.max(at),
            turns: WaitCounts::default(),
            is_sending: false,
            was_sent_end: false,
            ..self.states[rank_index]
        };
        if self.is_successor {
            self.expect_others(at);
        }
        self.drop_taken();
        Ok(())
    }
}

/// Counts of a trainer's waits and batches: one that announces each wait computes between them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WaitCounts {
    /// Waits that the trainer announced, and batches sent to it.
    announced: u64,
    sent: u64,
}

impl WaitCounts {
    /// Whether the trainer computes. One that announces nothing is taken to wait.
    pub fn trainer_computes(self) -> bool {
        self.announced > 0 && self.announced <= self.sent
    }
}

impl RankStates {
    /// A rank wants `at` next, so all ranks took the step before it from an earlier fetcher. They need not have
    /// noticed that it is gone: those that took this step too wait for this rank in their collective operation,
    /// and connect again only after it.
    pub(super) fn expect_others(&mut self, at: Cursor) {
        for rank_index in self.states.iter_mut().filter(|rank_index| !rank_index.is_known) {
            rank_index.next = rank_index.next.max(at);
        }
    }

    /// Whether ranks that have never connected keep the others waiting.
    pub fn is_waiting_for_unknown(&self) -> bool {
        self.waits_for_unknown && self.states.iter().any(|rank_index| !rank_index.is_known)
    }

    /// Ranks that have yet to connect keep nobody waiting from now on. They may still read what an earlier fetcher
    /// wrote to them, and wait in their collective operation for a rank that is connected here. One that is not that
    /// far makes the stream begin again.
    pub fn stop_waiting_for_unknown(&mut self) {
        self.waits_for_unknown = false;
        self.drop_taken();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PassedStep {
    pub start: Cursor,
    pub next: Cursor,
    /// The first so many data ranks have a batch.
    pub given: u32,
}

/// Steps in order, and the ends of epochs.
#[derive(Debug)]
pub(super) struct PassedSteps {
    steps: VecDeque<PassedStep>,
    /// The first batch behind the last step of an epoch, by epoch.
    ends: BTreeMap<Epoch, u64>,
    /// The position of the stream.
    head: Cursor,
}

impl PassedSteps {
    /// The steps of a stream that begins at `at`.
    pub fn new(at: Cursor) -> Self {
        Self { steps: VecDeque::new(), ends: BTreeMap::new(), head: at }
    }

    /// The position of the stream.
    pub fn head(&self) -> Cursor {
        self.normal(self.head)
    }

    /// The start of the next epoch for a cursor at the known end of one.
    pub fn normal(&self, mut cursor: Cursor) -> Cursor {
        while self.ends.get(&cursor.epoch).is_some_and(|end| cursor.batch_index >= *end) {
            cursor = Cursor::start_of(cursor.epoch.saturating_add(1));
        }
        cursor
    }

    /// The first batch behind the last step of the epoch of `cursor`, if that is known and before `cursor`.
    pub fn end_before(&self, cursor: Cursor) -> Option<u64> {
        self.ends.get(&cursor.epoch).copied().filter(|end| cursor.batch_index > *end)
    }

    /// The step that begins at `start`.
    pub fn find(&self, start: Cursor) -> Option<PassedStep> {
        let index = self.steps.binary_search_by(|step| step.start.cmp(&start)).ok()?;
        self.steps.get(index).copied()
    }

    /// Whether a step begins or ends at `at`.
    pub fn is_boundary(&self, at: Cursor) -> bool {
        self.find(at).is_some() || self.steps.iter().any(|step| step.next == at)
    }

    /// Adds a step; whether it is new.
    pub fn push(&mut self, step: PassedStep) -> bool {
        self.go_to(step.start);
        self.head = step.next;
        let is_new = self.steps.back().is_none_or(|last| last.start < step.start);
        if is_new {
            self.steps.push_back(step);
        }
        is_new
    }

    /// Goes on to `at`: epochs before it are over.
    pub fn go_to(&mut self, at: Cursor) {
        while self.head.epoch < at.epoch {
            self.ends.entry(self.head.epoch).or_insert(self.head.batch_index);
            self.head = Cursor::start_of(self.head.epoch + 1);
        }
    }

    /// Forgets steps that end before `durable` or there.
    pub fn forget_before(&mut self, durable: Cursor) {
        let durable = self.normal(durable);
        while let Some(step) = self.steps.front()
            && self.normal(step.next) <= durable
        {
            self.steps.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
