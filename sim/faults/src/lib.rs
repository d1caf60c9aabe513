//! The production coordinator, worker loop, scaler and fetcher in a world that one seed decides:
//! virtual time, a table, an object store and a function platform in memory, and everything that can
//! go wrong with them. The invariants of the split protocol are checked at every write and deletion,
//! exactly-once at the end. One seed gives one world, event for event.

mod client;
mod cloud;
mod company;
mod faults;
mod hints;
mod histories;
mod link;
mod mutant;
mod objects;
mod progress;
mod remover;
mod run;
mod scenario;
mod serving;
mod table;
mod time;
mod trainer;
mod verdict;
mod world;

pub use faults::{Fault, FaultPlan};
pub use histories::{History, history};
pub use mutant::Mutant;
pub use run::{Outcome, simulate, simulate_large, simulate_only};
pub use time::{SimClock, VirtualTime};
pub use world::{Kind, Process, Tally, World};
