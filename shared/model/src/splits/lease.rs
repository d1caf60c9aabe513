//! Transitions of a lease: mark, flush, fail and give back by its owner; release and lapse by others.
//!
//! Safety does not depend on time: the current (attempt, owner) may commit, however late, until
//! another worker claims the bundle. From then on only the new owner may.

use crate::splits::bundle::error_line;
use crate::splits::claim::{LeaseTerm, lease_until_ms};
use crate::splits::invariants;
use crate::splits::{
    Bundle, BundleState, CommittedSplit, SplitCommit, SplitKind, TransitionOutcome,
    TransitionRefusal, WorkerTimes,
};
use crate::{Attempt, InvocationId, Nonce};

/// The delay in milliseconds before a retry after a transient failure of `attempt`: 100 ms,
/// doubling up to 10 s.
pub fn retry_delay_ms(attempt: Attempt) -> u64 {
    100u64.checked_shl(attempt.saturating_sub(1).min(16)).unwrap_or(u64::MAX).min(10_000)
}

/// Says that a split is about to be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkTransition {
    pub attempt: Attempt,
    pub nonce: Nonce,
    /// Index in the bundle.
    pub split_index: u8,
}

/// MARK: required before each split from attempt 2 on. Only one split is marked at a time: the
/// marked one must be committed before the next, so that a late copy of an old mark cannot blame
/// the wrong split.
///
/// # Errors
/// [`TransitionRefusal::Lost`], [`TransitionRefusal::Contradiction`], [`TransitionRefusal::Invalid`].
pub fn mark(
    before: Option<&Bundle>,
    command: &MarkTransition,
) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
    let before = before
        .filter(|bundle| bundle.is_leased_to(command.attempt, command.nonce))
        .ok_or(TransitionRefusal::Lost)?;
    let mut after = before.clone();
    set_current(&mut after, command.split_index)?;
    invariants::check_bundle_step(Some(before), &after);
    Ok(TransitionOutcome::new(Some(before), after))
}

fn set_current(bundle: &mut Bundle, split_index: u8) -> Result<(), TransitionRefusal> {
    match bundle.entries.get(usize::from(split_index)) {
        None => {
            return Err(TransitionRefusal::Invalid {
                what: "mark is beyond the end of the bundle",
            });
        }
        Some(Some(_)) => {
            return Err(TransitionRefusal::Contradiction {
                split_index,
                what: "it cannot be started again",
            });
        }
        Some(None) => {}
    }
    match bundle.current_split {
        Some(marked) if marked != split_index => Err(TransitionRefusal::Contradiction {
            split_index: marked,
            what: "it is marked: commit it first",
        }),
        _ => {
            bundle.current_split = Some(split_index);
            Ok(())
        }
    }
}

/// Commits splits and renews the lease; without commits it only renews.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FlushTransition<'a> {
    pub attempt: Attempt,
    pub nonce: Nonce,
    pub commits: &'a [SplitCommit],
    /// The split to start next, if it is to be marked; saves a MARK.
    pub next: Option<u8>,
    pub term: LeaseTerm,
    /// Time spent since the last flush.
    pub times: WorkerTimes,
}

/// FLUSH applies all of its commits or none. It is still allowed after the lease ran out, until
/// another worker claims.
///
/// A flush that is sent again after its answer was lost is recognised by its commits, even when the
/// bundle has another owner by then. So `AlreadyApplied` does not imply that the lease still holds.
///
/// # Errors
/// [`TransitionRefusal::Lost`], [`TransitionRefusal::Contradiction`], [`TransitionRefusal::Invalid`].
pub fn flush(
    before: Option<&Bundle>,
    command: &FlushTransition<'_>,
) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
    let before = before.ok_or(TransitionRefusal::Lost)?;
    let mut after = before.clone();
    let mut added = false;
    for commit in command.commits {
        let SplitCommit { split_index, outcome } = *commit;
        if outcome.kind == SplitKind::Poison {
            return Err(TransitionRefusal::Invalid { what: "no worker commits poison" });
        }
        let entry = CommittedSplit { attempt: command.attempt, nonce: command.nonce, outcome };
        let slot = after
            .entries
            .get_mut(usize::from(split_index))
            .ok_or(TransitionRefusal::Invalid { what: "commit is beyond the end of the bundle" })?;
        match slot {
            Some(committed) if *committed == entry => {}
            // Poison has the attempt of a worker that was presumed dead, but may live.
            Some(committed)
                if committed.outcome.kind != SplitKind::Poison
                    && committed.attempt == command.attempt
                    && committed.nonce == command.nonce =>
            {
                let what = "the same attempt reports another result";
                return Err(TransitionRefusal::Contradiction { split_index, what });
            }
            // Committed by another attempt: the lease is lost, unless the caller holds it.
            Some(_) if before.is_leased_to(command.attempt, command.nonce) => {
                let what = "by an earlier attempt: it is not to be redone";
                return Err(TransitionRefusal::Contradiction { split_index, what });
            }
            Some(_) => return Err(TransitionRefusal::Lost),
            None => {
                *slot = Some(entry);
                added = true;
            }
        }
    }
    if !added && !command.commits.is_empty() {
        return Ok(TransitionOutcome::AlreadyApplied(before.clone()));
    }
    if !before.is_leased_to(command.attempt, command.nonce) {
        return Err(TransitionRefusal::Lost);
    }
    let committed = |split_index: u8| after.entry(split_index).is_some();
    let current_done = after.current_split.is_some_and(committed);
    let suspect_done = after.suspect.is_some_and(|suspect| committed(suspect.split_index));
    if current_done {
        after.current_split = None;
    }
    if suspect_done {
        after.suspect = None;
    }
    if let Some(next) = command.next {
        set_current(&mut after, next)?;
    }
    after.until_ms = after.until_ms.max(lease_until_ms(command.term));
    if added {
        after.since_ms = after.since_ms.max(command.term.now_ms);
        after.times = after.times.plus(command.times);
    }
    if after.is_complete() {
        after.state = BundleState::Done;
        after.error = None;
    }
    invariants::check_bundle_step(Some(before), &after);
    Ok(TransitionOutcome::new(Some(before), after))
}

/// Gives a bundle back after a failure the worker survived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FailTransition<'a> {
    pub attempt: Attempt,
    pub nonce: Nonce,
    /// One line; cut to 200 bytes.
    pub error: &'a str,
    /// When it may be claimed again; see [`retry_delay_ms`].
    pub retry_at_ms: u64,
    /// A retry cannot succeed (a bad record under policy `fail`, a changed file): the job fails.
    pub fatal: bool,
}

/// FAIL: the bundle becomes failed, or dead if the failure is fatal. Its committed splits stay
/// committed.
///
/// # Errors
/// [`TransitionRefusal::Lost`].
pub fn fail(
    before: Option<&Bundle>,
    command: &FailTransition<'_>,
) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
    let before = before.ok_or(TransitionRefusal::Lost)?;
    let same_lease = before.attempt == command.attempt && before.owner == command.nonce;
    let failed = matches!(before.state, BundleState::Failed | BundleState::Dead);
    if same_lease && failed {
        return Ok(TransitionOutcome::AlreadyApplied(before.clone()));
    }
    if !before.is_leased_to(command.attempt, command.nonce) {
        return Err(TransitionRefusal::Lost);
    }
    let mut after = before.clone();
    after.current_split = None;
    after.error = Some(error_line(command.error));
    if command.fatal {
        after.state = BundleState::Dead;
    } else {
        after.state = BundleState::Failed;
        after.retry_at_ms = command.retry_at_ms;
    }
    invariants::check_bundle_step(Some(before), &after);
    Ok(TransitionOutcome::Write(after))
}

/// Gives a bundle back without a failure: its owner has no room for more results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GiveBackTransition {
    pub attempt: Attempt,
    pub nonce: Nonce,
}

/// GIVE BACK: the bundle may be claimed at once. Its committed splits stay committed, no attempt is
/// counted, and no split is suspected for it.
///
/// # Errors
/// [`TransitionRefusal::Lost`].
pub fn give_back(
    before: Option<&Bundle>,
    command: &GiveBackTransition,
) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
    let GiveBackTransition { attempt, nonce } = *command;
    let before = before
        .filter(|bundle| (bundle.attempt, bundle.owner) == (attempt, nonce))
        .ok_or(TransitionRefusal::Lost)?;
    match before.state {
        BundleState::Returned => Ok(TransitionOutcome::AlreadyApplied(before.clone())),
        BundleState::Leased => {
            let state = BundleState::Returned;
            let after = Bundle { state, current_split: None, ..before.clone() };
            invariants::check_bundle_step(Some(before), &after);
            Ok(TransitionOutcome::Write(after))
        }
        BundleState::Released | BundleState::Failed | BundleState::Done | BundleState::Dead => {
            Err(TransitionRefusal::Lost)
        }
    }
}

/// The platform reported that an invocation died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReleaseTransition<'a> {
    pub invocation: &'a InvocationId,
    /// The attempt that it held, if the reporter knows it.
    pub attempt: Option<Attempt>,
    /// The worker did not fail; its host went away. The split that it was running is not suspected.
    pub blameless: bool,
}

/// RELEASE: the bundle may be claimed at once. Only a lease of this very invocation is changed, so
/// that a late or wrong report does no harm. `current_split` is kept for the next claimant, unless
/// the end was blameless.
///
/// # Errors
/// [`TransitionRefusal::Lost`]: the invocation holds no lease of this bundle; nothing to do.
pub fn release(
    before: Option<&Bundle>,
    command: &ReleaseTransition<'_>,
) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
    let before = before
        .filter(|bundle| bundle.invocation == *command.invocation)
        .filter(|bundle| command.attempt.is_none_or(|attempt| attempt == bundle.attempt))
        .ok_or(TransitionRefusal::Lost)?;
    match before.state {
        BundleState::Released => Ok(TransitionOutcome::AlreadyApplied(before.clone())),
        BundleState::Leased => {
            let current_split = before.current_split.filter(|_| !command.blameless);
            let after = Bundle { state: BundleState::Released, current_split, ..before.clone() };
            invariants::check_bundle_step(Some(before), &after);
            Ok(TransitionOutcome::Write(after))
        }
        BundleState::Failed | BundleState::Done | BundleState::Dead | BundleState::Returned => {
            Err(TransitionRefusal::Lost)
        }
    }
}

/// Ends the lease of a worker that has most likely died: it is silent while others make progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LapseTransition {
    /// The lease as it was seen.
    pub attempt: Attempt,
    pub until_ms: u64,
    pub now_ms: u64,
}

/// LAPSE: the lease ends as if its time had run out, unless it was renewed since it was read. Its
/// owner may still commit until another worker claims.
///
/// # Errors
/// [`TransitionRefusal::Lost`]: there is no such lease any more.
pub fn lapse(
    before: Option<&Bundle>,
    command: &LapseTransition,
) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
    let is_seen =
        |bundle: &&Bundle| (bundle.state, bundle.attempt) == (BundleState::Leased, command.attempt);
    let before = before.filter(is_seen).ok_or(TransitionRefusal::Lost)?;
    if before.until_ms <= command.now_ms {
        return Ok(TransitionOutcome::AlreadyApplied(before.clone()));
    }
    if before.until_ms != command.until_ms {
        return Err(TransitionRefusal::Lost);
    }
    let after = Bundle { until_ms: command.now_ms, ..before.clone() };
    invariants::check_bundle_step(Some(before), &after);
    Ok(TransitionOutcome::Write(after))
}

#[cfg(test)]
mod tests;
