//! Records a run, attributes its trainer's waits, and renders the page that shows them.
//!
//! Three pure steps: the program that runs a job fills a [`Timeline`] (every part of it
//! optional), [`attribute`] finds the causes of an epoch's waits and whether more workers would help,
//! and [`render`] makes one self-contained HTML page.

mod advice;
mod attribution;
mod mode;
mod number;
mod page;
mod timeline;
mod units;

pub use advice::StallAdvice;
pub use attribution::{
    EpochStalls, EpochWaits, OpSeconds, StallCause, StallPart, WorkerShares, attribute,
};
pub use mode::TimelineMode;
pub use page::render;
pub use timeline::{
    Timeline, TimelineCost, TimelineDecision, TimelineEpoch, TimelineJob, TimelineSample,
};
