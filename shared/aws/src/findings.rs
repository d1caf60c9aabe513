//! Answers to queries about a deployment.

use std::time::Duration;

/// Deadline of one query, including its second try.
pub const PROBE_DEADLINE: Duration = Duration::from_secs(5);

/// Failure of a query, by the conclusion that it allows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// No server answers.
    #[error("{0}")]
    Unreachable(String),
    /// The keys are invalid.
    #[error("{0}")]
    KeysRefused(String),
    /// The keys are valid but lack permission.
    #[error("{0}")]
    Denied(String),
    #[error("{0}")]
    Missing(String),
    #[error("{0}")]
    Other(String),
}

/// Identity of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerIdentity {
    pub account: String,
    pub arn: String,
}

/// Permissions of a trainer on a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketRights {
    pub list: Result<(), ProbeError>,
    pub get_chunks: Result<(), ProbeError>,
    pub put_indices: Result<(), ProbeError>,
}

/// A deployed function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeployedFunction {
    /// `Active` when it can be invoked.
    pub state: String,
    /// Architecture in Rust's terms: `aarch64` or `x86_64`.
    pub architecture: String,
    /// Reserved concurrency, if any.
    pub reserved: Result<Option<u32>, ProbeError>,
}

/// Concurrent executions of an account in a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConcurrencyQuota {
    pub limit: u32,
    /// Concurrency that no function has reserved.
    pub unreserved: u32,
}

/// An object of a dataset that could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadableObject {
    pub key: String,
    /// Region of its bucket, if the server reports it.
    pub region: Option<String>,
}

/// A server of one service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceResponder {
    /// Scheme, host and port.
    pub address: String,
    /// Lead of its clock over ours in seconds; `None` if it sent no date.
    pub ahead_s: Option<i64>,
    /// Its `Server` header.
    pub server: Option<String>,
}
