//! Deterministic simulation: the production coordinator, worker loop, scaler and fetcher in virtual time, over a table,
//! an object store and a function platform in memory, with injected faults. The invariants of the split protocol are
//! checked at every write and deletion, exactly-once delivery at the end. A seed determines everything, event for event.
//!
//! To work on a failing seed:
//! 1. `scripts/simulate-faults --seed S` replays it and prints every event with its virtual time.
//! 2. Find `VIOLATION` in the output, and search backwards for the last `FAULT` and the writes of that item.
//! 3. Fix it, replay the seed, then run `scripts/simulate-faults --seeds 20000`.

mod checks;
mod client;
mod cloud;
mod coordinator;
mod faults;
mod histories;
mod host;
mod jobs;
mod mutant;
mod objects;
mod process;
mod ranked;
mod releases;
mod removal;
mod run;
mod scenario;
mod simulation;
mod spending;
mod table;
mod trainer;

pub use faults::{FaultKind, FaultPlan};
pub use histories::{HistoryOutcome, history};
pub use mutant::Mutant;
pub use process::{ProcessKind, SimClock, SimProcess};
pub use releases::{SimRelease, UpgradeMoment, UpgradeOrder, UpgradePlan};
pub use removal::{RemovalOutcome, simulate_removal};
pub use run::{
    SimulationOutcome, simulate, simulate_large, simulate_only, simulate_ranks, simulate_upgrade,
};
pub use scenario::{CachePosition, FaultScenario};
pub use simulation::{FaultSimulation, SimulationCounts, UpgradeCounts};
