//! Whether more workers would help, in one line that names the numbers.

use crate::number::{amount, percent};
use crate::units::{DisplayPercent, DisplaySeconds};
use crate::{EpochWaits, WorkerShares};
use std::fmt;

/// A shorter wait, in percent of the epoch, is within the difference of two runs of one job.
const STALL_MIN_PERCENT: f64 = 3.0;
/// A shorter epoch consists of a cold start and a few polls.
const EPOCH_MIN_S: f64 = 2.0;
/// Estimates beyond this factor are guesses, and are not given.
const WORKERS_FACTOR_MAX: f64 = 20.0;

/// Advice on the trainer's wait. Percents are of the epoch's time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StallAdvice {
    /// The trainer hardly waited.
    NoStall { percent: f64 },
    /// The epoch was too short to tell.
    TooShort { epoch_s: f64 },
    /// The wait was for the first batch; it occurs once, with any number of workers.
    FirstBatch { first_batch_s: f64, total_s: f64 },
    /// More workers would help. `desired`: about how many.
    MoreWorkers { percent: f64, workers: Option<f64>, desired: Option<u32> },
    /// They would, but the maximum is reached.
    AtMaximum { percent: f64, max_workers: u32, desired: Option<u32> },
    /// They would not: batches wait for the trainer's network.
    Network { percent: f64, fetch_s: f64 },
    /// They would not: batches wait for the trainer's processor.
    Decoding { percent: f64, decode_s: f64 },
    /// Most of the wait has no measured cause.
    Unexplained { percent: f64, other_s: f64 },
}

/// Advice for `waits`, whose values are non-negative and whose total is at least their sum.
pub(crate) fn advise(waits: &EpochWaits, shares: &WorkerShares, epoch_s: f64) -> StallAdvice {
    let of_epoch = |seconds| percent(seconds, epoch_s);
    if of_epoch(waits.total_s) < STALL_MIN_PERCENT {
        return StallAdvice::NoStall { percent: of_epoch(waits.total_s) };
    }
    if epoch_s < EPOCH_MIN_S {
        return StallAdvice::TooShort { epoch_s };
    }
    let first_batch_s = amount(waits.first_batch_s.unwrap_or(0.0)).min(waits.total_s);
    if of_epoch(waits.total_s - first_batch_s) < STALL_MIN_PERCENT {
        return StallAdvice::FirstBatch { first_batch_s, total_s: waits.total_s };
    }
    let for_workers_s = waits.unclaimed_s + waits.working_s;
    let other_s = waits.total_s - for_workers_s - waits.fetch_s - waits.decode_s;
    let most = for_workers_s.max(waits.fetch_s).max(waits.decode_s);
    if other_s > most {
        StallAdvice::Unexplained { percent: of_epoch(other_s), other_s }
    } else if for_workers_s >= most {
        about_workers(for_workers_s, shares, epoch_s)
    } else if waits.fetch_s >= most {
        StallAdvice::Network { percent: of_epoch(waits.fetch_s), fetch_s: waits.fetch_s }
    } else {
        StallAdvice::Decoding { percent: of_epoch(waits.decode_s), decode_s: waits.decode_s }
    }
}

fn about_workers(wait_s: f64, shares: &WorkerShares, epoch_s: f64) -> StallAdvice {
    let percent = percent(wait_s, epoch_s);
    let workers = shares.workers.map(amount).filter(|workers| *workers > 0.0);
    // Work that takes the whole epoch now must fit into the epoch without the wait.
    let factor = epoch_s / (epoch_s - wait_s);
    let factor = Some(factor).filter(|factor| (1.0..=WORKERS_FACTOR_MAX).contains(factor));
    let desired = workers.zip(factor).map(|(workers, factor)| (workers * factor).ceil() as u32);
    match shares.max_workers {
        // The mean is slightly below the count that was held.
        Some(max_workers) if workers.is_some_and(|at| at > f64::from(max_workers) - 0.5) => {
            let desired = desired.filter(|desired| *desired > max_workers);
            StallAdvice::AtMaximum { percent, max_workers, desired }
        }
        max_workers => {
            let most = max_workers.unwrap_or(u32::MAX);
            StallAdvice::MoreWorkers {
                percent,
                workers,
                desired: desired.map(|desired| desired.min(most)),
            }
        }
    }
}

impl fmt::Display for StallAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            StallAdvice::NoStall { percent } => {
                write!(f, "the trainer hardly waited: {} of the epoch", DisplayPercent(percent))
            }
            StallAdvice::TooShort { epoch_s } => {
                write!(f, "too short to say: the epoch took {}", DisplaySeconds(epoch_s))
            }
            StallAdvice::FirstBatch { first_batch_s, total_s } => write!(
                f,
                "the wait was for the first batch, {} of {}: it comes once an epoch",
                DisplaySeconds(first_batch_s),
                DisplaySeconds(total_s)
            ),
            StallAdvice::MoreWorkers { percent, workers, desired } => {
                fmt_more_workers(f, percent, workers, desired)
            }
            StallAdvice::AtMaximum { percent, max_workers, desired } => {
                write!(
                    f,
                    "more workers would help, and there may be no more: the trainer waited for \
                     them {} of the epoch; raise --max-workers from {max_workers}",
                    DisplayPercent(percent)
                )?;
                desired.map_or(Ok(()), |desired| write!(f, " to about {desired}"))
            }
            StallAdvice::Network { percent, fetch_s } => write!(
                f,
                "more workers would not help, the trainer's network is the limit: {} ({} of the \
                 epoch) for batches on their way; send fewer bytes (cast later, a smaller dtype) \
                 or use local workers",
                DisplaySeconds(fetch_s),
                DisplayPercent(percent)
            ),
            StallAdvice::Decoding { percent, decode_s } => write!(
                f,
                "more workers would not help, the trainer's processor is the limit: {} ({} of the \
                 epoch) for batches being joined and decoded; do less in `deliver`, or use a \
                 smaller dtype",
                DisplaySeconds(decode_s),
                DisplayPercent(percent)
            ),
            StallAdvice::Unexplained { percent, other_s } => write!(
                f,
                "most of the wait, {} ({} of the epoch), was for nothing that was measured: \
                 between polls, or with the trainer's host busy",
                DisplaySeconds(other_s),
                DisplayPercent(percent)
            ),
        }
    }
}

fn fmt_more_workers(
    f: &mut fmt::Formatter<'_>,
    percent: f64,
    workers: Option<f64>,
    desired: Option<u32>,
) -> fmt::Result {
    write!(
        f,
        "more workers would help: the trainer waited for them {} of the epoch",
        DisplayPercent(percent)
    )?;
    match (workers, desired) {
        (Some(workers), Some(desired)) => {
            write!(f, "; about {desired} instead of {} should do", (workers * 10.0).round() / 10.0)
        }
        _ => Ok(()),
    }
}
