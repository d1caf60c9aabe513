//! `--hosts`: the steps of ranks whose fetchers are processes of their own, one for each of some hosts.

mod processes;
mod rank;
mod ranks;
mod run;
mod summary;
mod watching;

pub use processes::Victims;
pub use run::refuse_shares;

use crate::{
    Training, trainer,
    trainer::{StepSource, View},
};
use gristmill_client::{
    EpochTotals, Failure, Job, Launcher, Snapshot, StepDelivery,
    report::{Observable, PolledJob},
    waiting::{Waiting, while_saying},
};
use gristmill_model::Epoch;
use gristmill_model::splits::{Cursor, ranks::Step};
use gristmill_model::wire::JobView;
use processes::{Hosts, Program};
use ranks::{ArrivedStep, Ranks};
use run::HostedRun;
use std::{num::NonZeroU32, sync::Arc, time::Duration};
use summary::KnownEpochs;
use watching::Watch;

/// Ranks of a job whose fetchers are other processes.
pub struct StepsOfHosts {
    job: Job,
    /// How long a fetcher or the service may not answer.
    patience: Duration,
    program: Arc<Program>,
    victims: Victims,
    run: HostedRun,
    hosts: Hosts,
    ranks: Ranks,
    watch: Watch,
    polled: PolledJob,
    /// The present epoch, and batches of it so far.
    epoch: Epoch,
    batches: u64,
    /// Steps so far.
    step: u64,
    /// The step that has come from all ranks and is not delivered.
    came: Option<ArrivedStep>,
}

impl StepsOfHosts {
    /// Starts the fetchers of the first run of a training, which begins at `from`. They may be killed through
    /// `victims`.
    ///
    /// # Errors
    /// There is no place for the sockets.
    pub fn start(
        training: &Training,
        (hosts, launcher): (NonZeroU32, Launcher),
        (job, from): (&Job, Cursor),
        victims: &Victims,
    ) -> Result<Self, Failure> {
        let patience = training.stream.patience;
        let program = Arc::new(Program::new(launcher, job, &training.stream));
        let pipeline = job.pipeline().map_err(Failure::failed)?;
        let run = HostedRun::first(training.ranks, hosts, training.tail.tail, job);
        let hosts = Hosts::start(&program, &run, victims)?;
        Ok(Self {
            ranks: Ranks::start(&run, &hosts, patience),
            watch: Watch::start(job.clone()),
            polled: PolledJob::new(pipeline, job.view.clone()),
            epoch: from.epoch,
            batches: 0,
            step: 0,
            came: None,
            job: job.clone(),
            patience,
            program,
            victims: victims.clone(),
            run,
            hosts,
        })
    }

    /// The end of the present epoch. Its totals are known at the end of the job.
    fn end_epoch(&mut self) -> StepDelivery {
        let (epoch, batches) = (self.epoch, std::mem::take(&mut self.batches));
        self.epoch += 1;
        let plan = self.polled.view().and_then(|view| view.plan);
        let splits = plan.map_or(0, |plan| plan.n_splits);
        let totals = EpochTotals { epoch, batches, splits, ..EpochTotals::default() };
        StepDelivery::EpochEnd { totals, left_out: 0, left_batches: Vec::new() }
    }
}

impl StepSource for StepsOfHosts {
    type Observed = PolledJob;

    fn observed(&mut self) -> &PolledJob {
        if let Some(status) = self.watch.latest() {
            self.polled.update(status);
        }
        &self.polled
    }

    fn waiting(&self) -> (Duration, Waiting) {
        (self.polled.present_wait(), self.watch.waiting(self.ranks.missing()))
    }

    async fn next(&mut self) -> Result<StepDelivery, Failure> {
        let came = match self.came.take() {
            Some(came) => came,
            None => {
                self.polled.begin_wait();
                let came = tokio::select! {
                    biased;
                    failure = self.hosts.failed() => return Err(failure),
                    came = self.ranks.next() => came?,
                };
                self.polled.end_wait();
                came
            }
        };
        let epoch = came.start.map_or(self.job.view.spec.epochs, |start| start.epoch);
        if self.epoch < epoch {
            self.came = Some(came);
            return Ok(self.end_epoch());
        }
        if came.start.is_none() {
            return Ok(StepDelivery::End);
        }
        let step = Step { epoch, number: self.step };
        self.step += 1;
        let next = came.next().map_err(Failure::Failed)?;
        let batches = came.into_batches()?;
        self.batches +=
            batches.iter().flatten().filter(|it| it.repeated_for.is_none()).count() as u64;
        Ok(StepDelivery::Step { step, batches, next })
    }

    async fn prepare(&mut self) -> Result<(), Failure> {
        // A rank asks for its next batch when it is done with this one; its fetcher has it by then.
        Ok(())
    }

    async fn checkpointed(&mut self, _next: Cursor) {
        self.ranks.trained().await;
    }

    async fn resume(self, run: trainer::LaterRun) -> Result<Self, Failure> {
        // Nothing of the old run is left but the text.
        drop(self.ranks);
        self.hosts.kill().await;
        let run = self.run.resumed(run);
        let hosts = Hosts::start(&self.program, &run, &self.victims)?;
        let ranks = Ranks::start(&run, &hosts, self.patience);
        Ok(Self { run, hosts, ranks, came: None, ..self })
    }

    async fn close(mut self, view: &mut View) -> Result<(Snapshot, Option<JobView>), Failure> {
        self.victims.spare();
        let closing = || Some(Waiting::patiently("the fetchers to close the job"));
        let closed = async {
            tokio::select! {
                biased;
                failure = self.hosts.failed() => Err(failure),
                closed = self.ranks.closed() => closed,
            }
        };
        while_saying(closed, closing, |what| view.progress.say(what)).await?;
        let mut known = KnownEpochs::default();
        for (rank, summary) in self.ranks.summaries() {
            known.add(summary);
            view.steps.waited(rank, summary.waits());
        }
        self.hosts.ended().await?;
        self.polled.update(self.job.status(self.patience).await?);
        let plan = self.polled.view().and_then(|view| view.plan);
        view.observer.amend(&known.epochs, plan);
        Ok((self.polled.snapshot(), self.polled.view()))
    }
}
