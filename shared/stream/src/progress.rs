//! Progress of the trainer: its stream advances it, and the poller reports it.

mod acks;
mod meter;

use crate::ServedRanks;
use acks::AckTracker;
pub(crate) use acks::FirstRefusal;
use gristmill_model::splits::readers::{RankRange, ReaderReport, poll_every_ms, report_every_ms};
use gristmill_model::splits::run::RunJoin;
use gristmill_model::splits::{Cursor, ProgressAck, SplitPlace};
use gristmill_model::wire::{PollReply, ReaderStanding};
use meter::DeliveryMeter;
pub(crate) use meter::{BatchTimes, HostCpu};
use parking_lot::{Mutex, MutexGuard};
use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::sync::{Notify, watch};

/// The cursor protocol and the measurements of one trainer, with notifications for waiting tasks.
#[derive(Debug)]
pub(crate) struct FetcherProgress {
    acks: Mutex<AckTracker>,
    meter: Mutex<DeliveryMeter>,
    /// Wakes the poller: a task waits for the next poll.
    pub urgent: Notify,
    /// Wakes the poller, unless its last poll was a moment ago.
    pub soon: Notify,
    /// Whether every poll sends an acknowledgement.
    always: AtomicBool,
    /// The trainer's position as the coordinator knows it; changes with `acks`.
    acknowledged: watch::Sender<Cursor>,
}

impl FetcherProgress {
    /// A reader of `own` that resumes at batch `durable`. Nothing is reported until the splits that it needs are
    /// known; see [`FetcherProgress::starts_at`].
    pub fn new(own: ServedRanks, durable: Cursor) -> Self {
        Self {
            acks: Mutex::new(AckTracker::new(own, durable)),
            meter: Mutex::new(DeliveryMeter::default()),
            urgent: Notify::new(),
            soon: Notify::new(),
            always: AtomicBool::new(false),
            acknowledged: watch::Sender::default(),
        }
    }

    /// The cursor protocol.
    pub fn acks(&self) -> MutexGuard<'_, AckTracker> {
        self.acks.lock()
    }

    /// The measurements.
    pub fn meter(&self) -> MutexGuard<'_, DeliveryMeter> {
        self.meter.lock()
    }

    /// The trainer has confirmed where it begins; the next poll reports it to the coordinator.
    pub fn announce(&self) {
        self.acks().announce();
        self.urgent.notify_one();
        self.wake();
    }

    /// The stream restarts at batch `at`: see [`AckTracker::reopen`].
    pub fn reopen(&self, at: Cursor) {
        self.acks().reopen(at);
        self.meter().reopen();
        self.urgent.notify_one();
    }

    /// Resolves once the first split of the stream is known.
    pub async fn located(&self) {
        self.until(|acks| acks.begins_at().is_some()).await;
    }

    /// Resolves once the coordinator has accepted where the stream begins.
    pub async fn admitted(&self) {
        self.until(AckTracker::is_admitted).await;
    }

    async fn until(&self, holds: impl Fn(&AckTracker) -> bool) {
        let mut changes = self.acknowledged.subscribe();
        while !holds(&self.acks()) {
            // Cannot fail: the sender lives as long as `self`.
            let _ = changes.changed().await;
        }
    }

    fn wake(&self) {
        self.acknowledged.send_modify(|_| ());
    }

    /// The stream continues with batch `at` and the split at `next`; a restart at `durable` needs splits from
    /// `needed` on.
    pub fn starts_at(&self, at: Cursor, durable: Cursor, needed: SplitPlace, next: SplitPlace) {
        self.acks().start_at(at, durable, needed, next);
        self.wake();
    }

    /// Acknowledges progress at every poll from now on.
    pub fn acknowledge_always(&self) {
        self.always.store(true, Ordering::Relaxed);
        self.urgent.notify_one();
    }

    /// Whether every poll acknowledges.
    pub fn acknowledges_always(&self) -> bool {
        self.always.load(Ordering::Relaxed)
    }

    /// Resolves once the coordinator knows that everything before `next` is consumed.
    pub async fn consumed(&self, next: Cursor) {
        self.urgent.notify_one();
        // Cannot fail: the sender lives as long as `self`.
        let _ = self.acknowledged.subscribe().wait_for(|known| *known >= next).await;
    }

    /// Records that the coordinator wrote `ack`.
    pub fn acknowledged(&self, ack: ProgressAck) {
        let is_current = self.acks().acknowledged(ack);
        if is_current {
            self.acknowledged.send_replace(ack.durable);
        }
    }

    /// Whether a quarter of the window was consumed but not reported, so that it may block workers.
    /// `n_splits` is per epoch.
    pub fn is_window_waiting(&self, window: u32, n_splits: u32) -> bool {
        self.acks().unreported_splits(n_splits) >= u64::from(window / 4).max(1)
    }

    /// Records a poll's facts about workers.
    pub fn polled(&self, polled: &PollReply) {
        let epoch = self.acks().delivered().epoch;
        self.meter().polled(polled, epoch);
    }
}

/// The content of an answer: the generation of the run, and the reader's part in it.
pub(crate) type ReaderAnswer<'a> = (u64, &'a ReaderStanding);

/// The content of a poll beside its measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReaderRequest {
    pub ranks: RankRange,
    pub of: NonZeroU32,
    pub join: Option<RunJoin>,
    pub report: Option<ReaderReport>,
}

impl ReaderRequest {
    /// The progress that it reports. The reader of all ranks reports its beginning as it joins.
    pub fn ack(&self) -> Option<ProgressAck> {
        let begins = self.join.filter(|_| self.ranks == RankRange::all(self.of));
        self.report.map(|report| report.ack).or(begins.map(|join| join.start))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It has not joined, or not learnt that it has.
    Apart,
    /// It is one of the run of this generation, and takes the place of reader `over`, 0 if none.
    Joined { generation: u64, number: u64, over: u64 },
}

/// A reader of some or all ranks of a run.
#[derive(Debug, Clone)]
pub(crate) struct ReaderMembership {
    own: ServedRanks,
    standing: Standing,
    /// Whether it has joined before. The table may have lost that.
    has_joined: bool,
    /// Whether it reports nothing before the next answer.
    asks: bool,
    next_poll_ms: u64,
    next_report_ms: u64,
}

impl ReaderMembership {
    /// A reader of these ranks that has not joined its run yet.
    pub fn new(own: ServedRanks) -> Self {
        let readers = own.run.ranks.count.get().div_ceil(own.range.count.get());
        Self {
            own,
            standing: Standing::Apart,
            has_joined: false,
            asks: false,
            next_poll_ms: poll_every_ms(readers, own.range.first == 0),
            next_report_ms: report_every_ms(readers),
        }
    }

    /// The ranks that this reader serves.
    pub fn own(&self) -> &ServedRanks {
        &self.own
    }

    /// Whether the coordinator has accepted it as one of its run.
    pub fn is_joined(&self) -> bool {
        self.standing != Standing::Apart
    }

    /// Whether it is the only reader, which acknowledges on the job's progress itself.
    pub fn is_alone(&self) -> bool {
        self.own.are_all()
    }

    /// The coordinator refused it, or has lost that it joined.
    pub fn withdraw(&mut self) {
        self.standing = Standing::Apart;
    }

    /// The next request; `ack` is the progress to report, if that is due. One that has not joined begins with it.
    pub fn request(&self, ack: Option<ProgressAck>) -> ReaderRequest {
        let ServedRanks { run, range: ranks, is_successor, .. } = self.own;
        let of = run.ranks.count;
        let nothing = ReaderRequest { ranks, of, join: None, report: None };
        match (self.standing, ack) {
            (Standing::Apart, None) => nothing,
            (Standing::Apart, Some(start)) => {
                let is_successor = is_successor || self.has_joined;
                let join = Some(RunJoin { run, start, is_successor });
                // The only reader of several ranks reports once, so that a reader of some ranks finds that it is there.
                let reports = self.is_alone() && of > NonZeroU32::MIN;
                let number = start.generation;
                let report = ReaderReport { reader: number, over_reader: 0, ranks, ack: start };
                ReaderRequest { join, report: reports.then_some(report), ..nothing }
            }
            // First it learns whose place it takes.
            (Standing::Joined { .. }, _) if self.asks => nothing,
            (Standing::Joined { number, over, .. }, ack) => {
                let report = |ack| ReaderReport { reader: number, over_reader: over, ranks, ack };
                ReaderRequest { report: ack.map(report), ..nothing }
            }
        }
    }

    /// Records that `join` was answered. `number` is the reader's own from now on.
    /// Returns whether it has joined by that; the stream may have begun elsewhere since.
    pub fn joined(
        &mut self,
        join: &RunJoin,
        (generation, said): ReaderAnswer<'_>,
        number: u64,
    ) -> bool {
        if join.run != self.own.run || self.is_joined() {
            return false;
        }
        self.has_joined = true;
        self.standing = Standing::Joined { generation, number, over: said.number };
        true
    }

    /// Reports nothing before an answer says whose place it takes.
    pub fn ask(&mut self) {
        self.asks = true;
    }

    /// Takes the place of the reader that the answer names, with a number of at least `number`. Only before a report
    /// of this reader is accepted.
    pub fn take_place(&mut self, (said_generation, said): ReaderAnswer<'_>, number: u64) {
        let is_alone = self.is_alone();
        if let Standing::Joined { generation, number: own, over } = &mut self.standing
            && !is_alone
            && said_generation == *generation
            && ![*own, *over].contains(&said.number)
        {
            (*own, *over) = (number.max(*own), said.number);
        }
    }

    /// Why this reader must stop, if the answer to a later request says so.
    pub fn superseded(&self, (said_generation, said): ReaderAnswer<'_>) -> Option<String> {
        let Standing::Joined { generation, number, .. } = self.standing else { return None };
        // A table that has lost the run is joined again by its only reader.
        let is_known = said_generation >= generation || !self.is_alone();
        if is_known && said_generation < generation {
            return Some("the service has lost this run: start all its fetchers again".to_owned());
        }
        let token = said.run.map(|run| run.token);
        if is_known && (said_generation, token) != (generation, Some(self.own.run.token)) {
            return Some("a later run has taken over".to_owned());
        }
        let ranks = self.own.range;
        (!self.is_alone() && said.number > number)
            .then(|| format!("another fetcher has taken over {ranks}"))
    }

    /// Records an answer: how soon the next poll and the next report may come.
    pub fn set_pace(&mut self, said: &ReaderStanding) {
        self.asks = false;
        (self.next_poll_ms, self.next_report_ms) = (said.next_poll_ms, said.next_report_ms);
    }

    /// Least time between the beginnings of two polls.
    pub fn poll_every(&self) -> Duration {
        Duration::from_millis(self.next_poll_ms)
    }

    /// Least time between two reports.
    pub fn report_every_ms(&self) -> u64 {
        self.next_report_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{batch, split};
    use gristmill_model::splits::ranks::{RunRanks, TailPolicy};
    use gristmill_model::splits::run::TrainingRun;
    use gristmill_model::{Nonce, RunToken};

    fn new() -> FetcherProgress {
        FetcherProgress::new(ServedRanks::one(Nonce([7; 8]), batch(0, 0)), batch(0, 0))
    }

    #[test]
    fn a_quarter_of_the_window_is_worth_a_report() {
        let progress = new();
        progress.acks().note_passed(split(0, 3));
        assert!(!progress.is_window_waiting(16, 100));
        progress.acks().note_passed(split(0, 4));
        assert!(progress.is_window_waiting(16, 100));
        assert!(progress.is_window_waiting(1, 100), "one split is a quarter of a small window");
    }

    #[tokio::test]
    async fn waiters_wake_at_an_acknowledgement() {
        let progress = new();
        progress.acks().take_over(0, 1, Nonce([0; 8]));
        progress.starts_at(batch(0, 0), batch(0, 0), split(0, 0), split(0, 0));
        progress.announce();
        let first = progress.acks().request(true, false).ack().unwrap();
        progress.acknowledged(first);
        progress.admitted().await;
        progress.acks().make_durable(batch(0, 5));
        let ack = progress.acks().request(true, false).ack().unwrap();
        let waits = progress.consumed(batch(0, 5));
        progress.acknowledged(ack);
        waits.await;
        assert!(progress.acks().is_settled());
    }

    fn own(first: u32, count: u32, of: u32) -> ServedRanks {
        let count_of = |n| NonZeroU32::new(n).unwrap();
        let ranks = RunRanks::new(count_of(of), batch(0, 0), TailPolicy::Drop);
        let run = TrainingRun { token: RunToken::from_name("t"), ranks, epochs: None };
        ServedRanks {
            run,
            range: RankRange { first, count: count_of(count) },
            is_successor: false,
            local_workers: 0,
        }
    }

    fn ack(generation: u64) -> ProgressAck {
        let (delivered, durable) = (split(0, 0), batch(0, 0));
        ProgressAck {
            generation,
            over: 0,
            delivered,
            durable,
            durable_place: delivered,
            ended: None,
            local_workers: 0,
        }
    }

    fn said(number: u64) -> ReaderStanding {
        let run = Some(own(0, 1, 4).run);
        ReaderStanding { run, number, next_poll_ms: 7, next_report_ms: 9, uncovered: None }
    }

    /// Whether the request only asks.
    fn asks(request: ReaderRequest) -> bool {
        request.join.is_none() && request.report.is_none()
    }

    #[test]
    fn one_of_several_joins_and_then_reports_by_its_number() {
        let mut second = ReaderMembership::new(own(2, 2, 4));
        assert!(asks(second.request(None)), "it only prefetches");
        let first = second.request(Some(ack(5)));
        assert_eq!(first.ack(), None, "it does not know the run's generation");
        assert_eq!(second.request(Some(ack(5))), first, "a lost answer: the same again");
        let join = first.join.unwrap();
        assert!(second.joined(&join, (3, &said(40)), 41));
        assert!(!second.joined(&join, (3, &said(41)), 99), "an answer that comes twice");
        let report = second.request(Some(ack(3))).report.unwrap();
        assert_eq!((report.reader, report.over_reader, report.ranks.first), (41, 40, 2));
        assert!(asks(second.request(None)));
    }

    #[test]
    fn the_only_reader_begins_the_run_with_its_first_report() {
        for (of, reports) in [(1, false), (4, true)] {
            let mut all = ReaderMembership::new(own(0, of, of));
            let request = all.request(Some(ack(5)));
            assert_eq!((request.ack(), request.report.is_some()), (Some(ack(5)), reports));
            assert!(all.joined(&request.join.unwrap(), (5, &said(5)), 6));
            let request = all.request(Some(ack(5)));
            assert_eq!((request.ack(), request.join), (Some(ack(5)), None));
            assert!(asks(all.request(None)));
            let pace = (all.poll_every(), all.report_every_ms());
            assert_eq!(pace, (Duration::ZERO, 0), "one that is alone is not slowed");
        }
    }

    #[test]
    fn a_reader_stops_for_a_later_run_and_for_its_successor() {
        let mut reader = ReaderMembership::new(own(0, 1, 4));
        let join = reader.request(Some(ack(5))).join.unwrap();
        assert_eq!(reader.superseded((3, &said(0))), None, "it has not joined");
        reader.joined(&join, (3, &said(40)), 41);
        for number in [40, 41] {
            assert_eq!(reader.superseded((3, &said(number))), None);
        }
        assert_eq!(
            reader.superseded((3, &said(42))).unwrap(),
            "another fetcher has taken over rank 0"
        );
        assert_eq!(reader.superseded((4, &said(41))).unwrap(), "a later run has taken over");
        reader.withdraw();
        assert!(!reader.is_joined());
    }

    #[test]
    fn a_reader_refused_for_a_late_report_asks_whose_place_it_takes() {
        let mut reader = ReaderMembership::new(own(2, 2, 4));
        let join = reader.request(Some(ack(5))).join.unwrap();
        reader.joined(&join, (3, &said(0)), 41);
        reader.ask();
        assert!(asks(reader.request(Some(ack(3)))), "it reports nothing before the answer");
        reader.set_pace(&said(50));
        reader.take_place((4, &said(60)), 61);
        reader.take_place((3, &said(50)), 51);
        assert_eq!(reader.superseded((3, &said(50))), None);
        let report = reader.request(Some(ack(3))).report.unwrap();
        assert_eq!((report.reader, report.over_reader), (51, 50));
    }

    #[test]
    fn an_answer_to_a_join_of_another_beginning_is_ignored() {
        let mut reader = ReaderMembership::new(own(0, 1, 4));
        let mut join = reader.request(Some(ack(5))).join.unwrap();
        join.run.ranks.from = batch(0, 8);
        assert!(!reader.joined(&join, (3, &said(40)), 41) && !reader.is_joined());
    }

    #[test]
    fn the_coordinator_sets_the_pace_of_many() {
        let mut reader = ReaderMembership::new(own(9, 1, 256));
        assert_eq!(reader.poll_every(), Duration::from_millis(1_024), "before its first answer");
        reader.set_pace(&said(0));
        assert_eq!((reader.poll_every(), reader.report_every_ms()), (Duration::from_millis(7), 9));
    }
}
