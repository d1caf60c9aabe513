//! Simulates scaling policies against modelled trainers, workers, platforms and limits in virtual time. A seed
//! determines a run. `docs/scenarios.md` describes the scenario format.
//!
//! [`ScalingScenario::parse`] reads a scenario, [`simulate`] runs a policy in it, [`sweep`] finds the true optimum by trying
//! every count, [`check`] compares the policy with it over many seeds.

mod check;
mod command;
mod engine;
mod host;
mod model;
mod placer;
mod random;
mod read;
mod run;
mod scenario;
mod sweep;

pub use check::{PhaseCheck, ScenarioCheck, check, table};
pub use command::{ScalingArgs, run};
pub use host::ModelHost;
pub use placer::HostPlacement;
pub use random::{random_scenario, vary};
pub use read::{ValueOrigin, ValueProvenance};
pub use run::{ScalingTick, SimulatedCost, SimulatedRun};
pub use scenario::shipped;
pub use scenario::{
    ModelConditions, PaperResult, ScalingScenario, ScenarioError, ScenarioPhase, ScenarioPrices,
};
pub use sweep::{PhaseSweep, SweptCount, measure, sweep, sweeps};

use gristmill_policy::scaling::PolicyName;

/// Runs a policy in a scenario. The seed determines all noise.
pub fn simulate(scenario: &ScalingScenario, seed: u64, policy: PolicyName) -> SimulatedRun {
    engine::ScalingEngine::new(scenario, seed, policy).run(|_| false)
}
