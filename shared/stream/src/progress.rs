//! Progress of the trainer: its stream advances it, and the poller reports it.

mod acks;
mod membership;
mod meter;

pub(crate) use membership::ReaderRequest;
pub(crate) use meter::BatchTimes;

use crate::ServedRanks;
use acks::AckTracker;
pub(crate) use acks::FirstRefusal;
use gristmill_model::splits::{Cursor, ProgressAck, SplitPlace};
use gristmill_model::wire::PollReply;
use meter::DeliveryMeter;
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        lock(&self.acks)
    }

    /// The measurements.
    pub fn meter(&self) -> MutexGuard<'_, DeliveryMeter> {
        lock(&self.meter)
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
    pub fn starts_at(&self, at: Cursor, durable: (Cursor, SplitPlace), next: SplitPlace) {
        self.acks().start_at(at, durable, next);
        self.wake();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{batch, split};
    use gristmill_model::Nonce;

    fn new() -> FetcherProgress {
        FetcherProgress::new(ServedRanks::one(Nonce([7; 8]), batch(0, 0)), batch(0, 0))
    }

    #[test]
    fn a_quarter_of_the_window_is_worth_a_report() {
        let progress = new();
        progress.acks().passed(split(0, 3));
        assert!(!progress.is_window_waiting(16, 100));
        progress.acks().passed(split(0, 4));
        assert!(progress.is_window_waiting(16, 100));
        assert!(progress.is_window_waiting(1, 100), "one split is a quarter of a small window");
    }

    #[tokio::test]
    async fn those_who_wait_learn_of_an_acknowledgement() {
        let progress = new();
        progress.acks().take_over(0, 1, Nonce([0; 8]));
        progress.starts_at(batch(0, 0), (batch(0, 0), split(0, 0)), split(0, 0));
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
}
