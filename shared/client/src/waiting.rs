//! Reasons for a wait: derived from known facts, and reported occasionally.

use crate::{
    Snapshot,
    bounds::MemoryBound,
    ledger::Ledger,
    local::LocalStore,
    progress::Progress,
    waits::{Stage, StageClock},
};
use async_trait::async_trait;
use gristmill_model::splits::Place;
use gristmill_model::wire::{AnyCall, AnyReply};
use gristmill_ports::{CallError, Coordinator};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The reason for a wait, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub text: String,
    /// Whether a known fault causes the wait; faults are reported early.
    pub is_fault: bool,
}

impl Waiting {
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
pub(crate) struct Facts {
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
    pub next: Place,
    pub stage: Stage,
    /// Whether no worker has claimed that split.
    pub unclaimed: bool,
    /// Workers that hold a lease, and workers started.
    pub workers: u32,
    pub started: u32,
}

/// The reason why the next batch is missing.
pub(crate) fn reason(facts: &Facts) -> Waiting {
    let Facts { next: Place { epoch, position: split }, workers, started, .. } = *facts;
    if let Some(error) = &facts.coordinator {
        return Waiting::fault(format!("the service to answer: {error}"));
    }
    if let Some(error) = &facts.objects {
        return Waiting::fault(format!("the object store to answer: {error}"));
    }
    if !facts.answered {
        return Waiting::patiently("the service's first answer");
    }
    if let Some(trouble) = &facts.job {
        return Waiting::fault(format!("the job to continue: {trouble}"));
    }
    if let Some((done, files)) = facts.indexing {
        let who = format!("{workers} workers at work, {started} started");
        return Waiting::patiently(format!("the index: {done} of {files} files done, {who}"));
    }
    if let Some(ranks) = &facts.uncovered {
        return Waiting::patiently(format!("the job's other readers: {ranks}"));
    }
    Waiting::patiently(match (facts.stage, facts.unclaimed) {
        (Stage::Commit, true) => format!(
            "a worker to claim split {split} of epoch {epoch}: {workers} at work elsewhere, {started} started"
        ),
        (Stage::Commit, false) => format!(
            "split {split} of epoch {epoch}, which a worker has: {workers} at work, {started} started"
        ),
        (Stage::Fetch, _) => "an object that is on its way from the object store".to_owned(),
        (Stage::Decode, _) => "a batch that is being joined".to_owned(),
    })
}

/// Explains at any time why a fetcher's next batch is missing.
#[derive(Clone)]
pub struct Watcher {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) stages: Arc<StageClock>,
    pub(crate) bound: Arc<MemoryBound>,
    pub(crate) local: Arc<LocalStore>,
}

impl Watcher {
    /// The state of the job, for people.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            metrics: self.progress.meter().metrics(),
            prefetch_bytes: self.bound.bytes(),
            local_bytes: self.local.held_bytes(),
            ..self.ledger.snapshot()
        }
    }

    pub fn waiting(&self) -> Waiting {
        reason(&self.ledger.facts(self.stages.stage()))
    }
}

impl Watcher {
    /// Resolves, with the reason, once the stream has waited for other readers for `patience`.
    pub async fn left_alone(&self, patience: Duration) -> String {
        let mut began = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let uncovered = self.ledger.facts(self.stages.stage()).uncovered;
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
pub struct Pace {
    since: Option<Duration>,
    fault_since: Option<Duration>,
    said: Option<(Duration, bool)>,
}

impl Pace {
    /// The wait is over.
    pub fn rest(&mut self) {
        *self = Self::default();
    }

    /// Whether this wait was reported.
    pub fn has_said(&self) -> bool {
        self.said.is_some()
    }

    /// Whether to report `waiting` at `now`, a time of a monotonic clock.
    pub fn is_due(&mut self, now: Duration, waiting: &Waiting) -> bool {
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
    waiting: impl Fn() -> Option<Waiting>,
    say: impl Fn(&str),
) -> T {
    let (mut pace, began) = (Pace::default(), Instant::now());
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
pub struct Link {
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

impl Link {
    pub fn new(coordinator: Arc<dyn Coordinator>) -> Self {
        Self { coordinator, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the problem that the service reports.
    pub(crate) fn service_says(&self, trouble: Option<String>) {
        self.known().service = trouble;
    }

    /// The reason for a wait for the coordinator's answer.
    pub fn waiting(&self) -> Waiting {
        let call = self.known().call.clone();
        self.or(match call {
            Some(error) => Waiting::fault(format!("the service to answer: {error}")),
            None => Waiting::patiently("the service to take in dataset and job"),
        })
    }

    /// The service's problem, or else `waiting`.
    pub fn or(&self, waiting: Waiting) -> Waiting {
        match &self.known().service {
            Some(trouble) => Waiting::fault(format!("the service to continue: {trouble}")),
            None => waiting,
        }
    }
}

#[async_trait]
impl Coordinator for Link {
    async fn exchange(&self, call: &AnyCall) -> Result<AnyReply, CallError> {
        let answer = self.coordinator.exchange(call).await;
        let trouble = answer.as_ref().err().map(ToString::to_string);
        self.known().call = trouble;
        answer
    }

    fn speak(&self, version: u32) {
        self.coordinator.speak(version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            coordinator: None,
            objects: None,
            job: None,
            uncovered: None,
            answered: true,
            indexing: None,
            next: Place::new(0, 7),
            stage: Stage::Commit,
            unclaimed: true,
            workers: 1,
            started: 2,
        }
    }

    #[test]
    fn what_is_nearest_to_the_cause_is_named() {
        let text = |facts: Facts| reason(&facts).text;
        assert!(text(facts()).contains("claim split 7 of epoch 0: 1 at work elsewhere, 2 started"));
        assert!(text(Facts { unclaimed: false, ..facts() }).contains("which a worker has"));
        let indexing = Facts { indexing: Some((12, 400)), ..facts() };
        assert!(text(indexing.clone()).contains("12 of 400 files"));
        let stuck = Facts { job: Some("the version is gone".into()), ..indexing.clone() };
        assert!(reason(&stuck).is_fault && text(stuck).contains("version is gone"));
        let objects = Facts { objects: Some("slow down".into()), ..indexing };
        assert!(reason(&objects).is_fault && text(objects.clone()).contains("slow down"));
        let gone = Facts { coordinator: Some("connection refused".into()), ..objects };
        assert!(reason(&gone).is_fault && text(gone).contains("connection refused"));
        let alone = Facts { uncovered: Some("rank 1 of 2 has no reader yet".into()), ..facts() };
        assert_eq!(text(alone), "the job's other readers: rank 1 of 2 has no reader yet");
        assert!(text(Facts { answered: false, ..facts() }).contains("first answer"));
    }

    #[test]
    fn a_wait_is_said_after_three_seconds_and_then_each_minute_and_a_fault_at_once() {
        let said = |waiting: fn(u64) -> Waiting| -> Vec<u64> {
            let mut pace = Pace::default();
            let due = |tick: &u64| pace.is_due(Duration::from_millis(tick * 200), &waiting(*tick));
            (0..700).filter(due).collect()
        };
        let patient = |_| Waiting::patiently("w");
        assert_eq!(said(patient), [15, 315, 615]);
        assert_eq!(said(|_| Waiting::fault("f".into())), [3, 303, 603]);
        let failing_later = |tick| match tick {
            0..100 => Waiting::patiently("w"),
            _ => Waiting::fault("f".into()),
        };
        assert_eq!(said(failing_later), [15, 103, 403]);
        // A single failed call that succeeds on retry is not reported.
        let flickering =
            |tick| if tick == 50 { Waiting::fault("f".into()) } else { Waiting::patiently("w") };
        assert_eq!(said(flickering), [15, 315, 615]);
    }
}
