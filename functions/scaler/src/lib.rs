//! The scaler function: reads the job's SCALE item, decides, records, invokes.

mod handler;
mod wiring;

pub use handler::{ScaleError, Scaled, Scaler};

use gristmill_model::wire::{ScalerEvent, protocol};
use lambda_runtime::{Error, LambdaEvent, service_fn};
use std::sync::Arc;

/// Serves scaler events until the platform ends the environment.
pub async fn serve(scaler: Scaler) -> Result<(), Error> {
    let scaler = Arc::new(scaler);
    lambda_runtime::run(service_fn(move |event: LambdaEvent<serde_json::Value>| {
        let scaler = Arc::clone(&scaler);
        async move {
            let event = protocol::read_event::<ScalerEvent>(event.payload)?;
            scaler.handle(&event).await.map_err(Error::from)
        }
    }))
    .await
}
