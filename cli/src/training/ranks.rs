//! Several ranks that train together, and runs of other numbers of ranks one after another.

use super::{
    TrainOptions,
    resizes::Resizes,
    stand_ins::StandIns,
    trainer::{RunView, StandIn},
};
use gristmill_client::{
    Failure, FetchError, Fetcher, Job, OwnRanks, RankBatch, StepDelivery, Steps, StreamOptions,
    report::{Observed, RankSteps},
    waiting::Link,
};
use gristmill_model::splits::ranks::Ranks;
use gristmill_model::splits::readers::RankRange;
use gristmill_model::splits::{Cursor, run::TrainingRun};
use gristmill_model::{Checkpoint, RunToken};
use std::{num::NonZeroU32, time::Instant};

/// Begins a run of `ranks`, which this process serves all.
///
/// # Errors
/// As [`Job::batches`].
pub async fn begin_run(
    job: &Job,
    stream: &StreamOptions,
    ranks: Ranks,
) -> Result<Fetcher, FetchError> {
    let token = RunToken::of(&job.service.ports.clock.nonce().to_string());
    let range = RankRange::all(ranks.count);
    let own = OwnRanks { run: TrainingRun { token, ranks }, range, is_successor: false };
    let fetcher = job.open_for(Some(own), ranks.from, stream).await?;
    fetcher.announce();
    Ok(fetcher)
}

/// Synthetic ranks. They meet after each step, as at a collective operation.
pub struct RankedTrainer<'a> {
    job: &'a Job,
    stream: &'a StreamOptions,
    resizes: Resizes,
    stand_ins: StandIns,
    view: RunView,
    /// Steps of the job so far, and those of each rank.
    step: u64,
    steps: RankSteps,
    /// Start of a later run.
    next: Cursor,
}

impl<'a> RankedTrainer<'a> {
    pub fn new(options: &'a TrainOptions, job: &'a Job, stand_in: StandIn, view: RunView) -> Self {
        Self {
            job,
            stream: &options.stream,
            resizes: Resizes::new(&options.resize),
            stand_ins: StandIns::new(stand_in),
            view,
            step: 0,
            steps: RankSteps::default(),
            next: Cursor::default(),
        }
    }

    /// Trains to the end of the job, and returns the steps of each rank as well.
    pub async fn train(
        mut self,
        fetcher: Fetcher,
        link: &Link,
    ) -> Result<(Observed, RankSteps), Failure> {
        let mut run = self.run(fetcher);
        loop {
            let delivery = self.view.wait(&mut run, link).await?;
            if let StepDelivery::Step { .. } = delivery
                && let Some(count) = self.resizes.take_due(self.step)
            {
                run = self.resume(run, count).await?;
                continue;
            }
            let began = Instant::now();
            self.view.observer.delivered(&delivery, run.fetcher()).await?;
            self.next = match delivery {
                StepDelivery::Step { batches, next, .. } => {
                    self.take(&mut run, batches, began).await?;
                    next
                }
                StepDelivery::EpochEnd { totals, .. } => Cursor::start_of(totals.epoch + 1),
                StepDelivery::End => break,
            };
            run.checkpointed(self.next);
        }
        self.resizes.say_left(self.step);
        Ok((self.view.close(run.into_fetcher(), link).await?, self.steps))
    }

    /// The steps of a run that begins where `fetcher` does.
    fn run(&mut self, fetcher: Fetcher) -> Steps {
        let run = Steps::new(fetcher);
        self.steps.begin_run(run.ranks().count.get() as usize);
        run
    }

    /// Ends `run` and begins one of `count` ranks from the text of its checkpoint.
    async fn resume(&mut self, run: Steps, count: NonZeroU32) -> Result<Steps, Failure> {
        let text = Checkpoint::of(&self.job.view, self.next).to_string();
        let tail = run.ranks().tail;
        // Nothing of the old run is left but this text.
        drop(run);
        gristmill_client::complain!(
            "after {} steps, {count} ranks continue from {text}",
            self.step
        );
        let checkpoint: Checkpoint = text.parse().map_err(Failure::failed)?;
        let at = checkpoint.cursor_in(&self.job.view).map_err(Failure::failed)?;
        let fetcher = begin_run(self.job, self.stream, Ranks { count, from: at, tail }).await?;
        self.view.observer.resumes(&fetcher);
        Ok(self.run(fetcher))
    }

    /// Hands each rank its batch and waits for all; the next step arrives meanwhile.
    async fn take(
        &mut self,
        run: &mut Steps,
        batches: Vec<Option<RankBatch>>,
        began: Instant,
    ) -> Result<(), Failure> {
        for (rank, given) in batches.iter().enumerate() {
            if let Some(given) = given {
                self.steps.took(rank, !is_first(given));
            }
        }
        let given = batches.into_iter().flatten();
        let mut working = self.stand_ins.begin(
            given.map(|given| {
                let is_first = is_first(&given);
                (given.batch, is_first)
            }),
            began,
        );
        self.step += 1;
        if run.ranks().count == NonZeroU32::MIN {
            // One rank asks for its next batch when it is done with this one.
            return self.stand_ins.end(&mut working).await;
        }
        run.set_ranks_compute(true);
        let mut is_prepared = false;
        loop {
            tokio::select! {
                biased;
                done = self.stand_ins.end(&mut working) => {
                    done?;
                    break;
                }
                prepared = run.prepare(), if !is_prepared => {
                    prepared?;
                    is_prepared = true;
                }
            }
        }
        run.set_ranks_compute(false);
        Ok(())
    }
}

/// Whether a batch is given for the first time.
fn is_first(given: &RankBatch) -> bool {
    given.repeated_for.is_none()
}
