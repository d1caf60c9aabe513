//! `--chaos`: kills processes at random while a job trains.

use super::{TrainOptions, hosts::Victims};
use crate::commands::up::{COORDINATOR, WORKER};
use clap::ValueEnum;
use gristmill_client::{LocalHost, Service};
use std::{
    convert::Infallible,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Mean life of a worker that works alone: killed at the pace of a whole fleet, it would never
/// finish the last split of an epoch.
const LONE_MEAN: Duration = Duration::from_secs(3);

/// The processes to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Chaos {
    #[value(name = "kill-workers")]
    Workers,
    #[value(name = "kill-coordinator")]
    Coordinator,
    #[value(name = "kill-fetchers")]
    Fetchers,
}

/// The processes that are killed.
enum Target {
    Function(&'static str),
    Fetchers,
}

/// Kills processes of one kind repeatedly.
pub struct Killer<'a> {
    service: &'a Service,
    target: Option<Target>,
    fetchers: Victims,
    mean: Duration,
    kills: AtomicU64,
}

impl<'a> Killer<'a> {
    /// `fetchers` are those of the run, if they are processes.
    pub fn new(service: &'a Service, options: &TrainOptions, fetchers: Victims) -> Self {
        let target = options.chaos.map(|chaos| match chaos {
            Chaos::Workers => Target::Function(WORKER),
            Chaos::Coordinator => Target::Function(COORDINATOR),
            Chaos::Fetchers => Target::Fetchers,
        });
        let (mean, kills) = (options.chaos_interval, AtomicU64::new(0));
        Self { service, target, fetchers, mean, kills }
    }

    /// Processes killed so far.
    pub fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed) + self.fetchers.kills()
    }

    /// Kills one busy process after another, at random times around the mean. Never returns.
    pub async fn run(&self) -> Infallible {
        match (&self.target, &self.service.local) {
            (Some(Target::Function(function)), Some(local)) => {
                self.kill_function(function, local).await
            }
            (Some(Target::Fetchers), _) => self.kill_fetchers().await,
            (Some(Target::Function(_)), None) | (None, _) => std::future::pending().await,
        }
    }

    async fn kill_fetchers(&self) -> Infallible {
        loop {
            self.rest().await;
            self.fetchers.kill(self.draw());
        }
    }

    /// Half to one and a half times the mean, so that kills follow no rhythm of the job.
    async fn rest(&self) {
        tokio::time::sleep(self.mean.mul_f64(0.5 + self.draw())).await;
    }

    async fn kill_function(&self, function: &str, local: &LocalHost) -> Infallible {
        let mut last = Instant::now();
        let mut lone = LONE_MEAN;
        loop {
            self.rest().await;
            if function == WORKER && self.is_lone().await && last.elapsed() < lone {
                continue;
            }
            // A coordinator runs for a millisecond at a time: try until one is caught.
            for _ in 0..200 {
                match local.admin.kill(function).await {
                    Ok(answer) if answer.get("pid").is_some_and(|pid| !pid.is_null()) => {
                        self.kills.fetch_add(1, Ordering::Relaxed);
                        last = Instant::now();
                        // Exponential, like accidents.
                        lone = LONE_MEAN.mul_f64(-(1.0 - self.draw()).ln());
                        break;
                    }
                    Ok(_) => tokio::time::sleep(Duration::from_millis(2)).await,
                    Err(error) => {
                        tracing::warn!(%error, "cannot kill");
                        break;
                    }
                }
            }
        }
    }

    /// A number from 0 to below 1.
    fn draw(&self) -> f64 {
        let [a, b, ..] = self.service.ports.clock.nonce().0;
        f64::from(u16::from_le_bytes([a, b])) / 65_536.0
    }

    /// Whether a single worker is at work.
    async fn is_lone(&self) -> bool {
        let Some(local) = &self.service.local else { return false };
        let stats = local.admin.stats().await.unwrap_or_default();
        let busy = stats.pointer(&format!("/functions/{WORKER}/concurrent"));
        busy.and_then(serde_json::Value::as_u64).is_some_and(|busy| busy <= 1)
    }
}
