//! The epoch item: open; then sealed, with totals derived once from all bundles; then closed, when
//! no trainer needs the epoch any more.

use crate::BundleIndex;
use crate::splits::{
    Bundle, BundleState, CommittedSplit, Cursor, SplitKind, TransitionOutcome, TransitionRefusal,
    invariants,
};
use serde::{Deserialize, Serialize};

/// State of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EpochState {
    /// Its splits may be claimed.
    Open,
    /// Every split is committed.
    Sealed,
    /// The job's durable cursor is past it.
    Closed,
}

/// Sums over all splits of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct SealedTotals {
    pub splits: u32,
    /// Elements delivered.
    pub rows: u64,
    /// Batches, the last partial one included if it is delivered.
    pub batches: u64,
    /// Source records left out, those of poison splits included.
    pub skipped: u64,
    pub object_bytes: u64,
}

impl SealedTotals {
    /// Adds the committed splits of `bundle`.
    pub fn add(&mut self, bundle: &Bundle) {
        for CommittedSplit { outcome, .. } in bundle.entries.iter().flatten() {
            self.splits += 1;
            self.rows += u64::from(outcome.rows);
            self.skipped += u64::from(outcome.skipped_records);
            if outcome.kind == SplitKind::Object {
                self.object_bytes += outcome.object_bytes;
            }
        }
    }
}

/// One epoch as the table holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EpochItem {
    pub state: EpochState,
    pub seed: u64,
    /// Written once, at the seal.
    pub totals: Option<SealedTotals>,
}

/// OPEN. Refuses with [`TransitionRefusal::Ended`] if the epoch is sealed or closed, and
/// [`TransitionRefusal::Invalid`] if it was opened with another seed.
pub fn open(
    before: Option<&EpochItem>,
    seed: u64,
) -> Result<TransitionOutcome<EpochItem>, TransitionRefusal> {
    match before {
        None => {
            Ok(TransitionOutcome::Write(EpochItem { state: EpochState::Open, seed, totals: None }))
        }
        Some(item) if item.seed != seed => {
            Err(TransitionRefusal::Invalid { what: "the epoch was opened with another seed" })
        }
        Some(item) => match item.state {
            EpochState::Open => Ok(TransitionOutcome::AlreadyApplied(*item)),
            EpochState::Sealed => Err(TransitionRefusal::Ended { state: "sealed" }),
            EpochState::Closed => Err(TransitionRefusal::Ended { state: "closed" }),
        },
    }
}

/// The inputs of an epoch's seal.
#[derive(Debug, Clone)]
pub struct SealTransition<'a> {
    /// Every bundle of the epoch in order, from a consistent query; an absent item is `None`.
    pub bundles: &'a [Option<&'a Bundle>],
    /// The totals of an epoch that is read from a cache: no worker claims its bundles.
    pub cached: Option<SealedTotals>,
    pub batch_size: u32,
    /// Whether a last partial batch is left out.
    pub drop_last: bool,
    /// Most records that an epoch may skip.
    pub max_skipped: u64,
}

/// SEAL: refused unless every bundle is done, or the epoch is read from a cache. Refuses with
/// [`TransitionRefusal::NotDone`], [`TransitionRefusal::TooManySkipped`];
/// [`TransitionRefusal::Invalid`] for an epoch never opened.
pub fn seal(
    before: Option<&EpochItem>,
    command: &SealTransition<'_>,
) -> Result<TransitionOutcome<EpochItem>, TransitionRefusal> {
    let before = before.ok_or(TransitionRefusal::Invalid { what: "the epoch was never opened" })?;
    if before.state != EpochState::Open {
        return Ok(TransitionOutcome::AlreadyApplied(*before));
    }
    let bundles = if command.cached.is_none() { command.bundles } else { &[] };
    let mut totals = command.cached.unwrap_or_default();
    for (index, bundle) in (0..).zip(bundles) {
        match bundle {
            Some(bundle) if bundle.state == BundleState::Done => totals.add(bundle),
            _ => return Err(TransitionRefusal::NotDone { bundle: index as BundleIndex }),
        }
    }
    if totals.skipped > command.max_skipped {
        let (skipped, max) = (totals.skipped, command.max_skipped);
        return Err(TransitionRefusal::TooManySkipped { skipped, max });
    }
    let (whole, left) = match command.cached {
        Some(totals) => (0, totals.rows),
        None => batches_and_rest(bundles),
    };
    let batch_size = u64::from(command.batch_size.max(1));
    totals.batches =
        whole + if command.drop_last { left / batch_size } else { left.div_ceil(batch_size) };
    let after = EpochItem { state: EpochState::Sealed, totals: Some(totals), ..*before };
    if command.cached.is_none() {
        let bundles = bundles.iter().copied();
        invariants::assert_holds(|| invariants::invariant_10_sealed_is_complete(&after, bundles));
    }
    Ok(TransitionOutcome::Write(after))
}

/// Whole batches of committed splits, and the rows that are left over to be joined. Whole batches may have several sizes.
fn batches_and_rest(bundles: &[Option<&Bundle>]) -> (u64, u64) {
    let entries = bundles.iter().flatten().flat_map(|bundle| bundle.entries.iter().flatten());
    let counts = entries.map(|entry| entry.outcome.counts());
    counts.fold((0, 0), |(batches, rows), counts| {
        (batches + u64::from(counts.batches), rows + u64::from(counts.remainder_rows))
    })
}

/// CLOSE: refused while the job's durable cursor is not past the last batch of `epoch`. Refuses
/// with [`TransitionRefusal::NotDurable`]; [`TransitionRefusal::Invalid`] for an epoch that is not
/// sealed.
pub fn close(
    before: Option<&EpochItem>,
    epoch: crate::Epoch,
    durable: Cursor,
) -> Result<TransitionOutcome<EpochItem>, TransitionRefusal> {
    let not_sealed = TransitionRefusal::Invalid { what: "the epoch is not sealed" };
    let before = before.ok_or(not_sealed.clone())?;
    let totals = match before.state {
        EpochState::Open => return Err(not_sealed),
        EpochState::Closed => return Ok(TransitionOutcome::AlreadyApplied(*before)),
        EpochState::Sealed => before.totals.unwrap_or_default(),
    };
    let end = Cursor { epoch, batch_index: totals.batches };
    if durable < end {
        return Err(TransitionRefusal::NotDurable { durable });
    }
    Ok(TransitionOutcome::Write(EpochItem { state: EpochState::Closed, ..*before }))
}

#[cfg(test)]
mod tests;
