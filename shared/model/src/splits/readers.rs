//! The readers of a run: each reports the progress of its own ranks, and the reports are merged into
//! the job's progress.
//!
//! A run that one reader serves has no such reports: that reader acknowledges on the job's progress
//! itself. Claims, the window and collection look at the job's progress alone.
//!
//! Merging may use reports that are out of date: within a generation they only grow, so the least of
//! them is never ahead of any rank. A report of another generation takes no part. It could be ahead
//! of a checkpoint that was restored since, and what that checkpoint needs would be collected.

use crate::splits::{
    Cursor, JobProgress, ProgressAck, SplitPlace, TransitionOutcome, TransitionRefusal, invariants,
    job_progress,
};
use serde::{Deserialize, Serialize};
use std::{fmt, num::NonZeroU32};

/// Silence of the leading reader after which the next one leads, and so on.
const LEAD_AFTER_MS: u64 = 3_000;
/// Silence after which a reader is named as the one that the job waits for; see [`HEARTBEAT_MS`].
const SILENT_MS: u64 = 12_000;
/// A reader reports at least this often, also if nothing is new.
pub const HEARTBEAT_MS: u64 = 4_000;
/// Least time between two polls of the reader that leads, for each reader, and the longest: each poll merges the
/// reports of all, and the window moves with it.
const LEADING_POLL_MS_A_READER: u64 = 25;
const LEADING_POLL_MS: u64 = 200;
/// Polls a second of all other readers together, and reports a second of all readers together.
const FOLLOWING_POLLS: u64 = 250;

/// Consecutive ranks, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RankRange {
    pub first: u32,
    pub count: NonZeroU32,
}

impl RankRange {
    /// Rank 0 to `count` - 1.
    pub const fn all(count: NonZeroU32) -> Self {
        Self { first: 0, count }
    }

    /// The rank after the last.
    pub const fn end(self) -> u32 {
        self.first.saturating_add(self.count.get())
    }

    /// Whether a rank is in both.
    pub const fn overlaps(self, other: Self) -> bool {
        self.first < other.end() && other.first < self.end()
    }

    /// Number of readers before this one if all serve as many ranks; 0 for that of rank 0 alone.
    const fn index(self) -> u32 {
        match self.first / self.count.get() {
            0 if self.first > 0 => 1,
            index => index,
        }
    }
}

impl fmt::Display for RankRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count.get() {
            1 => write!(f, "rank {}", self.first),
            _ => write!(f, "ranks {}-{}", self.first, self.end() - 1),
        }
    }
}

/// The progress of one reader's ranks, as the table holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReaderProgress {
    /// That of the job's progress when the reader joined.
    pub generation: u64,
    /// Which process serves the ranks: a larger number fences a smaller one.
    pub reader: u64,
    pub ranks: RankRange,
    /// The first split that the reader has not taken in.
    pub delivered: SplitPlace,
    /// The least cursor that is durable for all its ranks.
    pub durable: Cursor,
    /// Objects of splits before this one are not needed from `durable` on.
    pub durable_place: SplitPlace,
    /// As [`JobProgress::ended`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Cursor>,
    pub heartbeat_ms: u64,
    /// Workers in the reader's process.
    #[serde(default)]
    pub local_workers: u32,
}

impl ReaderProgress {
    /// That of the reader of all ranks, which acknowledges on the job's progress itself.
    pub fn from_job_progress(progress: &JobProgress, ranks: RankRange) -> Self {
        Self {
            generation: progress.generation,
            reader: progress.generation,
            ranks,
            delivered: progress.delivered,
            durable: progress.durable,
            durable_place: progress.durable_place,
            ended: progress.ended,
            heartbeat_ms: progress.heartbeat_ms,
            local_workers: progress.local_workers,
        }
    }
}

/// REPORT: a reader reports the progress of its ranks. Fenced by generation and reader, monotone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReaderReport {
    /// Chosen by the reader at its start, larger than any before for these ranks.
    pub reader: u64,
    /// The reader whose place it takes, 0 if none.
    pub over_reader: u64,
    pub ranks: RankRange,
    /// Its generation is that of the run.
    pub ack: ProgressAck,
}

/// Applies a report to the item of its ranks. Refuses with [`TransitionRefusal::Fenced`] for an
/// older generation, [`TransitionRefusal::Replaced`] for a reader whose place another has taken,
/// [`TransitionRefusal::Invalid`].
pub fn report(
    before: Option<&ReaderProgress>,
    command: &ReaderReport,
    now_ms: u64,
) -> Result<TransitionOutcome<ReaderProgress>, TransitionRefusal> {
    let ReaderReport { reader, over_reader, ranks, ack } = *command;
    ack.check()?;
    let fresh = ReaderProgress {
        generation: ack.generation,
        reader,
        ranks,
        delivered: ack.delivered,
        durable: ack.durable,
        durable_place: ack.durable_place,
        ended: ack.ended,
        heartbeat_ms: now_ms,
        local_workers: ack.local_workers,
    };
    let Some(before) = before.filter(|before| before.generation >= ack.generation) else {
        return Ok(TransitionOutcome::Write(fresh));
    };
    if before.generation > ack.generation {
        return Err(TransitionRefusal::Fenced { generation: before.generation });
    }
    let takes_over = reader > before.reader && over_reader == before.reader;
    if reader != before.reader && !takes_over {
        return Err(TransitionRefusal::Replaced { reader: before.reader });
    }
    if ranks != before.ranks {
        return Err(TransitionRefusal::Invalid { what: "a reader takes over other ranks" });
    }
    let after = ReaderProgress {
        reader,
        delivered: before.delivered.max(ack.delivered),
        durable: before.durable.max(ack.durable),
        durable_place: before.durable_place.max(ack.durable_place),
        ended: ack.ended.or(before.ended),
        heartbeat_ms: before.heartbeat_ms.max(now_ms),
        local_workers: ack.local_workers,
        ..*before
    };
    invariants::assert_holds(|| invariants::invariant_21_reader_is_monotone(before, &after));
    Ok(TransitionOutcome::new(Some(before), after))
}

/// Why reports cannot be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RankCoverageError {
    #[error("no run has joined")]
    NoRun,
    #[error("rank {rank} of {count} has no reader yet")]
    Missing { rank: u32, count: u32 },
    #[error("rank {rank} is served by two readers")]
    Twice { rank: u32 },
    #[error("{ranks} are served, and the run has {count} ranks")]
    Beyond { ranks: RankRange, count: u32 },
}

/// The reports of the current generation, in order of rank, if they cover each rank once.
pub fn covering<'a>(
    job: &JobProgress,
    readers: &'a [ReaderProgress],
) -> Result<Vec<&'a ReaderProgress>, RankCoverageError> {
    let count = job.run.ok_or(RankCoverageError::NoRun)?.ranks.count.get();
    let of_run = readers.iter().filter(|reader| reader.generation == job.generation);
    let mut of_run: Vec<_> = of_run.collect();
    of_run.sort_by_key(|reader| reader.ranks);
    let mut next = 0;
    for ReaderProgress { ranks, .. } in of_run.iter().copied() {
        match ranks.first.cmp(&next) {
            _ if ranks.end() > count => {
                return Err(RankCoverageError::Beyond { ranks: *ranks, count });
            }
            std::cmp::Ordering::Less => return Err(RankCoverageError::Twice { rank: ranks.first }),
            std::cmp::Ordering::Greater => {
                return Err(RankCoverageError::Missing { rank: next, count });
            }
            std::cmp::Ordering::Equal => next = ranks.end(),
        }
    }
    if next < count { Err(RankCoverageError::Missing { rank: next, count }) } else { Ok(of_run) }
}

/// The reason that keeps the job's progress from moving on, one line: ranks without a reader, or a reader that is
/// behind the others and silent.
pub fn waits_for(job: &JobProgress, readers: &[ReaderProgress], now_ms: u64) -> Option<String> {
    let covering = match covering(job, readers) {
        Ok(covering) => covering,
        Err(uncovered) => return Some(uncovered.to_string()),
    };
    let last = covering.iter().min_by_key(|reader| (reader.delivered, reader.heartbeat_ms))?;
    let is_last_alone = covering.iter().any(|reader| reader.delivered > last.delivered);
    let silent_ms = now_ms.saturating_sub(last.heartbeat_ms);
    (is_last_alone && silent_ms >= SILENT_MS).then(|| {
        let (ranks, seconds) = (last.ranks, silent_ms / 1_000);
        match ranks.count.get() {
            1 => format!("{ranks} has been silent for {seconds} s; the job waits for it"),
            _ => format!("{ranks} have been silent for {seconds} s; the job waits for them"),
        }
    })
}

/// MERGE: moves the job's progress to the least of its readers'. While some rank has no report, the
/// cursors stay; the heartbeat, by which readers decide who leads, moves in any case. Refuses with
/// [`TransitionRefusal::Invalid`] when the job has no progress to move.
pub fn merge(
    before: Option<&JobProgress>,
    readers: &[ReaderProgress],
    now_ms: u64,
) -> Result<TransitionOutcome<JobProgress>, TransitionRefusal> {
    let before = before.ok_or(TransitionRefusal::Invalid { what: "no run has joined" })?;
    let covering = covering(before, readers).unwrap_or_default();
    let of_run = readers.iter().filter(|reader| reader.generation == before.generation);
    let local_workers = of_run.map(|reader| reader.local_workers).fold(0, u32::saturating_add);
    let delivered = covering.iter().map(|reader| reader.delivered).min();
    // One cursor may be saved with different places: the least is safe.
    let durable = covering.iter().map(|reader| (reader.durable, reader.durable_place)).min();
    let delivered = delivered.unwrap_or(before.delivered);
    let (durable, durable_place) = durable.unwrap_or((before.durable, before.durable_place));
    let least = ProgressAck {
        generation: before.generation,
        over: before.generation,
        delivered,
        durable,
        // A reader may report a place that is earlier than it must be, and another a later one.
        durable_place: durable_place.min(delivered),
        ended: covering.iter().filter_map(|reader| reader.ended).min(),
        local_workers,
    };
    job_progress::ack(Some(before), &least, now_ms)
}

/// Whether a poll of the reader of `ranks` leads: whether it does the job's shared work and merges.
/// Any number of readers may lead at a time, as every write is a compare-and-set.
pub fn leads(ranks: RankRange, job_heartbeat_ms: u64, now_ms: u64) -> bool {
    let index = u64::from(ranks.index());
    let silence_ms = now_ms.saturating_sub(job_heartbeat_ms);
    index == 0 || silence_ms > LEAD_AFTER_MS.saturating_mul(1 + index)
}

/// Least time between two polls of one of `readers` readers. A reader that is alone is not slowed.
pub fn poll_every_ms(readers: u32, leads: bool) -> u64 {
    if readers <= 1 {
        0
    } else if leads {
        (u64::from(readers) * LEADING_POLL_MS_A_READER).min(LEADING_POLL_MS)
    } else {
        // As rare as reports if these are rare, so that every poll may report.
        report_every_ms(readers).max(LEADING_POLL_MS / 4)
    }
}

/// Least time between two reports of one of `readers` readers. A reader that is alone is not slowed.
pub fn report_every_ms(readers: u32) -> u64 {
    match readers {
        0 | 1 => 0,
        _ => (1_000 * u64::from(readers)).div_ceil(FOLLOWING_POLLS),
    }
}

#[cfg(test)]
mod tests;
