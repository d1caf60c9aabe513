//! Attributes a trainer's wait to causes: by the state of the awaited batch's split, and while a worker
//! had it, in proportion to the workers' activities.

use crate::StallAdvice;
use crate::advice::advise;
use crate::number::{amount, percent};
use std::collections::BTreeMap;
use std::fmt;

#[cfg(test)]
mod tests;

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
        use crate::units::{DisplayPercent, DisplaySeconds};
        write!(f, "waited {} ({})", DisplaySeconds(self.total_s), DisplayPercent(self.percent))?;
        for (index, part) in self.parts.iter().enumerate() {
            let before = if index == 0 { ": " } else { ", " };
            write!(f, "{before}{} {}", part.cause, DisplaySeconds(part.seconds))?;
        }
        Ok(())
    }
}
