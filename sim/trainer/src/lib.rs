//! The synthetic trainer of `gristmill demo`, `run` and `bench`.
//!
//! One loop serves one rank, several ranks over a fetcher in this process, and ranks over fetchers that are processes,
//! one for each host. [`Training::open`] begins a job's steps, [`Training::train`] takes them to the end of the job.

#![deny(clippy::print_stderr)]

mod chaos;
mod here;
mod hosts;
mod progress;
mod resizes;
mod sink;
mod stand_ins;
mod trainer;

pub use chaos::{Chaos, Killer};
pub use hosts::{Victims, refuse_shares};
pub use resizes::Resize;
pub use sink::Sink;

use gristmill_client::{
    Failure, Job, Launcher, StreamOptions, TailOption,
    report::{Observed, RankSteps},
};
use gristmill_model::splits::Cursor;
use here::StepsHere;
use hosts::StepsOfHosts;
use std::{
    num::NonZeroU32,
    time::{Duration, Instant},
};
use trainer::Trainer;

/// All that a synthetic trainer does with a job.
#[derive(Debug, Clone)]
pub struct Training {
    /// Time that a rank takes for a batch.
    pub step_time: Duration,
    /// Every batch is written here, once.
    pub sink: Option<Sink>,
    /// Ranks of the first run.
    pub ranks: NonZeroU32,
    /// Hosts whose fetchers are processes, and the program that they run; else the fetcher is in this process.
    pub hosts: Option<(NonZeroU32, Launcher)>,
    /// Last batches of an epoch that are fewer than the ranks, if not as the pipeline has it.
    pub tail: TailOption,
    /// Later runs.
    pub resize: Vec<Resize>,
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
    Here(Box<StepsHere>),
    Hosts(Box<StepsOfHosts>),
}

impl Training {
    /// Whether one rank takes every batch to the end.
    pub fn is_one_rank(&self) -> bool {
        self.ranks == NonZeroU32::MIN && self.resize.is_empty() && self.hosts.is_none()
    }

    /// Opens the steps of `job` from `from` on. Fetchers that are processes may be killed through `victims`.
    ///
    /// # Errors
    /// The stream cannot be opened, or no fetcher started.
    pub async fn open(
        &self,
        job: &Job,
        from: Cursor,
        victims: &Victims,
    ) -> Result<OpenedSteps, Failure> {
        let source = match &self.hosts {
            None => Source::Here(Box::new(StepsHere::open(self, job, from).await?)),
            Some((hosts, launcher)) => {
                let hosts = (*hosts, launcher.clone());
                Source::Hosts(Box::new(StepsOfHosts::start(self, hosts, (job, from), victims)?))
            }
        };
        Ok(OpenedSteps { source, from })
    }

    /// Trains on what is `opened` of `job` to its end, and closes it; returns the steps of each rank as well. The
    /// first epoch began at `began`.
    ///
    /// # Errors
    /// Why the job was not trained to its end.
    pub async fn train(
        &self,
        OpenedSteps { source, from }: OpenedSteps,
        job: &Job,
        began: Instant,
    ) -> Result<(Observed, RankSteps), Failure> {
        match source {
            Source::Here(steps) => Trainer::train(self, (job, from), began, *steps).await,
            Source::Hosts(steps) => Trainer::train(self, (job, from), began, *steps).await,
        }
    }
}
