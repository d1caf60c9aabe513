//! The report of a run: a table for people, one JSON object for programs, and a page.
//!
//! An [`RunObserver`] counts a job's deliveries. At the end [`RunReport::new`] adds the service's data (the costs of
//! workers, the records left out) and writes everything.

mod division;
mod epoch;
mod observable;
mod observer;
mod recorder;
mod recount;
mod skipped;
mod steps;
mod summary;
mod timeline;
mod usage;

pub use division::DatasetDivision;
pub use epoch::{EpochReport, SteadyPart};
pub use observable::{ObservableRun, PolledJob};
pub use observer::{RunObservations, RunObserver};
pub use skipped::SkippedRecords;
pub use steps::{RankCounts, RankSteps};
pub use summary::RunReport;
pub use usage::ResourceUsage;
