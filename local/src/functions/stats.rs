//! Counters of the host.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Counters of one function since the host started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionStats {
    /// `RequestResponse` invocations.
    pub invocations_sync: u64,
    /// Runs of asynchronous events, retries included.
    pub invocations_event: u64,
    /// Requests to the function URL.
    pub invocations_url: u64,
    /// Requests refused at the concurrency limit, and events delayed by it.
    pub throttles: u64,
    /// Invocations that the function answered with an error.
    pub errors: u64,
    /// Invocations whose process ended.
    pub crashes: u64,
    /// Invocations killed at their deadline.
    pub timeouts: u64,
    /// Environments that never requested an event.
    pub init_failures: u64,
    /// Environments started.
    pub cold_starts: u64,
    /// Longest time from an environment's start until it requested an event.
    pub init_ms_max: u64,
    /// Environments killed on request.
    pub kills: u64,
    /// Asynchronous events that expired.
    pub events_expired: u64,
    /// Failed events sent to the failure destination.
    pub events_failed: u64,
    /// Asynchronous events waiting.
    pub events_waiting: u64,
    /// Invocations running.
    pub concurrent: u64,
    /// Most concurrent invocations so far.
    pub concurrent_max: u64,
    /// Live environments.
    pub environments: u64,
    /// User and system CPU time of all environments, dead and alive.
    pub cpu_ms: u64,
    /// Peak resident set of any environment, sampled twice a second and after invocations.
    pub peak_rss_bytes: u64,
}

/// Counters of the whole host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStats {
    /// By function name.
    pub functions: BTreeMap<String, FunctionStats>,
    /// Invocations running.
    pub concurrent: u64,
    /// Most concurrent invocations allowed.
    pub concurrency_limit: u64,
}

/// Snapshot of one environment.
#[derive(Debug, Clone)]
pub struct EnvironmentInfo {
    /// Its process and process group.
    pub pid: u32,
    /// Whether it has an invocation, queued or running.
    pub busy: bool,
    /// Request id of that invocation.
    pub request_id: Option<String>,
    /// Time at which it last became busy or idle.
    pub since: Instant,
}

/// Atomic counters behind [`FunctionStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub sync: AtomicU64,
    pub event: AtomicU64,
    pub url: AtomicU64,
    pub throttles: AtomicU64,
    pub errors: AtomicU64,
    pub crashes: AtomicU64,
    pub timeouts: AtomicU64,
    pub init_failures: AtomicU64,
    pub cold_starts: AtomicU64,
    pub init_ms_max: AtomicU64,
    pub kills: AtomicU64,
    pub events_expired: AtomicU64,
    pub events_failed: AtomicU64,
    pub concurrent_max: AtomicU64,
    pub exited_cpu_ms: AtomicU64,
    pub peak_rss_bytes: AtomicU64,
}

impl Counters {
    /// Snapshot of the counters; the caller adds the live environments.
    pub(crate) fn snapshot(&self) -> FunctionStats {
        FunctionStats {
            invocations_sync: self.sync.load(Relaxed),
            invocations_event: self.event.load(Relaxed),
            invocations_url: self.url.load(Relaxed),
            throttles: self.throttles.load(Relaxed),
            errors: self.errors.load(Relaxed),
            crashes: self.crashes.load(Relaxed),
            timeouts: self.timeouts.load(Relaxed),
            init_failures: self.init_failures.load(Relaxed),
            cold_starts: self.cold_starts.load(Relaxed),
            init_ms_max: self.init_ms_max.load(Relaxed),
            kills: self.kills.load(Relaxed),
            events_expired: self.events_expired.load(Relaxed),
            events_failed: self.events_failed.load(Relaxed),
            concurrent_max: self.concurrent_max.load(Relaxed),
            cpu_ms: self.exited_cpu_ms.load(Relaxed),
            peak_rss_bytes: self.peak_rss_bytes.load(Relaxed),
            ..FunctionStats::default()
        }
    }
}

/// Adds one.
pub(crate) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
