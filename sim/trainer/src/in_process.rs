//! The steps of ranks whose fetcher is in this process.

use crate::{
    SyntheticTraining,
    trainer::{LaterRun, StepSource, TrainingView},
};
use gristmill_client::{JobHandle, ProgramFailure, StreamOptions};
use gristmill_model::splits::Cursor;
use gristmill_model::splits::ranks::RunRanks;
use gristmill_model::splits::run::TrainingRun;
use gristmill_model::wire::JobView;
use gristmill_model::{Checkpoint, RunToken};
use gristmill_stream::{
    FetchError, Fetcher, JobStatistics, ServedRanks, StepDelivery, StepStream,
    waiting::{WaitReason, while_saying},
};
use std::{num::NonZeroU32, time::Duration};

/// All ranks of a run, which this process serves.
pub struct InProcessSteps {
    job: JobHandle,
    stream: StreamOptions,
    steps: StepStream,
}

impl InProcessSteps {
    /// Begins the first run of a training at `from`.
    pub async fn open(
        training: &SyntheticTraining,
        job: &JobHandle,
        from: Cursor,
    ) -> Result<Self, ProgramFailure> {
        let stream = training.stream.clone();
        let fetcher = if training.is_one_rank() {
            job.batches(from, &stream).await?
        } else {
            let tail = training.tail.resolve(&job.pipeline().map_err(ProgramFailure::failed)?);
            let replicas = training.replicas.resolve(training.ranks)?;
            let ranks = RunRanks { replicas, ..RunRanks::new(training.ranks, from, tail) };
            begin_run(job, &stream, ranks).await?
        };
        Ok(Self { job: job.clone(), stream, steps: StepStream::new(fetcher) })
    }
}

async fn begin_run(
    job: &JobHandle,
    stream: &StreamOptions,
    ranks: RunRanks,
) -> Result<Fetcher, FetchError> {
    let token = RunToken::from_name(&job.service.ports.clock.nonce().to_string());
    let own = ServedRanks::all(TrainingRun { token, ranks, epochs: job.epochs });
    let fetcher = job.open_for(Some(own), ranks.from, stream).await?;
    fetcher.announce();
    Ok(fetcher)
}

impl StepSource for InProcessSteps {
    type Observed = Fetcher;

    fn observed(&mut self) -> &Fetcher {
        self.steps.fetcher()
    }

    fn waiting(&self) -> (Duration, WaitReason) {
        let fetcher = self.steps.fetcher();
        (fetcher.present_wait(), fetcher.watcher().waiting())
    }

    async fn next(&mut self) -> Result<StepDelivery, ProgramFailure> {
        Ok(self.steps.next().await?)
    }

    async fn prepare(&mut self) -> Result<(), ProgramFailure> {
        // One rank asks for its next batch when it is done with this one.
        if self.steps.ranks().count > NonZeroU32::MIN {
            self.steps.set_ranks_compute(true);
            self.steps.prepare().await?;
        }
        Ok(())
    }

    async fn checkpointed(&mut self, next: Cursor) {
        self.steps.set_ranks_compute(false);
        self.steps.checkpointed(next);
    }

    async fn resume(
        self,
        LaterRun { ranks: count, replicas, checkpoint }: LaterRun,
    ) -> Result<Self, ProgramFailure> {
        let Self { job, stream, steps } = self;
        let tail = steps.ranks().tail;
        // Nothing of the old run is left but the text.
        drop(steps);
        let checkpoint: Checkpoint = checkpoint.parse().map_err(ProgramFailure::failed)?;
        let from =
            job.place_of(&checkpoint, stream.patience).await.map_err(ProgramFailure::failed)?;
        let ranks = RunRanks { replicas, ..RunRanks::new(count, from, tail) };
        let fetcher = begin_run(&job, &stream, ranks).await?;
        Ok(Self { job, stream, steps: StepStream::new(fetcher) })
    }

    async fn close(
        self,
        view: &mut TrainingView,
    ) -> Result<(JobStatistics, Option<JobView>), ProgramFailure> {
        let (link, fetcher) = (&self.job.service.link, self.steps.into_fetcher());
        fetcher.checkpointed_epochs(self.job.view.spec.epochs);
        let (job, watcher) = (fetcher.view(), fetcher.watcher());
        let closing = || match link.or(watcher.waiting()) {
            fault if fault.is_fault => Some(fault),
            _ => Some(WaitReason::patiently("the service to close the job")),
        };
        let closed = while_saying(fetcher.finish(), closing, |what| view.progress.say(what));
        Ok((closed.await?, job))
    }
}
