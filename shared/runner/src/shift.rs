//! One worker from its first claim to its end: leases, each claimed and computed while the commits of the one before go on.

use crate::{
    JobContext, LeaseError, Runner, SplitSink, WorkerStopReason, lease::LeaseExecution,
    lease_tail::PendingCommits, sink::ClaimableBundles, worker::CLAIM_PATIENCE,
};
use gristmill_model::splits::SplitPlace;
use gristmill_model::wire::{ClaimCall, ClaimReply, IdleReason, Lease};
use gristmill_model::{InvocationId, Nonce};
use gristmill_ports::call_with_retry;
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};
use tracing::Instrument as _;

/// With less time left, in milliseconds, a claim is not worth its write.
const MIN_CLAIM_MS: u64 = 5_000;

/// One worker between its first claim and its end.
pub(crate) struct WorkerLoop<'a> {
    pub runner: &'a Runner,
    pub invocation: &'a InvocationId,
    pub deadline_ms: u64,
    /// Predicted milliseconds per split; 0 before the first.
    pub split_ms: Arc<AtomicU64>,
    /// Why commits that went on beside another lease end the worker, if they do.
    pub failure: Arc<Mutex<Option<LeaseError>>>,
}

impl<'a> WorkerLoop<'a> {
    /// Takes out why the worker is to end.
    pub fn failed(&self) -> Option<LeaseError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn has_failed(&self) -> bool {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Claims and works until there is nothing to claim or no time; `tail` is left to be finished.
    pub async fn work(
        &self,
        mut context: JobContext,
        sink: &'a dyn SplitSink,
        tail: &mut PendingCommits<'a>,
    ) -> Result<WorkerStopReason, LeaseError> {
        loop {
            let (needed, turn) = match sink.claimable() {
                ClaimableBundles::Any => (None, None),
                ClaimableBundles::Needed { place, turn } => (Some(place), Some(turn)),
                ClaimableBundles::Nothing => {
                    return Ok(WorkerStopReason::Idle(IdleReason::WindowFull));
                }
            };
            let split_ms = self.split_ms.load(Ordering::Relaxed);
            if self.runner.remaining_ms(self.deadline_ms) < MIN_CLAIM_MS + split_ms {
                return Ok(WorkerStopReason::OutOfTime);
            }
            // Every claim has a new nonce: it names this attempt's objects and proves ownership.
            let nonce = self.runner.clock.nonce();
            let reply = tail.beside(self.claim(&context, nonce, needed)).await?;
            drop(turn);
            sink.answered(&reply);
            let lease = match reply {
                ClaimReply::Leased(lease) => lease,
                ClaimReply::Idle(idle) => return Ok(WorkerStopReason::Idle(idle.reason)),
            };
            context = context.under(&lease, self.runner);
            let Lease { epoch, bundle, attempt, .. } = lease;
            let span =
                tracing::info_span!("lease", job = %context.view.job, epoch, bundle, attempt);
            span.in_scope(|| tracing::info!(splits = lease.todo.len(), "claimed"));
            // A death during a lease with marks is blamed on its split alone.
            if lease.marks() {
                tail.finish().await;
            }
            let run = Arc::new(LeaseExecution {
                runner: self.runner,
                context: context.clone(),
                lease,
                nonce,
                deadline_ms: self.deadline_ms,
                split_ms: Arc::clone(&self.split_ms),
            });
            *tail = self.run(run, sink, std::mem::take(tail)).instrument(span).await;
            if self.has_failed() {
                return Ok(WorkerStopReason::OutOfTime);
            }
        }
    }

    async fn claim(
        &self,
        context: &JobContext,
        nonce: Nonce,
        needed: Option<SplitPlace>,
    ) -> Result<ClaimReply, LeaseError> {
        let call = ClaimCall {
            job: context.view.job.clone(),
            registered_ms: context.view.registered_ms,
            nonce,
            invocation: self.invocation.clone(),
            numerics: gristmill_executor::NUMERICS.to_owned(),
            remaining_ms: self.runner.remaining_ms(self.deadline_ms),
            split_ms: self.split_ms.load(Ordering::Relaxed),
            local: self.runner.config.local,
            resent: false,
            needed,
        };
        let Runner { coordinator, clock, .. } = self.runner;
        Ok(call_with_retry(&**coordinator, &**clock, call, CLAIM_PATIENCE).await?)
    }

    /// Computes a lease. Returns its commits, which go on, unless it ended with an error or has marks.
    async fn run(
        &self,
        run: Arc<LeaseExecution<'a>>,
        sink: &'a dyn SplitSink,
        before: PendingCommits<'a>,
    ) -> PendingCommits<'a> {
        let (computed, committing) = run.work(sink, before).await;
        let is_alone = computed.is_err() || run.lease.marks();
        let failure = Arc::clone(&self.failure);
        let mut tail = PendingCommits::new(async move {
            let error = match committing.await.and(computed) {
                Ok(()) | Err(LeaseError::LeaseLost) => return,
                Err(error) => error,
            };
            run.runner.give_back(&run.context, &run.lease, run.nonce, &error).await;
            match error {
                LeaseError::NoRoom => {}
                LeaseError::Passing(_) => tracing::warn!(%error, "bundle given back"),
                error => {
                    let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    failure.get_or_insert(error);
                }
            }
        });
        if is_alone {
            tail.finish().await;
        }
        tail
    }
}
