//! Downloads and joins splits, from a given batch to the end of the run.

use crate::{
    FetchError, ServedRanks,
    assembler::{AssembledItem, BatchAssembler},
    downloader::{MemoryBudget, SplitDownloader, ahead},
    own_batches::BatchPicker,
    start::{StreamStart, cut},
    waits::StageClock,
};
use gristmill_executor::BatchFinisher;
use gristmill_model::splits::{Cursor, SplitPlace};
use gristmill_model::wire::EpochPlan;
use gristmill_runner::{JobContext, Runner};
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
    pub stages: Arc<StageClock>,
    /// The ranks served here.
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
        let _open = queue.clone();
        let SplitDownloader { ledger, progress, runner: Runner { clock, .. }, .. } =
            self.downloader.clone();
        let Err(error) = self.batches(at, queue).await else { return };
        // An object may also be missing because the checkpoint is too old. The answer to the first report
        // then gives the better error; wait for it, because the first recorded error stays.
        while matches!(error, FetchError::BadObject(_))
            && progress.acks().is_unconfirmed()
            && ledger.stream_error().is_none()
        {
            clock.sleep(Duration::from_millis(5)).await;
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
        let Self { downloader, stages, own, plan: known } = self;
        let progress = Arc::clone(&downloader.progress);
        // The ranks served here, if other readers serve the rest.
        let part = (!own.are_all()).then_some(own);
        let view = downloader.ledger.planned().await?;
        let Some(plan) = view.plan else { return Ok(()) };
        known.get_or_init(|| plan);
        // Operators may drop elements or repeat them; then the number of batches is known at the end of an epoch.
        let most = downloader.context.pipeline.is_one_to_one().then(|| plan.most_batches());
        let start =
            StreamStart::seek(&downloader.ledger, &plan, view.spec.epochs, at, most).await?;
        let durable = start.durable_at(at, plan.n_splits);
        let (at, place) = (start.at, start.place);
        progress.starts_at(at, durable, SplitPlace::new(at.epoch, start.joiner.position()));
        let own = BatchPicker::new(part, at, (cut(&plan), plan.n_splits), start.joiner.clone());
        let (sender, arrivals) = mpsc::channel(ahead(part));
        let JobContext { program, pipeline, .. } = &*downloader.context;
        let finisher = BatchFinisher::compile(pipeline);
        let finisher = finisher.map_err(|error| FetchError::Refused(error.to_string()))?;
        let program = (Arc::clone(program), finisher);
        let stages = (stages, Arc::clone(&downloader.runner.clock));
        let (epochs, to) = (view.spec.epochs, (queue, progress));
        let budget = Arc::new(MemoryBudget::new(Arc::clone(&downloader.bound)));
        let assembler = BatchAssembler::new(program, plan, epochs, &start, to, stages);
        let downloading = downloader.run(place, own, plan, (Arc::clone(&budget), sender));
        tokio::try_join!(downloading, assembler.run(arrivals, &budget)).map(|_| ())
    }
}
