//! Settings of a job that its record keeps as its flags give them. With the feature `flags` the same type
//! is the flags: a new option of this kind is a field here, and the code that follows it.

use crate::{ErrorPolicy, Sharding, SkipLimit, Visitation};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// Settings of a job. The documentation of a field is the help of its flag.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "flags", derive(clap::Args))]
pub struct JobSettings {
    /// Additional workers in this process, whose batches are not stored as objects; 1 by default if
    /// the job has no other workers
    #[cfg_attr(feature = "flags", arg(long, default_value_t, value_parser = clap::value_parser!(u32).range(0..=256)))]
    pub local_workers: u32,
    /// Batches per split [default: chosen by the pipeline's cost and the size of objects and dataset]
    #[cfg_attr(feature = "flags", arg(long, value_parser = clap::value_parser!(u32).range(1..=16_777_216)))]
    pub split_batches: Option<u32>,
    /// The batches per split of the checkpoint that the job was started from: those of the job, unless others are given.
    #[cfg_attr(feature = "flags", arg(skip))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed_split_batches: Option<NonZeroU32>,
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

impl JobSettings {
    /// Batches per split, if anybody asked for a number.
    pub fn asked_split_batches(&self) -> Option<u32> {
        self.split_batches.or(self.resumed_split_batches.map(NonZeroU32::get))
    }
}
