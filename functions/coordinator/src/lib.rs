//! The coordinator function: registers jobs, hands out splits, accepts commits and reports.
//!
//! Stateless. A call loads the items it needs, decides with the pure functions of
//! `gristmill_model::splits`, and commits with one conditional write; on a conflict it decides again on the
//! current item. No other function uses the table, except the scaler its own item.

mod bundles;
mod caching;
mod claims;
mod collect;
mod coordinator;
mod departures;
mod epochs;
mod files;
#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod golden_tests;
#[cfg(feature = "aws")]
mod handler;
pub mod inspect;
mod items;
mod jobs;
mod joins;
mod kicks;
mod leases;
mod look;
mod polls;
mod readers;
mod records;
mod scan;
mod settings;
mod skips;
mod snapshot;
mod spending;
mod store;
mod trouble;
mod upkeep;
#[cfg(feature = "aws")]
mod wiring;

pub use coordinator::CoordinatorFunction;
pub(crate) use coordinator::{CallHandler, Consumers, Jobs, Splits};
#[cfg(feature = "aws")]
pub use handler::{handle, serve};
pub(crate) use records::JobRecords;
pub use settings::{CoordinatorSettings, WorkerFailureLimits};
pub use snapshot::CoordinatorMemory;
pub use upkeep::UpkeepReport;
