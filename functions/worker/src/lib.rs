//! The worker function: one event starts one worker, which claims bundles of splits, preprocesses
//! them into objects, and leaves when there is nothing to claim. It never waits idle.

mod handler;
mod orders;
mod tally;
mod wiring;

pub use handler::{WorkerError, WorkerFunction};
pub use orders::serve_orders;

use gristmill_model::wire::{WorkerEvent, protocol};
use lambda_runtime::{Error, LambdaEvent, service_fn};
use std::sync::Arc;

/// Serves worker events until the platform ends the environment.
pub async fn serve(worker: WorkerFunction) -> Result<(), Error> {
    let worker = Arc::new(worker);
    lambda_runtime::run(service_fn(move |event: LambdaEvent<serde_json::Value>| {
        let worker = Arc::clone(&worker);
        async move {
            let (event, context) = event.into_parts();
            let event = protocol::read_event::<WorkerEvent>(event)?;
            worker.handle(&event, context.request_id, context.deadline).await.map_err(Error::from)
        }
    }))
    .await
}
