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

use gristmill_client::{
    JobHandle, ProgramFailure, ReplicaOption, ServiceLauncher, StreamOptions, TailOption,
};
use gristmill_model::splits::Cursor;
use gristmill_model::splits::replicas::RankReplicas;
use gristmill_stream::{RankSteps, RunObservations};
use hosts::HostedSteps;
use in_process::InProcessSteps;
use std::{
    num::NonZeroU32,
    path::PathBuf,
    time::{Duration, Instant},
};
use trainer::SyntheticTrainer;

/// All that a synthetic trainer does with a job, as flags.
#[derive(Debug, Clone, clap::Args)]
pub struct SyntheticTraining {
    /// Time the synthetic trainer takes for a batch, for example 50ms
    #[arg(long, default_value = "50ms", value_parser = parse_duration)]
    pub step_time: Duration,
    /// Processors on which the synthetic trainer computes during a step, such as 1.5: the step is longer while others
    /// use them [default: it sleeps]
    #[arg(long, default_value_t = 0.0, hide_default_value = true, value_name = "CORES", value_parser = parse_cores)]
    pub step_cores: f64,
    /// Write every delivered batch here, as e{epoch}-b{batch:06}.safetensors
    #[arg(long, value_name = "DIR")]
    pub sink: Option<PathBuf>,
    /// Ranks that train together: each takes one batch a step, replicas the same, and all meet at the end of the step
    #[arg(long, default_value = "1", value_name = "N")]
    pub ranks: NonZeroU32,
    /// Fetcher processes on this machine, one for each of H hosts: each serves its share of the ranks
    #[arg(long, value_name = "H")]
    pub hosts: Option<NonZeroU32>,
    #[command(flatten)]
    pub replicas: ReplicaOption,
    #[command(flatten)]
    pub tail: TailOption,
    /// End the run at its checkpoint after that many steps of the job, and continue with N ranks; may be given
    /// several times. N/R@STEP: with R replicas
    #[arg(long, value_name = "N@STEP", value_parser = RankResize::parse)]
    pub resize: Vec<RankResize>,
    #[command(flatten)]
    pub stream: StreamOptions,
    /// Take batches and do nothing with them, so that only gristmill is measured
    #[arg(skip)]
    pub drain: bool,
}

/// A duration such as `50ms`, up to a day.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration <= Duration::from_secs(86_400) => Ok(duration),
        Ok(_) => Err("longer than a day".to_owned()),
        Err(error) => Err(format!("{error}; say 50ms or 2s")),
    }
}

fn parse_cores(text: &str) -> Result<f64, String> {
    let cores = text.parse().ok().filter(|cores| (0.0..=1024.0).contains(cores));
    cores.ok_or_else(|| "give a number of processors, such as 1".to_owned())
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

    /// Ranks and replicas of each run: the first, and those after each resize.
    pub fn runs(&self) -> impl Iterator<Item = (NonZeroU32, RankReplicas)> {
        let first = self.replicas.replicas.unwrap_or_default();
        let later = self.resize.iter();
        let later = later.map(move |resize| (resize.ranks, resize.replicas.unwrap_or(first)));
        [(self.ranks, first)].into_iter().chain(later)
    }

    /// Opens the steps of `job` from `from` on. Fetchers that are processes run the program of `launcher`, and may be
    /// killed through `victims`.
    pub async fn open(
        &self,
        job: &JobHandle,
        from: Cursor,
        launcher: Option<ServiceLauncher>,
        victims: &RunningFetchers,
    ) -> Result<OpenedSteps, ProgramFailure> {
        let source = match self.hosts.zip(launcher) {
            None => Source::Here(Box::new(InProcessSteps::open(self, job, from).await?)),
            Some((hosts, launcher)) => {
                let steps = HostedSteps::start(self, hosts, launcher, job, from, victims)?;
                Source::Hosts(Box::new(steps))
            }
        };
        Ok(OpenedSteps { source, from })
    }

    /// Trains on what is `opened` of `job` to its end, and closes it; returns the steps of each rank as well. The
    /// first epoch began at `began`. Every batch is written to `sink`, once.
    pub async fn train(
        &self,
        OpenedSteps { source, from }: OpenedSteps,
        job: &JobHandle,
        sink: Option<BatchFileSink>,
        began: Instant,
    ) -> Result<(RunObservations, RankSteps), ProgramFailure> {
        match source {
            Source::Here(steps) => {
                SyntheticTrainer::train(self, job, sink, from, began, *steps).await
            }
            Source::Hosts(steps) => {
                SyntheticTrainer::train(self, job, sink, from, began, *steps).await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_and_an_end() {
        assert_eq!(parse_duration("50ms"), Ok(Duration::from_millis(50)));
        assert!(parse_duration("50").is_err());
        assert!(parse_duration("9999d").is_err());
    }
}
