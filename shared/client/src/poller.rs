//! Asks the coordinator what is ready: often while the trainer waits, rarely while there is plenty.

use crate::{
    FetchError,
    cached::Shelves,
    ledger::{Ledger, Of, Place},
    pace::Pace,
    progress::Progress,
    waits::StageClock,
};
use gristmill_model::JobName;
use gristmill_model::wire::{Ack, Call, Poll, Polled, Refusal, RefusalKind, Reply};
use gristmill_ports::{CallError, Clock, Coordinator};
use std::{sync::Arc, time::Duration};

/// Progress is written at most this often unless the window waits for it.
const ACK_INTERVAL_MS: u64 = 1_000;

/// Polls for one job until it is dropped or the run ends.
pub(crate) struct Poller {
    pub job: JobName,
    pub coordinator: Arc<dyn Coordinator>,
    pub clock: Arc<dyn Clock>,
    pub ledger: Arc<Ledger>,
    pub progress: Arc<Progress>,
    pub stages: Arc<StageClock>,
    pub shelves: Shelves,
    /// How long the service may be silent.
    pub patience: Duration,
}

impl Poller {
    pub async fn run(self) {
        let mut pace = Pace::new();
        let mut last_answer_ms = self.clock.now_ms();
        let mut last_ack_ms = 0;
        // A refusal that may have been caused by this process itself.
        let mut doubted = None;
        while self.ledger.error().is_none() {
            let (started, now_ms) = (self.clock.monotonic(), self.clock.now_ms());
            let due = now_ms.saturating_sub(last_ack_ms) >= ACK_INTERVAL_MS
                || self.progress.acknowledges_always()
                || self.ledger.window_waits(&self.progress);
            let ack = if due { self.progress.send_ack() } else { None };
            let from = self.ledger.known_until();
            match self.poll(from, ack).await {
                Ok(polled) => {
                    if let Some(error) = doubted.take()
                        && !self.progress.is_own(polled.generation)
                    {
                        self.ledger.fail(error);
                    }
                    self.progress.takes_over(polled.generation, now_ms, self.clock.nonce());
                    if let Some(ack) = ack {
                        self.progress.acknowledged(ack);
                        last_ack_ms = now_ms;
                    }
                    last_answer_ms = self.clock.now_ms();
                    self.ledger.set_trouble(Of::Coordinator, None);
                    self.ledger.set_trouble(Of::Job, polled.trouble.clone());
                    self.progress.polled(&polled);
                    self.stages.note_unclaimed(polled.head_waits, self.clock.monotonic());
                    let starves = self.progress.metrics().queue_batches == 0;
                    let Polled { claimable, active_workers, indexed_files, .. } = polled;
                    let seen = (claimable, active_workers, indexed_files);
                    let now = self.clock.monotonic();
                    pace.answered(seen, now, polled.ready.len(), starves);
                    self.ledger.merge(polled, from);
                    self.learn_cached().await;
                }
                Err(CallError::Refused(refusal)) if refusal.kind != RefusalKind::Busy => {
                    doubted = self.refused(refusal, ack.is_some()).or(doubted);
                }
                Err(error) => {
                    self.ledger.set_trouble(Of::Coordinator, Some(error.to_string()));
                    let waited_ms = self.clock.now_ms().saturating_sub(last_answer_ms);
                    if u128::from(waited_ms) >= self.patience.as_millis() {
                        let waited_s = waited_ms / 1000;
                        let error = match error {
                            CallError::Unavailable(_) => format!("{error}; is it running?"),
                            answered => answered.to_string(),
                        };
                        self.ledger.fail(FetchError::Unreachable { waited_s, error });
                    }
                    pace.failed();
                }
            }
            self.pause(&mut pace, started).await;
        }
    }

    /// Waits for the next poll; the last one began at `started`.
    async fn pause(&self, pace: &mut Pace<impl PartialEq>, started: Duration) {
        let Progress { urgent, soon, .. } = &*self.progress;
        tokio::select! {
            biased;
            () = self.clock.sleep(pace.wait()) => return,
            () = urgent.notified() => return pace.hurry(),
            () = soon.notified() => pace.hurry(),
        }
        let since = self.clock.monotonic().saturating_sub(started);
        tokio::select! {
            biased;
            () = self.clock.sleep(pace.wait().saturating_sub(since)) => {}
            () = urgent.notified() => {}
        }
    }

    /// Deals with what the coordinator itself refused; answers the error if the next answer decides
    /// whether it is one.
    fn refused(&self, refusal: Refusal, acknowledged: bool) -> Option<FetchError> {
        let begins = acknowledged && !self.progress.is_heard();
        let error = match refusal.kind {
            RefusalKind::Fenced if begins && self.progress.takes_over_anew() => {
                return Some(CallError::Refused(refusal).into());
            }
            RefusalKind::Collected if begins => FetchError::Collected(refusal.message),
            RefusalKind::Invalid if begins => FetchError::Misplaced(refusal.message),
            _ => CallError::Refused(refusal).into(),
        };
        let elsewhere = error.is_of_place();
        // Known before nothing is left to hear: whoever misses an object looks for the reason here.
        self.ledger.fail(error);
        if elsewhere {
            self.progress.withdraw();
        }
        None
    }

    /// Reads what is cached once the job has come to it. Not in a task of its own: of two that wait for
    /// one change of the ledger, chance decides which is first, and simulations must know.
    async fn learn_cached(&self) {
        let Some(shelf) = self.ledger.unknown_shelf() else { return };
        match self.shelves.manifest(&shelf).await {
            Ok(Some(manifest)) => self.ledger.set_cached(manifest),
            // The next poll tries again.
            Ok(None) => {}
            Err(error) => self.ledger.fail(error),
        }
    }

    async fn poll(&self, from: Place, ack: Option<Ack>) -> Result<Polled, CallError> {
        let call = Call::Poll(Poll {
            job: self.job.clone(),
            from,
            ack,
            metrics: self.progress.metrics(),
            report: self.progress.report(),
        });
        match self.coordinator.call(&call).await? {
            Reply::Polled(polled) => Ok(polled),
            other => Err(CallError::Refused(Refusal {
                kind: RefusalKind::Invalid,
                message: format!("the coordinator's answer does not fit a poll: {other:?}"),
            })),
        }
    }
}
