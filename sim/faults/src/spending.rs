//! The real cost of a job's workers: the durations of their invocations and the splits that they offered. Their user
//! gives the job more once its budget is spent.

use crate::FaultSimulation;
use gristmill_model::{
    splits::invariants::invariant_29_within_the_budget,
    wire::{JobBudget, RegisterCall},
};
use parking_lot::Mutex;
use std::{collections::BTreeSet, time::Duration};

/// Prices of the stack's worker.
const PRICES: JobBudget = JobBudget {
    cap: 0,
    worker_ms: 23_035,
    split: 8_900_000,
    local_split: 3_600_000,
    mib: 31_000,
    revision: 0,
};
/// Words of the error of a job whose budget is spent.
pub const SPENT: &str = "budget is spent";

/// The budget of each job of a simulation: none is no limit. It only grows.
#[derive(Debug, Default)]
pub struct GivenBudget(Mutex<Option<u64>>);

impl GivenBudget {
    /// A budget of `cap` picodollars, if there is one.
    pub fn new(cap: Option<u64>) -> Self {
        Self(Mutex::new(cap))
    }

    /// Whether jobs have a budget.
    pub fn is_given(&self) -> bool {
        self.0.lock().is_some()
    }

    /// The user gives more.
    pub fn raise(&self) {
        let mut cap = self.0.lock();
        *cap = cap.map(|cap| cap.saturating_mul(2).saturating_add(1_000_000_000));
    }

    /// `register`, as its user starts it now.
    pub fn given(&self, register: &RegisterCall) -> RegisterCall {
        let mut register = register.clone();
        register.spec.budget = self.0.lock().map(|cap| JobBudget { cap, ..PRICES });
        register
    }
}

/// The cost of the workers of one job.
#[derive(Debug, Default)]
pub struct RealSpending(Mutex<RealCosts>);

#[derive(Debug, Default)]
struct RealCosts {
    ended: Duration,
    running: Vec<Duration>,
    offered: BTreeSet<String>,
}

impl RealSpending {
    /// An invocation begins; it is named by the time.
    pub fn begin(&self, sim: &FaultSimulation) -> Duration {
        let began = sim.time.now();
        self.0.lock().running.push(began);
        began
    }

    /// An invocation that began then has ended, one way or another.
    pub fn end(&self, sim: &FaultSimulation, began: Duration) {
        let mut costs = self.0.lock();
        if let Some(at) = costs.running.iter().position(|other| *other == began) {
            costs.running.swap_remove(at);
        }
        costs.ended += sim.time.now() - began;
        drop(costs);
        self.check(sim);
    }

    /// A worker stores a chunk.
    pub fn offer(&self, sim: &FaultSimulation, key: &str) {
        self.0.lock().offered.insert(key.to_owned());
        self.check(sim);
    }

    fn check(&self, sim: &FaultSimulation) {
        let Some(cap) = *sim.budget.0.lock() else { return };
        let costs = self.0.lock();
        let running = costs.running.iter().map(|began| sim.time.now() - *began);
        let worker_ms = (costs.ended + running.sum::<Duration>()).as_millis() as u64;
        let spent = worker_ms * PRICES.worker_ms + costs.offered.len() as u64 * PRICES.split;
        sim.check(invariant_29_within_the_budget(spent, cap));
    }
}
