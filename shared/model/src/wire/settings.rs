//! Settings of a job that its record keeps as its flags give them. With the feature `flags` the same type
//! is the flags: a new option of this kind is a field here, and the code that follows it.

use crate::{ErrorPolicy, Sharding, SkipLimit, Visitation};
use serde::{Deserialize, Serialize};

/// Settings of a job. The documentation of a field is the help of its flag.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "flags", derive(clap::Args))]
pub struct JobSettings {
    /// Additional workers in this process, whose batches are not stored as objects; 1 by default if
    /// the job has no other workers
    #[cfg_attr(feature = "flags", arg(long, default_value_t, value_parser = clap::value_parser!(u32).range(0..=256)))]
    pub local_workers: u32,
    /// Batches per split [default: chosen from object and dataset size]
    #[cfg_attr(feature = "flags", arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536)))]
    pub split_batches: Option<u32>,
    /// Policy for a record that cannot be decoded: fail, skip or quarantine
    #[cfg_attr(feature = "flags", arg(long, default_value_t, value_name = "POLICY"))]
    pub on_error: ErrorPolicy,
    /// Records per epoch that --on-error skip or quarantine may leave out before the job fails: a
    /// number, or a share, which allows at least one
    #[cfg_attr(feature = "flags", arg(long, default_value_t, value_name = "N|P%"))]
    pub max_skipped: SkipLimit,
    /// Delivery guarantee if the trainer fails and returns: exactly-once, at-most-once or
    /// zero-once-or-more
    #[cfg_attr(feature = "flags", arg(long, default_value_t, value_name = "MODE"))]
    pub visitation: Visitation,
    /// Content of an epoch: the dataset once (dynamic), or once per worker (off)
    #[cfg_attr(feature = "flags", arg(long, default_value_t, value_name = "MODE"))]
    pub sharding: Sharding,
}
