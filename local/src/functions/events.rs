//! The queue of asynchronous events of one function, with Lambda's semantics.
//!
//! An accepted event runs as soon as the concurrency limits allow, or expires. A failed one is retried as configured and
//! then sent to the failure destination. Events that have not ended when the host ends are in its
//! [`journal`](super::journal): the next host treats them as failed runs.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::Notify;

use super::environment::Invocation;
use super::function::{Function, Throttle};
use super::host::Host;
use super::journal::Entry;
use super::lock;
use super::outcome::{Failure, Outcome};
use super::stats::bump;

/// Memory is the queue's only bound; beyond this many events callers are asked to retry.
const MAX_EVENTS: usize = 100_000;

/// Events waiting for concurrency.
#[derive(Default)]
pub(crate) struct EventQueue {
    events: Mutex<VecDeque<Event>>,
    added: Notify,
}

/// An accepted asynchronous invocation.
pub(crate) struct Event {
    invocation: Invocation,
    accepted: Instant,
    /// Earliest time to run it.
    due: Instant,
    /// Runs so far.
    attempts: u32,
    /// Times it was throttled.
    throttled: u32,
    /// Whether it reports a failure itself. Its own failures are not reported: two functions that name each other as
    /// destination must not loop forever.
    reports_failure: bool,
}

impl Event {
    fn new(invocation: Invocation) -> Self {
        let now = Instant::now();
        Self {
            invocation,
            accepted: now,
            due: now,
            attempts: 0,
            throttled: 0,
            reports_failure: false,
        }
    }
}

/// Reason why an event is not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAccepted {
    #[error("the function's queue is full")]
    Full,
    #[error("the event cannot be stored: {0}")]
    Journal(#[from] std::io::Error),
}

/// Accepts an event: after this returns it will run, or its failure is reported.
pub(crate) fn accept(
    host: &Host,
    function: &Function,
    invocation: Invocation,
) -> Result<(), NotAccepted> {
    accept_event(host, function, Event::new(invocation))
}

fn accept_event(host: &Host, function: &Function, event: Event) -> Result<(), NotAccepted> {
    let id = event.invocation.request_id.clone();
    host.journal.add(&function.config.name, &event.invocation, event.reports_failure)?;
    function.queue.push(event).inspect_err(|_| host.journal.remove(&id))
}

/// Resumes events that an earlier host accepted and did not finish: their runs died with it.
pub(crate) fn resume(host: &Host, left: Vec<Entry>) {
    for Entry { function, request_id, payload, client_context, reports_failure } in left {
        let invocation = Invocation { request_id, payload: payload.into(), client_context };
        let Some(function) = host.functions.get(&function) else {
            host.journal.remove(&invocation.request_id);
            continue;
        };
        let mut event = Event::new(invocation);
        event.reports_failure = reports_failure;
        // A report must be delivered; other events follow their function's rule for failed runs.
        if reports_failure || function.config.retry_attempts > 0 {
            event.attempts = u32::from(!reports_failure);
            function.queue.push_front(event);
        } else {
            report(host, function, &event, "HostEnded", None);
        }
    }
}

impl EventQueue {
    fn push(&self, event: Event) -> Result<(), NotAccepted> {
        {
            let mut events = lock(&self.events);
            if events.len() >= MAX_EVENTS {
                return Err(NotAccepted::Full);
            }
            events.push_back(event);
        }
        self.added.notify_one();
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.events).len()
    }

    /// The first due event, or the time of the next one.
    fn pop(&self, now: Instant) -> Result<Event, Option<Instant>> {
        let mut events = lock(&self.events);
        match events.iter().position(|event| event.due <= now).and_then(|at| events.remove(at)) {
            Some(event) => Ok(event),
            None => Err(events.iter().map(|event| event.due).min()),
        }
    }

    fn push_front(&self, event: Event) {
        lock(&self.events).push_front(event);
    }
}

/// Runs the events of `function` until the host stops.
pub(crate) async fn dispatch(host: Arc<Host>, function: Arc<Function>) {
    tokio::select! {
        () = host.stop.cancelled() => {}
        () = dispatch_all(&host, &function) => {}
    }
}

async fn dispatch_all(host: &Arc<Host>, function: &Arc<Function>) {
    let queue = &function.queue;
    loop {
        // Subscribed before the check, so that a release in between is not missed.
        let freed = host.freed.notified();
        let mut event = match queue.pop(Instant::now()) {
            Ok(event) => event,
            Err(due) => {
                let due = due.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
                tokio::select! {
                    () = queue.added.notified() => {}
                    () = tokio::time::sleep_until(due.into()) => {}
                }
                continue;
            }
        };
        let expires = event.accepted + function.config.max_event_age;
        if Instant::now() >= expires {
            bump(&function.counters.events_expired);
            report(host, function, &event, "EventAgeExceeded", None);
            continue;
        }
        match function.admit(host) {
            Ok(permit) => {
                let (host_, function_) = (Arc::clone(host), Arc::clone(function));
                host.tasks.spawn(async move {
                    bump(&function_.counters.event);
                    event.attempts += 1;
                    let outcome = Function::run(permit, event.invocation.clone()).await;
                    match outcome {
                        Outcome::Failed(failure) => failed(&host_, &function_, event, &failure),
                        Outcome::Response(_) => {
                            host_.journal.remove(&event.invocation.request_id);
                        }
                    }
                });
            }
            Err(throttle) => {
                if event.throttled == 0 {
                    bump(&function.counters.throttles);
                }
                event.throttled += 1;
                if throttle == Throttle::Account {
                    // Synchronous callers have priority.
                    event.due = (Instant::now() + delay(event.throttled)).min(expires);
                    queue.push_front(event);
                    continue;
                }
                queue.push_front(event);
                tokio::select! {
                    () = freed => {}
                    () = tokio::time::sleep_until(expires.into()) => {}
                }
            }
        }
    }
}

/// Delay of a throttled event: a second, doubling each time, as on Lambda.
fn delay(throttled: u32) -> Duration {
    Duration::from_secs(1) * 2u32.pow(throttled.saturating_sub(1).min(4))
}

fn failed(host: &Arc<Host>, function: &Function, mut event: Event, failure: &Failure) {
    if host.stop.is_cancelled() {
        return;
    }
    if event.attempts <= function.config.retry_attempts {
        let doubled = 2u32.saturating_pow(event.attempts - 1);
        event.due = Instant::now() + host.settings.retry_delay.saturating_mul(doubled);
        function.queue.push_front(event);
        function.queue.added.notify_one();
        return;
    }
    report(host, function, &event, "RetriesExhausted", Some(&failure.payload));
}

/// Document that AWS sends to a failure destination.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    version: &'static str,
    timestamp: String,
    request_context: RequestContext<'a>,
    request_payload: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_context: Option<ResponseContext<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_payload: Option<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestContext<'a> {
    request_id: &'a str,
    function_arn: String,
    condition: &'static str,
    approximate_invoke_count: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResponseContext<'a> {
    status_code: u16,
    executed_version: &'a str,
    function_error: &'static str,
}

/// Drops an event after sending it to the failure destination, if there is one.
fn report(
    host: &Host,
    function: &Function,
    event: &Event,
    condition: &'static str,
    error: Option<&Bytes>,
) {
    send_report(host, function, event, condition, error);
    host.journal.remove(&event.invocation.request_id);
}

fn send_report(
    host: &Host,
    function: &Function,
    event: &Event,
    condition: &'static str,
    error: Option<&Bytes>,
) {
    let Some(target) = function.config.on_failure.as_deref().filter(|_| !event.reports_failure)
    else {
        return;
    };
    let Some(target) = host.functions.get(target) else { return };
    let Some(request_payload) = raw(&event.invocation.payload) else { return };
    let config = &function.config;
    let timestamp = DateTime::from(SystemTime::now()).fmt(Format::DateTime).unwrap_or_default();
    let document = Report {
        version: "1.0",
        timestamp,
        request_context: RequestContext {
            request_id: &event.invocation.request_id,
            function_arn: format!("{}:{}", function.arn, config.version),
            condition,
            approximate_invoke_count: event.attempts,
        },
        request_payload,
        response_context: error.map(|_| ResponseContext {
            status_code: 200,
            executed_version: &config.version,
            function_error: "Unhandled",
        }),
        response_payload: error.and_then(|payload| raw(payload)),
    };
    let (Ok(payload), Ok(invocation)) =
        (serde_json::to_vec(&document), host.invocation(Bytes::new()))
    else {
        tracing::error!(function = config.name, "a failed event could not be reported");
        return;
    };
    let mut report = Event::new(Invocation { payload: payload.into(), ..invocation });
    report.reports_failure = true;
    match accept_event(host, target, report) {
        Ok(()) => bump(&function.counters.events_failed),
        Err(error) => {
            tracing::error!(function = config.name, %error, "a failed event could not be reported")
        }
    }
}

fn raw(json: &[u8]) -> Option<&RawValue> {
    serde_json::from_slice(json).ok()
}
