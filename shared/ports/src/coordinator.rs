//! Calls to the coordinator, and the version in which a process makes them.

use crate::{Clock, chance, outlast};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_model::{
    Namespace,
    wire::{
        AnyCall, AnyReply, CallEnvelope, CallRefusal, CoordinatorCall, MAX_MESSAGE_BYTES,
        RefusalKind,
        protocol::{self, SpokenVersions, UPGRADE_CALLER, UPGRADE_SERVICE},
    },
};
use std::{
    pin::pin,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// Errors, by the caller's next step.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// No answer or a transient fault: the call may have had its effect. Send it again.
    #[error("coordinator: {0}")]
    Unavailable(String),
    /// The platform has no room for the call, which has had no effect. Send it again.
    #[error("coordinator: {0}")]
    Throttled(String),
    /// The coordinator refused the call.
    #[error(transparent)]
    Refused(#[from] CallRefusal),
    /// Permission denied, by the coordinator or something in between. Rarely transient.
    #[error("coordinator: {0}")]
    Denied(String),
    /// Permanent: another protocol version, or a message that is too long.
    #[error("coordinator: {0}")]
    Rejected(String),
}

impl CallError {
    /// Whether sending the same call again may succeed.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::Throttled(_) => true,
            Self::Refused(refusal) => refusal.kind.is_passing(),
            Self::Denied(_) | Self::Rejected(_) => false,
        }
    }

    /// Whether the call may have had its effect.
    fn may_have_effect(&self) -> bool {
        match self {
            Self::Throttled(_) => false,
            Self::Refused(refusal) => refusal.kind != RefusalKind::Busy,
            Self::Unavailable(_) | Self::Denied(_) | Self::Rejected(_) => true,
        }
    }

    /// Whether others most likely get the same answer at the same time.
    fn is_crowded(&self) -> bool {
        matches!(self, Self::Throttled(_) | Self::Refused(_))
    }
}

/// The coordinator of one namespace. `dyn Coordinator` has the typed `call`.
#[async_trait]
pub trait Coordinator: Send + Sync {
    /// Sends any call once, with a deadline. A refusal is an error, never [`AnyReply::Refused`].
    async fn exchange(&self, call: &AnyCall) -> Result<AnyReply, CallError>;

    /// Speaks `version` of the protocol from now on, or the nearest one that this process speaks: that of the job, which
    /// workers learn from their events.
    fn speak(&self, version: u32);
}

impl dyn Coordinator + '_ {
    /// Sends `call` once, with a deadline.
    pub async fn call<C: CoordinatorCall>(&self, call: C) -> Result<C::Reply, CallError> {
        reply_to::<C>(self.exchange(&call.into()).await?)
    }
}

/// The body in which `call` is POSTed for the tenant `ns`, in `version`. Fails with
/// [`CallError::Rejected`] if the call is longer than a message may be.
pub fn encode_call(ns: &Namespace, call: &AnyCall, version: u32) -> Result<Vec<u8>, CallError> {
    let request = CallEnvelope { v: version, ns: ns.clone(), call: call.clone() };
    let body = protocol::write(&request, version)
        .map_err(|error| CallError::Rejected(format!("{}: {error}", call.name())))?;
    if body.len() > MAX_MESSAGE_BYTES {
        return Err(CallError::Rejected(format!(
            "{} takes {} bytes, a message has at most {MAX_MESSAGE_BYTES}",
            call.name(),
            body.len()
        )));
    }
    Ok(body)
}

fn reply_to<C: CoordinatorCall>(reply: AnyReply) -> Result<C::Reply, CallError> {
    C::reply_from(reply).map_err(|other| {
        let (asked, answered) = (C::NAME, other.name());
        CallError::Rejected(format!("the answer to {asked} is one to {answered}: {other:?}"))
    })
}

/// Sends `call` until it is answered or this process has run for `limit`; every call is idempotent. Waits 20 ms,
/// doubling to 1 s, so that a restarted coordinator is found within a second of its return. After refusals the waits
/// differ by chance: callers that were refused together do not return together. The error is that
/// of the last try.
pub async fn call_with_retry<C: CoordinatorCall>(
    coordinator: &dyn Coordinator,
    clock: &dyn Clock,
    call: C,
    limit: Duration,
) -> Result<C::Reply, CallError> {
    let mut over = pin!(outlast(clock, limit));
    let mut wait = Duration::from_millis(20);
    let mut call: AnyCall = call.into();
    let mut last = CallError::Unavailable(format!("{} is not answered", call.name()));
    loop {
        tokio::select! {
            biased;
            outcome = coordinator.exchange(&call) => match outcome {
                Err(error) if error.is_passing() => last = error,
                outcome => return outcome.and_then(reply_to::<C>),
            },
            () = &mut over => return Err(last),
        }
        if last.may_have_effect() {
            call.note_resent();
        }
        // From half to one and a half.
        let spread = if last.is_crowded() { 0.5 + chance(clock) } else { 1.0 };
        tokio::select! {
            biased;
            () = &mut over => return Err(last),
            () = clock.sleep(wait.mul_f64(spread)) => wait = (wait * 2).min(Duration::from_secs(1)),
        }
    }
}

/// The way of calls to a coordinator.
#[async_trait]
pub trait CallTransport: Send + Sync {
    /// Sends `call` once in `version` of the protocol, with a deadline. A refusal is an error.
    async fn send(&self, call: &AnyCall, version: u32) -> Result<AnyReply, CallError>;
}

/// The version of releases that do not say which they speak.
const UNSAID: u32 = 2;

/// The version in which a process calls one coordinator: the newest one at first, and an older one once the coordinator
/// says that it speaks no newer one. It may say so at any time, because a stack may be replaced by the one before.
#[derive(Debug)]
pub struct CallVersion {
    /// The versions that the process speaks.
    spoken: SpokenVersions,
    now: AtomicU32,
}

impl Default for CallVersion {
    fn default() -> Self {
        Self::new(SpokenVersions::BUILD)
    }
}

impl CallVersion {
    /// Speaks the newest version of `spoken` until it is refused.
    pub fn new(spoken: SpokenVersions) -> Self {
        Self { spoken, now: AtomicU32::new(spoken.newest) }
    }

    /// Speaks `version`, or the nearest one that this process speaks, from now on.
    pub fn speak(&self, version: u32) {
        self.now.store(self.spoken.nearest(version), Ordering::Relaxed);
    }

    /// The present version.
    pub fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    /// Sends `call` by `transport` in a version that the coordinator speaks. Fails with
    /// [`CallError::Rejected`] if there is no such version, and as `transport` does.
    pub async fn exchange(
        &self,
        transport: &dyn CallTransport,
        call: &AnyCall,
    ) -> Result<AnyReply, CallError> {
        let tried = self.now();
        let answer = transport.send(call, tried).await;
        match refused(&answer) {
            Some(RefusalKind::OtherVersion { spoken }) => {
                let common = self.spoken.common(spoken).filter(|common| *common != tried);
                let common = common.ok_or_else(|| self.lacking(spoken))?;
                self.now.store(common, Ordering::Relaxed);
                let again = transport.send(call, common).await;
                if let Some(RefusalKind::OtherVersion { .. }) = refused(&again) {
                    // The stack is being replaced: the next attempt finds one or the other.
                    let why = "the coordinator changes its protocol version";
                    return Err(CallError::Unavailable(why.to_owned()));
                }
                again
            }
            // Releases of version 2 call any other version invalid, as they do a call that is wrong: only the same call
            // in version 2 tells them apart.
            Some(RefusalKind::Invalid) if tried > UNSAID && self.spoken.includes(UNSAID) => {
                let again = transport.send(call, UNSAID).await;
                if refused(&again) == Some(RefusalKind::Invalid) {
                    return answer;
                }
                if matches!(again, Ok(_) | Err(CallError::Refused(_))) {
                    self.now.store(UNSAID, Ordering::Relaxed);
                }
                again
            }
            _ => answer,
        }
    }

    /// No version is spoken by this process and by a coordinator with `other`.
    fn lacking(&self, other: SpokenVersions) -> CallError {
        let own = self.spoken;
        let advice = if own.newest > other.newest { UPGRADE_SERVICE } else { UPGRADE_CALLER };
        CallError::Rejected(format!(
            "this gristmill speaks protocol version {own}, the coordinator {other}: {advice}"
        ))
    }
}

fn refused(answer: &Result<AnyReply, CallError>) -> Option<RefusalKind> {
    match answer {
        Err(CallError::Refused(CallRefusal { kind, .. })) => Some(*kind),
        _ => None,
    }
}

/// Outcome of an asynchronous invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvokeOutcome {
    /// The platform accepted the event. It may still wait for an environment, or run twice.
    Accepted,
    /// Too many requests; the event was not accepted.
    Throttled,
}

/// The function could not be invoked.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot invoke {function}: {reason}")]
pub struct InvokeError {
    pub function: String,
    pub reason: String,
    /// The function, or this version of it, does not exist.
    pub gone: bool,
}

/// The function platform.
#[async_trait]
pub trait Invoker: Send + Sync {
    /// Sends `payload` to `function` without waiting for it to run.
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<InvokeOutcome, InvokeError>;
}

#[cfg(test)]
mod call_version_tests {
    use super::*;
    use gristmill_model::wire::{ForgetCall, ForgetReply, protocol::VERSION};
    use std::sync::Mutex;

    const BOTH: SpokenVersions = SpokenVersions { oldest: 2, newest: 3 };

    /// A stack: how it answers a call of a version, and the versions of the calls that it got.
    struct Stack<F> {
        answers: F,
        calls: Mutex<Vec<u32>>,
    }

    #[async_trait]
    impl<F: Fn(u32) -> Result<AnyReply, CallError> + Send + Sync> CallTransport for Stack<F> {
        async fn send(&self, _: &AnyCall, version: u32) -> Result<AnyReply, CallError> {
            self.calls.lock().unwrap().push(version);
            (self.answers)(version)
        }
    }

    impl<F: Fn(u32) -> Result<AnyReply, CallError> + Send + Sync> Stack<F> {
        fn new(answers: F) -> Self {
            Self { answers, calls: Mutex::default() }
        }

        async fn ask(&self, own: &CallVersion) -> Result<AnyReply, CallError> {
            own.exchange(self, &ForgetCall { job: "j".parse().unwrap() }.into()).await
        }

        fn calls(&self) -> Vec<u32> {
            std::mem::take(&mut *self.calls.lock().unwrap())
        }
    }

    fn forgotten() -> Result<AnyReply, CallError> {
        Ok(AnyReply::Forget(ForgetReply { items: 0, objects: 0, all: true }))
    }

    fn speaking(oldest: u32, newest: u32) -> impl Fn(u32) -> Result<AnyReply, CallError> {
        let spoken = SpokenVersions { oldest, newest };
        move |version| {
            if spoken.includes(version) { forgotten() } else { Err(spoken.refuse(version).into()) }
        }
    }

    #[tokio::test]
    async fn a_caller_speaks_the_newest_version_that_both_speak() {
        let own = CallVersion::new(BOTH);
        let stack = Stack::new(speaking(3, 4));
        stack.ask(&own).await.unwrap();
        assert_eq!((stack.calls(), own.now()), (vec![3], 3));
        let before = Stack::new(speaking(1, 2));
        before.ask(&own).await.unwrap();
        before.ask(&own).await.unwrap();
        assert_eq!((before.calls(), own.now()), (vec![3, 2, 2], 2), "it was rolled back");
        stack.ask(&own).await.unwrap();
        assert_eq!((stack.calls(), own.now()), (vec![2, 3], 3));
    }

    #[tokio::test]
    async fn without_a_common_version_one_line_says_which_to_upgrade() {
        for ((oldest, newest), advice) in
            [((0, 1), "upgrade the stack first"), ((4, 5), "upgrade gristmill where")]
        {
            let (stack, own) = (Stack::new(speaking(oldest, newest)), CallVersion::new(BOTH));
            let error = stack.ask(&own).await.unwrap_err();
            assert!(matches!(error, CallError::Rejected(_)) && !error.is_passing());
            let text = error.to_string();
            assert!(text.contains(advice) && text.contains("2 to 3"), "{text}");
            assert!(!text.contains('\n'), "{text}");
            assert_eq!(stack.calls(), [3]);
        }
    }

    #[tokio::test]
    async fn a_stack_that_is_replaced_meanwhile_is_asked_again() {
        let changing = Stack::new(|version| {
            let spoken = SpokenVersions::only(if version == 3 { 2 } else { 3 });
            Err(CallError::from(spoken.refuse(version)))
        });
        let error = changing.ask(&CallVersion::new(BOTH)).await.unwrap_err();
        assert!(error.is_passing(), "{error}");
        assert_eq!(changing.calls(), [3, 2]);
    }

    fn invalid() -> CallError {
        let message = "words".to_owned();
        CallError::Refused(CallRefusal { kind: RefusalKind::Invalid, message })
    }

    #[tokio::test]
    async fn a_stack_that_cannot_say_its_version_is_found_by_trying() {
        let own = CallVersion::new(BOTH);
        let released =
            Stack::new(|version| if version == 2 { forgotten() } else { Err(invalid()) });
        released.ask(&own).await.unwrap();
        released.ask(&own).await.unwrap();
        assert_eq!((released.calls(), own.now()), (vec![3, 2, 2], 2));
        let own = CallVersion::default();
        let wrong = Stack::new(|_| Err(invalid()));
        assert!(matches!(wrong.ask(&own).await, Err(CallError::Refused(_))));
        assert_eq!(own.now(), VERSION, "a wrong call says nothing about versions");
        let silent = |version| {
            Err(if version == 2 { CallError::Unavailable("lost".into()) } else { invalid() })
        };
        assert!(Stack::new(silent).ask(&own).await.unwrap_err().is_passing());
        assert_eq!(own.now(), VERSION, "it is tried again");
    }

    #[test]
    fn a_worker_speaks_the_version_of_its_event() {
        let own = CallVersion::new(BOTH);
        for (version, spoken) in [(2, 2), (3, 3), (9, 3), (1, 2)] {
            own.speak(version);
            assert_eq!(own.now(), spoken);
        }
    }
}
