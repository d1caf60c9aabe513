//! Simulates scaling policies against modelled trainers, workers, platforms and limits in virtual time. A seed
//! determines a run. `docs/scenarios.md` describes the scenario format.
//!
//! [`Scenario::parse`] reads a scenario, [`simulate`] runs a policy in it, [`sweep`] finds the true optimum by trying
//! every count, [`check`] compares the policy with it over many seeds.

mod check;
mod command;
mod conditions;
mod engine;
mod error;
mod meter;
mod noise;
mod platform;
mod quantity;
mod random;
mod read;
mod run;
mod scenario;
mod server;
mod shipped;
mod splits;
mod sweep;
mod table;
mod trainer;
mod unimodal;
mod vary;

pub use check::{PhaseVerdict, Verdict, check};
pub use command::{Args, Outcome, run};
pub use conditions::Conditions;
pub use error::ScenarioError;
pub use random::random_scenario;
pub use read::{Origin, Provenance};
pub use run::{Cost, Run, Tick};
pub use scenario::{Paper, Phase, Prices, Scenario};
pub use shipped::shipped;
pub use sweep::{Measured, Sweep, measure, sweep, sweeps};
pub use table::table;
pub use vary::vary;

use gristmill_policy::scaling::PolicyName;

/// Runs a policy in a scenario. The seed determines all noise.
pub fn simulate(scenario: &Scenario, seed: u64, policy: PolicyName) -> Run {
    engine::Engine::new(scenario, seed, policy).run(|_| false)
}
