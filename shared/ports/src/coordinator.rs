//! Calls to the coordinator.

use crate::{Clock, chance, outlast};
use async_trait::async_trait;
use gristmill_model::{
    Namespace,
    wire::{
        AnyCall, AnyReply, CallEnvelope, CallRefusal, CoordinatorCall, MAX_MESSAGE_BYTES,
        RefusalKind, protocol,
    },
};
use std::{pin::pin, time::Duration};

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
    ///
    /// # Errors
    /// As the variants of [`CallError`].
    pub async fn call<C: CoordinatorCall>(&self, call: C) -> Result<C::Reply, CallError> {
        reply_to::<C>(self.exchange(&call.into()).await?)
    }
}

/// The body in which `call` is POSTed for the tenant `ns`, in `version`.
///
/// # Errors
/// [`CallError::Rejected`]: the call is longer than a message may be.
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

/// Sends `call` until it is answered or this process has run for `patience`; every call is idempotent. Waits 20 ms,
/// doubling to 1 s, so that a restarted coordinator is found within a second of its return. After refusals the waits
/// differ by chance: callers that were refused together do not return together.
///
/// # Errors
/// The last one, as the variants of [`CallError`].
pub async fn call_with_retry<C: CoordinatorCall>(
    coordinator: &dyn Coordinator,
    clock: &dyn Clock,
    call: C,
    patience: Duration,
) -> Result<C::Reply, CallError> {
    let mut over = pin!(outlast(clock, patience));
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
