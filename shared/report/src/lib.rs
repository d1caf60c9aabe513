//! Records a run, attributes its trainer's waits, and renders the page that shows them.
//!
//! Three pure steps: the program that runs a job fills a [`Timeline`] (every part of it
//! optional), [`attribute`] finds the causes of an epoch's waits and whether more workers would help,
//! and [`render`] makes one self-contained HTML page.

mod attribution;
mod page;
mod timeline;
mod units;

pub use attribution::{
    EpochStalls, EpochWaits, OpSeconds, StallAdvice, StallCause, StallPart, WorkerShares, attribute,
};
pub use page::render;
pub use timeline::{
    Timeline, TimelineCost, TimelineDecision, TimelineEpoch, TimelineJob, TimelineSample,
};
