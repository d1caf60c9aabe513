//! The time that a budget has set aside for one invocation. It measures its age by its monotonic clock, says it with each
//! claim, and ends itself when what was paid for is over, whatever it waits for.

use gristmill_model::wire::{ADMISSION_MS, AnyCall, AnyReply, ClaimReply, InvocationAge, JobView};
use gristmill_model::{Nonce, wire::ClaimCall};
use gristmill_ports::{CallError, Clock};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// The age of an invocation, and the age at which it ends.
pub(crate) struct PaidTime {
    clock: Arc<dyn Clock>,
    worker: u32,
    run: Nonce,
    began: Duration,
    /// The age at which it ends once it was let in.
    first_ms: u64,
    limit_ms: AtomicU64,
    is_admitted: AtomicBool,
}

impl PaidTime {
    /// The time of an invocation that begins now, as `worker`.
    pub fn new(clock: Arc<dyn Clock>, worker: u32, first_ms: u64) -> Self {
        let (run, began) = (clock.nonce(), clock.monotonic());
        let (limit_ms, is_admitted) = (ADMISSION_MS.min(first_ms).into(), AtomicBool::new(false));
        Self { clock, worker, run, began, first_ms, limit_ms, is_admitted }
    }

    /// What the invocation says of itself now.
    pub fn said(&self) -> InvocationAge {
        let age = self.clock.monotonic().saturating_sub(self.began);
        InvocationAge { run: self.run, age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX) }
    }

    /// Whether the coordinator has let it in. Another copy of its event may have come first.
    pub fn is_admitted(&self) -> bool {
        self.is_admitted.load(Ordering::Relaxed)
    }

    /// `call`, as this invocation makes it.
    pub fn stamp(&self, call: &AnyCall) -> AnyCall {
        let mut call = call.clone();
        match &mut call {
            AnyCall::Describe(describe) => describe.admits = Some((self.worker, self.said())),
            AnyCall::Claim(claim) => claim.said = Some(self.said()),
            _ => {}
        }
        call
    }

    /// Learns from the `answer` to a stamped call how long the invocation may go on.
    pub fn learn(&self, call: &AnyCall, answer: &Result<AnyReply, CallError>) {
        match (call, answer) {
            (AnyCall::Describe(_), Ok(AnyReply::Describe(JobView { .. }))) => {
                self.is_admitted.store(true, Ordering::Relaxed);
                self.limit_ms.fetch_max(self.first_ms, Ordering::Relaxed);
            }
            (
                AnyCall::Claim(ClaimCall { said: Some(said), .. }),
                Ok(AnyReply::Claim(ClaimReply::Leased(lease))),
            ) => {
                let limit_ms = said.age_ms.saturating_add(lease.goes_on_ms.unwrap_or(0));
                self.limit_ms.fetch_max(limit_ms, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Resolves when the time is over.
    pub async fn over(&self) {
        loop {
            let left_ms = self.limit_ms.load(Ordering::Relaxed).saturating_sub(self.said().age_ms);
            if left_ms == 0 {
                return;
            }
            self.clock.sleep(Duration::from_millis(left_ms)).await;
        }
    }
}
