//! Committed splits in delivery order.

use crate::{Consumers, bundles::ScannedBundle, items::JobItem};
use gristmill_model::splits::{Bundle, CommittedSplit, SplitPlace, WorkerTimes};
use gristmill_model::wire::{CallRefusal, ReadySplit};
use gristmill_model::{JobName, Position};

/// Most entries in one answer: less than a megabyte of JSON.
const MOST_READY: usize = 4_000;
/// Bundles per read; each read is larger than the one before.
const PAGES: [usize; 3] = [12, 88, 400];

/// Committed splits from a place up to the first gap.
#[derive(Debug, Default)]
pub(crate) struct CommittedPrefix {
    pub entries: Vec<ReadySplit>,
    /// The first split that is not committed, counted through all epochs, and its bundle, if the prefix ends there.
    pub gap: Option<(u64, ScannedBundle)>,
}

impl CommittedPrefix {
    /// Appends splits of `bundles` from position `from` on, counted through all epochs, up to `most` entries.
    fn extend(&mut self, bundles: Vec<ScannedBundle>, from: u64, most: usize) {
        for bundle in bundles {
            let positions = bundle.positions.clone().zip(bundle.stretch());
            for (i, (position, linear)) in (0u8..).zip(positions) {
                if linear < from {
                    continue;
                }
                if self.entries.len() >= most {
                    return;
                }
                let item = bundle.item.as_ref();
                let Some((item, entry)) = item.and_then(|item| Some((item, item.entry(i)?))) else {
                    self.gap = Some((linear, bundle));
                    return;
                };
                self.entries.push(ready_split(&bundle, position, entry, share(item)));
            }
        }
    }
}

fn ready_split(
    bundle: &ScannedBundle,
    position: Position,
    committed: &CommittedSplit,
    times: WorkerTimes,
) -> ReadySplit {
    let CommittedSplit { attempt, nonce, outcome } = *committed;
    let place = SplitPlace { epoch: bundle.epoch, position };
    ReadySplit { place, bundle: bundle.index, attempt, nonce, outcome, times }
}

/// An equal share of a bundle's times for each of its committed splits.
fn share(bundle: &Bundle) -> WorkerTimes {
    bundle.times.share_of(bundle.entries.iter().flatten().count() as u32)
}

impl Consumers {
    /// Committed splits from `from` up to the first gap, at most [`MOST_READY`]; the trainer asks for the
    /// rest with its next poll. `first` holds the first of these bundles, if they were already read. Leaves
    /// out splits that `item` cannot locate: bundles are read after it, and may belong to a later version of the job.
    pub(crate) async fn ready(
        &self,
        (job, item): (&JobName, &JobItem),
        from: SplitPlace,
        first: Vec<ScannedBundle>,
    ) -> Result<CommittedPrefix, CallRefusal> {
        let mut prefix = self.committed((job, item), from, first, MOST_READY).await?;
        prefix.entries.retain(|entry| item.locates(entry.place.epoch));
        Ok(prefix)
    }

    /// Like [`ready`](Self::ready) with at most `most` splits, including those that `item` cannot locate.
    pub(crate) async fn committed(
        &self,
        (job, item): (&JobName, &JobItem),
        from: SplitPlace,
        first: Vec<ScannedBundle>,
        most: usize,
    ) -> Result<CommittedPrefix, CallRefusal> {
        let mut prefix = CommittedPrefix::default();
        let Some(plan) = item.plan else { return Ok(prefix) };
        let from = from.linear(plan.n_splits);
        let mut rest = item.course(from..from.saturating_add(most as u64));
        let (course, behind) = rest.clone().divided(first.len());
        if course.is_of(first.iter().map(|bundle| (bundle.epoch, bundle.index))) {
            prefix.extend(first, from, most);
            rest = behind;
        }
        if prefix.gap.is_some() {
            return Ok(prefix);
        }
        let pages = PAGES.into_iter().chain(std::iter::repeat(PAGES[PAGES.len() - 1]));
        for page in pages {
            let (course, behind) = rest.divided(page);
            if course.is_empty() {
                break;
            }
            prefix.extend(self.records.read_bundles(job, item, &course).await?, from, most);
            if prefix.gap.is_some() || prefix.entries.len() >= most {
                break;
            }
            rest = behind;
        }
        Ok(prefix)
    }
}

#[cfg(test)]
#[path = "ready_tests.rs"]
mod tests;
