//! Access of processes to the deployed stack: the coordinator's URL, and the platform's invocations.

use crate::{
    FaultKind, Mutant, SimProcess,
    cloud::{LATENCY_MS, LATEST_MS, SimCloud},
    mutant,
};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_model::wire::{
    AnyCall, AnyReply, CallRefusal, ClaimCall, ClaimReply, FlushCall, IdleReason, IdleReply,
    PollCall, RefusalKind, RegisterCall, SpokenVersions,
};
use gristmill_ports::{
    CallError, CallTransport, CallVersion, Coordinator, InvokeError, InvokeOutcome, Invoker,
};
use serde::Serialize;
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::sync::oneshot;

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Size limit of a call and of its answer.
const MAX_SYNC_BYTES: usize = 6 << 20;
const MAX_EVENT_BYTES: usize = 1 << 20;
/// Entries or files above which a message is measured; smaller ones are far below the limit.
const WORTH_MEASURING: usize = 1_000;
/// Marks simulated refusals.
pub const DENIED: &str = "403 (simulated)";

/// Connection of a process to the coordinator.
pub struct SimCoordinator {
    process: SimProcess,
    cloud: Arc<SimCloud>,
    /// Whether this worker's notice of leaving is lost.
    leave_is_lost: OnceLock<bool>,
    version: CallVersion,
}

impl SimCoordinator {
    /// The coordinator as `process`, which speaks the versions `spoken`, calls it.
    pub fn new(process: SimProcess, cloud: Arc<SimCloud>, spoken: SpokenVersions) -> Self {
        let version = CallVersion::new(spoken);
        Self { process, cloud, leave_is_lost: OnceLock::new(), version }
    }

    /// The answer to a call that a process with this simulation's bug does not send.
    fn forgoes(&self, call: &AnyCall) -> Option<AnyReply> {
        let is_needed = matches!(call, AnyCall::Claim(ClaimCall { needed: Some(_), .. }));
        let idle = IdleReply { reason: IdleReason::WindowFull };
        (is_needed && self.cloud.sim.mutant == Some(Mutant::StoreStopsClaims))
            .then_some(AnyReply::Claim(ClaimReply::Idle(idle)))
    }

    /// Refuses a call before it reaches the coordinator, as in the adapter.
    fn admitted_by_url(&self) -> Result<(), CallError> {
        let sim = &self.cloud.sim;
        if sim.is_url_crowded() {
            return Err(CallError::Throttled("429: too many requests (simulated)".to_owned()));
        }
        if sim.happens(FaultKind::CallDenied) {
            return Err(CallError::Denied(DENIED.to_owned()));
        }
        Ok(())
    }

    /// Delivers `call` again later, some times, unless the service loses power before.
    fn repeat(&self, call: &AnyCall, version: u32) {
        let sim = &self.cloud.sim;
        for _ in 0..=sim.below(4) {
            let (cloud, call) = (Arc::clone(&self.cloud), call.clone());
            let most = if sim.below(2) == 0 { 5_000 } else { LATEST_MS };
            let (late, cuts) = (sim.between_ms(0, most), cloud.cuts());
            tokio::spawn(async move {
                cloud.sim.time.sleep(late).await;
                if cloud.cuts() == cuts {
                    cloud.deliver(call, Some(version), None);
                }
            });
        }
    }

    fn received(&self, call: &AnyCall, reply: AnyReply) -> Result<AnyReply, CallError> {
        match reply {
            AnyReply::Poll(polled)
                if polled.ready.len() > WORTH_MEASURING && is_larger(&polled, MAX_SYNC_BYTES) =>
            {
                Err(no_answer("502: the answer is too large"))
            }
            AnyReply::Poll(polled) => {
                let (ready, claimable) = (polled.ready.len(), polled.claimable);
                let sim = &self.cloud.sim;
                sim.event(format_args!("{ready} ready, {claimable} claimable"));
                if let AnyCall::Poll(PollCall { join: Some(join), .. }) = call {
                    self.process.accepted(join.start.generation);
                }
                Ok(AnyReply::Poll(polled))
            }
            AnyReply::Refused(refusal) => Err(CallError::Refused(refusal)),
            reply => Ok(reply),
        }
    }

    /// Delivers `call`, and waits for the answer until the timeout.
    async fn deliver(&self, call: &AnyCall, version: u32) -> Result<AnyReply, CallError> {
        let Self { cloud, .. } = self;
        let sim = &cloud.sim;
        let (sender, answer) = oneshot::channel();
        cloud.deliver(call.clone(), Some(version), Some(sender));
        tokio::select! {
            biased;
            reply = answer => reply.map_err(|_| no_answer("the coordinator died"))?,
            () = sim.time.sleep(CALL_TIMEOUT) => {
                Err(match sim.mutant {
                    Some(Mutant::SlowIsRefused) => CallError::Refused(CallRefusal {
                        kind: RefusalKind::Invalid,
                        message: "timeout".to_owned(),
                    }),
                    _ => no_answer("timeout"),
                })
            }
        }
    }
}

/// Replaces measured operator times by constants, because real ones would make runs differ: computing is slow, and
/// reading fast.
fn measured_alike(call: &AnyCall) -> AnyCall {
    let mut call = call.clone();
    if let AnyCall::Flush(FlushCall { profile: Some(profile), .. }) = &mut call {
        for (i, op) in profile.ops.iter_mut().enumerate() {
            op.active_us = if i == 0 { 1_000_000 } else { 10 };
        }
        for (_, took_us) in &mut profile.reads {
            *took_us = 100;
        }
        (profile.source_wait_ms, profile.cpu_us) = (0, 0);
    }
    call
}

/// Records a call, the split that it needs, and the progress that a reader reports with it.
fn show(process: &SimProcess, call: &AnyCall) {
    let sim = &process.sim;
    sim.event(format_args!("{:?} calls {}", process.kind, call.name()));
    if let AnyCall::Claim(ClaimCall { needed: Some(needed), .. }) = call {
        sim.event(format_args!("it needs {needed:?}"));
    }
    if let AnyCall::Poll(PollCall { ranks, report: Some(report), .. }) = call {
        let (durable, delivered) = (report.ack.durable, report.ack.delivered);
        sim.event(format_args!("{ranks} report {durable} and {delivered:?}"));
    }
}

fn is_larger(message: &impl Serialize, most: usize) -> bool {
    serde_json::to_vec(message).is_ok_and(|bytes| bytes.len() > most)
}

fn no_answer(why: &str) -> CallError {
    CallError::Unavailable(format!("simulated: {why}"))
}

#[async_trait]
impl CallTransport for SimCoordinator {
    async fn send(&self, call: &AnyCall, version: u32) -> Result<AnyReply, CallError> {
        let Self { process, cloud, .. } = self;
        let sim = &cloud.sim;
        let mut call = measured_alike(call);
        mutant::called(sim.mutant, &mut call);
        if let AnyCall::Claim(claim) = &mut call
            && claim.resent
            && sim.happens(FaultKind::ResentLost)
        {
            claim.resent = false;
        }
        let call = &call;
        sim.note(|counts| counts.calls += 1);
        show(process, call);
        if let Some(reply) = self.forgoes(call) {
            return Ok(reply);
        }
        process.point(LATENCY_MS).await;
        if let AnyCall::Poll(PollCall { join, report, registered_ms, .. }) = call {
            let begins = join.iter().map(|join| &join.start);
            let reports = report.iter().map(|report| &report.ack);
            begins.chain(reports).for_each(|ack| cloud.store.runs.note_report(*registered_ms, ack));
        }
        if sim.lasts(FaultKind::ServiceDown) {
            cloud.kill_workers();
            process.point(LATENCY_MS).await;
            return Err(no_answer("the service is down"));
        }
        let leave_is_lost =
            || *self.leave_is_lost.get_or_init(|| sim.happens(FaultKind::LeaveLost));
        if sim.happens(FaultKind::CallLost) || matches!(call, AnyCall::Leave(_)) && leave_is_lost()
        {
            sim.time.sleep(CALL_TIMEOUT).await;
            return Err(no_answer("the call was lost"));
        }
        self.admitted_by_url()?;
        if let AnyCall::Register(RegisterCall { dataset: Some(dataset), .. }) = call
            && dataset.files.len() > WORTH_MEASURING
            && is_larger(call, MAX_SYNC_BYTES)
        {
            return Err(CallError::Rejected("413: the request is too large".to_owned()));
        }
        if sim.happens(FaultKind::CallRepeated) {
            self.repeat(call, version);
        }
        let reply = self.deliver(call, version).await?;
        process.point(LATENCY_MS).await;
        if sim.happens(FaultKind::AnswerLost) {
            return Err(no_answer("the answer was lost"));
        }
        if !matches!(reply, AnyReply::Refused(_)) {
            sim.note(|counts| *counts.versions.entry(version).or_default() += 1);
        }
        self.received(call, reply)
    }
}

#[async_trait]
impl Coordinator for SimCoordinator {
    async fn exchange(&self, call: &AnyCall) -> Result<AnyReply, CallError> {
        self.version.exchange(self, call).await
    }

    fn speak(&self, version: u32) {
        self.version.speak(version);
    }
}

/// The platform as used by a process.
pub struct SimInvoker {
    pub process: SimProcess,
    pub cloud: Arc<SimCloud>,
}

#[async_trait]
impl Invoker for SimInvoker {
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<InvokeOutcome, InvokeError> {
        let Self { process, cloud } = self;
        process.point(LATENCY_MS).await;
        let sim = &cloud.sim;
        let fails = |reason: &str, gone: bool| {
            let (function, reason) = (function.to_owned(), reason.to_owned());
            Err(InvokeError { function, reason, gone })
        };
        if payload.len() > MAX_EVENT_BYTES {
            return fails("RequestTooLargeException (simulated)", false);
        }
        if !cloud.is_deployed(function) {
            sim.event(format_args!("{function} is gone"));
            // With this bug, jobs never leave the deleted version.
            let gone = sim.mutant != Some(Mutant::PinnedForGood);
            return fails("ResourceNotFoundException (simulated)", gone);
        }
        if sim.happens(FaultKind::CallDenied) {
            return fails(DENIED, false);
        }
        if sim.happens(FaultKind::InvokeThrottled) {
            return Ok(InvokeOutcome::Throttled);
        }
        sim.event(format_args!("invoke {function}"));
        cloud.accept(function, &payload);
        process.point(LATENCY_MS).await;
        if sim.happens(FaultKind::InvokeFails) {
            fails("simulated", false)
        } else {
            Ok(InvokeOutcome::Accepted)
        }
    }
}
