//! Invariants of bundles: their steps, and commits seen over time.

use super::{InvariantCheck, hold};
use crate::splits::{
    Bundle, BundleState, DeathRecord, POISON_STRIKES, SplitKind, SplitPlace, TransitionRefusal,
};
use crate::{Attempt, BundleIndex, Epoch, InvocationId, Nonce, Position};
use std::collections::BTreeMap;

/// 1. A committed entry never changes.
pub fn invariant_01_committed_never_changes(
    before: Option<&Bundle>,
    after: &Bundle,
) -> InvariantCheck {
    let Some(before) = before else { return Ok(()) };
    let kept = before
        .entries
        .iter()
        .zip(&after.entries)
        .all(|(before, after)| before.is_none() || before == after);
    hold(1, kept, "a committed entry changed")?;
    hold(1, before.entries.len() == after.entries.len(), "a bundle changed its size")?;
    let is_done = before.state == BundleState::Done;
    hold(1, !is_done || before == after, "a bundle that was done changed")
}

/// 3. Splits are committed only by the current (attempt, owner), while it holds the lease.
pub fn invariant_03_commits_only_by_the_owner(
    before: Option<&Bundle>,
    after: &Bundle,
) -> InvariantCheck {
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

/// 4. The attempt strictly increases with every claim, and changes with nothing else. A claim of a
///    bundle that was given back without a failure goes on with its attempt, under another nonce.
pub fn invariant_04_attempt_strictly_increases(
    before: Option<&Bundle>,
    after: &Bundle,
) -> InvariantCheck {
    let Some(before) = before else {
        return hold(4, after.attempt == 1, "a first claim was not attempt 1");
    };
    let same_lease = before.attempt == after.attempt
        && before.owner == after.owner
        && before.invocation == after.invocation;
    let goes_on = before.state == BundleState::Returned
        && before.attempt == after.attempt
        && before.owner != after.owner;
    let claimed = (goes_on || before.attempt.checked_add(1) == Some(after.attempt))
        && after.state == BundleState::Leased
        && after.current_split.is_none();
    hold(4, same_lease || claimed, "the owner changed without a new attempt")?;
    let revived =
        same_lease && after.state == BundleState::Leased && before.state != BundleState::Leased;
    hold(4, !revived, "a lease that had ended came back")
}

/// 14, as one step shows it: a split becomes poison only by a claim that finds at least three
/// deaths in a row on it, the last of a worker that had lived through a control.
pub fn invariant_14_poison_needs_strikes(
    before: Option<&Bundle>,
    after: &Bundle,
) -> InvariantCheck {
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
) -> InvariantCheck {
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
) -> InvariantCheck {
    let released = bundle.state == BundleState::Released;
    hold(14, !released || reported(&bundle.invocation), "the lease of a living worker was released")
}

/// 16, as far as one bundle shows it: attempts are bounded.
pub fn invariant_16_attempts_are_bounded(bundle: &Bundle, max_attempts: Attempt) -> InvariantCheck {
    hold(16, bundle.attempt <= max_attempts, "more attempts than the job allows")
}

/// The invariants of every step of a bundle.
pub fn bundle_step(before: Option<&Bundle>, after: &Bundle) -> InvariantCheck {
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
    seen: &mut BTreeMap<SplitPlace, (SplitKind, Attempt, Nonce)>,
    epoch: Epoch,
    first: Position,
    bundle: &Bundle,
) -> InvariantCheck {
    for (position, entry) in (first..).zip(&bundle.entries) {
        let Some(entry) = entry else { continue };
        let committed = (entry.outcome.kind, entry.attempt, entry.nonce);
        let known = *seen.entry(SplitPlace { epoch, position }).or_insert(committed);
        hold(2, known == committed, "two results were committed for one split")?;
    }
    Ok(())
}

/// 13. An applied write is never reported as failed: a flush whose commits are all in the table is
///     answered with success.
pub fn invariant_13_applied_is_never_failed<T>(
    applied: bool,
    answer: &Result<T, TransitionRefusal>,
) -> InvariantCheck {
    hold(13, !applied || answer.is_ok(), "a commit that was applied was reported as failed")
}
