//! The steps of ranks whose fetcher is in this process.

use crate::{
    Training,
    trainer::{LaterRun, StepSource, View},
};
use gristmill_client::{
    Failure, FetchError, Fetcher, Job, OwnRanks, Snapshot, StepDelivery, Steps, StreamOptions,
    waiting::{Waiting, while_saying},
};
use gristmill_model::splits::{Cursor, ranks::Ranks, run::TrainingRun};
use gristmill_model::wire::JobView;
use gristmill_model::{Checkpoint, RunToken};
use std::{num::NonZeroU32, time::Duration};

/// All ranks of a run, which this process serves.
pub struct StepsHere {
    job: Job,
    stream: StreamOptions,
    steps: Steps,
}

impl StepsHere {
    /// Begins the first run of a training at `from`.
    ///
    /// # Errors
    /// As [`Job::batches`].
    pub async fn open(training: &Training, job: &Job, from: Cursor) -> Result<Self, Failure> {
        let stream = training.stream.clone();
        let fetcher = if training.is_one_rank() {
            job.batches(from, &stream).await?
        } else {
            let tail = training.tail.of(&job.pipeline().map_err(Failure::failed)?);
            begin_run(job, &stream, Ranks { count: training.ranks, from, tail }).await?
        };
        Ok(Self { job: job.clone(), stream, steps: Steps::new(fetcher) })
    }
}

async fn begin_run(job: &Job, stream: &StreamOptions, ranks: Ranks) -> Result<Fetcher, FetchError> {
    let token = RunToken::of(&job.service.ports.clock.nonce().to_string());
    let own = OwnRanks::all(TrainingRun { token, ranks, epochs: job.epochs });
    let fetcher = job.open_for(Some(own), ranks.from, stream).await?;
    fetcher.announce();
    Ok(fetcher)
}

impl StepSource for StepsHere {
    type Observed = Fetcher;

    fn observed(&mut self) -> &Fetcher {
        self.steps.fetcher()
    }

    fn waiting(&self) -> (Duration, Waiting) {
        let fetcher = self.steps.fetcher();
        (fetcher.present_wait(), fetcher.watcher().waiting())
    }

    async fn next(&mut self) -> Result<StepDelivery, Failure> {
        Ok(self.steps.next().await?)
    }

    async fn prepare(&mut self) -> Result<(), Failure> {
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

    async fn resume(self, LaterRun { ranks, checkpoint }: LaterRun) -> Result<Self, Failure> {
        let Self { job, stream, steps } = self;
        let tail = steps.ranks().tail;
        // Nothing of the old run is left but the text.
        drop(steps);
        let checkpoint: Checkpoint = checkpoint.parse().map_err(Failure::failed)?;
        let from = job.place_of(&checkpoint, stream.patience).await.map_err(Failure::failed)?;
        let fetcher = begin_run(&job, &stream, Ranks { count: ranks, from, tail }).await?;
        Ok(Self { job, stream, steps: Steps::new(fetcher) })
    }

    async fn close(self, view: &mut View) -> Result<(Snapshot, Option<JobView>), Failure> {
        let (link, fetcher) = (&self.job.service.link, self.steps.into_fetcher());
        fetcher.checkpointed_epochs(self.job.view.spec.epochs);
        let (job, watcher) = (fetcher.view(), fetcher.watcher());
        let closing = || match link.or(watcher.waiting()) {
            fault if fault.is_fault => Some(fault),
            _ => Some(Waiting::patiently("the service to close the job")),
        };
        let closed = while_saying(fetcher.finish(), closing, |what| view.progress.say(what));
        Ok((closed.await?, job))
    }
}
