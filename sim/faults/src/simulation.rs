//! State common to one simulation: time, randomness, faults so far, and its processes.

use crate::{
    FaultKind, FaultPlan, Mutant,
    faults::{LASTING_MAX, RemainingRates},
    spending::GivenBudget,
};
use gristmill_model::{Attempt, Epoch, Position, splits::invariants::InvariantCheck};
use gristmill_virtual_time::VirtualTime;
use parking_lot::Mutex;
use std::{collections::BTreeMap, fmt, io::Write as _, sync::Arc, time::Duration};

/// Most violations kept; a broken simulation has many.
const MAX_VIOLATIONS: usize = 10;

struct State {
    random: fastrand::Rng,
    counts: SimulationCounts,
    /// Splits that workers tried to store, each with its first attempt.
    offered: BTreeMap<(Epoch, Position), Attempt>,
    /// Ongoing faults and their ends.
    lasting: BTreeMap<FaultKind, Duration>,
    /// End of the faults.
    until: Duration,
    /// End of the faults' consequences: progress is required afterwards.
    settled: Duration,
    trace: blake3::Hasher,
}

/// State shared by all parts of one simulation.
pub struct FaultSimulation {
    pub time: Arc<VirtualTime>,
    pub plan: FaultPlan,
    /// The deliberate bug of this simulation, if any.
    pub mutant: Option<Mutant>,
    /// The rest of the rates that AWS limits.
    pub(crate) rates: RemainingRates,
    /// The budget of each job.
    pub(crate) budget: GivenBudget,
    /// Whether to print every event.
    verbose: bool,
    state: Mutex<State>,
}

/// Counts at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpgradeCounts {
    pub batches: usize,
    pub cache_reads: u64,
}

/// Statistics of one simulation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SimulationCounts {
    /// Calls of the coordinator.
    pub calls: u64,
    /// Splits that were computed, offered to the store, and then computed by another attempt.
    pub computed_again: u64,
    pub faults: BTreeMap<FaultKind, u64>,
    pub violations: Vec<String>,
    /// Calls that were answered, by the version of the protocol.
    pub versions: BTreeMap<u32, u64>,
    /// Objects read from the cache.
    pub cache_reads: u64,
    /// The counts when a chosen upgrade was complete.
    pub upgraded: Option<UpgradeCounts>,
    /// Hash of all events, in order.
    pub trace: String,
}

impl FaultSimulation {
    /// A simulation whose faults and delays follow from `seed`; a verbose one prints its events.
    pub fn new(
        time: Arc<VirtualTime>,
        seed: u64,
        plan: FaultPlan,
        mutant: Option<Mutant>,
        verbose: bool,
    ) -> Arc<Self> {
        let state = State {
            random: fastrand::Rng::with_seed(seed),
            counts: SimulationCounts::default(),
            offered: BTreeMap::new(),
            lasting: BTreeMap::new(),
            until: plan.until,
            settled: plan.until,
            trace: blake3::Hasher::new(),
        };
        let rates = RemainingRates::new(plan.rates);
        let budget = GivenBudget::new(plan.budget);
        Arc::new(Self { time, plan, mutant, rates, budget, verbose, state: Mutex::new(state) })
    }

    /// Draws whether a fault happens now.
    pub fn happens(&self, fault: FaultKind) -> bool {
        let probability = self.plan.probability(fault);
        if probability == 0.0 {
            return false;
        }
        let now = self.time.now();
        let mut state = self.state.lock();
        if now >= state.until {
            return false;
        }
        let happens = state.random.f64() < probability;
        drop(state);
        if happens {
            self.suffers(fault);
        }
        happens
    }

    /// Whether a lasting fault is active: begun earlier, or drawn now.
    pub fn lasts(&self, fault: FaultKind) -> bool {
        if self.plan.probability(fault) == 0.0 {
            return false;
        }
        let now = self.time.now();
        let end = self.state.lock().lasting.get(&fault).copied().unwrap_or_default();
        if now < end {
            return true;
        }
        let begins = self.happens(fault);
        if begins {
            let end = now + self.between_ms(1_000, LASTING_MAX.as_millis() as u64);
            let mut state = self.state.lock();
            let end = end.min(state.until);
            state.lasting.insert(fault, end);
        }
        begins
    }

    /// Whether faults may still happen.
    pub fn is_disturbed(&self) -> bool {
        self.time.now() < self.state.lock().until
    }

    /// Counts a fault.
    pub fn suffers(&self, fault: FaultKind) {
        *self.state.lock().counts.faults.entry(fault).or_default() += 1;
        self.event(format_args!("FAULT {fault:?}"));
    }

    /// Enables faults again for `duration`.
    pub fn resume_faults(&self, duration: Duration) {
        let until = self.time.now() + duration;
        let mut state = self.state.lock();
        state.until = until;
        state.settled = state.settled.max(until);
    }

    /// Extends the time until progress is required by `more`.
    pub fn unsettled_for(&self, more: Duration) {
        let end = self.time.now() + more;
        let mut state = self.state.lock();
        state.settled = state.settled.max(end);
    }

    /// Time at which the last fault was over.
    pub fn settled(&self) -> Duration {
        self.state.lock().settled
    }

    /// A random number in `0..n`.
    pub fn below(&self, n: u64) -> u64 {
        self.state.lock().random.u64(0..n.max(1))
    }

    /// A random duration of `least..most` milliseconds.
    pub fn between_ms(&self, least: u64, most: u64) -> Duration {
        Duration::from_micros(least * 1000 + self.below((most - least) * 1000))
    }

    /// Counts something that is no fault.
    pub fn note(&self, note: impl FnOnce(&mut SimulationCounts)) {
        note(&mut self.state.lock().counts);
    }

    /// Records that a chosen upgrade is complete, after so many `batches`.
    pub fn note_upgraded(&self, batches: usize) {
        self.note(|counts| {
            let cache_reads = counts.cache_reads;
            counts.upgraded = Some(UpgradeCounts { batches, cache_reads });
        });
    }

    /// Counts a computed split, once per attempt.
    pub fn count_offered(&self, split: (Epoch, Position), attempt: Attempt) {
        let mut state = self.state.lock();
        if state.offered.insert(split, attempt).is_some_and(|before| before != attempt) {
            state.counts.computed_again += 1;
        }
    }

    /// Records an event in the trace.
    pub fn event(&self, what: fmt::Arguments<'_>) {
        let now = self.time.now();
        if self.verbose {
            eprintln!("{:>12.6} {what}", now.as_secs_f64());
        }
        let mut state = self.state.lock();
        state.trace.update(&now.as_micros().to_le_bytes());
        // A hasher takes everything.
        let _ = state.trace.write_fmt(what);
    }

    /// Records a violation.
    pub fn violated(&self, what: impl fmt::Display) {
        self.event(format_args!("VIOLATION {what}"));
        let violations = &mut self.state.lock().counts.violations;
        if violations.len() < MAX_VIOLATIONS {
            violations.push(format!("{what} (at {:.3} s)", self.time.now().as_secs_f64()));
        }
    }

    /// Records a violated invariant.
    pub fn check(&self, check: InvariantCheck) {
        if let Err(violation) = check {
            self.violated(violation);
        }
    }

    /// Number of times that any of `faults` happened.
    pub fn count(&self, faults: &[FaultKind]) -> u64 {
        self.count_of(|fault| faults.contains(&fault))
    }

    /// Number of times that faults happened which are `meant`.
    pub fn count_of(&self, meant: impl Fn(FaultKind) -> bool) -> u64 {
        let state = self.state.lock();
        state.counts.faults.iter().filter(|(fault, _)| meant(**fault)).map(|(_, times)| times).sum()
    }

    /// Whether an invariant was broken.
    pub fn is_violated(&self) -> bool {
        !self.state.lock().counts.violations.is_empty()
    }

    /// The events so far, by kind.
    pub fn counts(&self) -> SimulationCounts {
        let state = self.state.lock();
        SimulationCounts { trace: state.trace.finalize().to_string(), ..state.counts.clone() }
    }
}
