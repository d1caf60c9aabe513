//! `--hosts`: the steps of ranks whose fetchers are processes of their own, one for each of some hosts.

mod processes;
mod rank;
mod ranks;
mod run;
mod summary;
mod watching;

pub use processes::RunningFetchers;
pub use run::refuse_shares;

use crate::{
    SyntheticTraining,
    trainer::{self, StepSource, TrainingView},
};
use gristmill_client::{JobHandle, ProgramFailure, ServiceLauncher};
use gristmill_model::Epoch;
use gristmill_model::splits::{Cursor, ranks::TrainingStep};
use gristmill_model::wire::JobView;
use gristmill_stream::{
    EpochTotals, JobStatistics, ObservableRun, PolledJob, StepDelivery,
    waiting::{WaitReason, while_saying},
};
use processes::{FetcherProcesses, FetcherProgram};
use ranks::{ArrivedStep, HostedRanks};
use run::HostedRun;
use std::{num::NonZeroU32, sync::Arc, time::Duration};
use summary::KnownEpochs;
use watching::StatusWatch;

/// Ranks of a job whose fetchers are other processes.
pub struct HostedSteps {
    job: JobHandle,
    /// How long a fetcher or the service may not answer.
    patience: Duration,
    program: Arc<FetcherProgram>,
    victims: RunningFetchers,
    run: HostedRun,
    hosts: FetcherProcesses,
    ranks: HostedRanks,
    watch: StatusWatch,
    polled: PolledJob,
    /// The present epoch, and batches of it so far.
    epoch: Epoch,
    batches: u64,
    /// Steps so far.
    step: u64,
    /// The step that has come from all ranks and is not delivered.
    came: Option<ArrivedStep>,
}

impl HostedSteps {
    /// Starts the fetchers of the first run of a training, which begins at `from`. They may be killed through
    /// `victims`.
    ///
    /// # Errors
    /// There is no place for the sockets.
    pub fn start(
        training: &SyntheticTraining,
        (hosts, launcher): (NonZeroU32, ServiceLauncher),
        (job, from): (&JobHandle, Cursor),
        victims: &RunningFetchers,
    ) -> Result<Self, ProgramFailure> {
        let patience = training.stream.patience;
        let program = Arc::new(FetcherProgram::new(launcher, job, &training.stream));
        let pipeline = job.pipeline().map_err(ProgramFailure::failed)?;
        let run = HostedRun::first(training.ranks, hosts, training.tail.tail, job);
        let hosts = FetcherProcesses::start(&program, &run, victims)?;
        Ok(Self {
            ranks: HostedRanks::start(&run, &hosts, patience),
            watch: StatusWatch::start(job.clone()),
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

impl StepSource for HostedSteps {
    type Observed = PolledJob;

    fn observed(&mut self) -> &PolledJob {
        if let Some(status) = self.watch.latest() {
            self.polled.update(status);
        }
        &self.polled
    }

    fn waiting(&self) -> (Duration, WaitReason) {
        (self.polled.present_wait(), self.watch.waiting(self.ranks.missing()))
    }

    async fn next(&mut self) -> Result<StepDelivery, ProgramFailure> {
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
        let step = TrainingStep { epoch, number: self.step };
        self.step += 1;
        let next = came.next().map_err(ProgramFailure::Failed)?;
        let batches = came.into_batches()?;
        self.batches +=
            batches.iter().flatten().filter(|it| it.repeated_for.is_none()).count() as u64;
        Ok(StepDelivery::Step { step, batches, next })
    }

    async fn prepare(&mut self) -> Result<(), ProgramFailure> {
        // A rank asks for its next batch when it is done with this one; its fetcher has it by then.
        Ok(())
    }

    async fn checkpointed(&mut self, _next: Cursor) {
        self.ranks.trained().await;
    }

    async fn resume(self, run: trainer::LaterRun) -> Result<Self, ProgramFailure> {
        // Nothing of the old run is left but the text.
        drop(self.ranks);
        self.hosts.kill().await;
        let run = self.run.resumed(run);
        let hosts = FetcherProcesses::start(&self.program, &run, &self.victims)?;
        let ranks = HostedRanks::start(&run, &hosts, self.patience);
        Ok(Self { run, hosts, ranks, came: None, ..self })
    }

    async fn close(
        mut self,
        view: &mut TrainingView,
    ) -> Result<(JobStatistics, Option<JobView>), ProgramFailure> {
        self.victims.spare();
        let closing = || Some(WaitReason::patiently("the fetchers to close the job"));
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
