//! State common to one simulation: time, randomness, faults so far, and its processes.

use crate::{Fault, FaultPlan, Mutant, SimClock, VirtualTime, faults::SPELL};
use futures::FutureExt as _;
use gristmill_model::splits::invariants::Check;
use gristmill_model::{Attempt, Epoch, Position};
use std::{
    collections::BTreeMap,
    fmt,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// Most violations kept; a broken simulation has many.
const MAX_VIOLATIONS: usize = 10;

struct State {
    random: fastrand::Rng,
    faults: BTreeMap<Fault, u64>,
    calls: u64,
    /// Splits that workers tried to store, each with its first attempt.
    offered: BTreeMap<(Epoch, Position), Attempt>,
    computed_again: u64,
    /// Ongoing faults and their ends.
    spells: BTreeMap<Fault, Duration>,
    /// End of the faults.
    until: Duration,
    /// End of the faults' consequences: progress is required afterwards.
    settled: Duration,
    violations: Vec<String>,
    trace: blake3::Hasher,
}

/// State shared by all parts of one simulation.
pub struct World {
    pub time: Arc<VirtualTime>,
    pub plan: FaultPlan,
    /// The deliberate bug of this simulation, if any.
    pub mutant: Option<Mutant>,
    /// Whether to print every event.
    verbose: bool,
    state: Mutex<State>,
}

/// Statistics of one simulation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Calls of the coordinator.
    pub calls: u64,
    /// Splits that were computed, offered to the store, and then computed by another attempt.
    pub computed_again: u64,
    pub faults: BTreeMap<Fault, u64>,
    pub violations: Vec<String>,
    /// Hash of all events, in order.
    pub trace: blake3::Hash,
}

impl World {
    pub fn new(
        time: Arc<VirtualTime>,
        seed: u64,
        plan: FaultPlan,
        mutant: Option<Mutant>,
        verbose: bool,
    ) -> Arc<Self> {
        let state = State {
            random: fastrand::Rng::with_seed(seed),
            faults: BTreeMap::new(),
            calls: 0,
            offered: BTreeMap::new(),
            computed_again: 0,
            spells: BTreeMap::new(),
            until: plan.until,
            settled: plan.until,
            violations: Vec::new(),
            trace: blake3::Hasher::new(),
        };
        Arc::new(Self { time, plan, mutant, verbose, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws whether a fault happens now.
    pub fn happens(&self, fault: Fault) -> bool {
        let probability = self.plan.probability(fault);
        if probability == 0.0 {
            return false;
        }
        let now = self.time.now();
        let mut state = self.state();
        if now >= state.until {
            return false;
        }
        let happens = state.random.f64() < probability;
        if happens {
            *state.faults.entry(fault).or_default() += 1;
        }
        drop(state);
        if happens {
            self.event(format_args!("FAULT {fault:?}"));
        }
        happens
    }

    /// Whether a lasting fault is active: begun earlier, or drawn now.
    pub fn lasts(&self, fault: Fault) -> bool {
        if self.plan.probability(fault) == 0.0 {
            return false;
        }
        let now = self.time.now();
        let end = self.state().spells.get(&fault).copied().unwrap_or_default();
        if now < end {
            return true;
        }
        let begins = self.happens(fault);
        if begins {
            let end = now + self.between_ms(1_000, SPELL.as_millis() as u64);
            let mut state = self.state();
            let end = end.min(state.until);
            state.spells.insert(fault, end);
        }
        begins
    }

    /// Counts a fault that was not drawn.
    pub fn suffers(&self, fault: Fault) {
        *self.state().faults.entry(fault).or_default() += 1;
        self.event(format_args!("FAULT {fault:?}"));
    }

    /// Enables faults again for `duration`.
    pub fn fire_again(&self, duration: Duration) {
        let until = self.time.now() + duration;
        let mut state = self.state();
        state.until = until;
        state.settled = state.settled.max(until);
    }

    /// Extends the time until progress is required by `more`.
    fn unsettled_for(&self, more: Duration) {
        let end = self.time.now() + more;
        let mut state = self.state();
        state.settled = state.settled.max(end);
    }

    /// Time at which the last fault was over.
    pub fn settled(&self) -> Duration {
        self.state().settled
    }

    /// A random number in `0..n`.
    pub fn below(&self, n: u64) -> u64 {
        self.state().random.u64(0..n.max(1))
    }

    /// A random duration of `least..most` milliseconds.
    pub fn between_ms(&self, least: u64, most: u64) -> Duration {
        Duration::from_micros(least * 1000 + self.below((most - least) * 1000))
    }

    pub fn count_call(&self) {
        self.state().calls += 1;
    }

    /// Counts a computed split, once per attempt.
    pub fn count_offered(&self, split: (Epoch, Position), attempt: Attempt) {
        let mut state = self.state();
        if state.offered.insert(split, attempt).is_some_and(|before| before != attempt) {
            state.computed_again += 1;
        }
    }

    /// Records an event in the trace.
    pub fn event(&self, what: fmt::Arguments<'_>) {
        let now = self.time.now();
        if self.verbose {
            eprintln!("{:>12.6} {what}", now.as_secs_f64());
        }
        let mut state = self.state();
        state.trace.update(&now.as_micros().to_le_bytes());
        let _ = fmt::write(&mut Feed(&mut state.trace), what);
    }

    /// Records a violation.
    pub fn violated(&self, what: impl fmt::Display) {
        self.event(format_args!("VIOLATION {what}"));
        let mut state = self.state();
        if state.violations.len() < MAX_VIOLATIONS {
            state.violations.push(format!("{what} (at {:.3} s)", self.time.now().as_secs_f64()));
        }
    }

    /// Records a violated invariant.
    pub fn check(&self, check: Check) {
        if let Err(violation) = check {
            self.violated(violation);
        }
    }

    /// Number of times that any of `faults` happened.
    pub fn count(&self, faults: &[Fault]) -> u64 {
        let state = self.state();
        faults.iter().filter_map(|fault| state.faults.get(fault)).sum()
    }

    pub fn is_violated(&self) -> bool {
        !self.state().violations.is_empty()
    }

    pub fn tally(&self) -> Tally {
        let state = self.state();
        Tally {
            calls: state.calls,
            computed_again: state.computed_again,
            faults: state.faults.clone(),
            violations: state.violations.clone(),
            trace: state.trace.finalize(),
        }
    }
}

struct Feed<'a>(&'a mut blake3::Hasher);

impl fmt::Write for Feed<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

/// Kind of a process, which determines the fault that kills it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Worker,
    Coordinator,
    Scaler,
    Trainer,
    Fetcher,
    /// An observer, which never fails.
    Observer,
}

impl Kind {
    fn death(self) -> Option<Fault> {
        Some(match self {
            Self::Worker => Fault::WorkerDies,
            Self::Coordinator => Fault::CoordinatorDies,
            Self::Scaler => Fault::ScalerDies,
            Self::Trainer => Fault::TrainerDies,
            Self::Fetcher => Fault::FetcherDies,
            Self::Observer => return None,
        })
    }
}

/// A simulated process. Everything it does to the outside passes [`Process::point`].
#[derive(Clone)]
pub struct Process {
    world: Arc<World>,
    kind: Kind,
    skew_ms: i64,
    /// Generation of a trainer whose progress was accepted: it may continue from its position.
    let_in: Arc<OnceLock<u64>>,
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

impl Process {
    /// A process whose clock may be wrong.
    pub fn new(world: &Arc<World>, kind: Kind) -> Self {
        let most = world.plan.skew.as_millis() as i64;
        let skew_ms = world.below((2 * most + 1) as u64) as i64 - most;
        Self {
            world: Arc::clone(world),
            kind,
            skew_ms,
            let_in: Arc::default(),
            still: Arc::default(),
            missing: Arc::default(),
            dead: CancellationToken::new(),
        }
    }

    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    pub fn skew_ms(&self) -> i64 {
        self.skew_ms
    }

    /// Records that this trainer's progress was accepted.
    pub fn let_in(&self, generation: u64) {
        self.let_in.get_or_init(|| generation);
    }

    /// Generation of a trainer whose progress was accepted.
    pub fn generation(&self) -> Option<u64> {
        self.let_in.get().copied()
    }

    /// Records that a chunk does not exist.
    pub fn misses(&self) {
        self.missing.fetch_add(1, Ordering::Relaxed);
    }

    pub fn missing(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }

    /// Its clock, with its error.
    pub fn clock(&self) -> SimClock {
        SimClock(self.clone())
    }

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
                self.world.violated(format_args!("a {:?} panicked: {text:?}", self.kind));
                None
            }
        }
    }

    /// A fault point: here the process may be slow, freeze for minutes, or die.
    pub async fn point(&self, latency_ms: u64) {
        if self.dead.is_cancelled() {
            return std::future::pending().await;
        }
        if self.kind.death().is_some_and(|death| self.world.happens(death)) {
            self.kill();
            return std::future::pending().await;
        }
        let world = &self.world;
        if world.happens(Fault::Frozen) {
            let standing = world.between_ms(0, 600_000);
            // The system learns of these only when they resume: another may still renew their lease.
            if matches!(self.kind, Kind::Trainer | Kind::Fetcher | Kind::Worker) {
                world.unsettled_for(standing);
            }
            let _still = Still::new(&self.still);
            world.time.sleep(standing).await;
        } else {
            let slower = if world.lasts(Fault::Slow) { 40 } else { 1 };
            world.time.sleep(world.between_ms(0, (latency_ms * slower).max(1))).await;
        }
        if self.dead.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }
}
