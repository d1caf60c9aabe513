//! Puts objects, and retries while the store is unavailable.

use crate::{LeaseError, Runner};
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
/// store is unavailable or full.
pub(crate) async fn put(
    runner: &Runner,
    path: &ObjectPath,
    body: &Bytes,
    put_id: &str,
) -> Result<PutOutcome, LeaseError> {
    Ok(put_patiently(runner, path, (body, put_id), true).await?)
}

/// As [`put`], for a cached object, which only saves work: what is not stored is computed again. If the store is full,
/// the put ends, and not the work. Returns whether the object is stored.
pub(crate) async fn put_cached(
    runner: &Runner,
    path: &ObjectPath,
    body: &Bytes,
) -> Result<bool, LeaseError> {
    match put_patiently(runner, path, (body, "cached"), false).await {
        Err(ObjectError::Full(why)) => {
            tracing::warn!(why, "{path} is not cached");
            Ok(false)
        }
        outcome => Ok(outcome.map(|_| true)?),
    }
}

async fn put_patiently(
    runner: &Runner,
    path: &ObjectPath,
    (body, put_id): (&Bytes, &str),
    waits_for_room: bool,
) -> Result<PutOutcome, ObjectError> {
    let give_up = runner.clock.monotonic() + PATIENCE;
    let mut rest = FIRST_REST;
    loop {
        let outcome = runner.objects.put_if_absent(path, body.clone(), put_id).await;
        let why = match &outcome {
            Err(ObjectError::Unavailable(why)) => why,
            Err(ObjectError::Full(why)) if waits_for_room => why,
            _ => return outcome,
        };
        if runner.clock.monotonic() >= give_up {
            return outcome;
        }
        tracing::info!(rest_ms = rest.as_millis(), why, "waiting for the object store");
        runner.clock.sleep(rest).await;
        rest = (rest * 2).min(LONGEST_REST);
    }
}
