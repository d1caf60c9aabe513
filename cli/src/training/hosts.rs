//! `--hosts`: ranks that train over fetchers in processes of their own, one for each of some hosts.

mod processes;
mod rank;
mod ranks;
mod run;
mod summary;
mod watching;

pub use processes::Victims;
pub use run::refuse_shares;

use super::{
    TrainOptions,
    resizes::Resizes,
    stand_ins::StandIns,
    trainer::{REDRAW, RunView},
};
use crate::coordinator;
use bytes::Bytes;
use gristmill_chunk::{Frame, Limits};
use gristmill_client::{
    Batch, EpochTotals, Failure, Job, RankBatch, Room, StepDelivery,
    report::{Observable, Observed, PolledJob, RankSteps},
    waiting::Waiting,
};
use gristmill_model::wire::Status;
use gristmill_model::{Checkpoint, Epoch};
use gristmill_pipeline::KEY_FIELD;
use processes::{Hosts, Program};
use ranks::{Ranks, Step};
use run::Run;
use std::{num::NonZeroU32, sync::Arc, time::Instant};
use summary::KnownTotals;
use watching::Watch;

/// Ranks of a job whose fetchers are other processes. They meet after each step.
pub struct HostedTrainer<'a> {
    job: &'a Job,
    options: &'a TrainOptions,
    program: Arc<Program>,
    victims: Victims,
    resizes: Resizes,
    stand_ins: StandIns,
    view: RunView,
    watch: Watch,
    polled: PolledJob,
    epoch: Epoch,
    totals: KnownTotals,
    /// Steps of the job so far, and those of each rank.
    step: u64,
    steps: RankSteps,
}

/// How a run ended.
enum Ended {
    /// All epochs are delivered.
    Job,
    /// It goes on with another number of ranks, from this text of its checkpoint.
    Resized { ranks: NonZeroU32, checkpoint: String },
}

impl<'a> HostedTrainer<'a> {
    /// A trainer whose fetchers may be killed through `victims`.
    ///
    /// # Errors
    /// The program cannot be started again as a fetcher.
    pub fn new(
        (job, options): (&'a Job, &'a TrainOptions),
        victims: Victims,
        stand_ins: StandIns,
        view: RunView,
        polled: PolledJob,
    ) -> Result<Self, Failure> {
        let endpoint = job.service.local.as_ref().map(|local| local.calls.endpoint());
        Ok(Self {
            program: Arc::new(Program::new(endpoint, &job.view.job, &options.stream)?),
            resizes: Resizes::new(&options.resize),
            watch: Watch::start(job.clone()),
            epoch: 0,
            totals: KnownTotals::default(),
            step: 0,
            steps: RankSteps::default(),
            job,
            options,
            victims,
            stand_ins,
            view,
            polled,
        })
    }

    /// Trains to the end of the job over `hosts` fetchers, and returns the steps of each rank as well.
    pub async fn train(mut self, hosts: NonZeroU32) -> Result<(Observed, RankSteps), Failure> {
        let mut run = Run::first(self.options.ranks, hosts, self.options.tail, self.job);
        loop {
            self.steps.begin_run(run.ranks.get() as usize);
            let mut fetchers = Hosts::start(&self.program, &run, &self.victims)?;
            let mut ranks = Ranks::start(&run, &fetchers, self.job, self.options.stream.patience);
            match self.train_run(&mut ranks, &mut fetchers).await? {
                Ended::Job => {
                    self.close(ranks, fetchers).await?;
                    break;
                }
                Ended::Resized { ranks: count, checkpoint } => {
                    gristmill_client::complain!(
                        "after {} steps, {count} ranks continue from {checkpoint}",
                        self.step
                    );
                    // Nothing of the old run is left but this text.
                    drop(ranks);
                    fetchers.kill().await;
                    run = run.resumed(count, checkpoint);
                }
            }
        }
        self.resizes.say_left(self.step);
        self.finish().await
    }

    /// Trains until the job ends, or the run does.
    async fn train_run(&mut self, ranks: &mut Ranks, hosts: &mut Hosts) -> Result<Ended, Failure> {
        let mut checkpoint = Checkpoint::of(&self.job.view, Default::default()).to_string();
        loop {
            let step = self.wait(ranks, hosts).await?;
            let Some(Step { batches, text }) = step else { return Ok(Ended::Job) };
            if let Some(ranks) = self.resizes.take_due(self.step) {
                return Ok(Ended::Resized { ranks, checkpoint });
            }
            self.enter(batches.iter().flatten().map(|given| given.at.epoch).max()).await?;
            let began = Instant::now();
            let mut given = Vec::new();
            let mut first = Vec::new();
            for (rank, batch) in batches.iter().enumerate() {
                let Some(batch) = batch else { continue };
                self.steps.took(rank, batch.is_repeat);
                let is_first = !batch.is_repeat;
                let batch = Batch {
                    epoch: batch.at.epoch,
                    batch_index: batch.at.batch_index,
                    rows: rows(&batch.frame)?,
                    frame: batch.frame.clone(),
                    room: Room::default(),
                };
                if is_first {
                    first.push(Some(RankBatch { batch: batch.clone(), repeated_for: None }));
                }
                given.push((batch, is_first));
            }
            let step = StepDelivery::Step {
                step: gristmill_model::splits::ranks::Step { epoch: self.epoch, number: self.step },
                batches: first,
                next: Default::default(),
            };
            self.view.observer.delivered(&step, &self.polled).await?;
            self.step += 1;
            let mut working = self.stand_ins.begin(given, began);
            self.stand_ins.end(&mut working).await?;
            ranks.trained(&batches).await;
            checkpoint = text;
        }
    }

    /// The next step, or none at the end of the job; shows progress meanwhile.
    async fn wait(
        &mut self,
        ranks: &mut Ranks,
        hosts: &mut Hosts,
    ) -> Result<Option<Step>, Failure> {
        let began = Instant::now();
        let mut added = std::time::Duration::ZERO;
        loop {
            let next = tokio::select! {
                biased;
                failure = hosts.failed() => return Err(failure),
                next = tokio::time::timeout(REDRAW, ranks.next()) => next,
            };
            let waited = began.elapsed();
            self.polled.add_wait(waited - added);
            added = waited;
            self.look();
            match next {
                Ok(step) => {
                    self.view.progress.came();
                    return step;
                }
                Err(_) => {
                    let waiting = self.watch.waiting(ranks.missing());
                    let waiting = self.job.service.link.or(waiting);
                    self.view.progress.waiting(waited, &waiting);
                }
            }
        }
    }

    fn look(&mut self) {
        if let Some(status) = self.watch.latest() {
            self.polled.update(status);
        }
        if let Some(snapshot) = self.view.observer.look(&self.polled) {
            self.view.redraw(&self.polled, &snapshot);
        }
    }

    /// Ends all epochs before `epoch`. Their totals are known at the end of the job.
    async fn enter(&mut self, epoch: Option<Epoch>) -> Result<(), Failure> {
        while epoch.is_some_and(|epoch| self.epoch < epoch) {
            let plan = self.polled.view().and_then(|view| view.plan);
            let splits = plan.map_or(0, |plan| plan.n_splits);
            let (batches, _) = self.view.observer.pace();
            let totals =
                EpochTotals { epoch: self.epoch, batches, splits, ..EpochTotals::default() };
            let delivery = StepDelivery::EpochEnd { totals, left_out: 0, left_batches: Vec::new() };
            self.view.observer.delivered(&delivery, &self.polled).await?;
            self.epoch += 1;
        }
        Ok(())
    }

    /// Waits until the job is closed and all fetchers have ended.
    async fn close(&mut self, mut ranks: Ranks, mut fetchers: Hosts) -> Result<(), Failure> {
        self.victims.spare();
        let began = Instant::now();
        let waiting = Waiting::patiently("the fetchers to close the job");
        loop {
            tokio::select! {
                biased;
                failure = fetchers.failed() => return Err(failure),
                closed = tokio::time::timeout(REDRAW, ranks.closed()) => match closed {
                    Ok(closed) => {
                        closed?;
                        break;
                    }
                    Err(_) => self.view.progress.waiting(began.elapsed(), &waiting),
                },
            }
        }
        for summary in ranks.summaries() {
            self.totals.add(summary);
        }
        fetchers.ended().await
    }

    /// The report of the run, once the job is closed.
    async fn finish(mut self) -> Result<(Observed, RankSteps), Failure> {
        self.enter(Some(self.options.job.epochs)).await?;
        let status =
            coordinator::call(&self.job.service, Status { job: self.job.view.job.clone() }).await?;
        self.polled.update(status);
        let plan = self.polled.view().and_then(|view| view.plan);
        self.view.observer.amend(self.totals.epochs(), plan);
        let RunView { observer, progress, .. } = self.view;
        progress.end();
        Ok((observer.finish(&self.polled.snapshot(), self.polled.view()), self.steps))
    }
}

/// The rows of a batch.
fn rows(frame: &Bytes) -> Result<u32, Failure> {
    let frame = Frame::parse(frame.clone(), &Limits::default()).map_err(Failure::failed)?;
    let keys = frame.get(KEY_FIELD).map_or(0, |keys| keys.values().len() / size_of::<u64>());
    u32::try_from(keys).map_err(Failure::failed)
}
