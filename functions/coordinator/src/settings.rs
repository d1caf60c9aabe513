//! What an operator tunes.

use gristmill_splits::Limits;
use gristmill_types::{ErrorPolicy, Namespace};

/// Settings of one coordinator.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The namespace it serves; calls for any other are refused.
    pub ns: Namespace,
    /// The bucket of chunks, indices and manifests.
    pub bucket: String,
    /// Name (and qualifier) of the scaler function.
    pub scaler_function: String,
    /// Objects are planned to be about this large, in bytes: large enough that requests cost
    /// little beside compute, small enough for a worker's memory and one put.
    pub object_bytes: u64,
    /// Splits an epoch is divided into at least, data permitting, so that work can fan out.
    pub min_splits: u64,
    /// Bytes ready and not yet taken in at which hand-out stops.
    pub window_bytes: u64,
    pub limits: Limits,
}

impl Settings {
    /// The defaults for one stack.
    pub fn new(ns: Namespace, bucket: String, scaler_function: String) -> Self {
        Self {
            ns,
            bucket,
            scaler_function,
            object_bytes: 64 << 20,
            min_splits: 64,
            window_bytes: 2 << 30,
            limits: Limits::default(),
        }
    }

    /// The limits of a job with this error policy.
    pub(crate) fn limits_of(&self, on_error: ErrorPolicy) -> Limits {
        Limits { on_error, ..self.limits }
    }
}
