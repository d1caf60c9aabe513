//! Simulates the cost of coordination by number of workers and of readers: the production coordinator, worker loop,
//! scaler and fetcher in virtual time over a table that counts units and has a partition's limits. A seed determines a
//! run.

mod args;
mod deployment;
mod figures;
#[cfg(test)]
mod folder_tests;
mod modes;
mod platform;
pub mod readers;
mod report;
mod table;
mod training;

pub use args::ScaleArgs;
pub use modes::run;
pub use training::BoxedError;
