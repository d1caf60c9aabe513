//! Metrics of each call: kind, latency, refusals, and write conflicts.

use async_trait::async_trait;
use bytes::Bytes;
use gristmill_model::wire::{AnyCall, AnyReply};
use gristmill_ports::{Item, ItemKey, Measure, Metrics, Table, TableError, WriteOutcome};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Measures calls one at a time: the platform sends an environment one event at a time.
#[derive(Clone)]
pub(crate) struct Meter {
    metrics: Metrics,
    conflicts: Arc<AtomicU64>,
}

impl Meter {
    /// Returns a meter, and `table` wrapped so that the meter counts its conflicts.
    pub fn new(metrics: Metrics, table: Arc<dyn Table>) -> (Self, Arc<dyn Table>) {
        let conflicts: Arc<AtomicU64> = Arc::default();
        let counting = CountConflicts { table, conflicts: Arc::clone(&conflicts) };
        (Self { metrics, conflicts }, Arc::new(counting))
    }

    pub fn print(&self, call: &AnyCall, reply: &AnyReply, started_ms: u64, ended_ms: u64) {
        let measured = self.measure(call, reply, ended_ms.saturating_sub(started_ms));
        self.metrics.print(
            ended_ms,
            &measured,
            &[("job", call.job().map_or("", |job| job.as_str()))],
        );
    }

    fn measure(&self, call: &AnyCall, reply: &AnyReply, latency_ms: u64) -> [Measure; 4] {
        [
            Measure::count(call.name(), 1),
            Measure::count("refusals", u64::from(matches!(reply, AnyReply::Refused(_)))),
            Measure::count("conflicts", self.conflicts.swap(0, Ordering::Relaxed)),
            Measure::ms("latency_ms", latency_ms),
        ]
    }
}

struct CountConflicts {
    table: Arc<dyn Table>,
    conflicts: Arc<AtomicU64>,
}

#[async_trait]
impl Table for CountConflicts {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<Item>>, TableError> {
        self.table.read(keys).await
    }

    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, TableError> {
        let outcome = self.table.write(key, expected, body, expires_at_s).await;
        if matches!(outcome, Ok(WriteOutcome::Conflict(_))) {
            self.conflicts.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, Item)>, TableError> {
        self.table.range(pk, from, to).await
    }

    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, Item)>, TableError> {
        self.table.last(pk, limit).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a step that fails fails the test")]
mod tests {
    use super::*;
    use gristmill_model::wire::{Applied, Stop};
    use gristmill_ports::memory::MemoryTable;

    #[tokio::test]
    async fn a_call_counts_its_own_conflicts() {
        let (meter, table) = Meter::new(Metrics::default(), Arc::new(MemoryTable::default()));
        let key = ItemKey { pk: "p".to_owned(), sk: "s".to_owned() };
        for _ in 0..3 {
            table.write(&key, 0, Bytes::new(), None).await.unwrap();
        }
        let call = Stop { job: "j".parse().unwrap() }.into();
        let reply = AnyReply::Flush(Applied {});
        let measured = meter.measure(&call, &reply, 5);
        let value = |name: &str| measured.iter().find(|m| m.name == name).unwrap().value;
        assert_eq!((value("stop"), value("conflicts"), value("latency_ms")), (1, 2, 5));
        let next = meter.measure(&call, &reply, 5);
        assert_eq!(next[2].value, 0, "the next call begins at zero");
    }
}
