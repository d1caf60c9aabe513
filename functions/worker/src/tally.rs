//! Totals of one invocation, counted from its calls to the coordinator.

use async_trait::async_trait;
use gristmill_model::splits::WorkerTimes;
use gristmill_model::wire::{AnyCall, AnyReply, ClaimReply, FlushCall, LeaseWork, RefusalKind};
use gristmill_ports::{CallError, Coordinator, MetricValue};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Totals since the last [`CountingCoordinator::take`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InvocationTotals {
    splits: u64,
    rows: u64,
    skipped: u64,
    files_indexed: u64,
    bundles_lost: u64,
    times: WorkerTimes,
    /// The current lease indexes files.
    is_indexing: bool,
}

impl InvocationTotals {
    /// The totals as metrics.
    pub fn measures(&self) -> Vec<MetricValue> {
        vec![
            MetricValue::count("splits", self.splits),
            MetricValue::count("rows", self.rows),
            MetricValue::count("skipped", self.skipped),
            MetricValue::count("files_indexed", self.files_indexed),
            MetricValue::count("bundles_lost", self.bundles_lost),
            MetricValue::ms("source_ms", self.times.source_ms),
            MetricValue::ms("compute_ms", self.times.compute_ms),
            MetricValue::ms("put_ms", self.times.put_ms),
        ]
    }

    fn note(&mut self, call: &AnyCall, answer: &Result<AnyReply, CallError>) {
        match (call, answer) {
            (AnyCall::Claim(_), Ok(AnyReply::Claim(ClaimReply::Leased(lease)))) => {
                self.is_indexing = matches!(lease.work, LeaseWork::Index);
            }
            (AnyCall::Flush(flush), Ok(AnyReply::Flush(_))) => self.add(flush),
            (AnyCall::Flush(_) | AnyCall::Mark(_), Err(CallError::Refused(refusal)))
                if refusal.kind == RefusalKind::LeaseLost =>
            {
                self.bundles_lost += 1;
            }
            _ => {}
        }
    }

    fn add(&mut self, flush: &FlushCall) {
        let WorkerTimes { source_ms, .. } = flush.times;
        let of_index = WorkerTimes { source_ms, ..WorkerTimes::default() };
        self.times = self.times.plus(if self.is_indexing { of_index } else { flush.times });
        if self.is_indexing {
            self.files_indexed += flush.commits.len() as u64;
            return;
        }
        self.splits += flush.commits.len() as u64;
        for commit in &flush.commits {
            self.rows += u64::from(commit.outcome.rows);
            self.skipped += u64::from(commit.outcome.skipped_records);
        }
    }
}

/// The coordinator, with a tally of this worker's calls.
pub(crate) struct CountingCoordinator {
    inner: Arc<dyn Coordinator>,
    tally: Mutex<InvocationTotals>,
}

impl CountingCoordinator {
    /// Counts the calls of `inner`.
    pub fn new(inner: Arc<dyn Coordinator>) -> Self {
        Self { inner, tally: Mutex::default() }
    }

    /// Returns the totals and resets them.
    pub fn take(&self) -> InvocationTotals {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, InvocationTotals> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Coordinator for CountingCoordinator {
    async fn exchange(&self, call: &AnyCall) -> Result<AnyReply, CallError> {
        let answer = self.inner.exchange(call).await;
        self.lock().note(call, &answer);
        answer
    }

    fn speak(&self, version: u32) {
        self.inner.speak(version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::Nonce;
    use gristmill_model::splits::{SplitCommit, SplitKind, SplitOutcome};
    use gristmill_model::wire::{AppliedReply, BundlePartition, CallRefusal, LeaseRef};

    fn flush(commits: usize) -> AnyCall {
        let commit = SplitCommit {
            split_index: 0,
            outcome: SplitOutcome {
                kind: SplitKind::Object,
                object_bytes: 1,
                crc32c: 0,
                rows: 10,
                batches: 1,
                remainder_rows: 0,
                skipped_records: 1,
            },
        };
        FlushCall {
            lease: LeaseRef {
                job: "j".parse().unwrap(),
                home: BundlePartition { registered_ms: 0, partition: 0 },
                epoch: 0,
                bundle: 0,
                attempt: 1,
                nonce: Nonce([0; 8]),
            },
            commits: vec![commit; commits],
            next: None,
            remaining_ms: 1,
            split_ms: 1,
            times: WorkerTimes { source_ms: 2, compute_ms: 3, put_ms: 4 },
            profile: None,
        }
        .into()
    }

    #[test]
    fn what_is_committed_counts_once() {
        let mut tally = InvocationTotals::default();
        let call = flush(2);
        tally.note(&call, &Err(CallError::Unavailable("the answer was lost".to_owned())));
        tally.note(&call, &Ok(AnyReply::Flush(AppliedReply {})));
        tally.note(&flush(1), &Ok(AnyReply::Flush(AppliedReply {})));
        let expected = InvocationTotals {
            splits: 3,
            rows: 30,
            skipped: 3,
            times: WorkerTimes { source_ms: 4, compute_ms: 6, put_ms: 8 },
            ..InvocationTotals::default()
        };
        assert_eq!(tally, expected);
    }

    #[test]
    fn bundles_that_others_took_are_lost() {
        let mut tally = InvocationTotals::default();
        let kind = RefusalKind::LeaseLost;
        let refusal = CallRefusal { kind, message: "lost".to_owned() };
        tally.note(&flush(2), &Err(CallError::Refused(refusal)));
        assert_eq!(tally, InvocationTotals { bundles_lost: 1, ..InvocationTotals::default() });
    }

    /// Keeps the version that it is to speak.
    #[derive(Default)]
    struct Spoken(std::sync::atomic::AtomicU32);

    #[async_trait]
    impl Coordinator for Spoken {
        async fn exchange(&self, _: &AnyCall) -> Result<AnyReply, CallError> {
            Err(CallError::Unavailable(String::new()))
        }

        fn speak(&self, version: u32) {
            self.0.store(version, std::sync::atomic::Ordering::Relaxed);
        }
    }

    #[test]
    fn the_version_of_an_event_reaches_the_calls() {
        let inner = Arc::new(Spoken::default());
        CountingCoordinator::new(Arc::clone(&inner) as _).speak(2);
        assert_eq!(inner.0.load(std::sync::atomic::Ordering::Relaxed), 2);
    }
}
