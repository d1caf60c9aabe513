//! Simulated processes: their clocks, delays, freezes and deaths.

use crate::{FaultKind, FaultSimulation};
use async_trait::async_trait;
use futures::FutureExt as _;
use gristmill_model::Nonce;
use gristmill_ports::Clock;
use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Kind of a process, which determines the fault that kills it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessKind {
    Worker,
    Coordinator,
    Scaler,
    Trainer,
    Fetcher,
    /// An observer, which never fails.
    Observer,
}

impl ProcessKind {
    fn death(self) -> Option<FaultKind> {
        Some(match self {
            Self::Worker => FaultKind::WorkerDies,
            Self::Coordinator => FaultKind::CoordinatorDies,
            Self::Scaler => FaultKind::ScalerDies,
            Self::Trainer => FaultKind::TrainerDies,
            Self::Fetcher => FaultKind::FetcherDies,
            Self::Observer => return None,
        })
    }
}

/// A simulated process. Everything it does to the outside passes [`SimProcess::point`].
#[derive(Clone)]
pub struct SimProcess {
    pub sim: Arc<FaultSimulation>,
    pub kind: ProcessKind,
    /// Milliseconds by which its wall clock is ahead.
    skew_ms: i64,
    /// Generation of a trainer whose progress was accepted: it may continue from its position.
    accepted: Arc<OnceLock<u64>>,
    /// Whether it is frozen.
    still: Arc<AtomicBool>,
    /// Chunks that it requested and that did not exist.
    missing: Arc<AtomicU64>,
    dead: CancellationToken,
}

/// Marks a process as frozen while it lives.
struct Still<'a>(&'a AtomicBool);

impl<'a> Still<'a> {
    fn new(still: &'a AtomicBool) -> Self {
        still.store(true, Ordering::Relaxed);
        Self(still)
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl SimProcess {
    /// A process whose clock may be wrong.
    pub fn new(sim: &Arc<FaultSimulation>, kind: ProcessKind) -> Self {
        let most = sim.plan.skew.as_millis() as i64;
        let skew_ms = sim.below((2 * most + 1) as u64) as i64 - most;
        Self {
            sim: Arc::clone(sim),
            kind,
            skew_ms,
            accepted: Arc::default(),
            still: Arc::default(),
            missing: Arc::default(),
            dead: CancellationToken::new(),
        }
    }

    /// Records that this trainer's progress was accepted.
    pub fn accepted(&self, generation: u64) {
        self.accepted.get_or_init(|| generation);
    }

    /// Generation of a trainer whose progress was accepted.
    pub fn generation(&self) -> Option<u64> {
        self.accepted.get().copied()
    }

    /// Records that a chunk does not exist.
    pub fn misses(&self) {
        self.missing.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads that found no object.
    pub fn missing(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }

    /// Its clock, with its error.
    pub fn clock(&self) -> SimClock {
        SimClock(self.clone())
    }

    /// Its tasks end at the latest when the result is dropped, also when nobody waits for its end.
    pub fn ends_with(&self) -> DropGuard {
        self.dead.clone().drop_guard()
    }

    /// Ends the process at its next await.
    pub fn kill(&self) {
        self.dead.cancel();
    }

    pub fn is_dead(&self) -> bool {
        self.dead.is_cancelled()
    }

    /// Whether it can make progress: neither dead nor frozen.
    pub fn is_well(&self) -> bool {
        !self.is_dead() && !self.still.load(Ordering::Relaxed)
    }

    /// Runs `work` as this process; `None` if it dies before the end. A panic is a violation.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let work = AssertUnwindSafe(work).catch_unwind();
        let outcome = tokio::select! {
            biased;
            () = self.dead.cancelled() => return None,
            outcome = work => outcome,
        };
        // Tasks that it started end with it.
        self.kill();
        match outcome {
            Ok(outcome) => Some(outcome),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
                self.sim.violated(format_args!("a {:?} panicked: {text:?}", self.kind));
                None
            }
        }
    }

    /// A fault point: here the process may be slow, freeze for minutes, or die.
    pub async fn point(&self, latency_ms: u64) {
        if self.dead.is_cancelled() {
            return std::future::pending().await;
        }
        if self.kind.death().is_some_and(|death| self.sim.happens(death)) {
            self.kill();
            return std::future::pending().await;
        }
        let sim = &self.sim;
        if sim.happens(FaultKind::Frozen) {
            let standing = sim.between_ms(0, 600_000);
            // The system learns of these only when they resume: another may still renew their lease.
            if matches!(
                self.kind,
                ProcessKind::Trainer | ProcessKind::Fetcher | ProcessKind::Worker
            ) {
                sim.unsettled_for(standing);
            }
            let _still = Still::new(&self.still);
            sim.time.sleep(standing).await;
        } else {
            let slower = if sim.lasts(FaultKind::Slow) { 40 } else { 1 };
            sim.time.sleep(sim.between_ms(0, (latency_ms * slower).max(1))).await;
        }
        if self.dead.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }
}

/// The clock of one process: virtual time with its own error, and nonces from the simulation's randomness.
pub struct SimClock(pub(crate) SimProcess);

#[async_trait]
impl Clock for SimClock {
    fn now_ms(&self) -> u64 {
        let now = self.0.sim.time.unix_time().as_millis() as i64;
        now.saturating_add(self.0.skew_ms).unsigned_abs()
    }

    fn monotonic(&self) -> Duration {
        self.0.sim.time.now()
    }

    async fn sleep(&self, duration: Duration) {
        self.0.sim.time.sleep(duration).await;
    }

    fn nonce(&self) -> Nonce {
        Nonce(self.0.sim.below(u64::MAX).to_be_bytes())
    }
}
