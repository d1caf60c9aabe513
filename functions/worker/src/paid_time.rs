//! The time that a budget has set aside for one invocation. It measures its age by its monotonic clock, says it with each
//! claim, and ends itself when what was paid for is over, even while it waits.

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

    /// The invocation's word on itself now.
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

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use gristmill_model::{InvocationId, wire::DescribeCall};
    use gristmill_ports::SystemClock;

    /// Its sleeps take no time.
    #[derive(Default)]
    struct QuickClock(AtomicU64);

    #[async_trait]
    impl Clock for QuickClock {
        fn now_ms(&self) -> u64 {
            // As wrong as it can be.
            0
        }

        fn monotonic(&self) -> Duration {
            Duration::from_millis(self.0.load(Ordering::Relaxed))
        }

        async fn sleep(&self, duration: Duration) {
            self.0.fetch_add(duration.as_millis() as u64, Ordering::Relaxed);
        }

        fn nonce(&self) -> Nonce {
            SystemClock.nonce()
        }
    }

    fn claim() -> AnyCall {
        ClaimCall {
            job: "j".parse().unwrap(),
            registered_ms: 0,
            nonce: Nonce([1; 8]),
            invocation: InvocationId::new(4, "r"),
            numerics: String::new(),
            remaining_ms: 0,
            split_ms: 0,
            local: false,
            resent: false,
            needed: None,
            said: None,
        }
        .into()
    }

    fn answer(text: &str) -> Result<AnyReply, CallError> {
        Ok(serde_json::from_str(text).unwrap())
    }

    #[tokio::test]
    async fn an_invocation_ends_at_the_age_that_is_paid_for() {
        let clock = Arc::new(QuickClock(AtomicU64::new(7_000)));
        let paid = PaidTime::new(Arc::clone(&clock) as _, 4, 8_000);
        paid.over().await;
        assert_eq!((paid.said().age_ms, paid.is_admitted()), (ADMISSION_MS, false));
        let describe = paid.stamp(&DescribeCall::new("j".parse().unwrap()).into());
        let AnyCall::Describe(DescribeCall { admits: Some((4, said)), .. }) = &describe else {
            panic!("{describe:?}")
        };
        assert_eq!(said.run, paid.said().run);
        paid.learn(&describe, &Err(CallError::Unavailable("lost".to_owned())));
        assert!(!paid.is_admitted());
        let view = r#"{"reply":"describe","job":"j","spec":{"pipeline":"","seed":0,"epochs":1,"numerics":"","workers":1},
            "dataset_version":"0000000000000000000000000000000000000000000000000000000000000000","n_files":1,
            "state":"running","plan":null}"#;
        paid.learn(&describe, &answer(view));
        paid.over().await;
        assert_eq!((paid.said().age_ms, paid.is_admitted()), (8_000, true));
        let lease = |goes_on_ms: u64| {
            answer(&format!(
                r#"{{"reply":"claim","outcome":"leased","home":{{"registered_ms":1,"partition":0}},"epoch":0,"bundle":0,
                "attempt":1,"work":"splits","first":0,"todo":[0],"goes_on_ms":{goes_on_ms}}}"#
            ))
        };
        let first = paid.stamp(&claim());
        paid.learn(&first, &lease(5_000));
        paid.over().await;
        assert_eq!(paid.said().age_ms, 13_000);
        // An answer that comes late counts from when it was asked for.
        paid.learn(&first, &lease(2_000));
        paid.over().await;
        assert_eq!(paid.said().age_ms, 13_000);
    }
}
