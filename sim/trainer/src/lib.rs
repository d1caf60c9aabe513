//! The synthetic trainer of `gristmill demo`, `run` and `bench`.
//!
//! One loop serves one rank, several ranks over a fetcher in this process, and ranks over fetchers that are processes,
//! one for each host. [`SyntheticTraining::open`] begins a job's steps, [`SyntheticTraining::train`] takes them to the end of the job.

#![deny(clippy::print_stderr)]

mod chaos;
mod hosts;
mod in_process;
mod stand_ins;
mod trainer;

pub use chaos::{ChaosTarget, ProcessKiller};
pub use hosts::{RunningFetchers, refuse_shares};
pub use stand_ins::BatchFileSink;
pub use trainer::RankResize;

use gristmill_client::{JobHandle, ProgramFailure, ServiceLauncher, StreamOptions, TailOption};
use gristmill_model::splits::Cursor;
use gristmill_stream::{RankSteps, RunObservations};
use hosts::HostedSteps;
use in_process::InProcessSteps;
use std::{
    num::NonZeroU32,
    time::{Duration, Instant},
};
use trainer::SyntheticTrainer;

/// All that a synthetic trainer does with a job.
#[derive(Debug, Clone)]
pub struct SyntheticTraining {
    /// Time that a rank takes for a batch.
    pub step_time: Duration,
    /// Every batch is written here, once.
    pub sink: Option<BatchFileSink>,
    /// Ranks of the first run.
    pub ranks: NonZeroU32,
    /// Hosts whose fetchers are processes, and the program that they run; else the fetcher is in this process.
    pub hosts: Option<(NonZeroU32, ServiceLauncher)>,
    /// Last batches of an epoch that are fewer than the ranks, if not as the pipeline has it.
    pub tail: TailOption,
    /// Later runs.
    pub resize: Vec<RankResize>,
    pub stream: StreamOptions,
    /// Takes batches and does nothing with them, so that only gristmill is measured.
    pub drain: bool,
}

/// The steps of a job, and where its ranks begin.
pub struct OpenedSteps {
    source: Source,
    from: Cursor,
}

enum Source {
    Here(Box<InProcessSteps>),
    Hosts(Box<HostedSteps>),
}

impl SyntheticTraining {
    /// Whether one rank takes every batch to the end.
    pub fn is_one_rank(&self) -> bool {
        self.ranks == NonZeroU32::MIN && self.resize.is_empty() && self.hosts.is_none()
    }

    /// Opens the steps of `job` from `from` on. Fetchers that are processes may be killed through `victims`.
    pub async fn open(
        &self,
        job: &JobHandle,
        from: Cursor,
        victims: &RunningFetchers,
    ) -> Result<OpenedSteps, ProgramFailure> {
        let source = match &self.hosts {
            None => Source::Here(Box::new(InProcessSteps::open(self, job, from).await?)),
            Some((hosts, launcher)) => {
                let launcher = launcher.clone();
                let steps = HostedSteps::start(self, *hosts, launcher, job, from, victims)?;
                Source::Hosts(Box::new(steps))
            }
        };
        Ok(OpenedSteps { source, from })
    }

    /// Trains on what is `opened` of `job` to its end, and closes it; returns the steps of each rank as well. The
    /// first epoch began at `began`.
    pub async fn train(
        &self,
        OpenedSteps { source, from }: OpenedSteps,
        job: &JobHandle,
        began: Instant,
    ) -> Result<(RunObservations, RankSteps), ProgramFailure> {
        match source {
            Source::Here(steps) => SyntheticTrainer::train(self, job, from, began, *steps).await,
            Source::Hosts(steps) => SyntheticTrainer::train(self, job, from, began, *steps).await,
        }
    }
}
