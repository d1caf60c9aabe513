//! Puts objects, and retries while the store is unavailable.

use crate::{RunError, Runner};
use bytes::Bytes;
use gristmill_ports::{ObjectError, ObjectPath, PutOutcome};
use std::time::Duration;

/// How long to retry a put. A store that throttles its clients does so for seconds or minutes, and
/// computing the object again costs more than waiting.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time between two attempts, at first and at most.
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(5);

/// Puts `body` like [`gristmill_ports::Objects::put_if_absent`], and retries with growing pauses while the
/// store is unavailable.
pub(crate) async fn put(
    runner: &Runner,
    path: &ObjectPath,
    body: &Bytes,
    put_id: &str,
) -> Result<PutOutcome, RunError> {
    let give_up = runner.clock.monotonic() + PATIENCE;
    let mut rest = FIRST_REST;
    loop {
        match runner.objects.put_if_absent(path, body.clone(), put_id).await {
            Err(ObjectError::Unavailable(why)) if runner.clock.monotonic() < give_up => {
                tracing::info!(rest_ms = rest.as_millis(), why, "waiting for the object store");
                runner.clock.sleep(rest).await;
                rest = (rest * 2).min(LONGEST_REST);
            }
            outcome => return Ok(outcome?),
        }
    }
}
