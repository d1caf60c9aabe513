//! Invariants, each stated once, under its number in the protocol's list.
//!
//! Three users: the transitions of this crate check every step they make (in builds with debug
//! assertions, which the release profile keeps on for this crate), the model checker every state it
//! reaches, and the simulation every state it passes. Numbers 15, 17 and 18 are about caches, key
//! names and memory, which are not in this crate's state. Numbers 24 to 27
//! are not in use.

mod bundles;
mod progress;
mod ranks;

pub use bundles::*;
pub use progress::*;
pub use ranks::*;

use crate::splits::collect::{ChunkName, CollectionDecision};
use crate::splits::epoch::{EpochItem, EpochState, SealedTotals};
use crate::splits::{
    Bundle, BundleState, CommittedSplit, JobProgress, ReaderProgress, SplitKind, SplitPlace,
};
use crate::{Epoch, Position};
use std::collections::BTreeMap;
use std::fmt;

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InvariantViolation {
    /// Its number in the protocol's list.
    pub number: u8,
    /// The observation, one line.
    pub what: &'static str,
}

impl fmt::Display for InvariantViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}", self.number, self.what)
    }
}

/// Whether an invariant holds.
pub type InvariantCheck = Result<(), InvariantViolation>;

fn hold(number: u8, holds: bool, what: &'static str) -> InvariantCheck {
    holds.then_some(()).ok_or(InvariantViolation { number, what })
}

/// One epoch of a [`SystemView`].
#[derive(Debug, Clone)]
pub struct EpochView<'a> {
    pub epoch: Epoch,
    pub item: Option<&'a EpochItem>,
    /// Every bundle with its first position, in order; an absent item is `None`.
    pub bundles: Vec<(Position, Option<&'a Bundle>)>,
}

impl EpochView<'_> {
    fn entries(&self) -> impl Iterator<Item = (Position, &CommittedSplit)> {
        let of = |(first, bundle): &(Position, Option<_>)| (*first, *bundle);
        self.bundles
            .iter()
            .map(of)
            .filter_map(|(first, bundle): (_, Option<&Bundle>)| {
                bundle.map(|bundle| (first, bundle))
            })
            .flat_map(|(first, bundle)| {
                (first..).zip(&bundle.entries).filter_map(|(at, entry)| Some((at, entry.as_ref()?)))
            })
    }
}

/// The whole state, as an omniscient observer sees it.
#[derive(Debug, Clone)]
pub struct SystemView<'a> {
    pub epochs: Vec<EpochView<'a>>,
    pub progress: &'a [JobProgress],
    /// The stored objects, with the CRC32C of their content.
    pub objects: &'a BTreeMap<ChunkName, u32>,
}

// ---- objects

/// 5. A committed object that is not durably acknowledged exists, and its checksum matches.
pub fn invariant_05_needed_objects_exist(world: &SystemView<'_>) -> InvariantCheck {
    let durable = world.progress.iter().map(|c| c.durable_place).min().unwrap_or_default();
    for view in &world.epochs {
        for (position, entry) in view.entries() {
            let place = SplitPlace { epoch: view.epoch, position };
            if entry.outcome.kind != SplitKind::Object || place < durable {
                continue;
            }
            let CommittedSplit { attempt, nonce, .. } = *entry;
            let name = ChunkName { epoch: view.epoch, position, attempt, nonce };
            let found = world.objects.get(&name);
            hold(5, found.is_some(), "a committed object that is still needed is gone")?;
            hold(
                5,
                found == Some(&entry.outcome.crc32c),
                "a committed object has another content",
            )?;
        }
    }
    Ok(())
}

/// 6. Nothing at or above a durable cursor, or of a bundle that is not done, is deleted. `bundle`
///    and `progress` are those at the time of the deletion, not of the decision.
pub fn invariant_06_only_useless_objects_go(
    object: &ChunkName,
    verdict: CollectionDecision,
    bundle: Option<&Bundle>,
    first: Position,
    progress: &[JobProgress],
) -> InvariantCheck {
    let entry = object
        .position
        .checked_sub(first)
        .and_then(|at| u8::try_from(at).ok())
        .and_then(|at| bundle?.entry(at));
    let committed = entry.is_some_and(|entry| {
        (entry.outcome.kind, entry.attempt, entry.nonce)
            == (SplitKind::Object, object.attempt, object.nonce)
    });
    let place = SplitPlace { epoch: object.epoch, position: object.position };
    let durable = progress.iter().map(|c| c.durable_place).min().unwrap_or_default();
    hold(6, !committed || place < durable, "an object above a durable cursor was deleted")?;
    let done = bundle.is_some_and(|bundle| bundle.state == BundleState::Done);
    let orphan = !committed && verdict != CollectionDecision::Keep;
    hold(6, !orphan || done, "an object of a bundle that is not done was deleted")
}

// ---- epochs

/// 10. No epoch is sealed with a split that is not committed, and its totals count every split.
pub fn invariant_10_sealed_is_complete<'a>(
    item: &EpochItem,
    bundles: impl IntoIterator<Item = Option<&'a Bundle>>,
) -> InvariantCheck {
    if item.state == EpochState::Open {
        return hold(10, item.totals.is_none(), "an open epoch has totals");
    }
    let mut splits = 0u32;
    for bundle in bundles {
        let done = bundle.filter(|bundle| bundle.state == BundleState::Done);
        hold(10, done.is_some(), "an epoch was sealed with a bundle that is not done")?;
        splits += done.map_or(0, |bundle| u32::try_from(bundle.entries.len()).unwrap_or(u32::MAX));
    }
    let counted = item.totals.is_some_and(|SealedTotals { splits: counted, .. }| counted == splits);
    hold(10, counted, "the totals of an epoch do not count its splits")
}

/// The invariants of every state.
pub fn world(world: &SystemView<'_>) -> InvariantCheck {
    invariant_05_needed_objects_exist(world)?;
    for view in &world.epochs {
        if let Some(item) = view.item {
            let bundles = view.bundles.iter().map(|(_, bundle)| *bundle);
            invariant_10_sealed_is_complete(item, bundles)?;
        }
    }
    for progress in world.progress {
        invariant_12_nobody_is_behind_the_horizon(None, progress)?;
    }
    Ok(())
}

// ---- as assertions inside the transitions

fn assert_holds(check: impl FnOnce() -> InvariantCheck) {
    if cfg!(debug_assertions)
        && let Err(violation) = check()
    {
        panic!("{violation}");
    }
}

pub(crate) fn check_bundle_step(before: Option<&Bundle>, after: &Bundle) {
    assert_holds(|| bundle_step(before, after));
}

pub(crate) fn check_progress_step(before: Option<&JobProgress>, after: &JobProgress) {
    assert_holds(|| progress_step(before, after));
}

pub(crate) fn check_reader_step(before: &ReaderProgress, after: &ReaderProgress) {
    assert_holds(|| invariant_21_reader_is_monotone(before, after));
}

pub(crate) fn check_epoch_step(after: &EpochItem, bundles: &[Option<&Bundle>]) {
    assert_holds(|| invariant_10_sealed_is_complete(after, bundles.iter().copied()));
}
