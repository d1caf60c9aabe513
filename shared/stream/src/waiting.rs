//! Reasons for a wait: derived from known facts, and reported occasionally.

use crate::{
    JobStatistics,
    delivery_waits::{BatchStage, StageClock},
    ledger::SplitLedger,
    local::LocalStore,
    memory::MemoryBound,
    progress::FetcherProgress,
};
use async_trait::async_trait;
use gristmill_model::splits::SplitPlace;
use gristmill_model::wire::{AnyCall, AnyReply};
use gristmill_ports::{CallError, Clock, Coordinator};
use parking_lot::Mutex;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The reason for a wait, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitReason {
    pub text: String,
    /// Whether a known fault causes the wait; faults are reported early.
    pub is_fault: bool,
}

impl WaitReason {
    /// A wait that is expected.
    pub fn patiently(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_fault: false }
    }

    fn fault(text: String) -> Self {
        Self { text, is_fault: true }
    }
}

/// The known facts about a job whose next batch is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WaitFacts {
    /// The error of the last call to the coordinator, or to the object store, while it is retried.
    pub coordinator: Option<String>,
    pub objects: Option<String>,
    /// The coordinator's reason why the job makes no progress.
    pub job: Option<String>,
    /// The ranks that the job waits for, and why.
    pub uncovered: Option<String>,
    /// Whether the coordinator has ever answered.
    pub answered: bool,
    /// Files indexed so far, and in total.
    pub indexing: Option<(u32, u32)>,
    /// The first split not known to be committed.
    pub next: SplitPlace,
    pub stage: BatchStage,
    /// Whether no worker has claimed that split.
    pub unclaimed: bool,
    /// Workers that hold a lease, and workers started.
    pub workers: u32,
    pub started: u32,
}

/// The reason why the next batch is missing.
pub(crate) fn reason(facts: &WaitFacts) -> WaitReason {
    let WaitFacts { next: SplitPlace { epoch, position: split }, workers, started, .. } = *facts;
    if let Some(error) = &facts.coordinator {
        return WaitReason::fault(format!("the service to answer: {error}"));
    }
    if let Some(error) = &facts.objects {
        return WaitReason::fault(format!("the object store to answer: {error}"));
    }
    if !facts.answered {
        return WaitReason::patiently("the service's first answer");
    }
    if let Some(trouble) = &facts.job {
        return WaitReason::fault(format!("the job to continue: {trouble}"));
    }
    if let Some((done, files)) = facts.indexing {
        let who = format!("{workers} workers at work, {started} started");
        return WaitReason::patiently(format!("the index: {done} of {files} files done, {who}"));
    }
    if let Some(ranks) = &facts.uncovered {
        return WaitReason::patiently(format!("the job's other readers: {ranks}"));
    }
    WaitReason::patiently(match (facts.stage, facts.unclaimed) {
        (BatchStage::Commit, true) => format!(
            "a worker to claim split {split} of epoch {epoch}: {workers} at work elsewhere, {started} started"
        ),
        (BatchStage::Commit, false) => format!(
            "split {split} of epoch {epoch}, which a worker has: {workers} at work, {started} started"
        ),
        (BatchStage::Fetch, _) => "an object that is on its way from the object store".to_owned(),
        (BatchStage::Decode, _) => "a batch that is being joined".to_owned(),
    })
}

/// The state that the tasks of one stream share.
#[derive(Clone)]
pub(crate) struct StreamState {
    pub ledger: Arc<SplitLedger>,
    pub progress: Arc<FetcherProgress>,
    pub stages: Arc<StageClock>,
    /// The bound on objects fetched or in use.
    pub bound: Arc<MemoryBound>,
    pub local: Arc<LocalStore>,
    pub clock: Arc<dyn Clock>,
}

impl StreamState {
    /// The state before the first poll; `is_shared` if other readers of the run need every split.
    pub fn new(
        ledger: SplitLedger,
        progress: FetcherProgress,
        bound: MemoryBound,
        is_shared: bool,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let bound = Arc::new(bound);
        Self {
            ledger: Arc::new(ledger),
            progress: Arc::new(progress),
            stages: Arc::new(StageClock::new(clock.monotonic())),
            local: Arc::new(LocalStore::new(Arc::clone(&bound), is_shared)),
            bound,
            clock,
        }
    }

    /// The numbers of the stream, for people.
    pub fn snapshot(&self) -> JobStatistics {
        JobStatistics {
            metrics: self.progress.meter().metrics(),
            prefetch_bytes: self.bound.bytes(),
            local_bytes: self.local.held_bytes(),
            ..self.ledger.snapshot()
        }
    }
}

/// Explains at any time why a fetcher's next batch is missing.
#[derive(Clone)]
pub struct WaitExplainer(pub(crate) StreamState);

impl WaitExplainer {
    /// The state of the job, for people.
    pub fn snapshot(&self) -> JobStatistics {
        self.0.snapshot()
    }

    /// The reason as of now.
    pub fn waiting(&self) -> WaitReason {
        reason(&self.0.ledger.facts(self.0.stages.stage()))
    }

    /// Resolves, with the reason, once the stream has waited for other readers for `patience`.
    pub async fn left_alone(&self, patience: Duration) -> String {
        let mut began = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let uncovered = self.0.ledger.facts(self.0.stages.stage()).uncovered;
            began = uncovered.is_some().then(|| began.unwrap_or_else(Instant::now));
            if let Some((why, began)) = uncovered.zip(began)
                && began.elapsed() >= patience
            {
                return format!("{why}, for {} s", patience.as_secs());
            }
        }
    }
}

/// A wait is reported once it has lasted this long, and then again at intervals.
const MENTIONED_AFTER: Duration = Duration::from_secs(3);
const FAULT_MENTIONED_AFTER: Duration = Duration::from_millis(600);
const MENTIONED_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Limits how often a wait is reported.
#[derive(Debug, Clone, Copy, Default)]
pub struct WaitReportLimiter {
    since: Option<Duration>,
    fault_since: Option<Duration>,
    said: Option<(Duration, bool)>,
}

impl WaitReportLimiter {
    /// The wait is over.
    pub fn rest(&mut self) {
        *self = Self::default();
    }

    /// Whether this wait was reported.
    pub fn has_said(&self) -> bool {
        self.said.is_some()
    }

    /// Whether to report `waiting` at `now`, a time of a monotonic clock.
    pub fn is_due(&mut self, now: Duration, waiting: &WaitReason) -> bool {
        let since = *self.since.get_or_insert(now);
        self.fault_since = if waiting.is_fault { self.fault_since.or(Some(now)) } else { None };
        let is_long = now.saturating_sub(since) >= MENTIONED_AFTER;
        let is_lasting_fault = self
            .fault_since
            .is_some_and(|since| now.saturating_sub(since) >= FAULT_MENTIONED_AFTER);
        let is_due = match self.said {
            None => is_long || is_lasting_fault,
            // Report a fault that follows an expected wait, and its end.
            Some((_, of_fault)) if of_fault != waiting.is_fault => {
                is_lasting_fault || !waiting.is_fault
            }
            Some((at, _)) => now.saturating_sub(at) >= MENTIONED_AGAIN_AFTER,
        };
        if is_due {
            self.said = Some((now, waiting.is_fault));
        }
        is_due
    }
}

/// Interval between checks of a wait.
const LOOK: Duration = Duration::from_millis(200);

/// Runs `work`, and meanwhile reports long waits to `say`.
pub async fn while_saying<T>(
    work: impl Future<Output = T>,
    waiting: impl Fn() -> Option<WaitReason>,
    say: impl Fn(&str),
) -> T {
    let (mut pace, began) = (WaitReportLimiter::default(), Instant::now());
    tokio::pin!(work);
    loop {
        if let Ok(done) = tokio::time::timeout(LOOK, &mut work).await {
            return done;
        }
        match waiting() {
            Some(waiting) if pace.is_due(began.elapsed(), &waiting) => say(&waiting.text),
            Some(_) => {}
            None => pace.rest(),
        }
    }
}

/// A coordinator that remembers the outcome of its last call, so that a wait for it can be explained.
pub struct TrackedCoordinator {
    coordinator: Arc<dyn Coordinator>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The error of the last call, if it failed.
    call: Option<String>,
    /// A problem that the service itself reports.
    service: Option<String>,
}

impl TrackedCoordinator {
    /// Calls go to `coordinator`.
    pub fn new(coordinator: Arc<dyn Coordinator>) -> Self {
        Self { coordinator, known: Mutex::default() }
    }

    /// Records the problem that the service reports.
    pub fn service_says(&self, trouble: Option<String>) {
        self.known.lock().service = trouble;
    }

    /// The reason for a wait for the coordinator's answer.
    pub fn waiting(&self) -> WaitReason {
        let call = self.known.lock().call.clone();
        self.or(match call {
            Some(error) => WaitReason::fault(format!("the service to answer: {error}")),
            None => WaitReason::patiently("the service to take in dataset and job"),
        })
    }

    /// The service's problem, or else `waiting`.
    pub fn or(&self, waiting: WaitReason) -> WaitReason {
        match &self.known.lock().service {
            Some(trouble) => WaitReason::fault(format!("the service to continue: {trouble}")),
            None => waiting,
        }
    }
}

#[async_trait]
impl Coordinator for TrackedCoordinator {
    async fn exchange(&self, call: &AnyCall) -> Result<AnyReply, CallError> {
        let answer = self.coordinator.exchange(call).await;
        let trouble = answer.as_ref().err().map(ToString::to_string);
        self.known.lock().call = trouble;
        answer
    }

    fn speak(&self, version: u32) {
        self.coordinator.speak(version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> WaitFacts {
        WaitFacts {
            coordinator: None,
            objects: None,
            job: None,
            uncovered: None,
            answered: true,
            indexing: None,
            next: SplitPlace::new(0, 7),
            stage: BatchStage::Commit,
            unclaimed: true,
            workers: 1,
            started: 2,
        }
    }

    #[test]
    fn the_wait_nearest_to_the_cause_is_named() {
        let text = |facts: WaitFacts| reason(&facts).text;
        assert!(text(facts()).contains("claim split 7 of epoch 0: 1 at work elsewhere, 2 started"));
        assert!(text(WaitFacts { unclaimed: false, ..facts() }).contains("which a worker has"));
        let indexing = WaitFacts { indexing: Some((12, 400)), ..facts() };
        assert!(text(indexing.clone()).contains("12 of 400 files"));
        let stuck = WaitFacts { job: Some("the version is gone".into()), ..indexing.clone() };
        assert!(reason(&stuck).is_fault && text(stuck).contains("version is gone"));
        let objects = WaitFacts { objects: Some("slow down".into()), ..indexing };
        assert!(reason(&objects).is_fault && text(objects.clone()).contains("slow down"));
        let gone = WaitFacts { coordinator: Some("connection refused".into()), ..objects };
        assert!(reason(&gone).is_fault && text(gone).contains("connection refused"));
        let alone =
            WaitFacts { uncovered: Some("rank 1 of 2 has no reader yet".into()), ..facts() };
        assert_eq!(text(alone), "the job's other readers: rank 1 of 2 has no reader yet");
        assert!(text(WaitFacts { answered: false, ..facts() }).contains("first answer"));
    }

    #[test]
    fn a_wait_is_said_after_three_seconds_and_then_each_minute_and_a_fault_at_once() {
        let said = |waiting: fn(u64) -> WaitReason| -> Vec<u64> {
            let mut pace = WaitReportLimiter::default();
            let due = |tick: &u64| pace.is_due(Duration::from_millis(tick * 200), &waiting(*tick));
            (0..700).filter(due).collect()
        };
        let patient = |_| WaitReason::patiently("w");
        assert_eq!(said(patient), [15, 315, 615]);
        assert_eq!(said(|_| WaitReason::fault("f".into())), [3, 303, 603]);
        let failing_later = |tick| match tick {
            0..100 => WaitReason::patiently("w"),
            _ => WaitReason::fault("f".into()),
        };
        assert_eq!(said(failing_later), [15, 103, 403]);
        // A single failed call that succeeds on retry is not reported.
        let flickering = |tick| {
            if tick == 50 { WaitReason::fault("f".into()) } else { WaitReason::patiently("w") }
        };
        assert_eq!(said(flickering), [15, 315, 615]);
    }
}
