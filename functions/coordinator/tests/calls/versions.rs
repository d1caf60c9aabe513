//! Calls and events of two versions of the protocol.

use super::*;
use gristmill_model::wire::{AnyCall, GivenOptions, ScalerEvent, SpokenVersions, protocol};
use gristmill_ports::{InvokeError, InvokeOutcome, Invoker};
use serde_json::{Value, json};
use std::sync::Mutex;

/// Keeps the events that the scaler gets.
#[derive(Default)]
struct Events(Mutex<Vec<Value>>);

#[async_trait]
impl Invoker for Events {
    async fn invoke(&self, _function: &str, payload: Bytes) -> Result<InvokeOutcome, InvokeError> {
        self.0.lock().unwrap().push(serde_json::from_slice(&payload).unwrap());
        Ok(InvokeOutcome::Accepted)
    }
}

impl Events {
    /// The versions of the events since the last look.
    fn versions(&self) -> Vec<u32> {
        let events = std::mem::take(&mut *self.0.lock().unwrap());
        events.into_iter().map(|e| protocol::read_event::<ScalerEvent>(e).unwrap().v).collect()
    }
}

/// A stack that speaks these versions over the world's table.
fn stack(world: &World, spoken: SpokenVersions) -> (CoordinatorFunction, Arc<Events>) {
    let events = Arc::new(Events::default());
    let settings = CoordinatorSettings::new(world.ns.clone(), "bucket".into(), "scaler".into());
    let coordinator = CoordinatorFunction::new(
        Arc::clone(&world.table),
        Arc::clone(&world.objects) as _,
        Arc::clone(&events) as _,
        Arc::clone(&world.clock) as _,
        CoordinatorSettings { spoken, ..settings },
    );
    (coordinator, events)
}

async fn world() -> World {
    World::indexing(Arc::new(MemoryTable::default()), 4).await
}

/// Sends `call` in version `v`, as bytes, and returns the answer.
async fn sent(
    coordinator: &CoordinatorFunction,
    world: &World,
    v: u32,
    call: impl Into<AnyCall>,
) -> Value {
    let request = CallEnvelope { v, ns: world.ns.clone(), call: call.into() };
    let body = String::from_utf8(protocol::write(&request, v).unwrap()).unwrap();
    answered(coordinator, &body).await
}

async fn answered(coordinator: &CoordinatorFunction, body: &str) -> Value {
    let request = lambda_http::http::Request::new(lambda_http::Body::from(body));
    let answer = handle(coordinator, &request).await.unwrap();
    serde_json::from_slice(answer.body()).unwrap()
}

/// Versions of the kicks that a poll in version `v` causes, a minute later.
async fn kicks(
    stack: &(CoordinatorFunction, Arc<Events>),
    world: &World,
    job: &JobName,
    v: u32,
) -> Vec<u32> {
    world.clock.sleep(Duration::from_secs(60)).await;
    stack.1.versions();
    let polled = sent(&stack.0, world, v, trainer::asks(job, SplitPlace::default())).await;
    assert_eq!(polled["reply"], "poll", "{polled}");
    stack.1.versions()
}

#[tokio::test]
async fn a_job_keeps_the_version_that_all_who_take_part_in_it_speak() {
    let world = world().await;
    let present = stack(&world, SpokenVersions::BUILD);
    let before = stack(&world, SpokenVersions::only(2));
    for (name, v) in [("old", 2), ("new", 3)] {
        let job: JobName = name.parse().unwrap();
        let register = RegisterCall { job: job.clone(), ..world.registration.clone() };
        assert_eq!(sent(&present.0, &world, v, register).await["reply"], "register");
        assert_eq!(present.1.versions(), [v], "its first event");
        assert_eq!(kicks(&present, &world, &job, v).await, [v]);
        assert_eq!(kicks(&present, &world, &job, 3).await, [v], "a new fetcher changes no version");
        assert_eq!(kicks(&before, &world, &job, 2).await, [2], "the stack was rolled back");
        let spec = world.registration.spec.clone();
        let join = RegisterCall::join(job.clone(), spec, GivenOptions::default());
        assert_eq!(sent(&present.0, &world, 2, join).await["reply"], "register");
        assert_eq!(kicks(&present, &world, &job, 3).await, [2], "an older trainer has joined");
    }
}

#[tokio::test]
async fn a_call_is_answered_in_its_version_or_refused_in_a_form_that_its_sender_reads() {
    let world = world().await;
    let (present, _) = stack(&world, SpokenVersions::BUILD);
    let (before, _) = stack(&world, SpokenVersions::only(2));
    let status = || StatusCall { job: world.job.clone() };
    for v in [2, 3] {
        assert_eq!(sent(&present, &world, v, status()).await["reply"], "status");
    }
    assert_eq!(sent(&before, &world, 2, status()).await["reply"], "status");
    let refused = sent(&before, &world, 3, status()).await;
    assert_eq!(
        refused["kind"],
        json!({ "other_version": { "spoken": { "oldest": 2, "newest": 2 } } })
    );
    let too_new = answered(&present, r#"{"v":4,"call":"unheard_of"}"#).await;
    assert_eq!(too_new["kind"]["other_version"]["spoken"], json!({ "oldest": 2, "newest": 3 }));
    let too_old = answered(&present, r#"{"v":1,"ns":"n","call":"status","job":"j"}"#).await;
    assert_eq!((&too_old["reply"], &too_old["kind"]), (&json!("refused"), &json!("invalid")));
    assert!(too_old["message"].as_str().unwrap().contains("speaks 2 to 3"), "{too_old}");
}
