//! Progress of the trainer: its stream advances it, and the poller reports it.

mod acks;
mod membership;
mod meter;

pub(crate) use membership::{Request, Said};
pub(crate) use meter::BatchTimes;

use crate::OwnRanks;
use acks::Acks;
pub(crate) use acks::FirstRefusal;
use gristmill_model::Nonce;
use gristmill_model::splits::{Ack, Cursor, Place};
use gristmill_model::wire::{Polled, TrainerMetrics, TrainingReport};
use meter::Meter;
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// The cursor protocol and the measurements of one trainer, with notifications for waiting tasks.
#[derive(Debug)]
pub(crate) struct Progress {
    acks: Mutex<Acks>,
    meter: Mutex<Meter>,
    /// Wakes the poller: a task waits for the next poll.
    pub urgent: Notify,
    /// Wakes the poller, unless its last poll was a moment ago.
    pub soon: Notify,
    /// Whether every poll sends an acknowledgement.
    always: AtomicBool,
    /// The trainer's position as the coordinator knows it; changes with `acks`.
    acknowledged: watch::Sender<Cursor>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Progress {
    /// A reader of `own` that resumes at batch `durable`. Nothing is reported until the splits that it needs are
    /// known; see [`Progress::starts_at`].
    pub fn new(own: OwnRanks, durable: Cursor) -> Self {
        Self {
            acks: Mutex::new(Acks::new(own, durable)),
            meter: Mutex::new(Meter::default()),
            urgent: Notify::new(),
            soon: Notify::new(),
            always: AtomicBool::new(false),
            acknowledged: watch::Sender::default(),
        }
    }

    fn acks(&self) -> MutexGuard<'_, Acks> {
        lock(&self.acks)
    }

    fn meter(&self) -> MutexGuard<'_, Meter> {
        lock(&self.meter)
    }

    /// Takes over from the run of generation `last`: see [`Acks::take_over`].
    pub fn takes_over(&self, last: u64, now_ms: u64, lot: Nonce) {
        self.acks().take_over(last, now_ms, lot);
    }

    /// The table is at this place: see [`Acks::table_is_at`].
    pub fn table_is_at(&self, generation: u64, delivered: Place) {
        self.acks().table_is_at(generation, delivered);
    }

    /// See [`Acks::first_refused`].
    pub fn first_refused(&self) -> FirstRefusal {
        self.acks().first_refused()
    }

    /// Whether `generation` is one of this process's.
    pub fn is_own(&self, generation: u64) -> bool {
        self.acks().is_own(generation)
    }

    /// The trainer has confirmed where it begins; the next poll reports it to the coordinator.
    pub fn announce(&self) {
        self.acks().announce();
        self.urgent.notify_one();
        self.wake();
    }

    /// The coordinator refused this start: see [`Acks::withdraw`].
    pub fn withdraw(&self) {
        self.acks().withdraw();
    }

    /// The stream restarts at batch `at`: see [`Acks::reopen`].
    pub fn reopen(&self, at: Cursor) {
        self.acks().reopen(at);
        self.meter().reopen();
        self.urgent.notify_one();
    }

    /// Everything before this batch is durable.
    pub fn durable_until(&self) -> Cursor {
        self.acks().durable()
    }

    /// Whether the coordinator knows the latest progress.
    pub fn is_settled(&self) -> bool {
        self.acks().is_settled()
    }

    /// Resolves once the first split of the stream is known.
    pub async fn located(&self) {
        self.until(|acks| acks.begins_at().is_some()).await;
    }

    /// The batch that the stream begins with, once it is known.
    pub fn begins_at(&self) -> Option<Cursor> {
        self.acks().begins_at()
    }

    /// Resolves once the coordinator has accepted where the stream begins.
    pub async fn admitted(&self) {
        self.until(Acks::is_admitted).await;
    }

    async fn until(&self, holds: impl Fn(&Acks) -> bool) {
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
    pub fn starts_at(&self, at: Cursor, durable: (Cursor, Place), next: Place) {
        self.acks().start_at(at, durable, next);
        self.wake();
    }

    /// A batch is about to be handed over; a restart at it would need splits from `resume_place` on.
    pub fn next_is(&self, batch: Cursor, resume_place: Place) {
        self.acks().next_is(batch, resume_place);
    }

    /// A batch is handed to the trainer; `queue_batches` more are ready.
    pub fn handed_over(&self, times: BatchTimes, queue_batches: usize) {
        self.meter().handed_over(times, queue_batches);
    }

    /// Every split before `place` is in this host's memory, or with the trainer.
    pub fn passed(&self, place: Place) {
        self.acks().passed(place);
    }

    /// The first place not consumed.
    pub fn delivered(&self) -> Place {
        self.acks().delivered()
    }

    /// Everything before `next` is durable: a restart begins there. Earlier positions are ignored.
    pub fn durable(&self, next: Cursor) {
        self.acks().make_durable(next);
    }

    /// The content of the next poll: see [`Acks::request`].
    pub fn request(&self, is_due: bool, beats: bool) -> Request {
        self.acks().request(is_due, beats)
    }

    /// Records the answer to a request: see [`Acks::answered`].
    pub fn answered(
        &self,
        request: &Request,
        said: Said<'_>,
        now_ms: u64,
        lot: Nonce,
    ) -> Option<String> {
        self.acks().answered(request, said, (now_ms, lot))
    }

    /// Begins the run of other ranks, or elsewhere: nothing is reported before its first split is known.
    pub fn serve(&self, own: OwnRanks) {
        self.acks().serve(own);
    }

    /// The ranks that are served.
    pub fn own(&self) -> OwnRanks {
        *self.acks().membership().own()
    }

    /// See [`Acks::may_go_on_at`].
    pub fn may_go_on_at(&self, at: Cursor) -> bool {
        self.acks().may_go_on_at(at)
    }

    /// Least time between the beginnings of two polls.
    pub fn poll_every(&self) -> Duration {
        self.acks().membership().poll_every()
    }

    /// Least time between two reports of a reader, in milliseconds.
    pub fn report_every_ms(&self) -> u64 {
        self.acks().membership().report_every_ms()
    }

    /// Acknowledges progress at every poll from now on.
    pub fn acknowledge_always(&self) {
        self.always.store(true, Ordering::Relaxed);
        self.urgent.notify_one();
    }

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
    pub fn acknowledged(&self, ack: Ack) {
        let is_current = self.acks().acknowledged(ack);
        if is_current {
            self.acknowledged.send_replace(ack.durable);
        }
    }

    /// Whether the coordinator has yet to accept where the stream starts.
    pub fn is_unconfirmed(&self) -> bool {
        self.acks().is_unconfirmed()
    }

    /// Whether a quarter of the window was consumed but not reported, so that it may block workers.
    /// `n_splits` is per epoch.
    pub fn is_window_waiting(&self, window: u32, n_splits: u32) -> bool {
        self.acks().unreported_splits(n_splits) >= u64::from(window / 4).max(1)
    }

    /// Records a poll's facts about workers.
    pub fn polled(&self, polled: &Polled) {
        let epoch = self.delivered().epoch;
        self.meter().polled(polled, epoch);
    }

    /// The report to send with this poll, if one is due.
    pub fn report(&self) -> Option<TrainingReport> {
        self.meter().report()
    }

    /// Means over the last batches.
    pub fn metrics(&self) -> TrainerMetrics {
        self.meter().metrics()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{batch, split};

    fn new() -> Progress {
        Progress::new(OwnRanks::one(Nonce([7; 8]), batch(0, 0)), batch(0, 0))
    }

    #[test]
    fn a_quarter_of_the_window_is_worth_a_report() {
        let progress = new();
        progress.passed(split(0, 3));
        assert!(!progress.is_window_waiting(16, 100));
        progress.passed(split(0, 4));
        assert!(progress.is_window_waiting(16, 100));
        assert!(progress.is_window_waiting(1, 100), "one split is a quarter of a small window");
    }

    #[tokio::test]
    async fn those_who_wait_learn_of_an_acknowledgement() {
        let progress = new();
        progress.takes_over(0, 1, Nonce([0; 8]));
        progress.starts_at(batch(0, 0), (batch(0, 0), split(0, 0)), split(0, 0));
        progress.announce();
        let first = progress.request(true, false).ack().unwrap();
        progress.acknowledged(first);
        progress.admitted().await;
        progress.durable(batch(0, 5));
        let ack = progress.request(true, false).ack().unwrap();
        let waits = progress.consumed(batch(0, 5));
        progress.acknowledged(ack);
        waits.await;
        assert!(progress.is_settled());
    }
}
