//! CPU of each part of a run, and requests of each service.

use crate::{JobHandle, ServiceConnection};
use gristmill_host::process_cpu_ms;
use gristmill_stream::{ObservableRun, RunObserver};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, time::Instant};

/// Counters at one moment, or their difference.
#[derive(Debug, Clone, Default)]
pub struct ResourceUsage {
    /// CPU of this process (fetcher and trainer), user and system.
    pub fetcher_cpu_ms: u64,
    pub worker_cpu_ms: u64,
    /// CPU of the service's process on this machine: coordinator, scaler and table.
    pub control_cpu_ms: u64,
    /// Requests by service and operation.
    pub requests: BTreeMap<String, u64>,
    /// Whether there is a local service to ask.
    pub local: bool,
}

impl JobHandle {
    /// Observes `run` of this job, which began at `began`.
    pub async fn observe(&self, run: &impl ObservableRun, began: Instant) -> RunObserver {
        let service = self.service.clone();
        let worker_cpu = move || {
            let service = service.clone();
            Box::pin(async move { ResourceUsage::now(&service).await.worker_cpu_ms }) as _
        };
        RunObserver::new(Box::new(worker_cpu), run, began).await
    }
}

impl ResourceUsage {
    /// Reads all counters.
    pub async fn now(service: &ServiceConnection) -> Self {
        let mut usage =
            Self { fetcher_cpu_ms: process_cpu_ms(std::process::id()), ..Self::default() };
        if let Some(aws) = &service.aws {
            usage.requests = aws.counts();
        }
        let Some(local) = &service.local else { return usage };
        usage.local = true;
        match local.calls.status().await {
            Ok(status) => {
                usage.control_cpu_ms = process_cpu_ms(status.pid);
                usage.worker_cpu_ms = status.worker_cpu_ms;
                usage.requests = status.counts;
            }
            Err(error) => tracing::warn!(%error, "the service's counters cannot be read"),
        }
        usage
    }

    /// The usage since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let requests = self.requests.iter().map(|(name, count)| {
            let earlier = before.requests.get(name).copied().unwrap_or(0);
            (name.clone(), count.saturating_sub(earlier))
        });
        Self {
            fetcher_cpu_ms: self.fetcher_cpu_ms.saturating_sub(before.fetcher_cpu_ms),
            worker_cpu_ms: self.worker_cpu_ms.saturating_sub(before.worker_cpu_ms),
            control_cpu_ms: self.control_cpu_ms.saturating_sub(before.control_cpu_ms),
            requests: requests.filter(|(_, count)| *count > 0).collect(),
            local: self.local,
        }
    }

    /// Conditional writes of the table, refused ones included; none if no local service counts them.
    pub fn table_writes(&self) -> Option<u64> {
        self.local.then(|| self.requests.get("table.write").copied().unwrap_or(0))
    }

    /// Bytes of chunks read, and written; none if no local service counts them.
    pub fn chunk_bytes(&self) -> Option<(u64, u64)> {
        let bytes = |name: &str| self.requests.get(name).copied().unwrap_or(0);
        self.local
            .then(|| (bytes("objects.chunk_bytes_read"), bytes("objects.chunk_bytes_written")))
    }

    /// Requests as JSON, by service.
    pub fn requests_json(&self) -> Value {
        let mut services = Map::new();
        for (name, count) in &self.requests {
            let (service, operation) = name.split_once('.').unwrap_or(("other", name));
            let service = services.entry(service).or_insert_with(|| json!({}));
            if let Some(service) = service.as_object_mut() {
                service.insert(operation.to_owned(), json!(count));
            }
        }
        Value::Object(services)
    }
}
