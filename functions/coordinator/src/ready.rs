//! Committed splits in the order in which the trainer takes them.

use crate::{Coordinator, bundles::ScannedBundle, items::JobItem};
use gristmill_model::splits::{self, Bundle, Entry, EntryKind, Place};
use gristmill_model::wire::{ReadyEntry, ReadyKind, Refusal, WorkerCost};
use gristmill_model::{JobName, Position};

/// Entries of one answer: less than a megabyte of JSON.
const MOST_READY: usize = 4_000;
/// Bundles read at a time, from page to page.
const PAGES: [usize; 3] = [12, 88, 400];

/// Splits that are committed from a place on, up to the first gap.
#[derive(Debug, Default)]
pub(crate) struct Prefix {
    pub entries: Vec<ReadyEntry>,
    /// The first split that is not committed, counted through all epochs, and its bundle, if the prefix ends
    /// there.
    pub gap: Option<(u64, ScannedBundle)>,
}

impl Prefix {
    /// Goes on with `bundles`, from position `from` (counted through all epochs) on.
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
                self.entries.push(entry_at(&bundle, position, entry, share(item)));
            }
        }
    }
}

fn entry_at(
    bundle: &ScannedBundle,
    position: Position,
    entry: &Entry,
    cost: WorkerCost,
) -> ReadyEntry {
    ReadyEntry {
        epoch: bundle.epoch,
        position,
        bundle: bundle.index,
        attempt: entry.attempt,
        nonce: entry.nonce,
        kind: match entry.kind {
            EntryKind::Object => ReadyKind::Object,
            EntryKind::Local => ReadyKind::Local,
            EntryKind::Poison => ReadyKind::Poison,
        },
        object_bytes: entry.bytes,
        crc32c: entry.crc32c,
        rows: entry.rows,
        batches: entry.batches,
        remainder_rows: entry.remainder,
        skipped: entry.skipped,
        cost,
    }
}

/// The cost of one committed split of a bundle, as far as that is told apart.
fn share(bundle: &Bundle) -> WorkerCost {
    let committed = bundle.entries.iter().flatten().count().max(1) as u32;
    let splits::Metrics { source_ms, compute_ms, put_ms } = bundle.metrics;
    WorkerCost {
        source_ms: source_ms / committed,
        compute_ms: compute_ms / committed,
        put_ms: put_ms / committed,
    }
}

impl Coordinator {
    /// Committed splits from `from` on up to the first gap, as many as one answer takes: whoever asks goes
    /// on behind them. `first` are the first bundles from there on, as far as they were read. Only splits that
    /// `item` can locate: bundles are read after it, and may be of a later version of the job.
    pub(crate) async fn ready(
        &self,
        (job, item): (&JobName, &JobItem),
        from: Place,
        first: Vec<ScannedBundle>,
    ) -> Result<Prefix, Refusal> {
        let mut prefix = self.committed((job, item), from, first, MOST_READY).await?;
        prefix.entries.retain(|entry| item.locates(entry.epoch));
        Ok(prefix)
    }

    /// The same, at most `most`.
    pub(crate) async fn committed(
        &self,
        (job, item): (&JobName, &JobItem),
        from: Place,
        first: Vec<ScannedBundle>,
        most: usize,
    ) -> Result<Prefix, Refusal> {
        let mut prefix = Prefix::default();
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
            prefix.extend(self.read_bundles(job, item, &course).await?, from, most);
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
