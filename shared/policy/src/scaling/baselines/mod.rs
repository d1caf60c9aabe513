//! Policies of others, to compare with.

pub(super) mod cachew;
pub(super) mod fastflow;
pub(super) mod hpa;
pub(super) mod pecan;
pub(super) mod tfdata;

pub use cachew::Cachew;
pub use tfdata::estimate_workers;
