//! What happened in a run, why its trainer waited, and the page that shows it.
//!
//! Three steps, all of them pure: whoever runs a job fills a [`Timeline`] (JSON, every part of it
//! optional), [`attribute`] tells for an epoch where the trainer's wait went and whether more workers
//! would have helped, and [`render`] makes one self-contained HTML page of it all.

mod advice;
mod attribution;
mod mode;
mod number;
mod page;
mod timeline;
mod units;

pub use advice::Advice;
pub use attribution::{
    Cause, OpSeconds, Part, SourceGrowth, Stalls, Waits, WorkerShares, attribute,
};
pub use mode::Mode;
pub use page::render;
pub use timeline::{Cost, Decision, Epoch, Job, Sample, Timeline};
