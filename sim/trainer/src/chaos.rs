//! `--chaos`: kills processes at random while a job trains.

use crate::hosts::RunningFetchers;
use clap::ValueEnum;
use gristmill_client::{LocalService, ServiceConnection, complain};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// Mean life of a worker that works alone: killed at the pace of a whole fleet, it would never
/// finish the last split of an epoch.
const LONE_MEAN: Duration = Duration::from_secs(3);

/// Tries to catch a worker at work, and the pause between two.
const TRIES: u32 = 200;
const BETWEEN_TRIES: Duration = Duration::from_millis(2);

/// The processes to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ChaosTarget {
    #[value(name = "kill-workers")]
    Workers,
    #[value(name = "kill-coordinator")]
    Coordinator,
    #[value(name = "kill-fetchers")]
    Fetchers,
}

/// Kills processes of one kind repeatedly.
pub struct ProcessKiller<'a> {
    service: &'a ServiceConnection,
    chaos: Option<ChaosTarget>,
    fetchers: RunningFetchers,
    mean: Duration,
    kills: AtomicU64,
    is_done: Notify,
}

impl<'a> ProcessKiller<'a> {
    /// Kills processes of `chaos`, if any, with `mean` between two. `fetchers` are those of the run, if they are
    /// processes.
    pub fn new(
        service: &'a ServiceConnection,
        chaos: Option<ChaosTarget>,
        mean: Duration,
        fetchers: RunningFetchers,
    ) -> Self {
        Self { service, chaos, fetchers, mean, kills: AtomicU64::new(0), is_done: Notify::new() }
    }

    /// Processes killed so far.
    pub fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed) + self.fetchers.kills()
    }

    /// Kills one busy process after another, at random times around the mean, until `work` is done; returns its
    /// output. A service that was killed has started again by then: what follows the work asks it.
    pub async fn run_beside<T>(&self, work: impl Future<Output = T>) -> T {
        let working = async {
            let output = work.await;
            self.is_done.notify_one();
            output
        };
        tokio::join!(working, self.kill()).0
    }

    async fn kill(&self) {
        match (self.chaos, &self.service.local) {
            (Some(ChaosTarget::Workers), Some(local)) => self.kill_workers(local).await,
            (Some(ChaosTarget::Coordinator), Some(_)) => self.kill_service().await,
            (Some(ChaosTarget::Fetchers), _) => self.kill_fetchers().await,
            (_, None) | (None, _) => self.is_done.notified().await,
        }
    }

    async fn kill_fetchers(&self) {
        while self.rest().await {
            self.fetchers.kill(self.draw());
        }
    }

    /// Half to one and a half times the mean, so that kills follow no rhythm of the job. Returns whether the job goes on.
    async fn rest(&self) -> bool {
        let pause = tokio::time::sleep(self.mean.mul_f64(0.5 + self.draw()));
        tokio::select! {
            biased;
            () = self.is_done.notified() => false,
            () = pause => true,
        }
    }

    /// Kills the service, and all its workers with it, and starts it again.
    async fn kill_service(&self) {
        while self.rest().await {
            match self.service.crash().await {
                Ok(_) => {
                    self.kills.fetch_add(1, Ordering::Relaxed);
                }
                Err(failure) => {
                    complain!("the service that was killed does not start again: {failure}");
                    return;
                }
            }
        }
    }

    async fn kill_workers(&self, local: &LocalService) {
        let mut last = Instant::now();
        let mut lone = LONE_MEAN;
        while self.rest().await {
            if self.is_lone(local).await && last.elapsed() < lone {
                continue;
            }
            // A worker may work for milliseconds at a time: try until one is caught.
            for _ in 0..TRIES {
                match local.calls.kill_worker().await {
                    Ok(Some(_)) => {
                        self.kills.fetch_add(1, Ordering::Relaxed);
                        last = Instant::now();
                        // Exponential, like accidents.
                        lone = LONE_MEAN.mul_f64(-(1.0 - self.draw()).ln());
                        break;
                    }
                    Ok(None) => tokio::time::sleep(BETWEEN_TRIES).await,
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

    async fn is_lone(&self, local: &LocalService) -> bool {
        local.calls.status().await.is_ok_and(|status| status.busy_workers <= 1)
    }
}
