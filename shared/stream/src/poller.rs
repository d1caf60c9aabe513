//! Polls the coordinator for ready splits: often while the trainer waits, rarely while it has batches.

use crate::{
    FetchError,
    ledger::FetchErrorSource,
    progress::{FetcherProgress, FirstRefusal, HostCpu, ReaderRequest},
    waiting::StreamState,
};
use gristmill_model::splits::SplitPlace;
use gristmill_model::splits::readers::HEARTBEAT_MS;
use gristmill_model::stored::keys;
use gristmill_model::wire::{CallRefusal, PollCall, PollReply, RefusalKind};
use gristmill_ports::{CallError, ObjectError, ObjectPath};
use gristmill_runner::JobContext;
use std::time::Duration;

/// Progress is written at most this often unless the window waits for it.
const ACK_INTERVAL_MS: u64 = 1_000;

/// Polls for one job until it is dropped or the run ends.
pub(crate) struct CoordinatorPoller {
    pub context: JobContext,
    pub state: StreamState,
}

impl CoordinatorPoller {
    /// Polls until the job or its stream has ended.
    pub async fn run(self) {
        let StreamState { ledger, progress, stages, clock, .. } = &self.state;
        let mut pace = PollInterval::new();
        let mut last_ack_ms = 0;
        // A refusal that this process may have caused itself.
        let mut doubted = None;
        while ledger.error().is_none() {
            let (started, now_ms) = (clock.monotonic(), clock.now_ms());
            let every_ms = progress.acks().membership().report_every_ms();
            let quiet_ms = now_ms.saturating_sub(last_ack_ms);
            // Several readers keep their pace even so: all of them wait for one window, and end together.
            let is_urgent = progress.acknowledges_always() || ledger.window_waits(progress);
            let due =
                quiet_ms >= ACK_INTERVAL_MS.max(every_ms) || is_urgent && quiet_ms >= every_ms;
            let request = progress.acks().request(due, quiet_ms >= HEARTBEAT_MS.max(every_ms));
            let from = ledger.known_until();
            match self.poll(from, &request).await {
                Ok(polled) => {
                    let (said, nonce) = ((polled.generation, &polled.reader), clock.nonce());
                    let stop = progress.acks().answered(&request, said, now_ms, nonce);
                    if let Some(why) = stop {
                        ledger.fail(FetchError::Fenced(why));
                    }
                    if let Some(error) = doubted.take()
                        && !progress.acks().is_own(polled.generation)
                    {
                        ledger.fail(error);
                    }
                    progress.acks().take_over(polled.generation, now_ms, nonce);
                    progress.acks().table_is_at(polled.generation, polled.delivered);
                    // A table that has lost the run took no report of it.
                    let ack = request.ack().filter(|ack| ack.generation == polled.generation);
                    if let Some(ack) = ack {
                        progress.acknowledged(ack);
                        last_ack_ms = now_ms;
                    }
                    ledger.set_uncovered(polled.reader.uncovered.clone());
                    ledger.set_trouble(FetchErrorSource::Coordinator, None);
                    ledger.set_trouble(FetchErrorSource::Job, polled.trouble.clone());
                    progress.polled(&polled);
                    stages.note_unclaimed(polled.head_of_line_blocked, clock.monotonic());
                    let starves = progress.meter().metrics().queue_batches == 0;
                    let seen = (polled.claimable, polled.active_workers(), polled.indexed_files);
                    pace.answered(seen, clock.monotonic(), polled.ready.len(), starves);
                    ledger.merge(polled, from);
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
                    ledger.set_trouble(FetchErrorSource::Coordinator, Some(error));
                    pace.failed();
                }
            }
            self.pause(&mut pace, started).await;
        }
    }

    /// Waits for the next poll; the last one began at `started`.
    async fn pause(&self, pace: &mut PollInterval<impl PartialEq>, started: Duration) {
        self.rest(pace, started).await;
        let StreamState { progress, clock, .. } = &self.state;
        let since = clock.monotonic().saturating_sub(started);
        let left = progress.acks().membership().poll_every().saturating_sub(since);
        if !left.is_zero() {
            clock.sleep(left).await;
        }
    }

    /// Waits until this reader has reason to poll.
    async fn rest(&self, pace: &mut PollInterval<impl PartialEq>, started: Duration) {
        let (FetcherProgress { urgent, soon, .. }, clock) =
            (&*self.state.progress, &self.state.clock);
        tokio::select! {
            biased;
            () = clock.sleep(pace.wait()) => return,
            () = urgent.notified() => return pace.hurry(),
            () = soon.notified() => pace.hurry(),
        }
        let since = clock.monotonic().saturating_sub(started);
        tokio::select! {
            biased;
            () = clock.sleep(pace.wait().saturating_sub(since)) => {}
            () = urgent.notified() => {}
        }
    }

    /// Handles a refusal by the coordinator. Returns the error if the next answer decides whether it stands.
    fn refused(&self, refusal: CallRefusal, request: &ReaderRequest) -> Option<FetchError> {
        let StreamState { ledger, progress, .. } = &self.state;
        let begins = request.join.is_some();
        let error = match refusal.kind {
            RefusalKind::Fenced => match progress.acks().first_refused() {
                FirstRefusal::Stands => CallError::Refused(refusal).into(),
                FirstRefusal::InDoubt => return Some(CallError::Refused(refusal).into()),
                FirstRefusal::TakesOver => return None,
            },
            RefusalKind::RunDiffers { run } => {
                let own = progress.acks().membership().own().run;
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
        ledger.fail(error);
        if elsewhere {
            progress.acks().withdraw();
        }
        None
    }

    /// Reads the cache manifest once the job needs it. Not a separate task: two tasks that wait for the same
    /// change of the ledger run in random order, and simulations must be deterministic.
    async fn learn_cached(&self) {
        let Some(cache_prefix) = self.state.ledger.unknown_prefix() else { return };
        let (runner, ledger) = (&self.context.runner, &self.state.ledger);
        let path = ObjectPath::new(&runner.config.bucket, keys::cache_manifest(&cache_prefix));
        let manifest = match runner.objects.get(&path).await {
            Ok(read) => serde_json::from_slice(&read)
                .map_err(|error| format!("{path} is not a manifest: {error}")),
            Err(ObjectError::Unavailable(why)) => {
                // The next poll tries again.
                return tracing::warn!(%path, why, "cannot read a cached object now");
            }
            Err(ObjectError::NotFound(path)) => Err(format!(
                "{path} was deleted, and this job reads it instead of computing: start a job \
                 under another name"
            )),
            Err(error) => Err(error.to_string()),
        };
        match manifest {
            Ok(manifest) => ledger.set_cached(manifest),
            Err(why) => ledger.fail(FetchError::BadObject(why)),
        }
    }

    /// Sends `request`.
    async fn poll(
        &self,
        from: SplitPlace,
        request: &ReaderRequest,
    ) -> Result<PollReply, CallError> {
        let view = &self.context.view;
        let (job, registered_ms) = (view.job.clone(), view.registered_ms);
        let ReaderRequest { ranks, of, join, report } = *request;
        let (metrics, training) = {
            let mut meter = self.state.progress.meter();
            let clock = &self.context.runner.clock;
            let host = || {
                let (cpu, cores) = (clock.host_cpu()?, clock.host_cores()?);
                Some(HostCpu { at: clock.monotonic(), cpu, cores })
            };
            (meter.metrics(), meter.report(host))
        };
        let call =
            PollCall { job, registered_ms, from, ranks, of, join, report, metrics, training };
        self.context.runner.coordinator.call(call).await
    }
}

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

#[cfg(test)]
mod tests;
