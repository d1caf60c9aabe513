//! Reasons why a job makes no progress: returned with every poll; the job fails if they persist.

use crate::{CoordinatorSettings, items::JobItem, scan::WindowScan, settings::WorkerFailureLimits};
use gristmill_model::wire::{ScaleState, WorkerFailureSeries};

/// Fewer failed workers than this are not reported and cause no rest.
const FEW: u32 = 3;
/// Longest rest between two attempts to start workers.
const MAX_REST_MS: u64 = 30_000;
/// Attempts at a bundle from which its failures are reported: the first has already been tried for long enough.
const REPORTED_ATTEMPTS: u32 = 1;

fn goes_on(barren: &WorkerFailureSeries, progress: u64) -> bool {
    barren.workers > 0 && barren.progress == progress
}

/// Whether to start no worker now, because too many have failed. The rest is a quarter of the time that the
/// failures have lasted, at most [`MAX_REST_MS`]. A clock that is behind causes no rest.
pub(crate) fn resting(barren: &WorkerFailureSeries, progress: u64, now_ms: u64) -> bool {
    let rest = barren.latest_ms..barren.latest_ms.saturating_add(rest_ms(barren));
    goes_on(barren, progress) && barren.workers >= FEW && rest.contains(&now_ms)
}

fn rest_ms(barren: &WorkerFailureSeries) -> u64 {
    (barren.lasted_ms / 4).min(MAX_REST_MS)
}

/// The error with which to fail the job, if its workers have failed for long enough.
pub(crate) fn given_up(
    patience: &WorkerFailureLimits,
    barren: &WorkerFailureSeries,
    progress: u64,
) -> Option<String> {
    let lasting_ms = u64::try_from(patience.lasting.as_millis()).unwrap_or(u64::MAX);
    let enough = goes_on(barren, progress)
        && barren.workers >= patience.workers
        && barren.lasted_ms >= lasting_ms;
    enough.then(|| {
        format!(
            "{}, and not one split was committed; last error: {}; fix that error, then start the job under \
             another name",
            deaths(barren),
            last_error(barren)
        )
    })
}

/// Number of workers that failed, and in how much time.
fn deaths(barren: &WorkerFailureSeries) -> String {
    let WorkerFailureSeries { workers, lasted_ms, .. } = barren;
    format!("{workers} workers died or could not start within {} s", lasted_ms / 1000)
}

fn last_error(barren: &WorkerFailureSeries) -> &str {
    match barren.error.as_str() {
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
    let barren = &scale.barren;
    if item.state.is_ended() {
        return None;
    }
    if goes_on(barren, scan.progress(item)) && barren.workers >= FEW {
        let patience = settings.patience;
        return Some(format!(
            "{}, and no split was committed meanwhile; last error: {}; the next worker starts after {} s, \
             and the job fails once {} workers have died in {} s",
            deaths(barren),
            last_error(barren),
            rest_ms(barren) / 1000,
            patience.workers,
            patience.lasting.as_secs(),
        ));
    }
    scan.failing(REPORTED_ATTEMPTS).map(|(first, attempt, error)| {
            let limits = settings.limits;
            format!(
                "splits from position {first} on fail and are tried again, in attempt {attempt} (the job \
                 fails after {} that last {} min): {error}",
                limits.max_attempts,
                limits.patience_ms / 60_000
            )
        })
}
