//! The report of a run: a table for people, one JSON object for programs, and a page.
//!
//! A [`RunObserver`](gristmill_stream::RunObserver) counts a job's deliveries. At the end [`RunReport::new`] adds the service's data (the costs of
//! workers, the records left out) and writes everything.

mod division;
mod skipped;
mod summary;
mod timeline;
mod usage;

pub use division::DatasetDivision;
pub use skipped::SkippedRecords;
pub use summary::RunReport;
pub use usage::ResourceUsage;
