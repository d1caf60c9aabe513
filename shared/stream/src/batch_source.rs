//! Downloads and joins splits, from a given batch to the end of the run.

use crate::{
    EpochTotals, FetchError, ServedRanks,
    assembler::{AssembledItem, BatchAssembler},
    downloader::{MemoryBudget, SplitDownloader, ahead},
    ledger::SplitLedger,
    served_ranks::BatchPicker,
    waiting::StreamState,
};
use gristmill_executor::BatchFinisher;
use gristmill_model::Epoch;
use gristmill_model::splits::batches::{BatchJoiner, BatchRules};
use gristmill_model::splits::{Cursor, SplitKind, SplitPlace};
use gristmill_model::wire::{EpochPlan, ReadySplit};
use gristmill_runner::JobContext;
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::{sync::mpsc, task::JoinSet};

/// Batches ready for the trainer. One suffices: making a batch costs a copy at most, and prefetched objects
/// bridge the waits.
const QUEUE_BATCHES: usize = 1;

/// State shared by the streams of one job.
#[derive(Clone)]
pub(crate) struct BatchSource {
    pub downloader: SplitDownloader,
    pub own: ServedRanks,
    /// Set once the dataset is indexed.
    pub plan: Arc<OnceLock<EpochPlan>>,
}

impl BatchSource {
    /// Starts a stream at batch `at` as one of `tasks`.
    pub fn stream(&self, at: Cursor, tasks: &mut JoinSet<()>) -> mpsc::Receiver<AssembledItem> {
        let (queue, batches) = mpsc::channel(QUEUE_BATCHES);
        tasks.spawn(self.clone().run(at, queue));
        batches
    }

    /// Downloads and joins; an error ends the stream or the run.
    async fn run(self, at: Cursor, queue: mpsc::Sender<AssembledItem>) {
        // Keep the queue open until the error is recorded, so that a waiting trainer sees the error.
        let open = queue.clone();
        let StreamState { ledger, progress, clock, .. } = self.downloader.state.clone();
        let Err(error) = self.batches(at, queue).await else { return };
        // An object may also be missing because the checkpoint is too old. The answer to the first report
        // then gives the better error; wait for it, because the first recorded error stays.
        while matches!(error, FetchError::BadObject(_))
            && progress.acks().is_unconfirmed()
            && ledger.stream_error().is_none()
        {
            clock.sleep(Duration::from_millis(5)).await;
        }
        if matches!(error, FetchError::JobFailed(_)) {
            // The batches before the error are delivered first, and what the trainer has of them is reported: once the
            // stream has failed, nothing is.
            drop(open.reserve_many(QUEUE_BATCHES).await);
            progress.acknowledge_always();
            while progress.acks().has_news() && ledger.stream_error().is_none() {
                clock.sleep(Duration::from_millis(5)).await;
            }
        }
        if ledger.stream_error().is_none() {
            ledger.fail(error);
        }
    }

    async fn batches(
        self,
        at: Cursor,
        queue: mpsc::Sender<AssembledItem>,
    ) -> Result<(), FetchError> {
        let Self { downloader, own, plan: known } = self;
        let state = downloader.state.clone();
        // The ranks served here, if other readers serve the rest.
        let part = (!own.are_all()).then_some(own);
        let view = state.ledger.planned().await?;
        let Some(plan) = view.plan else { return Ok(()) };
        known.get_or_init(|| plan);
        // Operators may drop elements or repeat them, and batches have several sizes; then the number of batches is known at
        // the end of an epoch.
        let most = downloader.context.pipeline.counts_batches().then(|| plan.most_batches());
        let epochs = view.spec.epochs;
        let start = StreamStart::seek(&state.ledger, &plan, epochs, at, most).await?;
        let (durable, needed) = start.durable_at(at, plan.n_splits);
        let (at, place) = (start.at, start.place);
        let next = SplitPlace::new(at.epoch, start.joiner.position());
        state.progress.starts_at(at, durable, needed, next);
        let own = BatchPicker::new(part, at, cut(&plan), plan.n_splits, start.joiner.clone());
        let (sender, arrivals) = mpsc::channel(ahead(part));
        let JobContext { program, pipeline, .. } = &downloader.context;
        let finisher = BatchFinisher::compile(pipeline);
        let finisher = finisher.map_err(|error| FetchError::Refused(error.to_string()))?;
        let program = Arc::clone(program);
        let budget = Arc::new(MemoryBudget::new(Arc::clone(&state.bound)));
        let ledger = Arc::clone(&state.ledger);
        let assembler = BatchAssembler::new(program, finisher, plan, epochs, &start, queue, state);
        let downloading = downloader.run(place, own, plan, Arc::clone(&budget), sender);
        let (is_whole, ()) = tokio::try_join!(downloading, assembler.run(arrivals, &budget))?;
        if is_whole { Ok(()) } else { ledger.job_failure().map_or(Ok(()), Err) }
    }
}

/// The start of a stream: a joiner that has counted up to the batch to resume at.
pub(crate) struct StreamStart {
    /// The batch to resume at. After the last batch of an epoch, that is the first of the next epoch.
    pub at: Cursor,
    pub joiner: BatchJoiner,
    pub totals: EpochTotals,
    /// The first split whose object is needed.
    pub place: SplitPlace,
}

impl StreamStart {
    /// Counts the batches before `at` from the entries of its epoch's splits. If the table has lost some, the stream
    /// begins with the first of them, and takes in those before `at` as they are made again, without delivering them.
    ///
    /// # Errors
    /// [`FetchError::Misplaced`] if there is no such batch; an epoch has at most `most` batches, if that is known.
    pub async fn seek(
        ledger: &SplitLedger,
        plan: &EpochPlan,
        epochs: Epoch,
        at: Cursor,
        most: Option<u64>,
    ) -> Result<Self, FetchError> {
        let Cursor { epoch, batch_index } = at;
        let beyond = |has: String| beyond(at, &has);
        if epoch > epochs || epoch == epochs && batch_index > 0 {
            return Err(beyond(format!("the job has {epochs} epochs, numbered from 0")));
        }
        if let Some(most) = most.filter(|most| batch_index > *most) {
            return Err(beyond(format!("the epoch has {most} batches")));
        }
        let Self { mut joiner, mut totals, .. } = Self::from_epoch(plan, epoch);
        // Splits after the last batch may complete no batch; an epoch with only such splits left is over.
        while batch_index > 0 && joiner.position() < plan.n_splits {
            let made = joiner.batch_index();
            let entry = match ledger.peek(SplitPlace::new(epoch, joiner.position())).await? {
                Some(entry) => entry,
                None => {
                    if made < batch_index {
                        tracing::warn!(
                            "of epoch {epoch}, only {made} of the {batch_index} batches that the trainer has are known \
                             to the service: the others are made again"
                        );
                    }
                    break;
                }
            };
            let mut ahead = joiner.clone();
            ahead.push(entry.outcome.counts(), |_| {});
            // The stream always consumes the last split: it may leave a last batch, and it ends the epoch.
            let is_last = ahead.position() == plan.n_splits;
            let has = ahead.batch_index() + u64::from(is_last && ahead.clone().finish().is_some());
            if is_last && has < batch_index {
                return Err(beyond(format!("the epoch has {has} batches")));
            }
            if is_last && has == batch_index {
                return Ok(Self::from_epoch(plan, epoch + 1));
            }
            // Stop before the split that completes batch `at`: it is the first one the stream consumes.
            if is_last || ahead.batch_index() > batch_index {
                break;
            }
            joiner = ahead;
            add(&mut totals, &entry);
        }
        if plan.n_splits == 0 && batch_index > 0 {
            return Err(beyond("the epoch has no batches".to_owned()));
        }
        // Without splits, everything is made before the job begins.
        let has_begun = plan.n_splits > 0 || at > Cursor::default() || ledger.is_done();
        if has_begun && is_end(ledger, plan, epochs, epoch, &joiner).await? {
            return Ok(Self::from_epoch(plan, epochs));
        }
        totals.batches = joiner.batch_index();
        let place = SplitPlace::new(epoch, joiner.first_needed());
        ledger.forget_before(place);
        Ok(Self { at, joiner, totals, place })
    }

    /// The position that a reader of a run reports when it begins at `requested`, and the first split that a
    /// restart there needs. Behind the last batch of an epoch, that is still its end: ranks that saved it must be
    /// able to return to it.
    pub fn durable_at(&self, requested: Cursor, n_splits: u32) -> (Cursor, SplitPlace) {
        if requested.epoch < self.at.epoch {
            (requested, SplitPlace::new(requested.epoch, n_splits.saturating_sub(1)))
        } else {
            (self.at, self.place)
        }
    }

    fn from_epoch(plan: &EpochPlan, epoch: Epoch) -> Self {
        let totals = EpochTotals { epoch, ..EpochTotals::default() };
        let joiner = BatchJoiner::new(cut(plan));
        Self { at: Cursor::start_of(epoch), joiner, totals, place: SplitPlace::start_of(epoch) }
    }
}

/// There is no batch `at`: of its epoch, or of the job, there is what `has` says.
pub(crate) fn beyond(at: Cursor, has: &str) -> FetchError {
    FetchError::Misplaced(format!(
        "there is no {at} to continue at: {has}; the position belongs to another job or is damaged: start without it"
    ))
}

/// Whether the rest of `epoch` after `joiner`, and all later epochs, are complete and contain no batch.
async fn is_end(
    ledger: &SplitLedger,
    plan: &EpochPlan,
    epochs: Epoch,
    begins: Epoch,
    joiner: &BatchJoiner,
) -> Result<bool, FetchError> {
    for epoch in begins..epochs {
        let fresh = || BatchJoiner::new(cut(plan));
        let mut ahead = if epoch == begins { joiner.clone() } else { fresh() };
        let before = ahead.batch_index();
        while ahead.position() < plan.n_splits {
            let Some(entry) = ledger.peek(SplitPlace::new(epoch, ahead.position())).await? else {
                return Ok(false);
            };
            ahead.push(entry.outcome.counts(), |_| {});
            if ahead.batch_index() > before {
                return Ok(false);
            }
        }
        if ahead.finish().is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(crate) fn cut(plan: &EpochPlan) -> BatchRules {
    BatchRules { size: plan.batch_size, drop_last: plan.drop_last, in_order: plan.in_order }
}

pub(crate) fn add(totals: &mut EpochTotals, entry: &ReadySplit) {
    totals.rows += u64::from(entry.outcome.rows);
    totals.remainder_rows += u64::from(entry.outcome.remainder_rows);
    totals.skipped += u64::from(entry.outcome.skipped_records);
    totals.splits += 1;
    let is_local = entry.outcome.kind == SplitKind::Local;
    totals.local_splits += u32::from(is_local);
    let times = if is_local { &mut totals.local_times } else { &mut totals.times };
    *times = times.plus(entry.times);
    totals.stored_bytes += entry.outcome.object_bytes;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        FolderBuckets,
        samples::{batch, entry, polled, split, view},
    };

    /// A ledger with `n` committed splits of four batches; the next one is not committed.
    fn ledger(n: u32) -> (SplitLedger, EpochPlan) {
        let ledger = SplitLedger::new(view(), split(0, 0), FolderBuckets::default());
        let entries: Vec<_> = (0..n).map(|position| entry(0, position, 4)).collect();
        ledger.merge(polled(&entries), split(0, 0));
        ledger.merge(polled(&[]), split(0, n));
        (ledger, view().plan.unwrap())
    }

    #[tokio::test]
    async fn a_trainer_begins_with_the_split_that_completes_its_batch() {
        let (ledger, plan) = ledger(3);
        let start = StreamStart::seek(&ledger, &plan, 1, batch(0, 5), None).await.unwrap();
        assert_eq!((start.at, start.place), (batch(0, 5), split(0, 1)));
        assert_eq!(start.joiner.position(), 1);
        assert_eq!((start.totals.batches, start.totals.splits, start.totals.rows), (4, 1, 32));
    }

    #[test]
    fn splits_of_local_workers_and_their_times_are_apart() {
        let mut totals = EpochTotals::default();
        let remote = entry(0, 0, 4);
        let mut local = entry(0, 1, 4);
        (local.outcome.kind, local.times.compute_ms) = (SplitKind::Local, 7);
        [&remote, &local, &local].into_iter().for_each(|entry| add(&mut totals, entry));
        assert_eq!((totals.splits, totals.local_splits), (3, 2));
        assert_eq!((totals.times, totals.local_times.compute_ms), (remote.times, 14));
    }

    #[tokio::test]
    async fn a_trainer_without_a_checkpoint_begins_with_the_first_split() {
        let (ledger, plan) = ledger(3);
        let start = StreamStart::seek(&ledger, &plan, 1, batch(0, 0), None).await.unwrap();
        assert_eq!((start.at, start.place), (batch(0, 0), split(0, 0)));
    }

    #[tokio::test]
    async fn a_trainer_that_is_ahead_of_the_service_begins_with_the_first_split_to_make_again() {
        let (ledger, plan) = ledger(3);
        let start = StreamStart::seek(&ledger, &plan, 1, batch(0, 50), Some(80)).await.unwrap();
        assert_eq!((start.at, start.place), (batch(0, 50), split(0, 3)));
        assert_eq!((start.joiner.position(), start.totals.batches), (3, 12));
        let (ledger, plan) = super::tests::ledger(3);
        let start = StreamStart::seek(&ledger, &plan, 1, batch(0, 50), None).await.unwrap();
        assert_eq!(start.place, split(0, 3), "their number may not be known");
    }

    #[tokio::test]
    async fn a_batch_beyond_the_plan_is_refused() {
        let (ledger, plan) = ledger(3);
        let refused = async |at| match StreamStart::seek(&ledger, &plan, 1, at, Some(80)).await {
            Err(FetchError::Misplaced(why)) => why,
            Err(error) => panic!("{error}"),
            Ok(start) => panic!("it begins at {:?}", start.at),
        };
        assert!(refused(batch(0, 81)).await.contains("the epoch has 80 batches"));
        assert!(refused(batch(1, 3)).await.contains("the job has 1 epochs"));
        assert!(refused(batch(7, 0)).await.contains("the job has 1 epochs"));
    }

    #[tokio::test]
    async fn behind_the_last_batch_of_an_epoch_comes_the_next_epoch() {
        let (ledger, plan) = ledger(20);
        let start = StreamStart::seek(&ledger, &plan, 1, batch(0, 80), None).await.unwrap();
        assert_eq!((start.at, start.place), (batch(1, 0), split(1, 0)));
        assert_eq!(start.durable_at(batch(0, 80), 20), (batch(0, 80), split(0, 19)));
        assert_eq!(start.durable_at(batch(1, 0), 20), (batch(1, 0), split(1, 0)));
    }
}
