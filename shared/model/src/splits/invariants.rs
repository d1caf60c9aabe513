//! Invariants, each stated once, under its number in the protocol's list.
//!
//! Three users: the transitions of this crate check every step they make (in builds with debug
//! assertions, which the release profile keeps on for this crate), the model checker every state it
//! reaches, and the simulation every state it passes. Numbers 9, 15, 17 and 18 are about visitation
//! modes, caches, key names and memory, which are not in this crate's state.

use crate::splits::collect::{ChunkName, Verdict};
use crate::splits::epoch::{EpochItem, EpochState, Totals};
use crate::splits::{
    Bundle, BundleState, Committed, Consumer, DeathRecord, POISON_STRIKES, Place, Refusal,
    SplitKind,
};
use crate::{Attempt, BundleIndex, Epoch, InvocationId, Nonce, Position};
use std::collections::BTreeMap;
use std::fmt;

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Violation {
    /// Its number in the protocol's list.
    pub number: u8,
    /// The observation, one line.
    pub what: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}", self.number, self.what)
    }
}

/// Whether an invariant holds.
pub type Check = Result<(), Violation>;

fn hold(number: u8, holds: bool, what: &'static str) -> Check {
    holds.then_some(()).ok_or(Violation { number, what })
}

/// One epoch of a [`World`].
#[derive(Debug, Clone)]
pub struct EpochView<'a> {
    pub epoch: Epoch,
    pub item: Option<&'a EpochItem>,
    /// Every bundle with its first position, in order; an absent item is `None`.
    pub bundles: Vec<(Position, Option<&'a Bundle>)>,
}

impl EpochView<'_> {
    fn entries(&self) -> impl Iterator<Item = (Position, &Committed)> {
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
pub struct World<'a> {
    pub epochs: Vec<EpochView<'a>>,
    pub consumers: &'a [Consumer],
    /// The stored objects, with the CRC32C of their content.
    pub objects: &'a BTreeMap<ChunkName, u32>,
}

// ---- steps of one bundle

/// 1. A committed entry never changes.
pub fn invariant_01_committed_never_changes(before: Option<&Bundle>, after: &Bundle) -> Check {
    let Some(before) = before else { return Ok(()) };
    let kept = before
        .entries
        .iter()
        .zip(&after.entries)
        .all(|(before, after)| before.is_none() || before == after);
    hold(1, kept, "a committed entry changed")?;
    hold(1, before.entries.len() == after.entries.len(), "a bundle changed its size")?;
    let ended = matches!(before.state, BundleState::Done | BundleState::Dead);
    hold(1, !ended || before == after, "a bundle that had ended changed")
}

/// 3. Splits are committed only by the current (attempt, owner), while it holds the lease.
pub fn invariant_03_commits_only_by_the_owner(before: Option<&Bundle>, after: &Bundle) -> Check {
    let fresh = (0u8..).zip(&after.entries).filter_map(|(at, entry)| {
        let entry = entry.as_ref().filter(|entry| entry.outcome.kind != SplitKind::Poison)?;
        before.and_then(|before| before.entry(at)).is_none().then_some(entry)
    });
    for entry in fresh {
        let owned = before.is_some_and(|before| before.is_leased_to(entry.attempt, entry.nonce));
        hold(3, owned, "a split was committed without its lease")?;
    }
    Ok(())
}

/// 4. The attempt strictly increases with every claim, and changes with nothing else.
pub fn invariant_04_attempt_strictly_increases(before: Option<&Bundle>, after: &Bundle) -> Check {
    let Some(before) = before else {
        return hold(4, after.attempt == 1, "a first claim was not attempt 1");
    };
    let same_lease = before.attempt == after.attempt
        && before.owner == after.owner
        && before.invocation == after.invocation;
    let claimed = before.attempt.checked_add(1) == Some(after.attempt)
        && after.state == BundleState::Leased
        && after.current_split.is_none();
    hold(4, same_lease || claimed, "the owner changed without a new attempt")?;
    let revived =
        same_lease && after.state == BundleState::Leased && before.state != BundleState::Leased;
    hold(4, !revived, "a lease that had ended came back")
}

/// 14, as one step shows it: a split becomes poison only by a claim that finds at least three
/// deaths in a row on it, the last of a worker that had lived through a control.
pub fn invariant_14_poison_needs_strikes(before: Option<&Bundle>, after: &Bundle) -> Check {
    for (at, entry) in (0u8..).zip(&after.entries) {
        let poisoned = entry.is_some_and(|entry| entry.outcome.kind == SplitKind::Poison);
        if !poisoned || before.is_some_and(|before| before.entry(at).is_some()) {
            continue;
        }
        let struck =
            after.suspect.is_some_and(|s| s.split_index == at && s.strikes >= POISON_STRIKES);
        hold(14, struck, "poison without three strikes")?;
        let controlled = before.is_some_and(Bundle::had_control);
        hold(14, controlled, "poison though no control lived")?;
        let marked = before.is_some_and(|before| before.current_split == Some(at));
        hold(14, marked, "poison on a split its dead owner had not marked")?;
    }
    let marks_open = after
        .current_split
        .is_none_or(|at| usize::from(at) < after.entries.len() && after.entry(at).is_none());
    hold(14, marks_open, "a committed split is marked as being worked on")
}

/// 14, against the order of deaths: the last three found by the time of the verdict, at least, were all on this
/// very split, and before all but the first a control lived. `found` holds every death, in the order in which
/// they were found.
pub fn invariant_14_deaths_were_isolated(
    (epoch, bundle): (Epoch, BundleIndex),
    after: &Bundle,
    found: &[FoundDeath],
) -> Check {
    let Some(suspect) = after.suspect else {
        return hold(14, false, "poison without a suspect");
    };
    let is_here = |found: &FoundDeath| {
        let FoundDeath { death, split_index, .. } = found;
        (death.epoch, death.bundle, *split_index) == (epoch, bundle, Some(suspect.split_index))
    };
    let verdict = after.entry(suspect.split_index).map(|entry| entry.attempt);
    let latest = |found: &FoundDeath| is_here(found) && Some(found.death.attempt) == verdict;
    let end = found.iter().rposition(latest).map_or(0, |last| last + 1);
    let last = end.checked_sub(usize::from(POISON_STRIKES)).and_then(|from| found.get(from..end));
    let isolated = last.is_some_and(|last| {
        last.iter().all(is_here)
            && last.windows(2).all(|pair| pair[0].death.attempt < pair[1].death.attempt)
    });
    hold(14, isolated, "poison though others died between the deaths on the split")?;
    let controls = found[..end].iter().rev().take_while(|found| is_here(found));
    let controls = controls.filter(|found| found.controlled).count();
    hold(14, controls + 1 >= usize::from(POISON_STRIKES), "poison though too few controls lived")
}

/// A death as the claim that accounted for it saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FoundDeath {
    pub death: DeathRecord,
    /// The split the dead owner had marked.
    pub split_index: Option<u8>,
    /// The owner had completed a control, or committed a split.
    pub controlled: bool,
}

/// 14: a lease ends early only for an invocation that was reported dead.
pub fn invariant_14_released_was_reported(
    bundle: &Bundle,
    reported: impl Fn(&InvocationId) -> bool,
) -> Check {
    let released = bundle.state == BundleState::Released;
    hold(14, !released || reported(&bundle.invocation), "the lease of a living worker was released")
}

/// 16, as far as one bundle shows it: attempts are bounded.
pub fn invariant_16_attempts_are_bounded(bundle: &Bundle, max_attempts: Attempt) -> Check {
    hold(16, bundle.attempt <= max_attempts, "more attempts than the job allows")
}

/// The invariants of every step of a bundle.
pub fn bundle_step(before: Option<&Bundle>, after: &Bundle) -> Check {
    invariant_01_committed_never_changes(before, after)?;
    invariant_03_commits_only_by_the_owner(before, after)?;
    invariant_04_attempt_strictly_increases(before, after)?;
    invariant_14_poison_needs_strikes(before, after)?;
    let complete = after.state == BundleState::Done;
    hold(10, complete == after.is_complete(), "done does not say that every split is committed")
}

// ---- commits seen over time

/// 2. At most one object is ever committed for one split of one epoch. `seen` collects them.
pub fn invariant_02_one_commit_per_split(
    seen: &mut BTreeMap<Place, (SplitKind, Attempt, Nonce)>,
    epoch: Epoch,
    first: Position,
    bundle: &Bundle,
) -> Check {
    for (position, entry) in (first..).zip(&bundle.entries) {
        let Some(entry) = entry else { continue };
        let committed = (entry.outcome.kind, entry.attempt, entry.nonce);
        let known = *seen.entry(Place { epoch, position }).or_insert(committed);
        hold(2, known == committed, "two results were committed for one split")?;
    }
    Ok(())
}

/// 13. An applied write is never reported as failed: a flush whose commits are all in the table is
///     answered with success.
pub fn invariant_13_applied_is_never_failed<T>(
    applied: bool,
    answer: &Result<T, Refusal>,
) -> Check {
    hold(13, !applied || answer.is_ok(), "a commit that was applied was reported as failed")
}

// ---- objects

/// 5. A committed object that is not durably acknowledged exists, and its checksum matches.
pub fn invariant_05_needed_objects_exist(world: &World<'_>) -> Check {
    let durable = world.consumers.iter().map(|c| c.durable_place).min().unwrap_or_default();
    for view in &world.epochs {
        for (position, entry) in view.entries() {
            let place = Place { epoch: view.epoch, position };
            if entry.outcome.kind != SplitKind::Object || place < durable {
                continue;
            }
            let Committed { attempt, nonce, .. } = *entry;
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
///    and `consumers` are those at the time of the deletion, not of the decision.
pub fn invariant_06_only_useless_objects_go(
    object: &ChunkName,
    verdict: Verdict,
    bundle: Option<&Bundle>,
    first: Position,
    consumers: &[Consumer],
) -> Check {
    let entry = object
        .position
        .checked_sub(first)
        .and_then(|at| u8::try_from(at).ok())
        .and_then(|at| bundle?.entry(at));
    let committed = entry.is_some_and(|entry| {
        (entry.outcome.kind, entry.attempt, entry.nonce)
            == (SplitKind::Object, object.attempt, object.nonce)
    });
    let place = Place { epoch: object.epoch, position: object.position };
    let durable = consumers.iter().map(|c| c.durable_place).min().unwrap_or_default();
    hold(6, !committed || place < durable, "an object above a durable cursor was deleted")?;
    let done = bundle.is_some_and(|bundle| bundle.state == BundleState::Done);
    let orphan = !committed && verdict != Verdict::Keep;
    hold(6, !orphan || done, "an object of a bundle that is not done was deleted")
}

// ---- consumers

/// 7. A batch delivered again is the same batch.
pub fn invariant_07_replay_is_identical<T: PartialEq>(first: &T, again: &T) -> Check {
    hold(7, first == again, "a batch delivered again differs")
}

/// 8. Exactly once: what was delivered and what was skipped together are the dataset, each record
///    once. `times` says how often each record was delivered or skipped, replays counted once.
pub fn invariant_08_exactly_once(times: impl IntoIterator<Item = u32>) -> Check {
    for times in times {
        hold(8, times >= 1, "a record was neither delivered nor skipped")?;
        hold(8, times <= 1, "a record was delivered or skipped twice")?;
    }
    Ok(())
}

/// 9. At-most-once: no record of an epoch comes twice, even after deaths.
pub fn invariant_09_at_most_once(times: impl IntoIterator<Item = u32>) -> Check {
    for times in times {
        hold(9, times <= 1, "a record was delivered twice")?;
    }
    Ok(())
}

/// 19. In order: no row is delivered before one that precedes it in the dataset.
pub fn invariant_19_in_order<T: PartialOrd>(places: &[T]) -> Check {
    hold(19, places.is_sorted(), "a row was delivered before one that precedes it")
}

/// 11. An ack is monotone within a generation, and generations only grow.
pub fn invariant_11_ack_is_monotone(before: Option<&Consumer>, after: &Consumer) -> Check {
    let Some(before) = before else { return Ok(()) };
    hold(11, after.generation >= before.generation, "an older generation took over")?;
    let monotone = after.durable >= before.durable
        && after.durable_place >= before.durable_place
        && after.delivered >= before.delivered;
    let same_run = after.generation == before.generation;
    hold(11, !same_run || monotone, "a cursor went back within a generation")
}

/// 11. An ack of an old generation has no effect.
pub fn invariant_11_old_generations_are_fenced(
    before: Option<&Consumer>,
    generation: u64,
    applied: bool,
) -> Check {
    let old = before.is_some_and(|before| generation < before.generation);
    hold(11, !(old && applied), "an ack of an old generation was applied")
}

/// 12. No consumer stands behind what has been collected, and the horizon never goes back.
pub fn invariant_12_nobody_is_behind_the_horizon(
    before: Option<&Consumer>,
    after: &Consumer,
) -> Check {
    let ahead = after.durable >= after.collected && after.durable_place >= after.collected_place;
    hold(12, ahead, "a consumer is behind the collected horizon")?;
    let kept = before.is_none_or(|before| {
        after.collected >= before.collected && after.collected_place >= before.collected_place
    });
    hold(12, kept, "the collected horizon went back")
}

/// The invariants of every step of a consumer.
pub fn consumer_step(before: Option<&Consumer>, after: &Consumer) -> Check {
    invariant_11_ack_is_monotone(before, after)?;
    invariant_12_nobody_is_behind_the_horizon(before, after)
}

// ---- epochs

/// 10. No epoch is sealed with a split that is not committed, and its totals count every split.
pub fn invariant_10_sealed_is_complete<'a>(
    item: &EpochItem,
    bundles: impl IntoIterator<Item = Option<&'a Bundle>>,
) -> Check {
    if item.state == EpochState::Open {
        return hold(10, item.totals.is_none(), "an open epoch has totals");
    }
    let mut splits = 0u32;
    for bundle in bundles {
        let done = bundle.filter(|bundle| bundle.state == BundleState::Done);
        hold(10, done.is_some(), "an epoch was sealed with a bundle that is not done")?;
        splits += done.map_or(0, |bundle| u32::try_from(bundle.entries.len()).unwrap_or(u32::MAX));
    }
    let counted = item.totals.is_some_and(|Totals { splits: counted, .. }| counted == splits);
    hold(10, counted, "the totals of an epoch do not count its splits")
}

/// The invariants of every state.
pub fn world(world: &World<'_>) -> Check {
    invariant_05_needed_objects_exist(world)?;
    for view in &world.epochs {
        if let Some(item) = view.item {
            let bundles = view.bundles.iter().map(|(_, bundle)| *bundle);
            invariant_10_sealed_is_complete(item, bundles)?;
        }
    }
    for consumer in world.consumers {
        invariant_12_nobody_is_behind_the_horizon(None, consumer)?;
    }
    Ok(())
}

// ---- as assertions inside the transitions

fn assert_holds(check: impl FnOnce() -> Check) {
    if cfg!(debug_assertions)
        && let Err(violation) = check()
    {
        panic!("{violation}");
    }
}

pub(crate) fn check_bundle_step(before: Option<&Bundle>, after: &Bundle) {
    assert_holds(|| bundle_step(before, after));
}

pub(crate) fn check_consumer_step(before: Option<&Consumer>, after: &Consumer) {
    assert_holds(|| consumer_step(before, after));
}

pub(crate) fn check_epoch_step(after: &EpochItem, bundles: &[Option<&Bundle>]) {
    assert_holds(|| invariant_10_sealed_is_complete(after, bundles.iter().copied()));
}
