//! `--chaos`: kills processes at random while a job trains.

use crate::{
    args::{Chaos, TrainArgs},
    attach::Stack,
    up::{COORDINATOR, WORKER},
};
use std::{
    convert::Infallible,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// A worker that works alone is killed no more often than this: a split that is killed again and
/// again while nothing else runs cannot be told from one that kills its workers.
const LONE_INTERVAL: Duration = Duration::from_secs(2);

/// Kills what it was told to, again and again.
pub struct Killer<'a> {
    stack: &'a Stack,
    function: Option<&'static str>,
    mean: Duration,
    kills: AtomicU64,
}

impl<'a> Killer<'a> {
    pub fn new(stack: &'a Stack, args: &TrainArgs) -> Self {
        let function = args.chaos.map(|chaos| match chaos {
            Chaos::KillWorkers => WORKER,
            Chaos::KillCoordinator => COORDINATOR,
        });
        Self { stack, function, mean: args.chaos_interval, kills: AtomicU64::new(0) }
    }

    /// Processes killed so far.
    pub fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed)
    }

    /// Kills one busy process after another, at random times around the mean. Never returns.
    pub async fn run(&self) -> Infallible {
        let (Some(function), Some(local)) = (self.function, &self.stack.local) else {
            return std::future::pending().await;
        };
        let mut last = Instant::now();
        loop {
            // Half to one and a half times the mean: in step with nothing.
            let draw = u16::from_le_bytes([
                self.stack.ports.clock.nonce().0[0],
                self.stack.ports.clock.nonce().0[1],
            ]);
            tokio::time::sleep(self.mean.mul_f64(0.5 + f64::from(draw) / 65_536.0)).await;
            if function == WORKER && self.is_lone().await && last.elapsed() < LONE_INTERVAL {
                continue;
            }
            // A coordinator is at work for a millisecond at a time: try until one is caught.
            for _ in 0..200 {
                match local.admin.kill(function).await {
                    Ok(answer) if answer.get("pid").is_some_and(|pid| !pid.is_null()) => {
                        self.kills.fetch_add(1, Ordering::Relaxed);
                        last = Instant::now();
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

    /// Whether a single worker is at work.
    async fn is_lone(&self) -> bool {
        let Some(local) = &self.stack.local else { return false };
        let stats = local.admin.stats().await.unwrap_or_default();
        let busy = stats.pointer(&format!("/functions/{WORKER}/concurrent"));
        busy.and_then(serde_json::Value::as_u64).is_some_and(|busy| busy <= 1)
    }
}
