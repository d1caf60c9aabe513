//! Calls to a coordinator, for commands about jobs and caches.

use gristmill_client::{ProgramFailure, ServiceConnection};
use gristmill_model::wire::{CoordinatorCall, RefusalKind};
use gristmill_ports::{CallError, call_with_retry};
use std::time::Duration;

/// Time within which the service must answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Sends a call until the service answers.
pub async fn call<C: CoordinatorCall>(
    service: &ServiceConnection,
    call: C,
) -> Result<C::Reply, ProgramFailure> {
    let answer =
        call_with_retry(&*service.ports.coordinator, &*service.ports.clock, call, PATIENCE);
    answer.await.map_err(|error| match &error {
        CallError::Refused(refusal) if refusal.kind == RefusalKind::NotFound => {
            ProgramFailure::usage(error)
        }
        _ => ProgramFailure::failed(error),
    })
}
