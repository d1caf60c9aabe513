//! Reasons why a job makes no progress: reported with every poll; the job fails if they last.

use crate::{
    Settings,
    items::{JobItem, ScaleState},
    scan::Scan,
    settings::Patience,
};
use gristmill_model::wire::Barren;

/// Workers in vain below which nothing is made of it.
const FEW: u32 = 3;
/// Longest rest between two tries.
const MAX_REST_MS: u64 = 30_000;
/// Attempts at a bundle from which on its failures are told.
const TOLD_ATTEMPTS: u32 = 3;

fn goes_on(barren: &Barren, progress: u64) -> bool {
    barren.workers > 0 && barren.progress == progress
}

/// Whether no worker is to be invoked now, since so many came to nothing: the rest grows with the time
/// that this has lasted, so that tries grow rarer by a quarter each. By a clock that is behind there is none.
pub(crate) fn resting(barren: &Barren, progress: u64, now_ms: u64) -> bool {
    let rest = barren.latest_ms..barren.latest_ms.saturating_add(rest_ms(barren));
    goes_on(barren, progress) && barren.workers >= FEW && rest.contains(&now_ms)
}

fn rest_ms(barren: &Barren) -> u64 {
    (barren.lasted_ms / 4).min(MAX_REST_MS)
}

/// Why the job is to be given up, if it is.
pub(crate) fn given_up(patience: &Patience, barren: &Barren, progress: u64) -> Option<String> {
    let lasting_ms = u64::try_from(patience.lasting.as_millis()).unwrap_or(u64::MAX);
    let enough = goes_on(barren, progress)
        && barren.workers >= patience.workers
        && barren.lasted_ms >= lasting_ms;
    enough.then(|| {
        format!(
            "workers die whatever they do: {} died or could not start within {} s, and not one split was \
             committed; last error: {}",
            barren.workers,
            barren.lasted_ms / 1000,
            last_error(barren)
        )
    })
}

fn last_error(barren: &Barren) -> &str {
    match barren.error.as_str() {
        "" => "none was reported; see the log of the worker function",
        error => error,
    }
}

/// The reason why the job makes no progress, one line.
pub(crate) fn trouble(
    settings: &Settings,
    item: &JobItem,
    scale: &ScaleState,
    scan: &Scan,
) -> Option<String> {
    let barren = &scale.barren;
    if item.state.is_ended() {
        return None;
    }
    if goes_on(barren, scan.progress(item)) && barren.workers >= FEW {
        let patience = settings.patience;
        return Some(format!(
            "workers die whatever they do: {} died or could not start within {} s; last error: {}; the \
                 next starts after {} s, and the job fails once {} in {} s have come to nothing",
            barren.workers,
            barren.lasted_ms / 1000,
            last_error(barren),
            rest_ms(barren) / 1000,
            patience.workers,
            patience.lasting.as_secs(),
        ));
    }
    scan.failing(TOLD_ATTEMPTS).map(|(first, attempt, error)| {
            let limits = settings.limits;
            format!(
                "splits from position {first} on fail and are tried again, {attempt} times so far (the job \
                 fails after {} that last {} min): {error}",
                limits.max_attempts,
                limits.patience_ms / 60_000
            )
        })
}
