//! One worker from its first claim to its end: leases, each claimed and computed while the commits of the one before go on.

use crate::{
    Ended, JobContext, RunError, Runner, Sink, lease::LeaseRun, lease_tail::LeaseTail,
    sink::ClaimableBundles, worker::CLAIM_PATIENCE,
};
use gristmill_model::splits::Place;
use gristmill_model::wire::{Claim, ClaimReply, IdleReason, Lease};
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
pub(crate) struct WorkerShift<'a> {
    pub runner: &'a Runner,
    pub invocation: &'a InvocationId,
    pub deadline_ms: u64,
    /// Predicted milliseconds per split; 0 before the first.
    pub split_ms: Arc<AtomicU64>,
    /// Why commits that went on beside another lease end the worker, if they do.
    pub failure: Arc<Mutex<Option<RunError>>>,
}

impl<'a> WorkerShift<'a> {
    /// Takes out why the worker is to end.
    pub fn failed(&self) -> Option<RunError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn has_failed(&self) -> bool {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Claims and works until there is nothing to claim or no time; `tail` is left to be finished.
    pub async fn work(
        &self,
        mut context: JobContext,
        sink: &'a dyn Sink,
        tail: &mut LeaseTail<'a>,
    ) -> Result<Ended, RunError> {
        loop {
            let (needed, turn) = match sink.claimable() {
                ClaimableBundles::Any => (None, None),
                ClaimableBundles::Needed { place, turn } => (Some(place), Some(turn)),
                ClaimableBundles::Nothing => return Ok(Ended::Idle(IdleReason::WindowFull)),
            };
            let split_ms = self.split_ms.load(Ordering::Relaxed);
            if self.runner.remaining_ms(self.deadline_ms) < MIN_CLAIM_MS + split_ms {
                return Ok(Ended::OutOfTime);
            }
            // Every claim has a new nonce: it names this attempt's objects and proves ownership.
            let nonce = self.runner.clock.nonce();
            let reply = tail.beside(self.claim(&context, nonce, needed)).await?;
            drop(turn);
            sink.answered(&reply);
            let lease = match reply {
                ClaimReply::Leased(lease) => lease,
                ClaimReply::Idle(idle) => return Ok(Ended::Idle(idle.reason)),
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
            let run = Arc::new(LeaseRun {
                runner: self.runner,
                context: context.clone(),
                lease,
                nonce,
                deadline_ms: self.deadline_ms,
                split_ms: Arc::clone(&self.split_ms),
            });
            *tail = self.run(run, sink, std::mem::take(tail)).instrument(span).await;
            if self.has_failed() {
                return Ok(Ended::OutOfTime);
            }
        }
    }

    async fn claim(
        &self,
        context: &JobContext,
        nonce: Nonce,
        needed: Option<Place>,
    ) -> Result<ClaimReply, RunError> {
        let call = Claim {
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
        run: Arc<LeaseRun<'a>>,
        sink: &'a dyn Sink,
        before: LeaseTail<'a>,
    ) -> LeaseTail<'a> {
        let (computed, committing) = run.work(sink, before).await;
        let is_alone = computed.is_err() || run.lease.marks();
        let failure = Arc::clone(&self.failure);
        let mut tail = LeaseTail::new(async move {
            let error = match committing.await.and(computed) {
                Ok(()) | Err(RunError::LeaseLost) => return,
                Err(error) => error,
            };
            run.runner.give_back(&run.context, &run.lease, run.nonce, &error).await;
            match error {
                RunError::NoRoom => {}
                RunError::Passing(_) => tracing::warn!(%error, "bundle given back"),
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
