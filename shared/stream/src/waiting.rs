//! Reasons for a wait: derived from known facts, and reported occasionally.

use crate::{
    FetchError, JobStatistics,
    delivery_waits::{BatchStage, StageClock},
    ledger::{FetchErrorSource, SplitLedger},
    local::LocalStore,
    memory::MemoryBound,
    progress::FetcherProgress,
};
use async_trait::async_trait;
use gristmill_model::{
    splits::SplitPlace,
    wire::{AnyCall, AnyReply},
};
use gristmill_ports::{CallError, Clock, Coordinator, time_run};
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
    pub fn statistics(&self) -> JobStatistics {
        JobStatistics {
            metrics: self.progress.meter().metrics(),
            prefetch_bytes: self.bound.bytes(),
            local_bytes: self.local.held_bytes(),
            ..self.ledger.statistics()
        }
    }
}

/// Explains at any time why a fetcher's next batch is missing.
#[derive(Clone)]
pub struct WaitExplainer(pub(crate) StreamState);

impl WaitExplainer {
    /// The state of the job, for people.
    pub fn statistics(&self) -> JobStatistics {
        self.0.statistics()
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

/// Longest interval between two looks at progress.
const PROGRESS_LOOK: Duration = Duration::from_secs(1);

/// Ends a run that has made no progress for `limit` while calls or reads failed, whichever they were.
///
/// Only time in which this process ran counts. A batch, a byte, a committed split or an indexed file is progress; a
/// call that succeeds is none.
pub(crate) async fn watch_progress(
    clock: Arc<dyn Clock>,
    ledger: Arc<SplitLedger>,
    progress: Arc<FetcherProgress>,
    limit: Duration,
) {
    let reached = || (ledger.advance(), progress.acks().delivered());
    let (mut last, mut left) = (reached(), limit);
    loop {
        let ran = time_run(&*clock, PROGRESS_LOOK.min(limit)).await;
        let now = reached();
        if now != last {
            (last, left) = (now, limit);
            ledger.latest_failure();
        } else if let Some((of, error)) = ledger.latest_failure() {
            left = left.saturating_sub(ran);
            if left.is_zero() {
                let waited_s = limit.as_secs();
                return ledger.fail(if of == FetchErrorSource::Objects {
                    FetchError::BadObject(format!("{error}, for {waited_s} s"))
                } else {
                    FetchError::Unreachable { waited_s, error }
                });
            }
        }
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

#[cfg(test)]
mod progress_watchdog_tests {
    use super::*;
    use crate::{ServedRanks, samples};
    use async_trait::async_trait;
    use gristmill_model::Nonce;
    use gristmill_model::splits::SplitPlace;
    use std::sync::Mutex;

    /// A clock whose sleeps are over at once. `script` gets their numbers, and returns the time that they took.
    struct ScriptedClock<F> {
        now: Mutex<(u32, Duration)>,
        script: F,
    }

    #[async_trait]
    impl<F: Fn(u32) -> Duration + Send + Sync> Clock for ScriptedClock<F> {
        fn now_ms(&self) -> u64 {
            0
        }

        fn monotonic(&self) -> Duration {
            self.now.lock().unwrap().1
        }

        async fn sleep(&self, _: Duration) {
            let (number, now) = *self.now.lock().unwrap();
            assert!(number < 1_000, "the run goes on for ever");
            *self.now.lock().unwrap() = (number + 1, now + (self.script)(number));
        }

        fn nonce(&self) -> Nonce {
            Nonce([0; 8])
        }
    }

    /// Runs until patience of ten seconds is over. `script` acts on the ledger before each look, and returns the seconds that
    /// have passed. Returns the looks, and the error.
    async fn ended(
        script: impl Fn(u32, &SplitLedger) -> u64 + Send + Sync + 'static,
    ) -> (u32, String) {
        let ledger = SplitLedger::new(samples::view(), SplitPlace::start_of(0), Default::default());
        let (ledger, own) =
            (Arc::new(ledger), ServedRanks::one(Nonce([7; 8]), samples::batch(0, 0)));
        let acting = Arc::clone(&ledger);
        let script = move |number: u32| Duration::from_secs(script(number, &acting));
        let clock = Arc::new(ScriptedClock { now: Mutex::default(), script });
        let progress = Arc::new(FetcherProgress::new(own, samples::batch(0, 0)));
        let limit = Duration::from_secs(10);
        watch_progress(Arc::clone(&clock) as _, Arc::clone(&ledger), progress, limit).await;
        let looks = clock.now.lock().unwrap().0;
        (looks, ledger.error().unwrap().to_string())
    }

    fn fail(ledger: &SplitLedger, of: FetchErrorSource) {
        ledger.set_trouble(of, Some(format!("{of:?} fails")));
    }

    #[tokio::test]
    async fn one_trouble_ends_a_run_after_the_limit() {
        let coordinator = ended(|_, ledger| {
            fail(ledger, FetchErrorSource::Coordinator);
            1
        });
        let said = "no answer from the service for 10 s: Coordinator fails";
        assert_eq!(coordinator.await, (10, said.to_owned()));
        let objects = ended(|_, ledger| {
            fail(ledger, FetchErrorSource::Objects);
            1
        });
        assert_eq!(objects.await, (10, "Objects fails, for 10 s".to_owned()));
    }

    #[tokio::test]
    async fn troubles_in_turn_count_together_though_calls_succeed_between_them() {
        let (looks, why) = ended(|number, ledger| {
            let of = if number.is_multiple_of(2) {
                FetchErrorSource::Coordinator
            } else {
                FetchErrorSource::Objects
            };
            fail(ledger, of);
            ledger.set_trouble(of, None);
            1
        })
        .await;
        assert_eq!((looks, &*why), (10, "Objects fails, for 10 s"));
    }

    #[tokio::test]
    async fn progress_begins_the_time_anew() {
        let (looks, _) = ended(|number, ledger| {
            fail(ledger, FetchErrorSource::Objects);
            if number < 50 && number.is_multiple_of(9) {
                ledger.note_fetched(1);
            }
            1
        })
        .await;
        assert_eq!(looks, 56, "the last byte came at look 45");
    }

    #[tokio::test]
    async fn time_in_which_the_process_slept_does_not_count() {
        let (looks, _) = ended(|number, ledger| {
            fail(ledger, FetchErrorSource::Objects);
            if number == 3 { 3_600 } else { 1 }
        })
        .await;
        assert_eq!(looks, 11);
    }

    #[tokio::test]
    async fn a_wait_without_trouble_does_not_count() {
        let (looks, _) = ended(|number, ledger| {
            if number >= 500 {
                fail(ledger, FetchErrorSource::Coordinator);
            }
            1
        })
        .await;
        assert_eq!(looks, 510);
    }

    /// A step of a random sequence: whether something arrives, fails for a moment, and fails until it succeeds; and the
    /// seconds until the next look.
    fn step(
        seed: u64,
        number: u32,
    ) -> (bool, Option<FetchErrorSource>, Option<(FetchErrorSource, bool)>, u64) {
        if number >= 900 {
            return (false, Some(FetchErrorSource::Objects), None, 1);
        }
        let hash = blake3::hash(&[seed.to_le_bytes(), u64::from(number).to_le_bytes()].concat());
        let [what, of, gap, ..] = *hash.as_bytes();
        let of = if of.is_multiple_of(2) {
            FetchErrorSource::Coordinator
        } else {
            FetchErrorSource::Objects
        };
        let gap = [1, 1, 1, 2, 5, 6, 7, 3_600][usize::from(gap % 8)];
        match what % 16 {
            0 | 15 => (true, None, None, gap),
            1..=7 => (false, Some(of), None, gap),
            8..=9 => (false, None, Some((of, true)), gap),
            10..=13 => (false, None, Some((of, false)), gap),
            _ => (false, None, None, gap),
        }
    }

    /// The looks after which patience of ten seconds is over.
    fn looks(seed: u64) -> u32 {
        let (mut standing, mut left) = ([false; 2], 10);
        for number in 0.. {
            let (arrives, moment, lasts, gap) = step(seed, number);
            if let Some((of, fails)) = lasts {
                standing[usize::from(of == FetchErrorSource::Objects)] = fails;
            }
            if let Some(of) = moment {
                standing[usize::from(of == FetchErrorSource::Objects)] = false;
            }
            let has_failed = moment.is_some() || lasts.is_some_and(|(_, fails)| fails);
            if arrives {
                left = 10;
            } else if (has_failed || standing != [false; 2]) && gap <= 6 {
                left = u64::saturating_sub(left, gap);
            }
            if left == 0 {
                return number + 1;
            }
        }
        unreachable!("patience ends")
    }

    #[tokio::test]
    async fn random_troubles_and_sleeps_end_a_run_after_the_time_that_it_ran_without_progress() {
        let mut ends = std::collections::BTreeSet::new();
        for seed in 0..300 {
            let script = move |number, ledger: &SplitLedger| {
                let (arrives, moment, lasts, gap) = step(seed, number);
                if arrives {
                    ledger.note_fetched(1);
                }
                if let Some(of) = moment {
                    fail(ledger, of);
                    ledger.set_trouble(of, None);
                }
                match lasts {
                    Some((of, true)) => fail(ledger, of),
                    Some((of, false)) => ledger.set_trouble(of, None),
                    None => {}
                }
                gap
            };
            let (looked, _) = ended(script).await;
            assert_eq!(looked, looks(seed), "seed {seed}");
            ends.insert(looked);
        }
        assert!(ends.len() > 30, "{ends:?}");
    }
}
