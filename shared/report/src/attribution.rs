//! Attributes a trainer's wait to causes: by the state of the awaited batch's split, and while a worker
//! had it, in proportion to the workers' activities.

use crate::units::{amount, percent, show_percent, show_seconds};
use std::{collections::BTreeMap, fmt};

/// Seconds that a trainer waited in an epoch, by the state of the awaited batch's split.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EpochWaits {
    /// Total; may exceed the sum of the rest, because a state is known from polls only.
    pub total_s: f64,
    /// No worker had the split: it queued, or workers were starting.
    pub unclaimed_s: f64,
    /// Leased, not committed.
    pub working_s: f64,
    /// Committed; its object was in transit.
    pub fetch_s: f64,
    /// Its object had arrived; the batch was being joined, decoded and prepared for delivery.
    pub decode_s: f64,
    /// Part of `total_s` before the epoch's first batch.
    pub first_batch_s: Option<f64>,
}

/// Worker seconds of an epoch by activity, and the number of workers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WorkerShares {
    /// Reading the dataset, or the cache.
    pub source_s: f64,
    pub ops: Vec<OpSeconds>,
    /// Writing finished splits.
    pub put_s: f64,
    /// Mean of the targets while there was work.
    pub workers: Option<f64>,
    /// Most workers allowed for the job.
    pub max_workers: Option<u32>,
}

/// Worker seconds of one operator.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OpSeconds {
    pub name: String,
    pub seconds: f64,
}

/// Cause of a trainer's wait.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum StallCause {
    /// Waiting for a worker to take the split.
    Queue,
    /// A worker reads the source.
    Source,
    /// A worker runs an operator.
    Op(String),
    /// A worker writes the object.
    Put,
    /// A worker has the split; its activity is unknown.
    Work,
    /// The object is in transit.
    Fetch,
    /// Joining, decoding and preparing the batch on the trainer's host.
    Decode,
    /// None of these.
    Other,
}

/// Contribution of one cause.
#[derive(Debug, Clone, PartialEq)]
pub struct StallPart {
    pub cause: StallCause,
    pub seconds: f64,
    /// Percent of the epoch's time.
    pub percent: f64,
}

/// The wait of one epoch by causes.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochStalls {
    /// All of the wait.
    pub total_s: f64,
    /// Percent of the epoch's time.
    pub percent: f64,
    /// Parts that sum to `total_s`, the largest first; none is empty.
    pub parts: Vec<StallPart>,
    pub advice: StallAdvice,
}

/// Attributes the wait of an epoch of `epoch_s` seconds. Negative values and NaN count as 0; parts that
/// exceed the total raise it, and a wait that exceeds the epoch lengthens the epoch.
pub fn attribute(waits: &EpochWaits, shares: &WorkerShares, epoch_s: f64) -> EpochStalls {
    let known = EpochWaits {
        total_s: amount(waits.total_s),
        unclaimed_s: amount(waits.unclaimed_s),
        working_s: amount(waits.working_s),
        fetch_s: amount(waits.fetch_s),
        decode_s: amount(waits.decode_s),
        first_batch_s: waits.first_batch_s,
    };
    let measured_s = known.unclaimed_s + known.working_s + known.fetch_s + known.decode_s;
    let total_s = known.total_s.max(measured_s);
    let epoch_s = amount(epoch_s).max(total_s);

    let mut seconds: BTreeMap<StallCause, f64> = BTreeMap::from([
        (StallCause::Queue, known.unclaimed_s),
        (StallCause::Fetch, known.fetch_s),
        (StallCause::Decode, known.decode_s),
        (StallCause::Other, total_s - measured_s),
    ]);
    for (cause, part) in working(shares) {
        *seconds.entry(cause).or_default() += known.working_s * part;
    }
    let part = |(cause, seconds)| StallPart { cause, seconds, percent: percent(seconds, epoch_s) };
    let mut parts: Vec<StallPart> =
        seconds.into_iter().filter(|(_, seconds)| *seconds > 0.0).map(part).collect();
    parts.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let advice = advise(&EpochWaits { total_s, ..known }, shares, epoch_s);
    EpochStalls { total_s, percent: percent(total_s, epoch_s), parts, advice }
}

/// Activities of workers as fractions that sum to 1.
fn working(shares: &WorkerShares) -> Vec<(StallCause, f64)> {
    let mut all = vec![
        (StallCause::Source, amount(shares.source_s)),
        (StallCause::Put, amount(shares.put_s)),
    ];
    all.extend(shares.ops.iter().map(|op| (StallCause::Op(op.name.clone()), amount(op.seconds))));
    let sum: f64 = all.iter().map(|(_, seconds)| seconds).sum();
    if sum <= 0.0 {
        return vec![(StallCause::Work, 1.0)];
    }
    all.into_iter().map(|(cause, seconds)| (cause, seconds / sum)).collect()
}

impl fmt::Display for StallCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StallCause::Queue => "queue",
            StallCause::Source => "source read",
            StallCause::Op(name) => return write!(f, "op {name}"),
            StallCause::Put => "object put",
            StallCause::Work => "workers",
            StallCause::Fetch => "fetch",
            StallCause::Decode => "decode",
            StallCause::Other => "other",
        })
    }
}

impl fmt::Display for EpochStalls {
    /// One line for a terminal: "waited 12.3 s (8.1 %): op decode 9.10 s, queue 3.20 s".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waited {} ({})", show_seconds(self.total_s), show_percent(self.percent))?;
        for (index, part) in self.parts.iter().enumerate() {
            let before = if index == 0 { ": " } else { ", " };
            write!(f, "{before}{} {}", part.cause, show_seconds(part.seconds))?;
        }
        Ok(())
    }
}

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
                write!(f, "the trainer hardly waited: {} of the epoch", show_percent(percent))
            }
            StallAdvice::TooShort { epoch_s } => {
                write!(f, "too short to say: the epoch took {}", show_seconds(epoch_s))
            }
            StallAdvice::FirstBatch { first_batch_s, total_s } => write!(
                f,
                "the wait was for the first batch, {} of {}: it comes once an epoch",
                show_seconds(first_batch_s),
                show_seconds(total_s)
            ),
            StallAdvice::MoreWorkers { percent, workers, desired } => {
                let waited = show_percent(percent);
                write!(
                    f,
                    "more workers would help: the trainer waited for them {waited} of the epoch"
                )?;
                workers.zip(desired).map_or(Ok(()), |(workers, desired)| {
                    let workers = (workers * 10.0).round() / 10.0;
                    write!(f, "; about {desired} instead of {workers} should do")
                })
            }
            StallAdvice::AtMaximum { percent, max_workers, desired } => {
                write!(
                    f,
                    "more workers would help, and there may be no more: the trainer waited for \
                     them {} of the epoch; raise --max-workers from {max_workers}",
                    show_percent(percent)
                )?;
                desired.map_or(Ok(()), |desired| write!(f, " to about {desired}"))
            }
            StallAdvice::Network { percent, fetch_s } => write!(
                f,
                "more workers would not help, the trainer's network is the limit: {} ({} of the \
                 epoch) for batches on their way; send fewer bytes (cast later, a smaller dtype) \
                 or use local workers",
                show_seconds(fetch_s),
                show_percent(percent)
            ),
            StallAdvice::Decoding { percent, decode_s } => write!(
                f,
                "more workers would not help, the trainer's processor is the limit: {} ({} of the \
                 epoch) for batches being joined and decoded; do less in `deliver`, or use a \
                 smaller dtype",
                show_seconds(decode_s),
                show_percent(percent)
            ),
            StallAdvice::Unexplained { percent, other_s } => write!(
                f,
                "most of the wait, {} ({} of the epoch), was for nothing that was measured: \
                 between polls, or with the trainer's host busy",
                show_seconds(other_s),
                show_percent(percent)
            ),
        }
    }
}

#[cfg(test)]
mod tests;
