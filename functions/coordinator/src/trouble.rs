//! Reasons why a job makes no progress: returned with every poll; the job fails if they persist.

use crate::{CoordinatorSettings, items::JobItem, scan::WindowScan, settings::WorkerFailureLimits};
use gristmill_model::wire::{ScaleState, WorkerFailureSeries};

/// Fewer failed workers than this are not reported and cause no rest.
const FEW: u32 = 3;
/// Longest rest between two attempts to start workers.
const MAX_REST_MS: u64 = 30_000;
/// Attempts at a bundle from which its failures are reported: the first has already been tried for long enough.
const REPORTED_ATTEMPTS: u32 = 1;

fn goes_on(failed_workers: &WorkerFailureSeries, progress: u64) -> bool {
    failed_workers.workers > 0 && failed_workers.progress == progress
}

/// Whether to start no worker now, because too many have failed. The rest is a quarter of the time that the
/// failures have lasted, at most [`MAX_REST_MS`]. A clock that is behind causes no rest.
pub(crate) fn resting(failed_workers: &WorkerFailureSeries, progress: u64, now_ms: u64) -> bool {
    let rest =
        failed_workers.latest_ms..failed_workers.latest_ms.saturating_add(rest_ms(failed_workers));
    goes_on(failed_workers, progress) && failed_workers.workers >= FEW && rest.contains(&now_ms)
}

fn rest_ms(failed_workers: &WorkerFailureSeries) -> u64 {
    (failed_workers.lasted_ms / 4).min(MAX_REST_MS)
}

/// The error with which to fail the job, if its workers have failed for long enough.
pub(crate) fn given_up(
    failure_limits: &WorkerFailureLimits,
    failed_workers: &WorkerFailureSeries,
    progress: u64,
) -> Option<String> {
    let lasting_ms = u64::try_from(failure_limits.lasting.as_millis()).unwrap_or(u64::MAX);
    let enough = goes_on(failed_workers, progress)
        && failed_workers.workers >= failure_limits.workers
        && failed_workers.lasted_ms >= lasting_ms;
    enough.then(|| {
        format!(
            "{}, and not one split was committed; last error: {}; fix that error, then start the job under \
             another name",
            deaths(failed_workers),
            last_error(failed_workers)
        )
    })
}

/// Number of workers that failed, and in how much time.
fn deaths(failed_workers: &WorkerFailureSeries) -> String {
    let WorkerFailureSeries { workers, lasted_ms, .. } = failed_workers;
    format!("{workers} workers died or could not start within {} s", lasted_ms / 1000)
}

fn last_error(failed_workers: &WorkerFailureSeries) -> &str {
    match failed_workers.error.as_str() {
        "" => "none was reported; see the log of the worker function",
        error => error,
    }
}

/// One line on why the job makes no progress; none if it does.
pub(crate) fn trouble(
    settings: &CoordinatorSettings,
    item: &JobItem,
    scale: &ScaleState,
    scan: &WindowScan,
) -> Option<String> {
    let failed_workers = &scale.failed_workers;
    if item.state.is_ended() {
        return None;
    }
    if goes_on(failed_workers, scan.progress(item)) && failed_workers.workers >= FEW {
        let failure_limits = settings.failure_limits;
        return Some(format!(
            "{}, and no split was committed meanwhile; last error: {}; the next worker starts after {} s, \
             and the job fails once {} workers have died in {} s",
            deaths(failed_workers),
            last_error(failed_workers),
            rest_ms(failed_workers) / 1000,
            failure_limits.workers,
            failure_limits.lasting.as_secs(),
        ));
    }
    scan.failing(REPORTED_ATTEMPTS).map(|(first, attempt, error)| {
            let limits = settings.limits;
            format!(
                "splits from position {first} on fail and are tried again, in attempt {attempt} (the job \
                 fails after {} that last {} min): {error}",
                limits.max_attempts,
                limits.retry_ms / 60_000
            )
        })
}
