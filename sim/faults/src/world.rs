//! One simulated world: its time, its randomness, what went wrong in it, and its processes.

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

/// Violations kept; a world that is broken has many.
const MAX_VIOLATIONS: usize = 10;

struct State {
    random: fastrand::Rng,
    faults: BTreeMap<Fault, u64>,
    calls: u64,
    /// Splits that workers have offered to the store, each with its first attempt.
    offered: BTreeMap<(Epoch, Position), Attempt>,
    computed_again: u64,
    /// Faults that last, each with its end.
    spells: BTreeMap<Fault, Duration>,
    /// Nothing goes wrong after this.
    until: Duration,
    /// Nothing that went wrong keeps anybody from going on after this.
    settled: Duration,
    violations: Vec<String>,
    trace: blake3::Hasher,
}

/// What all parts of a simulated world share.
pub struct World {
    pub time: Arc<VirtualTime>,
    pub plan: FaultPlan,
    /// The deliberate mistake this world makes, if any.
    pub mutant: Option<Mutant>,
    /// Prints every event.
    verbose: bool,
    state: Mutex<State>,
}

/// What a world came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Calls of the coordinator.
    pub calls: u64,
    /// Splits that were computed, offered to the store, and then computed by another attempt.
    pub computed_again: u64,
    pub faults: BTreeMap<Fault, u64>,
    pub violations: Vec<String>,
    /// Names everything that happened, in order.
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

    /// Whether a fault happens at this occasion.
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

    /// Whether a fault that lasts is on at this occasion: begun earlier, or now.
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

    /// Counts a fault that is none of chance.
    pub fn suffers(&self, fault: Fault) {
        *self.state().faults.entry(fault).or_default() += 1;
        self.event(format_args!("FAULT {fault:?}"));
    }

    /// For so long things go wrong once more.
    pub fn fire_again(&self, duration: Duration) {
        let until = self.time.now() + duration;
        let mut state = self.state();
        state.until = until;
        state.settled = state.settled.max(until);
    }

    /// What is wrong stays so for `more`.
    fn unsettled_for(&self, more: Duration) {
        let end = self.time.now() + more;
        let mut state = self.state();
        state.settled = state.settled.max(end);
    }

    /// When the last fault was over.
    pub fn settled(&self) -> Duration {
        self.state().settled
    }

    /// A number in `0..n`.
    pub fn below(&self, n: u64) -> u64 {
        self.state().random.u64(0..n.max(1))
    }

    /// A time of `least..most` milliseconds.
    pub fn between_ms(&self, least: u64, most: u64) -> Duration {
        Duration::from_micros(least * 1000 + self.below((most - least) * 1000))
    }

    pub fn count_call(&self) {
        self.state().calls += 1;
    }

    /// Counts what an attempt has computed, once.
    pub fn count_offered(&self, split: (Epoch, Position), attempt: Attempt) {
        let mut state = self.state();
        if state.offered.insert(split, attempt).is_some_and(|before| before != attempt) {
            state.computed_again += 1;
        }
    }

    /// Notes what happens, for the trace.
    pub fn event(&self, what: fmt::Arguments<'_>) {
        let now = self.time.now();
        if self.verbose {
            eprintln!("{:>12.6} {what}", now.as_secs_f64());
        }
        let mut state = self.state();
        state.trace.update(&now.as_micros().to_le_bytes());
        let _ = fmt::write(&mut Feed(&mut state.trace), what);
    }

    /// Notes what must never happen.
    pub fn violated(&self, what: impl fmt::Display) {
        self.event(format_args!("VIOLATION {what}"));
        let mut state = self.state();
        if state.violations.len() < MAX_VIOLATIONS {
            state.violations.push(format!("{what} (at {:.3} s)", self.time.now().as_secs_f64()));
        }
    }

    /// Notes an invariant that does not hold.
    pub fn check(&self, check: Check) {
        if let Err(violation) = check {
            self.violated(violation);
        }
    }

    /// How often any of `faults` happened.
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

/// What a process is, and so how it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Worker,
    Coordinator,
    Scaler,
    Trainer,
    Fetcher,
    /// Whoever only looks: it does not fail.
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

/// A process of the world. Everything it does to the world goes through [`Process::point`].
#[derive(Clone)]
pub struct Process {
    world: Arc<World>,
    kind: Kind,
    skew_ms: i64,
    /// Of a trainer whose progress was accepted, its generation: it may go on from where it is.
    let_in: Arc<OnceLock<u64>>,
    /// Whether it stands still.
    still: Arc<AtomicBool>,
    /// Chunks that it asked for and that were not there.
    missing: Arc<AtomicU64>,
    dead: CancellationToken,
}

/// A process stands still for as long as this lives.
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
    /// A process with a clock that may be wrong.
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

    /// Notes that this trainer's progress was accepted.
    pub fn let_in(&self, generation: u64) {
        self.let_in.get_or_init(|| generation);
    }

    /// The generation of a trainer whose progress was accepted.
    pub fn generation(&self) -> Option<u64> {
        self.let_in.get().copied()
    }

    /// Notes that a chunk is not there.
    pub fn misses(&self) {
        self.missing.fetch_add(1, Ordering::Relaxed);
    }

    pub fn missing(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }

    /// Its clock, as wrong as it is.
    pub fn clock(&self) -> SimClock {
        SimClock(self.clone())
    }

    pub fn kill(&self) {
        self.dead.cancel();
    }

    pub fn is_dead(&self) -> bool {
        self.dead.is_cancelled()
    }

    /// Whether it does what it is there for: it lives, and does not stand still.
    pub fn is_well(&self) -> bool {
        !self.is_dead() && !self.still.load(Ordering::Relaxed)
    }

    /// Runs `work` as this process; none if it dies before the end. A panic is a violation.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let work = AssertUnwindSafe(work).catch_unwind();
        let outcome = tokio::select! {
            biased;
            () = self.dead.cancelled() => return None,
            outcome = work => outcome,
        };
        // Whatever it left running is gone with it.
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

    /// A point in the life of the process where it meets the world: here it may be slow, stand still
    /// for minutes, or end.
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
            // Of these nobody knows before they go on: another may still renew what they hold.
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
