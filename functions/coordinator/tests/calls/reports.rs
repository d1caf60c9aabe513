//! Failure reports of the platform.

use super::*;
use bytes::Bytes;
use gristmill_coordinator::handle;
use gristmill_model::wire::WorkerEvent;
use gristmill_ports::{InvokeError, InvokeOutcome, Invoker};
use serde_json::json;

/// Counts what the coordinator starts.
#[derive(Default)]
struct Started(AtomicU32);

#[async_trait]
impl Invoker for Started {
    async fn invoke(&self, _function: &str, _payload: Bytes) -> Result<InvokeOutcome, InvokeError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(InvokeOutcome::Accepted)
    }
}

fn event(world: &World, v: u32, worker: u32) -> WorkerEvent {
    WorkerEvent { v, ns: world.ns.clone(), job: world.job.clone(), worker, first_ms: None }
}

/// Lambda calls it the age of the event when the function failed after a minute, and also when it never ran.
#[tokio::test]
async fn a_worker_that_failed_late_has_a_lease_and_one_that_never_ran_has_none() {
    let world = World::indexing(Arc::new(MemoryTable::default()), 4).await;
    leased(world.claim_with(Nonce([1; 8]), InvocationId::new(1, "r"), "one").await);
    leased(world.claim_with(Nonce([2; 8]), InvocationId::new(2, "r"), "one").await);
    let report = async |worker: u32, response: serde_json::Value| {
        let event = event(&world, VERSION, worker);
        let report = json!({
            "version": "1.0",
            "requestContext": {"requestId": "r", "condition": "EventAgeExceeded"},
            "requestPayload": event,
            "responsePayload": response,
        });
        let report = lambda_http::request::from_str(&report.to_string()).unwrap();
        handle(&world.coordinator, &report).await.unwrap();
        world.poll().await.claimable
    };
    let before = world.poll().await.claimable;
    assert_eq!(report(1, serde_json::Value::Null).await, before);
    assert_eq!(report(2, json!({"errorMessage": "signal: killed"})).await, before + 1);
}

/// A worker that a report starts, and that fails, would be a loop, which Lambda ends after 16 rounds and bills.
#[tokio::test]
async fn a_failure_report_frees_a_lease_and_starts_nobody() {
    let world = World::indexing(Arc::new(MemoryTable::default()), 4).await;
    let started = Arc::new(Started::default());
    let coordinator = CoordinatorFunction::new(
        Arc::clone(&world.table),
        Arc::clone(&world.objects) as _,
        Arc::clone(&started) as _,
        Arc::clone(&world.clock) as _,
        CoordinatorSettings::new(world.ns.clone(), "bucket".into(), "scaler".into()),
    );
    for worker in 1..=3 {
        let claim =
            world.claim_with(Nonce([worker as u8; 8]), InvocationId::new(worker, "r"), "one");
        leased(claim.await);
    }
    assert_eq!(world.poll().await.claimable, 1);
    // Each twice, as the platform may send them.
    for worker in [1, 2, 3, 1, 2, 3, 4] {
        // A worker may have died of a version that it does not speak, nor the coordinator.
        let v = if worker == 2 { 0 } else { VERSION };
        let event = event(&world, v, worker);
        let report = json!({
            "version": "1.0",
            "requestContext": {"requestId": "r", "condition": "RetriesExhausted"},
            "requestPayload": event,
            "responsePayload": {"errorMessage": "signal: killed"},
        });
        let report = lambda_http::request::from_str(&report.to_string()).unwrap();
        handle(&coordinator, &report).await.unwrap();
        world.clock.sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(started.0.load(Ordering::Relaxed), 0);
    assert_eq!(world.poll().await.claimable, 4);
    // The trainer's next poll does, once so many deaths were long enough ago.
    world.clock.sleep(Duration::from_secs(60)).await;
    let poll = trainer::asks(&world.job, SplitPlace::default());
    let poll = CallEnvelope { v: VERSION, ns: world.ns.clone(), call: poll.into() };
    coordinator.answer(&poll).await;
    assert_eq!(started.0.load(Ordering::Relaxed), 1);
}
