//! The fetcher's knowledge of its job: committed entries not yet consumed, the job's state, and the
//! error that ended it. Written by the poller, awaited by the downloader.

use crate::{
    FetchError, FolderBuckets, JobStatistics, delivery_waits::BatchStage,
    local_share::ShareCounter, progress::FetcherProgress, waiting::WaitFacts,
};
use gristmill_model::splits::order::{visit_number, visit_of};
use gristmill_model::splits::{SplitPlace, WorkerTimes};
use gristmill_model::wire::{
    CacheManifest, CachedChunk, EpochPlan, JobState, JobView, PollReply, ReadySplit,
};
use gristmill_model::{Epoch, LocalShare};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// A reader that leads because an earlier one is missing leads again within this time.
const LEADS_AGAIN: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FetchErrorSource {
    Coordinator,
    Objects,
    /// The job's own trouble, as the coordinator reports it.
    Job,
}

#[derive(Debug, Default)]
struct Inner {
    /// The latest errors of calls that are being retried.
    troubles: BTreeMap<FetchErrorSource, String>,
    /// The latest error since somebody looked.
    failure: Option<(FetchErrorSource, String)>,
    /// The ranks that keep the job from moving on, as the coordinator reported it; when, and at which place.
    uncovered: Option<(String, Instant, SplitPlace)>,
    entries: BTreeMap<SplitPlace, ReadySplit>,
    /// Every entry before this place is known; later entries may be known too.
    known_until: SplitPlace,
    /// The job, with the epochs that are read here.
    view: Option<JobView>,
    /// Epochs of the job; 0 if they are all read here.
    job_epochs: Epoch,
    window: u32,
    /// Numbers for people, but for those of the trainer and of its memory.
    seen: JobStatistics,
    ended: Option<FetchError>,
    /// Why the job has failed at a bad record: what was committed before is delivered first.
    failing: Option<FetchError>,
    /// Why the stream cannot begin at the requested place; it may begin elsewhere.
    misplaced: Option<FetchError>,
    /// First place not committed at the last poll, which reported everything before it.
    first_uncommitted: Option<SplitPlace>,
    /// Whether a poll was ever answered.
    answered: bool,
    /// The cached chunks of epochs that are delivered without workers.
    cached: Option<CacheManifest>,
    /// Folders that errors name by their paths.
    folders: FolderBuckets,
    asking: AwaitedSplit,
    share: ShareCounter,
}

impl Inner {
    /// Takes note of a job that has ended.
    fn end_as(&mut self, job: &JobView) {
        self.failing = match ending(&job.state) {
            Some(error @ FetchError::JobFailed(_))
                if matches!(job.state, JobState::Failed { at_record: true, .. })
                    && job.plan.is_some() =>
            {
                if self.failing.is_none() && !self.entries.is_empty() {
                    let said = error.clone().in_words(&self.folders);
                    tracing::warn!("{said}; what was stored before is delivered first");
                }
                Some(error)
            }
            Some(error) => {
                end(self, error);
                None
            }
            None => None,
        };
    }

    /// Whether all of `epoch` is cached, so that no worker computes it.
    fn is_cached(&self, epoch: Epoch) -> bool {
        let view = self.view.as_ref().filter(|view| epoch < view.spec.epochs);
        let caching = view.and_then(|view| view.caching.as_ref());
        caching.is_some_and(|caching| caching.delivered_prefix(epoch).is_some())
    }

    fn cached_chunk(&self, SplitPlace { epoch, position }: SplitPlace) -> Option<CachedChunk> {
        let CacheManifest { copies, in_order, chunks } =
            self.cached.as_ref().filter(|_| self.is_cached(epoch))?;
        let n_splits = u32::try_from(chunks.len()).ok()?.checked_div(*copies)?;
        let seed = self.view.as_ref()?.spec.seed;
        let (copy, split) = visit_of(n_splits, *copies, *in_order, seed, epoch, position)?;
        chunks.get(usize::try_from(visit_number(*copies, copy, split)).ok()?).copied()
    }

    fn cached_entry(&self, place: SplitPlace) -> Option<ReadySplit> {
        let chunk = self.cached_chunk(place)?;
        let CachedChunk { bundle, attempt, nonce, outcome, .. } = chunk;
        let times = WorkerTimes::default();
        Some(ReadySplit { place, bundle, attempt, nonce, outcome, times })
    }
}

/// Shared between the fetcher's tasks; `changed` signals every update.
#[derive(Debug)]
pub(crate) struct SplitLedger {
    inner: Mutex<Inner>,
    /// Wakes waiters in order, so that a simulation is the same every time.
    changed: Notify,
}

impl SplitLedger {
    /// An empty ledger for the entries from `start` on.
    pub fn new(view: JobView, start: SplitPlace, folders: FolderBuckets) -> Self {
        let ended = ending(&view.state);
        let mut inner = Inner { known_until: start, view: Some(view), folders, ..Inner::default() };
        if let Some(error) = ended {
            end(&mut inner, error);
        }
        Self { inner: Mutex::new(inner), changed: Notify::new() }
    }

    /// This ledger for a job that may go on after the epochs that are read here.
    pub fn with_job_epochs(self, epochs: Epoch) -> Self {
        self.inner.lock().job_epochs = epochs;
        self
    }

    /// The first place without a known entry.
    pub fn known_until(&self) -> SplitPlace {
        self.inner.lock().known_until
    }

    /// The job as last reported.
    pub fn view(&self) -> Option<JobView> {
        self.inner.lock().view.clone()
    }

    /// The numbers that are shown to people, as far as they are known here.
    pub fn statistics(&self) -> JobStatistics {
        self.inner.lock().seen.clone()
    }

    /// Clears the committed entries; polls then request entries from `start` on.
    pub fn reopen(&self, start: SplitPlace) {
        let mut inner = self.inner.lock();
        inner.entries.clear();
        (inner.known_until, inner.first_uncommitted, inner.misplaced) = (start, None, None);
        inner.asking.awaited = None;
        inner.asking.answered(None);
        inner.share = ShareCounter::default();
        drop(inner);
        self.changed.notify_waiters();
    }

    /// Records the answer to a poll for entries from `from` on.
    pub fn merge(&self, polled: PollReply, from: SplitPlace) {
        let mut inner = self.inner.lock();
        inner.seen.active_workers = polled.active_workers();
        for entry in polled.ready {
            let (place, nonce) = (entry.place, entry.nonce);
            if inner.entries.insert(place, entry).is_none() {
                inner.share.committed(place, nonce);
            }
        }
        let plan = polled.job.plan;
        inner.end_as(&polled.job);
        let read_here = inner.view.as_ref().map(|view| view.spec.epochs);
        inner.job_epochs = polled.job.spec.epochs;
        let mut view = polled.job;
        view.spec.epochs = read_here.unwrap_or(view.spec.epochs);
        inner.view = Some(view);
        if let Some(plan) = plan {
            while inner.entries.contains_key(&inner.known_until) {
                inner.known_until = inner.known_until.next(plan.n_splits);
            }
        }
        while inner.is_cached(inner.known_until.epoch) {
            inner.known_until = SplitPlace::start_of(inner.known_until.epoch + 1);
        }
        let is_complete = plan.is_some() && from == inner.known_until;
        inner.first_uncommitted = is_complete.then_some(from);
        let is_blocked = polled.head_of_line_blocked;
        let next = inner.known_until;
        inner.asking.answered(is_blocked.then_some(next));
        inner.seen.workers_max = inner.seen.workers_max.max(inner.seen.active_workers);
        inner.answered = true;
        inner.window = polled.window;
        inner.seen.indexed_files = polled.indexed_files;
        inner.seen.scale = polled.scale;
        drop(inner);
        self.changed.notify_waiters();
    }

    /// Whether the window may block workers until the coordinator learns which splits were consumed.
    pub fn window_waits(&self, progress: &FetcherProgress) -> bool {
        let epoch = progress.acks().delivered().epoch;
        let inner = self.inner.lock();
        // A cached epoch has no workers.
        let plan = inner.view.as_ref().and_then(|view| view.plan);
        let Some(plan) = plan.filter(|_| !inner.is_cached(epoch)) else { return false };
        let window = if inner.window == 0 { plan.window_splits } else { inner.window };
        drop(inner);
        progress.is_window_waiting(window, plan.n_splits)
    }

    /// Ends the run: all waiting tasks get `error`. The first error stays. An error about the place where the
    /// stream begins ends only the stream.
    pub fn fail(&self, error: FetchError) {
        let mut inner = self.inner.lock();
        if error.is_of_place() {
            inner.misplaced.get_or_insert(error);
        } else {
            end(&mut inner, error);
        }
        drop(inner);
        self.changed.notify_waiters();
    }

    /// The error that ended the stream, if any.
    pub fn stream_error(&self) -> Option<FetchError> {
        let inner = self.inner.lock();
        inner.ended.clone().or_else(|| inner.misplaced.clone())
    }

    /// A measure of what has arrived here; it changes whenever something does.
    pub fn advance(&self) -> (SplitPlace, u64, u32) {
        let inner = self.inner.lock();
        (inner.known_until, inner.seen.fetched_bytes, inner.seen.indexed_files)
    }

    /// Records which ranks the job waits for.
    pub fn set_uncovered(&self, uncovered: Option<String>) {
        let mut inner = self.inner.lock();
        let at = inner.known_until;
        // Only a reader that leads learns it, and without the first one the next leads now and then.
        if uncovered.is_some() || inner.uncovered.as_ref().is_some_and(|(.., of)| *of != at) {
            inner.uncovered = uncovered.map(|why| (why, Instant::now(), at));
        }
    }

    /// Counts a split that is recomputed here because its object was missing or damaged. Returns how many there were.
    pub fn note_healed(&self) -> u32 {
        let mut inner = self.inner.lock();
        inner.seen.healed += 1;
        inner.seen.healed
    }

    /// Counts bytes that were read from the object store.
    pub fn note_fetched(&self, bytes: u64) {
        self.inner.lock().seen.fetched_bytes += bytes;
    }

    /// The facts that explain a wait; `stage` is the next batch's stage, and whether its split is unclaimed.
    pub fn facts(&self, stage: (BatchStage, bool)) -> WaitFacts {
        let inner = self.inner.lock();
        let view = inner.view.as_ref();
        let is_planned = view.is_some_and(|view| view.plan.is_some());
        let n_files = view.map_or(0, |view| view.n_files);
        WaitFacts {
            coordinator: inner.troubles.get(&FetchErrorSource::Coordinator).cloned(),
            objects: inner.troubles.get(&FetchErrorSource::Objects).cloned(),
            job: inner.troubles.get(&FetchErrorSource::Job).cloned(),
            answered: inner.answered,
            uncovered: inner
                .uncovered
                .as_ref()
                .filter(|(_, since, _)| since.elapsed() < LEADS_AGAIN)
                .map(|(why, ..)| why.clone()),
            indexing: (!is_planned).then_some((inner.seen.indexed_files, n_files)),
            next: inner.known_until,
            stage: stage.0,
            unclaimed: stage.1,
            workers: inner.seen.active_workers,
            started: inner.seen.scale.outstanding.len(),
        }
    }

    /// Why the run ended, if it did.
    pub fn error(&self) -> Option<FetchError> {
        self.inner.lock().ended.clone()
    }

    /// Resolves once `ready` returns a value, or with the error that ended the run.
    async fn wait<T>(
        &self,
        mut ready: impl FnMut(&mut Inner) -> Option<T>,
    ) -> Result<T, FetchError> {
        loop {
            let changed = self.changed.notified();
            {
                let mut inner = self.inner.lock();
                if let Some(error) = inner.ended.as_ref().or(inner.misplaced.as_ref()) {
                    return Err(error.clone());
                }
                if let Some(value) = ready(&mut inner) {
                    return Ok(value);
                }
            }
            changed.await;
        }
    }

    /// Whether every epoch is closed.
    pub fn is_done(&self) -> bool {
        self.inner.lock().view.as_ref().is_some_and(|view| view.state == JobState::Done)
    }

    /// Whether the job is closed, or goes on after the epochs that are read here.
    pub fn has_no_more_to_close(&self) -> bool {
        let inner = self.inner.lock();
        let read_here = inner.view.as_ref().map_or(0, |view| view.spec.epochs);
        let goes_on = inner.job_epochs > read_here;
        drop(inner);
        goes_on || self.is_done()
    }

    /// Resolves with the error that ended the run, if one ever does.
    pub async fn failed(&self) -> FetchError {
        let never = |_: &mut Inner| None::<std::convert::Infallible>;
        match self.wait(never).await {
            Err(error) => error,
            Ok(never) => match never {},
        }
    }

    /// Takes the entry at `place`, once it is committed. None if a bad record has failed the job before.
    pub async fn take(&self, place: SplitPlace) -> Result<Option<ReadySplit>, FetchError> {
        self.wait(|inner| {
            let entry = inner.entries.remove(&place).or_else(|| inner.cached_entry(place));
            inner.asking.awaited = entry.is_none().then_some(place);
            let is_lost = inner.failing.is_some() && inner.first_uncommitted == Some(place);
            entry.map(Some).or(is_lost.then_some(None))
        })
        .await
    }

    /// Why the job has failed, if a bad record failed it.
    pub fn job_failure(&self) -> Option<FetchError> {
        self.inner.lock().failing.clone()
    }

    /// A copy of the entry at `place`, or none if it is not committed. Resolves once every earlier entry is
    /// known.
    pub async fn peek(&self, place: SplitPlace) -> Result<Option<ReadySplit>, FetchError> {
        let known = |inner: &Inner| {
            let entry = inner.entries.get(&place).cloned().or_else(|| inner.cached_entry(place));
            let is_absent = inner.first_uncommitted == Some(place);
            entry.map(Some).or(is_absent.then_some(None))
        };
        self.wait(|inner| known(inner)).await
    }

    /// The cached chunk at `place`, if an earlier epoch or another job cached it.
    pub fn cached_chunk(&self, place: SplitPlace) -> Option<CachedChunk> {
        self.inner.lock().cached_chunk(place)
    }

    /// The cache prefix that epochs are delivered from without workers, if its manifest is not known yet.
    pub fn unknown_prefix(&self) -> Option<String> {
        let inner = self.inner.lock();
        let caching = inner.view.as_ref()?.caching.as_ref()?;
        caching.whole_prefix().filter(|_| inner.cached.is_none()).map(str::to_owned)
    }

    /// Sets the manifest of that cache prefix.
    pub fn set_cached(&self, manifest: CacheManifest) {
        self.inner.lock().cached = Some(manifest);
        self.changed.notify_waiters();
    }

    /// Drops the entries before `place`.
    pub fn forget_before(&self, place: SplitPlace) {
        let mut inner = self.inner.lock();
        inner.entries = inner.entries.split_off(&place);
    }

    /// Resolves with the job once it has a plan, that is once its dataset is indexed.
    pub async fn planned(&self) -> Result<JobView, FetchError> {
        self.wait(|inner| inner.view.clone().filter(|view| view.plan.is_some())).await
    }

    /// The plan once the dataset is indexed, wherever the stream begins: only the end of the run is an error.
    pub async fn indexed(&self) -> Result<EpochPlan, FetchError> {
        loop {
            let changed = self.changed.notified();
            if let Some(error) = self.error() {
                return Err(error);
            }
            if let Some(plan) = self.view().and_then(|view| view.plan) {
                return Ok(plan);
            }
            changed.await;
        }
    }

    /// Resolves at the next change.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// The error of a job that delivers nothing more in this state.
fn ending(state: &JobState) -> Option<FetchError> {
    match state {
        JobState::Failed { error, .. } => Some(FetchError::JobFailed(error.clone())),
        JobState::Stopped => Some(FetchError::JobStopped),
        JobState::Indexing | JobState::Running | JobState::Done => None,
    }
}

fn end(inner: &mut Inner, error: FetchError) {
    let error = error.in_words(&inner.folders);
    inner.ended.get_or_insert(error);
}

impl SplitLedger {
    /// Records the latest error of a call that is retried; `None` once it succeeds.
    pub fn set_trouble(&self, of: FetchErrorSource, trouble: Option<String>) {
        let mut inner = self.inner.lock();
        match trouble.map(|trouble| inner.folders.in_words(&trouble)) {
            Some(trouble) => {
                if of != FetchErrorSource::Job {
                    inner.failure = Some((of, trouble.clone()));
                }
                inner.troubles.insert(of, trouble);
            }
            None => drop(inner.troubles.remove(&of)),
        }
    }

    /// The latest error of a call or a read since the last look, or one that stands.
    pub fn latest_failure(&self) -> Option<(FetchErrorSource, String)> {
        let mut inner = self.inner.lock();
        let stands = [FetchErrorSource::Coordinator, FetchErrorSource::Objects];
        let stands = stands.map(|of| Some((of, inner.troubles.get(&of)?.clone())));
        inner.failure.take().or(stands.into_iter().flatten().next())
    }
}

/// The split that the stream waits for, and who asks for it.
#[derive(Debug, Default)]
struct AwaitedSplit {
    /// The split that the downloader waits for, while it waits.
    pub awaited: Option<SplitPlace>,
    /// The first split that is not committed, if the last answer says that nobody works on it.
    blocked: Option<SplitPlace>,
    /// Whether a worker of this process has asked for it since that answer.
    has_asked: bool,
    /// Whether a worker of this process is asking.
    is_asking: bool,
}

impl AwaitedSplit {
    /// A poll was answered: nobody works on `blocked`.
    pub fn answered(&mut self, blocked: Option<SplitPlace>) {
        (self.blocked, self.has_asked) = (blocked, false);
    }
}

/// The turn of one worker to ask for the split at `place`.
pub(crate) struct ClaimTurn {
    ledger: Arc<SplitLedger>,
    pub place: SplitPlace,
}

impl Drop for ClaimTurn {
    fn drop(&mut self) {
        self.ledger.inner.lock().asking.is_asking = false;
    }
}

impl SplitLedger {
    /// The turn to ask for the split that the downloader waits for, if nobody works on it. There is one at a time, and
    /// one for each answer to a poll.
    pub fn turn(self: &Arc<Self>) -> Option<ClaimTurn> {
        let mut inner = self.inner.lock();
        let Inner { asking, view, .. } = &mut *inner;
        // Without a plan, the stream waits for the index, which is claimed under any place.
        let is_indexed = view.as_ref().is_some_and(|view| view.plan.is_some());
        let awaited = if is_indexed { asking.awaited } else { asking.blocked };
        let place = awaited.filter(|awaited| asking.blocked == Some(*awaited))?;
        if asking.is_asking || asking.has_asked {
            return None;
        }
        (asking.is_asking, asking.has_asked) = (true, true);
        Some(ClaimTurn { ledger: Arc::clone(self), place })
    }

    /// The split that the downloader waits for, while it waits.
    pub fn awaited(&self) -> Option<SplitPlace> {
        self.inner.lock().asking.awaited
    }

    /// The local workers that are wanted on all hosts together, if the scaler decides on them, or a file has their number.
    pub fn local_target(&self) -> Option<u32> {
        let inner = self.inner.lock();
        let spec = &inner.view.as_ref()?.spec;
        let fixed = spec.local_share.map(|_| spec.settings.local_workers);
        fixed.or_else(|| spec.decides_placement().then(|| inner.seen.scale.local.unwrap_or(0)))
    }

    /// Lets `change` see the counters of a job whose local workers have a fixed share, and that share.
    pub fn with_share<T>(
        &self,
        change: impl FnOnce(&mut ShareCounter, LocalShare) -> T,
    ) -> Option<T> {
        let mut inner = self.inner.lock();
        let spec = &inner.view.as_ref()?.spec;
        // Nobody else would make the rest.
        let share = spec.local_share.filter(|_| spec.workers > 0)?;
        Some(change(&mut inner.share, share))
    }

    /// Whether nobody works on the split that the stream waits for.
    pub fn is_blocked(&self) -> bool {
        let inner = self.inner.lock();
        let AwaitedSplit { awaited, blocked, .. } = inner.asking;
        drop(inner);
        blocked.is_some() && awaited == blocked
    }

    /// The job's plan, once its dataset is indexed.
    pub fn plan(&self) -> Option<EpochPlan> {
        self.inner.lock().view.as_ref()?.plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        FolderBuckets,
        samples::{entry, polled, split, view},
    };
    use futures::FutureExt as _;
    use gristmill_model::wire::PollReply;

    fn ledger() -> SplitLedger {
        SplitLedger::new(view(), SplitPlace::default(), FolderBuckets::default())
    }

    #[test]
    fn entries_are_known_up_to_the_first_gap() {
        let ledger = ledger();
        ledger.merge(polled(&[entry(0, 0, 4), entry(0, 2, 4)]), SplitPlace::default());
        assert_eq!(ledger.known_until(), SplitPlace::new(0, 1));
        ledger.merge(polled(&[entry(0, 1, 4)]), SplitPlace::new(0, 1));
        assert_eq!(ledger.known_until(), SplitPlace::new(0, 3));
        assert_eq!(SplitPlace::new(0, 19).next(20), SplitPlace::new(1, 0));
    }

    #[tokio::test]
    async fn a_split_is_absent_once_an_answer_that_begins_there_lacks_it() {
        let ledger = ledger();
        ledger.merge(polled(&[entry(0, 0, 4)]), SplitPlace::default());
        assert!(ledger.peek(SplitPlace::default()).await.unwrap().is_some());
        let unknown =
            tokio::time::timeout(Duration::from_millis(5), ledger.peek(SplitPlace::new(0, 1)))
                .await;
        assert!(unknown.is_err(), "the answer may have been cut there");
        ledger.merge(polled(&[]), SplitPlace::new(0, 1));
        assert!(ledger.peek(SplitPlace::new(0, 1)).await.unwrap().is_none());
        assert_eq!(ledger.take(SplitPlace::default()).await.unwrap().unwrap().outcome.batches, 4);
    }

    #[tokio::test]
    async fn the_first_error_ends_the_run_and_one_of_place_the_stream() {
        let ledger = ledger();
        ledger.fail(FetchError::Misplaced("beyond".into()));
        assert!(ledger.error().is_none() && ledger.stream_error().is_some());
        ledger.reopen(SplitPlace::default());
        assert_eq!(ledger.stream_error(), None);
        ledger.fail(FetchError::JobStopped);
        ledger.fail(FetchError::Refused("later".into()));
        assert_eq!(ledger.failed().await, FetchError::JobStopped);
        assert_eq!(ledger.take(SplitPlace::default()).await.unwrap_err(), FetchError::JobStopped);
    }

    #[test]
    fn trouble_is_known_until_it_is_over() {
        let ledger = ledger();
        let stage = (BatchStage::Commit, true);
        ledger.set_trouble(FetchErrorSource::Objects, Some("slow down".into()));
        assert_eq!(ledger.facts(stage).objects.as_deref(), Some("slow down"));
        ledger.set_trouble(FetchErrorSource::Objects, None);
        assert_eq!(ledger.facts(stage).objects, None);
        ledger.set_uncovered(Some("rank 1 of 2 has no reader yet".into()));
        ledger.set_uncovered(None);
        assert_eq!(ledger.facts(stage).uncovered.as_deref(), Some("rank 1 of 2 has no reader yet"));
        assert_eq!(ledger.note_healed(), 1);
        assert_eq!(ledger.statistics().healed, 1);
    }

    fn answer(ledger: &SplitLedger, from: u32, committed: u32, is_blocked: bool) {
        let ready: Vec<_> = (from..committed).map(|position| entry(0, position, 4)).collect();
        let polled = PollReply { head_of_line_blocked: is_blocked, ..polled(&ready) };
        ledger.merge(polled, split(0, from));
    }

    #[test]
    fn one_worker_asks_after_each_answer_while_the_downloader_waits_and_nobody_works() {
        let ledger =
            Arc::new(SplitLedger::new(view(), SplitPlace::default(), FolderBuckets::default()));
        answer(&ledger, 0, 2, true);
        assert!(ledger.turn().is_none(), "the downloader does not wait");
        for position in 0..2 {
            assert!(ledger.take(split(0, position)).now_or_never().is_some());
        }
        let mut waits = Box::pin(ledger.take(split(0, 2)));
        assert!(waits.as_mut().now_or_never().is_none());
        assert_eq!(ledger.awaited(), Some(split(0, 2)));
        let turn = ledger.turn().unwrap();
        assert_eq!(turn.place, split(0, 2));
        assert!(ledger.turn().is_none(), "one at a time");
        answer(&ledger, 2, 2, true);
        assert!(ledger.turn().is_none(), "the first one is still asking");
        drop(turn);
        drop(ledger.turn().unwrap());
        assert!(ledger.turn().is_none(), "it has asked, and there is no other answer");
        answer(&ledger, 2, 2, false);
        assert!(ledger.turn().is_none(), "somebody works on it");
        answer(&ledger, 2, 3, true);
        assert!(ledger.turn().is_none(), "the blocked split is not the one that is awaited");
        assert!(waits.now_or_never().is_some());
        assert_eq!(ledger.awaited(), None);
    }

    #[test]
    fn nothing_is_awaited_once_the_stream_begins_again() {
        let ledger =
            Arc::new(SplitLedger::new(view(), SplitPlace::default(), FolderBuckets::default()));
        answer(&ledger, 0, 0, true);
        let mut waits = Box::pin(ledger.take(split(0, 0)));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(waits);
        ledger.reopen(SplitPlace::default());
        assert!(ledger.turn().is_none() && ledger.awaited().is_none());
    }
}
