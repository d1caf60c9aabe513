//! Polls the coordinator for ready splits: often while the trainer waits, rarely while it has batches.

use crate::{
    FetchError,
    delivery_waits::StageClock,
    ledger::{FetchErrorSource, SplitLedger},
    progress::{FetcherProgress, FirstRefusal, ReaderRequest},
};
use gristmill_model::JobName;
use gristmill_model::splits::SplitPlace;
use gristmill_model::splits::readers::HEARTBEAT_MS;
use gristmill_model::stored::keys;
use gristmill_model::wire::{CacheManifest, CallRefusal, PollCall, PollReply, RefusalKind};
use gristmill_ports::{CallError, Clock, Coordinator, ObjectError, ObjectPath, ObjectStore};
use std::{sync::Arc, time::Duration};

/// Progress is written at most this often unless the window waits for it.
const ACK_INTERVAL_MS: u64 = 1_000;

/// Polls for one job until it is dropped or the run ends.
pub(crate) struct CoordinatorPoller {
    pub job: JobName,
    pub registered_ms: u64,
    pub coordinator: Arc<dyn Coordinator>,
    pub clock: Arc<dyn Clock>,
    pub ledger: Arc<SplitLedger>,
    pub progress: Arc<FetcherProgress>,
    pub stages: Arc<StageClock>,
    pub shelves: CacheManifestReader,
}

impl CoordinatorPoller {
    /// Polls until the job or its stream has ended.
    pub async fn run(self) {
        let mut pace = PollInterval::new();
        let mut last_ack_ms = 0;
        // A refusal that this process may have caused itself.
        let mut doubted = None;
        while self.ledger.error().is_none() {
            let (started, now_ms) = (self.clock.monotonic(), self.clock.now_ms());
            let every_ms = self.progress.acks().membership().report_every_ms();
            let quiet_ms = now_ms.saturating_sub(last_ack_ms);
            // Several readers keep their pace even so: all of them wait for one window, and end together.
            let is_urgent =
                self.progress.acknowledges_always() || self.ledger.window_waits(&self.progress);
            let due =
                quiet_ms >= ACK_INTERVAL_MS.max(every_ms) || is_urgent && quiet_ms >= every_ms;
            let request = self.progress.acks().request(due, quiet_ms >= HEARTBEAT_MS.max(every_ms));
            let from = self.ledger.known_until();
            match self.poll(from, &request).await {
                Ok(polled) => {
                    let (said, lot) = ((polled.generation, &polled.reader), self.clock.nonce());
                    let stop = self.progress.acks().answered(&request, said, now_ms, lot);
                    if let Some(why) = stop {
                        self.ledger.fail(FetchError::Fenced(why));
                    }
                    if let Some(error) = doubted.take()
                        && !self.progress.acks().is_own(polled.generation)
                    {
                        self.ledger.fail(error);
                    }
                    self.progress.acks().take_over(polled.generation, now_ms, lot);
                    self.progress.acks().table_is_at(polled.generation, polled.delivered);
                    // A table that has lost the run took no report of it.
                    let ack = request.ack().filter(|ack| ack.generation == polled.generation);
                    if let Some(ack) = ack {
                        self.progress.acknowledged(ack);
                        last_ack_ms = now_ms;
                    }
                    self.ledger.set_uncovered(polled.reader.uncovered.clone());
                    self.ledger.set_trouble(FetchErrorSource::Coordinator, None);
                    self.ledger.set_trouble(FetchErrorSource::Job, polled.trouble.clone());
                    self.progress.polled(&polled);
                    self.stages.note_unclaimed(polled.head_of_line_blocked, self.clock.monotonic());
                    let starves = self.progress.meter().metrics().queue_batches == 0;
                    let seen = (polled.claimable, polled.active_workers(), polled.indexed_files);
                    let now = self.clock.monotonic();
                    pace.answered(seen, now, polled.ready.len(), starves);
                    self.ledger.merge(polled, from);
                    self.learn_cached().await;
                }
                Err(CallError::Refused(refusal)) if !refusal.kind.is_passing() => {
                    doubted = self.refused(refusal, &request).or(doubted);
                }
                Err(error) => {
                    let error = match error {
                        CallError::Unavailable(_) => format!("{error}; is it running?"),
                        answered => answered.to_string(),
                    };
                    self.ledger.set_trouble(FetchErrorSource::Coordinator, Some(error));
                    pace.failed();
                }
            }
            self.pause(&mut pace, started).await;
        }
    }

    /// Waits for the next poll; the last one began at `started`.
    async fn pause(&self, pace: &mut PollInterval<impl PartialEq>, started: Duration) {
        self.rest(pace, started).await;
        let since = self.clock.monotonic().saturating_sub(started);
        let left = self.progress.acks().membership().poll_every().saturating_sub(since);
        if !left.is_zero() {
            self.clock.sleep(left).await;
        }
    }

    /// Waits until this reader has reason to poll.
    async fn rest(&self, pace: &mut PollInterval<impl PartialEq>, started: Duration) {
        let FetcherProgress { urgent, soon, .. } = &*self.progress;
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

    /// Handles a refusal by the coordinator. Returns the error if the next answer decides whether it stands.
    fn refused(&self, refusal: CallRefusal, request: &ReaderRequest) -> Option<FetchError> {
        let begins = request.join.is_some();
        let error = match refusal.kind {
            RefusalKind::Fenced => match self.progress.acks().first_refused() {
                FirstRefusal::Stands => CallError::Refused(refusal).into(),
                FirstRefusal::InDoubt => return Some(CallError::Refused(refusal).into()),
                FirstRefusal::TakesOver => return None,
            },
            RefusalKind::RunDiffers { run } => {
                let own = self.progress.acks().membership().own().run;
                if own.is_alike(&run) {
                    FetchError::RunBegan { from: run.ranks.from, own: own.ranks.from }
                } else {
                    FetchError::Refused(refusal.message)
                }
            }
            RefusalKind::Collected if begins => FetchError::Collected(refusal.message),
            RefusalKind::Invalid if begins => FetchError::Misplaced(refusal.message),
            _ => CallError::Refused(refusal).into(),
        };
        let elsewhere = error.is_of_place();
        // Record it before the stream ends: a download that misses an object reads the reason here.
        self.ledger.fail(error);
        if elsewhere {
            self.progress.acks().withdraw();
        }
        None
    }

    /// Reads the cache manifest once the job needs it. Not a separate task: two tasks that wait for the same
    /// change of the ledger run in random order, and simulations must be deterministic.
    async fn learn_cached(&self) {
        let Some(shelf) = self.ledger.unknown_shelf() else { return };
        match self.shelves.manifest(&shelf).await {
            Ok(Some(manifest)) => self.ledger.set_cached(manifest),
            // The next poll tries again.
            Ok(None) => {}
            Err(error) => self.ledger.fail(error),
        }
    }

    /// Sends `request`.
    async fn poll(
        &self,
        from: SplitPlace,
        request: &ReaderRequest,
    ) -> Result<PollReply, CallError> {
        let (job, registered_ms) = (self.job.clone(), self.registered_ms);
        let ReaderRequest { ranks, of, join, report } = *request;
        let (metrics, training) = {
            let mut meter = self.progress.meter();
            (meter.metrics(), meter.report())
        };
        let call =
            PollCall { job, registered_ms, from, ranks, of, join, report, metrics, training };
        self.coordinator.call(call).await
    }
}

// The interval between polls.

/// The shortest poll interval, used after news.
pub(crate) const FASTEST: Duration = Duration::from_millis(50);
/// An answer with this many splits was truncated; the next one has more.
const MANY: usize = 1_000;
/// Longest interval while the trainer has batches.
const SLOWEST: Duration = Duration::from_secs(2);
/// Longest interval while the trainer has none.
const SLOWEST_STARVING: Duration = Duration::from_millis(500);
/// How long after the latest news a waiting trainer still polls fast.
const IMPATIENT: Duration = Duration::from_secs(2);

/// The interval between polls: short after news, then growing.
#[derive(Debug)]
pub(crate) struct PollInterval<T> {
    wait: Duration,
    /// The last answer, and the time since when it has not changed.
    answer: Option<(T, Duration)>,
}

impl<T: PartialEq> PollInterval<T> {
    /// The interval before the first poll.
    pub fn new() -> Self {
        Self { wait: FASTEST, answer: None }
    }

    /// The current interval.
    pub fn wait(&self) -> Duration {
        self.wait
    }

    /// Resets the interval after a local event.
    pub fn hurry(&mut self) {
        (self.wait, self.answer) = (FASTEST, None);
    }

    /// The coordinator did not answer.
    pub fn failed(&mut self) {
        self.wait = (self.wait * 2).clamp(FASTEST, SLOWEST_STARVING);
    }

    /// Records an answer that came at `now` with `splits` splits; the trainer `starves` if it has no batch.
    pub fn answered(&mut self, answer: T, now: Duration, splits: usize, starves: bool) {
        let since = match &self.answer {
            Some((last, since)) if *last == answer && splits == 0 => *since,
            _ => now,
        };
        self.answer = Some((answer, since));
        let is_quiet = now.saturating_sub(since) >= IMPATIENT;
        let doubled = (self.wait * 2).max(FASTEST);
        self.wait = match (splits, starves) {
            (MANY.., true) => Duration::ZERO,
            (1.., _) => FASTEST,
            (0, true) if !is_quiet => FASTEST,
            (0, true) => doubled.min(SLOWEST_STARVING),
            (0, false) => doubled.min(SLOWEST),
        };
    }
}

// Epochs that are read from a cache as a whole: their splits are known without polling.

/// The store of cached chunks.
pub(crate) struct CacheManifestReader {
    pub objects: Arc<dyn ObjectStore>,
    pub bucket: String,
}

impl CacheManifestReader {
    /// The manifest of `shelf`; none if it cannot be read now.
    pub async fn manifest(&self, shelf: &str) -> Result<Option<CacheManifest>, FetchError> {
        let path = ObjectPath::new(&self.bucket, keys::shelf_manifest(shelf));
        let bad = |error: String| FetchError::BadObject(error);
        let read = match self.objects.get(&path).await {
            Ok(read) => read,
            Err(ObjectError::Unavailable(why)) => {
                tracing::warn!(%path, why, "cannot read a cached object now");
                return Ok(None);
            }
            Err(ObjectError::NotFound(path)) => {
                return Err(bad(format!(
                    "{path} was deleted, and this job reads it instead of computing: start a job \
                     under another name"
                )));
            }
            Err(error) => return Err(bad(error.to_string())),
        };
        let manifest = serde_json::from_slice(&read);
        manifest.map(Some).map_err(|error| bad(format!("{path} is not a manifest: {error}")))
    }
}

#[cfg(test)]
mod tests;
