//! The report of a run: a table for people, one JSON object for programs, and a page.
//!
//! An [`Observer`] watches a job's deliveries and counts what arrives. At the end [`Report::new`] adds what the
//! service knows (what workers spent, which records were left out) and writes it all.

mod division;
mod epoch;
mod observer;
mod recorder;
mod recount;
mod skipped;
mod summary;
mod timeline;
mod usage;

pub use division::Division;
pub use epoch::EpochReport;
pub use observer::{Observed, Observer};
pub use skipped::SkippedRecords;
pub use summary::Report;
pub use usage::{Usage, process_cpu_ms};
