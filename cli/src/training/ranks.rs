//! Several ranks that train together, and runs of other numbers of ranks one after another.

use super::{
    TrainOptions,
    stand_ins::StandIns,
    trainer::{Deliveries, RunView, StandIn},
};
use gristmill_client::{
    Delivery, Failure, FetchError, Fetcher, Job, OwnRanks, RankBatch, StepDelivery, Steps,
    StreamOptions, report::Observed, waiting::Link,
};
use gristmill_model::splits::ranks::Ranks;
use gristmill_model::splits::readers::RankRange;
use gristmill_model::splits::{Cursor, run::TrainingRun};
use gristmill_model::{Checkpoint, RunToken};
use std::{collections::VecDeque, num::NonZeroU32};

/// Another number of ranks from a step on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resize {
    /// The number of ranks.
    pub ranks: NonZeroU32,
    /// Steps of the job before it.
    pub step: u64,
}

impl Resize {
    /// Reads `3@40`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('@').and_then(|(ranks, step)| {
            Some(Self { ranks: ranks.parse().ok()?, step: step.parse().ok()? })
        });
        parsed.ok_or_else(|| "give N@STEP, such as 3@40".to_owned())
    }
}

impl Deliveries for Steps {
    type Item = StepDelivery;

    fn fetcher(&self) -> &Fetcher {
        Steps::fetcher(self)
    }

    async fn next(&mut self) -> Result<StepDelivery, FetchError> {
        Steps::next(self).await
    }
}

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
    /// Resizes that are left, in order of their steps.
    resizes: VecDeque<Resize>,
    stand_ins: StandIns,
    view: RunView,
    /// Steps of the job so far, and those of each rank.
    step: u64,
    steps: Vec<u64>,
    /// Start of a later run.
    next: Cursor,
}

impl<'a> RankedTrainer<'a> {
    pub fn new(options: &'a TrainOptions, job: &'a Job, stand_in: StandIn, view: RunView) -> Self {
        let mut resizes = options.resize.clone();
        resizes.sort_by_key(|resize| resize.step);
        Self {
            job,
            stream: &options.stream,
            resizes: resizes.into(),
            stand_ins: StandIns::new(stand_in),
            view,
            step: 0,
            steps: Vec::new(),
            next: Cursor::default(),
        }
    }

    /// Trains to the end of the job, and returns the steps of each rank as well.
    pub async fn train(
        mut self,
        fetcher: Fetcher,
        link: &Link,
    ) -> Result<(Observed, Vec<u64>), Failure> {
        let mut run = self.run(fetcher);
        loop {
            let delivery = self.view.wait(&mut run, link).await?;
            let due = self.resizes.front().filter(|resize| resize.step <= self.step);
            match (delivery, due.map(|resize| resize.ranks)) {
                (StepDelivery::Step { .. }, Some(count)) => {
                    self.resizes.pop_front();
                    run = self.resume(run, count).await?;
                }
                (StepDelivery::Step { batches, next, .. }, None) => {
                    for given in batches.iter().flatten().filter(|given| is_first(given)) {
                        let delivery = Delivery::Batch(given.batch.clone());
                        self.view.observer.delivered(&delivery, run.fetcher()).await?;
                    }
                    self.take(&mut run, batches).await?;
                    run.checkpointed(next);
                    self.next = next;
                }
                (StepDelivery::EpochEnd { totals, left_batches, .. }, _) => {
                    left_batches.iter().for_each(|batch| self.view.observer.left_out(batch));
                    self.next = Cursor::start_of(totals.epoch + 1);
                    run.checkpointed(self.next);
                    let delivery = Delivery::EpochEnd(totals);
                    self.view.observer.delivered(&delivery, run.fetcher()).await?;
                }
                (StepDelivery::End, _) => break,
            }
        }
        for resize in &self.resizes {
            eprintln!(
                "the job ended after {} steps, before --resize {}@{}",
                self.step, resize.ranks, resize.step
            );
        }
        Ok((self.view.close(run.into_fetcher(), link).await?, self.steps))
    }

    /// The steps of a run that begins where `fetcher` does.
    fn run(&mut self, fetcher: Fetcher) -> Steps {
        let run = Steps::new(fetcher);
        let count = run.ranks().count.get() as usize;
        self.steps.resize(count.max(self.steps.len()), 0);
        run
    }

    /// Ends `run` and begins one of `count` ranks from the text of its checkpoint.
    async fn resume(&mut self, run: Steps, count: NonZeroU32) -> Result<Steps, Failure> {
        let text = Checkpoint::of(&self.job.view, self.next).to_string();
        let tail = run.ranks().tail;
        // Nothing of the old run is left but this text.
        drop(run);
        eprintln!("after {} steps, {count} ranks continue from {text}", self.step);
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
    ) -> Result<(), Failure> {
        for (rank, _) in batches.iter().enumerate().filter(|(_, given)| given.is_some()) {
            self.steps[rank] += 1;
        }
        let given = batches.into_iter().flatten();
        let mut working = self.stand_ins.begin(given.map(|given| {
            let is_first = is_first(&given);
            (given.batch, is_first)
        }));
        self.step += 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resize_names_ranks_and_step() {
        let ranks = NonZeroU32::new(3).unwrap();
        assert_eq!(Resize::parse("3@40"), Ok(Resize { ranks, step: 40 }));
        for text in ["", "3", "@40", "0@40", "3@-1", "3@x"] {
            assert!(Resize::parse(text).is_err(), "{text}");
        }
    }
}
