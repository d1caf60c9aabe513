//! The trainer's handle on its stream of batches.

use crate::{
    FetchError, ServedRanks,
    assembler::AssembledItem,
    batch_source::BatchSource,
    calls::{beginning, insist},
    delivery_waits::{DeliveryWaits, TrainerWait},
    downloader::SplitDownloader,
    ledger::SplitLedger,
    local_pool::LocalPool,
    memory::MemoryBound,
    poller::CoordinatorPoller,
    progress::{BatchTimes, FetcherProgress},
    waiting::{StreamState, WaitExplainer, watch_progress},
};
pub use config::{FetcherConfig, FetcherPorts};
pub use delivery::{DeliveredBatch, EpochTotals, JobStatistics, StreamDelivery};
use gristmill_model::{
    Epoch, ErrorPolicy, Visitation,
    splits::{Cursor, SplitPlace},
    wire::{EpochPlan, JobView},
};
use gristmill_pipeline::Pipeline;
use gristmill_ports::{Clock, outlast};
use gristmill_runner::{JobContext, LeaseError};
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::{sync::mpsc, task::JoinSet};

mod config;
mod delivery;

/// A job's stream of batches. Dropping it stops its background tasks.
pub struct Fetcher {
    state: StreamState,
    ports: FetcherPorts,
    config: FetcherConfig,
    batches: mpsc::Receiver<AssembledItem>,
    /// The batch that the stream begins with.
    begin: Cursor,
    source: BatchSource,
    visitation: Visitation,
    /// The item taken from the queue but not yet handed over.
    held: Option<AssembledItem>,
    /// Time of the monotonic clock.
    last_handed_over: Option<Duration>,
    last_batch: Option<Cursor>,
    ended: bool,
    wait: TrainerWait,
    /// Waits of the epoch so far.
    waits: DeliveryWaits,
    /// Download and join tasks; ended when the stream restarts.
    streaming: JoinSet<()>,
    _tasks: JoinSet<()>,
}

impl Fetcher {
    /// Restarts at batch `at`, as requested by a trainer that returns. Unless batches are visited exactly once,
    /// it restarts no earlier than where the trainer left. A trainer that has not named its run begins a new one if it
    /// goes back. Announce it again afterwards.
    pub async fn reopen(&mut self, at: Cursor) {
        self.streaming.shutdown().await;
        let at = match (self.visitation, self.last_batch) {
            (Visitation::ExactlyOnce, _) => at,
            (Visitation::ZeroOnceOrMore, Some(last)) => at.max(last.next()),
            _ => at.max(self.state.progress.acks().durable()),
        };
        if !self.has_named_run() && !self.state.progress.acks().may_go_on_at(at) {
            self.source.own = self.config.one(self.ports.clock.nonce(), at);
            self.state.progress.acks().serve(self.source.own);
        }
        self.state.progress.reopen(at);
        let start = SplitPlace::start_of(at.epoch);
        self.state.ledger.reopen(start);
        self.state.local.reopen(start);
        self.batches = self.source.stream(at, &mut self.streaming);
        self.begin = at;
        (self.held, self.last_batch, self.ended) = (None, None, false);
        self.last_handed_over = None;
        self.wait.restart();
    }

    /// Begins the run of the own ranks at batch `from`, where another fetcher has begun it. Announce it again
    /// afterwards.
    pub async fn begin_run(&mut self, from: Cursor) {
        if self.has_named_run() {
            self.source.own.run.ranks.from = from;
            self.state.progress.acks().serve(self.source.own);
        }
        self.reopen(from).await;
    }

    /// Resolves once the batch to begin with is located.
    ///
    /// # Errors
    /// [`FetchError::Misplaced`] if that batch is beyond the epoch; the error that ended the run.
    pub async fn located(&self) -> Result<(), FetchError> {
        tokio::select! {
            biased;
            error = self.state.ledger.failed() => Err(error),
            () = self.state.progress.located() => Ok(()),
        }
    }

    /// Announces to the coordinator that the trainer begins where the stream does; it may refuse.
    pub fn announce(&self) {
        self.state.progress.announce();
    }

    /// Resolves once the coordinator has accepted the announced start.
    ///
    /// # Errors
    /// [`FetchError::Collected`] if data that the trainer needs was deleted,
    /// [`FetchError::RunBegan`] if another fetcher began the run elsewhere, [`FetchError::Fenced`] if there is
    /// another trainer; the error that ended the run.
    pub async fn admitted(&self) -> Result<(), FetchError> {
        tokio::select! {
            biased;
            error = self.state.ledger.failed() => Err(error),
            () = self.state.progress.admitted() => Ok(()),
        }
    }

    /// The next batch, the end of an epoch, or the end of the job. Cancel safe.
    pub async fn next(&mut self) -> Result<StreamDelivery, FetchError> {
        if self.ended {
            return Ok(StreamDelivery::End);
        }
        // A call after a cancelled wait continues that wait.
        self.wait.request(self.ports.clock.monotonic(), &self.state.stages);
        if let (Visitation::ZeroOnceOrMore, Some(last)) = (self.visitation, self.last_batch) {
            self.state.progress.acks().make_durable(last.next());
        }
        let queued = self.batches.len() + usize::from(self.held.is_some());
        let assembled = self.take().await?;
        let now = self.ports.clock.monotonic();
        let (waited, waits) = self.wait.end(now, &self.state.stages);
        self.waits += waits;
        match assembled {
            AssembledItem::Batch { batch, resume_place } => {
                let before = self.last_handed_over.replace(now).unwrap_or(now - waited);
                let fetching = waits.fetch + waits.decode;
                let times = BatchTimes { since_last: now - before, waited, fetching };
                self.state.progress.meter().handed_over(times, queued);
                if resume_place.is_some() {
                    self.last_batch = Some(batch.cursor());
                }
                self.report_if_due();
                if self.visitation == Visitation::AtMostOnce {
                    // Take the next item while the trainer works on this batch.
                    let next = self.batches.try_recv().ok();
                    self.hold(next);
                }
                Ok(StreamDelivery::Batch(batch))
            }
            AssembledItem::OfOthers { next, .. } => {
                self.report_if_due();
                Ok(StreamDelivery::OfOthers { next })
            }
            AssembledItem::EpochEnd(totals) => {
                self.state.progress.acks().note_epoch_passed(totals.epoch, totals.batches);
                let waits = std::mem::take(&mut self.waits);
                let plan = self.view().and_then(|view| view.plan);
                if let Some(why) = plan.and_then(|plan| totals.why_empty(&plan)) {
                    tracing::warn!("epoch {} delivers no batch: {why}", totals.epoch);
                }
                Ok(StreamDelivery::EpochEnd(EpochTotals { waits, ..totals }))
            }
            AssembledItem::End => {
                self.ended = true;
                Ok(StreamDelivery::End)
            }
        }
    }

    /// The next item of the queue. With at-most-once delivery, waits until the coordinator knows that it is
    /// consumed.
    async fn take(&mut self) -> Result<AssembledItem, FetchError> {
        if self.held.is_none() {
            if self.batches.is_empty() {
                self.state.progress.soon.notify_one();
            }
            let next = self.batches.recv().await;
            self.hold(next);
        }
        if let (
            Visitation::AtMostOnce,
            Some(AssembledItem::Batch { batch, resume_place: Some(_) }),
        ) = (self.visitation, &self.held)
        {
            let next = batch.cursor().next();
            tokio::select! {
                biased;
                () = self.state.progress.consumed(next) => {}
                error = self.state.ledger.failed() => return Err(error),
            }
        }
        let broken = || FetchError::BadObject("the stream of batches broke off".into());
        self.held.take().ok_or_else(|| self.state.ledger.stream_error().unwrap_or_else(broken))
    }

    /// Holds the next item until it is handed over; with at-most-once delivery, reports it as consumed at once.
    fn hold(&mut self, next: Option<AssembledItem>) {
        if let Some(AssembledItem::Batch { batch, resume_place: Some(resume_place) }) = &next {
            self.state.progress.acks().next_is(batch.cursor(), *resume_place);
            if self.visitation == Visitation::AtMostOnce {
                self.state.progress.acks().make_durable(batch.cursor().next());
                self.state.progress.urgent.notify_one();
            }
        }
        if let Some(AssembledItem::OfOthers { first, resume_place, .. }) = next {
            self.state.progress.acks().next_is(first, resume_place);
        }
        self.held = next;
    }

    /// The ranks that this fetcher serves.
    pub fn own(&self) -> ServedRanks {
        self.source.own
    }

    /// Whether somebody has named the run. If not, a trainer that goes back begins another one.
    pub fn has_named_run(&self) -> bool {
        self.config.own.is_some()
    }

    /// The batch that the stream was opened at.
    pub fn begin(&self) -> Cursor {
        self.begin
    }

    /// Records whether the trainer computes, or waits for its next delivery. A server requests that while
    /// the trainer computes, and this time is no wait.
    pub(crate) fn set_trainer_computes(&mut self, computes: bool) {
        self.wait.set_computes(computes);
    }

    /// How long the trainer has been waiting for its next delivery.
    pub fn present_wait(&self) -> Duration {
        self.wait.present(self.ports.clock.monotonic())
    }

    /// How long the trainer has waited in all, the present wait included.
    pub fn waited(&self) -> Duration {
        self.wait.total(self.ports.clock.monotonic())
    }

    /// The clock of the run.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.ports.clock)
    }

    /// The job's pipeline.
    pub fn pipeline(&self) -> &Pipeline {
        &self.source.downloader.context.pipeline
    }

    /// Number of batches per epoch; none if it is not known in advance.
    pub fn batches_per_epoch(&self) -> Option<u64> {
        let view = self.state.ledger.view()?;
        let plan = view.plan?;
        let counts_batches = self.source.downloader.context.pipeline.counts_batches();
        (counts_batches && view.spec.settings.on_error == ErrorPolicy::Fail)
            .then(|| plan.most_batches())
    }

    /// The delivery guarantee of the job for a trainer that returns.
    pub fn visitation(&self) -> Visitation {
        self.visitation
    }

    /// Resolves when the run has failed, even while no batches are taken.
    pub async fn failed(&self) -> FetchError {
        self.state.ledger.failed().await
    }

    /// Records that everything up to and including `batch` is safe in a checkpoint.
    pub fn checkpointed(&self, batch: Cursor) {
        self.state.progress.acks().make_durable(batch.next());
    }

    /// The end of `epoch`, if the stream has passed it.
    pub fn end_of(&self, epoch: Epoch) -> Option<Cursor> {
        self.state.progress.acks().end_of(epoch)
    }

    /// Records that everything before `next` is safe in a checkpoint.
    pub fn checkpointed_before(&self, next: Cursor) {
        self.state.progress.acks().make_durable(next);
    }

    /// Records that all epochs before `epoch` are safe in a checkpoint.
    pub fn checkpointed_epochs(&self, epoch: Epoch) {
        self.state.progress.acks().make_durable(Cursor::start_of(epoch));
        self.state.progress.urgent.notify_one();
    }

    /// A handle that reports what the next batch waits for, and the numbers of the stream.
    pub fn watcher(&self) -> WaitExplainer {
        WaitExplainer(self.state.clone())
    }

    /// The state of the job, for people.
    pub fn statistics(&self) -> JobStatistics {
        self.state.statistics()
    }

    /// The last delivered batch.
    pub fn last_batch(&self) -> Option<Cursor> {
        self.last_batch
    }

    /// The job as last reported.
    pub fn view(&self) -> Option<JobView> {
        self.state.ledger.view()
    }

    /// The plan once the dataset is indexed. Cancel safe.
    pub fn indexed(&self) -> impl Future<Output = Result<EpochPlan, FetchError>> + use<> {
        let ledger = Arc::clone(&self.state.ledger);
        async move { ledger.indexed().await }
    }

    /// Whether the stream is known to begin at the end of the job, so that no batch follows.
    pub fn is_at_end(&self) -> bool {
        let epochs = self.view().map(|view| view.spec.epochs);
        self.state
            .progress
            .acks()
            .begins_at()
            .zip(epochs)
            .is_some_and(|(at, epochs)| at.epoch >= epochs)
    }

    /// Whether the job was closed, as last reported.
    pub fn is_job_done(&self) -> bool {
        self.state.ledger.is_done()
    }

    /// Resolves once the job is closed.
    pub async fn job_done(&self) {
        while !self.state.ledger.is_done() {
            self.state.ledger.changed().await;
        }
    }

    /// Reports the trainer's progress and waits for the coordinator's confirmation. Call it once at the end,
    /// so that the job is closed and its objects are deleted.
    ///
    /// # Errors
    /// The job could not be closed: it failed, or the service did not answer. With several readers, it is closed
    /// once all of them have reported its end.
    pub async fn finish(self) -> Result<JobStatistics, FetchError> {
        let snapshot = self.statistics();
        self.settle().await?;
        Ok(snapshot)
    }

    /// As [`Fetcher::finish`], without consuming the fetcher. Cancel safe.
    pub async fn settle(&self) -> Result<(), FetchError> {
        self.acknowledger().settle().await
    }

    /// A handle that records checkpoints while another thread waits for the next batch.
    pub fn acknowledger(&self) -> BatchAcknowledger {
        BatchAcknowledger {
            state: self.state.clone(),
            patience: self.config.patience,
            is_alone: self.own().are_all(),
        }
    }

    #[cfg(test)]
    pub(crate) fn progress(&self) -> Arc<FetcherProgress> {
        Arc::clone(&self.state.progress)
    }

    fn report_if_due(&self) {
        if self.state.ledger.window_waits(&self.state.progress) {
            self.state.progress.soon.notify_one();
        }
    }

    /// Starts streaming a registered job, and takes it over from an earlier reader.
    pub async fn start(ports: FetcherPorts, config: FetcherConfig) -> Result<Self, FetchError> {
        let fetcher = Self::open(ports, config).await?;
        fetcher.announce();
        Ok(fetcher)
    }

    /// As [`Fetcher::start`], but only prefetches: [`Fetcher::announce`] takes the job over, once the trainer's
    /// start is known.
    pub async fn open(ports: FetcherPorts, config: FetcherConfig) -> Result<Self, FetchError> {
        let (context, job_epochs) = load(&ports, &config).await?;
        let visitation = context.view.spec.settings.visitation;
        let resume = beginning(&ports, &config, visitation).await?;
        let own = config.own.unwrap_or_else(|| config.one(ports.clock.nonce(), resume));
        let is_shared = is_shared(own, visitation)?;
        // Batches are counted from the start of the resumed epoch: request the entries of all its splits again.
        let start = SplitPlace::start_of(resume.epoch);
        let ledger = SplitLedger::new((*context.view).clone(), start, config.folders.clone());
        let ledger = ledger.with_job_epochs(job_epochs);
        let progress = FetcherProgress::new(own, resume);
        if visitation == Visitation::AtMostOnce {
            progress.acknowledge_always();
        }
        let FetcherConfig { prefetch, local_workers, object_sizes, patience, .. } = config;
        let ranks = own.data_ranks();
        let bound = MemoryBound::new(prefetch, local_workers, ranks, object_sizes);
        let state = StreamState::new(ledger, progress, bound, is_shared, Arc::clone(&ports.clock));
        let (mut tasks, mut streaming) = (JoinSet::new(), JoinSet::new());
        tasks.spawn(CoordinatorPoller { context: context.clone(), state: state.clone() }.run());
        let StreamState { ledger, progress, clock, .. } = state.clone();
        tasks.spawn(watch_progress(clock, Arc::clone(&ledger), progress, patience));
        let context_of_pool = context.clone().for_runner(ports.local_runner(&config));
        let (state_of_pool, most) = (state.clone(), local_workers);
        let pool = LocalPool { context: context_of_pool, state: state_of_pool, own, most };
        tasks.spawn(pool.run());
        let downloader = SplitDownloader { context, state: state.clone() };
        let source = BatchSource { downloader, own, plan: Arc::clone(&config.plan) };
        let batches = source.stream(resume, &mut streaming);
        Ok(Self {
            state,
            ports,
            config,
            batches,
            begin: resume,
            source,
            visitation,
            held: None,
            last_handed_over: None,
            last_batch: None,
            ended: false,
            wait: Default::default(),
            waits: DeliveryWaits::default(),
            streaming,
            _tasks: tasks,
        })
    }
}

/// Whether other readers serve the rest of the run. A step of several readers that is taken at most once would have to
/// wait until the progress of the job, not only of its reader, is beyond it.
fn is_shared(own: ServedRanks, visitation: Visitation) -> Result<bool, FetchError> {
    let is_shared = !own.are_all();
    if is_shared && visitation == Visitation::AtMostOnce {
        Err(FetchError::Refused(
            "a job whose batches are visited at most once has one reader: serve all ranks by one fetcher".into(),
        ))
    } else {
        Ok(is_shared)
    }
}

/// Reads the job, with the epochs to read of its own, and compiles its pipeline. Returns the job's epochs as well.
async fn load(
    ports: &FetcherPorts,
    config: &FetcherConfig,
) -> Result<(JobContext, Epoch), FetchError> {
    let runner = ports.runner(config);
    let loading = async || JobContext::load(Arc::clone(&runner), &config.job).await;
    let refused = |error: LeaseError| FetchError::Refused(error.to_string());
    let passes = |error: &LeaseError| matches!(error, LeaseError::Passing(_));
    let mut context = insist(&*runner.clock, config.patience, loading, passes, refused).await?;
    let job_epochs = context.view.spec.epochs;
    let epochs = config.own.and_then(|own| own.run.epochs).or(config.epochs);
    context.view = Arc::new((*context.view).clone().read_until(epochs));
    Ok((context, job_epochs))
}

/// Records which batches of a fetcher are safe in a checkpoint.
#[derive(Clone)]
pub struct BatchAcknowledger {
    state: StreamState,
    patience: Duration,
    /// Whether the fetcher serves all ranks.
    is_alone: bool,
}

impl BatchAcknowledger {
    /// Records that everything before `next` is safe in a checkpoint.
    pub fn checkpointed_before(&self, next: Cursor) {
        self.state.progress.acks().make_durable(next);
    }

    /// As [`Fetcher::finish`], while the fetcher lives. Cancel safe.
    pub async fn settle(&self) -> Result<(), FetchError> {
        let StreamState { ledger, progress, clock, .. } = &self.state;
        let epochs = ledger.view().map_or(0, |view| view.spec.epochs);
        progress.acknowledge_always();
        let mut over = pin!(outlast(&**clock, self.patience));
        let mut is_over = false;
        // Progress is not fully reported before the first answer, and the last answer closes the job.
        let is_closed = || {
            let acks = progress.acks();
            let closes = acks.durable().epoch >= epochs;
            acks.is_settled() && (!closes || ledger.has_no_more_to_close())
        };
        while !is_closed() {
            if let Some(error) = ledger.stream_error() {
                return Err(error);
            }
            // Other readers may take any time.
            if is_over && self.is_alone {
                let error = "the job is not closed yet: end it again with its last checkpoint";
                return Err(FetchError::Unreachable {
                    waited_s: self.patience.as_secs(),
                    error: error.to_owned(),
                });
            }
            tokio::select! {
                biased;
                () = &mut over, if !is_over => is_over = true,
                () = clock.sleep(Duration::from_millis(5)) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{batch, own};
    use gristmill_model::splits::ranks::TailPolicy;

    #[test]
    fn batches_are_visited_at_most_once_by_one_reader() {
        let ranks = |range| own(4, range, batch(0, 0), TailPolicy::Drop);
        let once = Visitation::AtMostOnce;
        assert!(!is_shared(ranks(0..4), once).unwrap());
        assert!(is_shared(ranks(0..2), Visitation::ExactlyOnce).unwrap());
        let refused = is_shared(ranks(0..2), once).unwrap_err();
        assert!(refused.to_string().contains("has one reader"), "{refused}");
    }
}
