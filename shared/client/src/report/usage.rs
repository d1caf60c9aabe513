//! CPU of each part of a run, and requests of each service.

use crate::Service;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The worker function of a service on this machine.
const WORKER: &str = "worker";

/// Counters at one moment, or their difference.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    /// CPU of this process (fetcher and trainer), user and system.
    pub fetcher_cpu_ms: u64,
    /// CPU of the process that hosts the table, objects and functions.
    pub stand_ins_cpu_ms: u64,
    pub worker_cpu_ms: u64,
    /// Coordinator and scaler.
    pub control_cpu_ms: u64,
    /// Requests by service and operation.
    pub requests: BTreeMap<String, u64>,
    /// Whether there is a local service to ask.
    pub local: bool,
}

impl Usage {
    /// Reads all counters.
    pub async fn now(service: &Service) -> Self {
        let mut usage = Self { fetcher_cpu_ms: own_cpu_ms(), ..Self::default() };
        let Some(local) = &service.local else {
            usage.requests = service.aws.counts();
            return usage;
        };
        usage.local = true;
        usage.stand_ins_cpu_ms = process_cpu_ms(local.pid);
        let stats = match local.admin.stats().await {
            Ok(stats) => stats,
            Err(error) => {
                tracing::warn!(%error, "the service's counters cannot be read");
                return usage;
            }
        };
        for (name, function) in object(stats.get("functions")) {
            let count = |field: &str| function.get(field).and_then(Value::as_u64).unwrap_or(0);
            match name.as_str() {
                WORKER => usage.worker_cpu_ms += count("cpu_ms"),
                _ => usage.control_cpu_ms += count("cpu_ms"),
            }
            let invoked = ["invocations_sync", "invocations_event", "invocations_url"];
            let invoked = invoked.iter().map(|field| count(field)).sum();
            usage.requests.insert(format!("lambda.{name}"), invoked);
        }
        flatten(&mut usage.requests, "dynamodb", stats.get("table"));
        flatten(&mut usage.requests, "s3", stats.get("objects"));
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
            stand_ins_cpu_ms: self.stand_ins_cpu_ms.saturating_sub(before.stand_ins_cpu_ms),
            worker_cpu_ms: self.worker_cpu_ms.saturating_sub(before.worker_cpu_ms),
            control_cpu_ms: self.control_cpu_ms.saturating_sub(before.control_cpu_ms),
            requests: requests.filter(|(_, count)| *count > 0).collect(),
            local: self.local,
        }
    }

    /// Billed table writes: conditional writes, refused ones included.
    pub fn table_writes(&self) -> Option<u64> {
        let writes = ["PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems"];
        let count = |operation: &&str| self.requests.get(&format!("dynamodb.{operation}"));
        self.local.then(|| writes.iter().filter_map(count).sum())
    }

    /// Bytes of chunks read, and written; none if no local service counts them.
    pub fn chunk_bytes(&self) -> Option<(u64, u64)> {
        let bytes = |name: &str| self.requests.get(name).copied().unwrap_or(0);
        let read = || (bytes("s3.sent_chunk_bytes"), bytes("s3.received_chunk_bytes"));
        self.local.then(read)
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

fn object(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flatten()
}

/// Every number below `value`, named by its innermost key.
fn flatten(requests: &mut BTreeMap<String, u64>, service: &str, value: Option<&Value>) {
    for (name, value) in object(value) {
        match value {
            Value::Number(number) => {
                requests.insert(format!("{service}.{name}"), number.as_u64().unwrap_or(0));
            }
            nested => flatten(requests, service, Some(nested)),
        }
    }
}

fn own_cpu_ms() -> u64 {
    process_cpu_ms(std::process::id())
}

/// CPU of a process so far, its children not included; 0 if it cannot be read.
pub fn process_cpu_ms(pid: u32) -> u64 {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return 0 };
    // The name in parentheses may contain any character; count the fields after it.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    (ticks(11) + ticks(12)) * 1000 / per_second
}
