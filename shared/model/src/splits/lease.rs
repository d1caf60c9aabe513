//! Transitions of a lease: mark, flush, fail and give back by its owner; release and lapse by others.
//!
//! Safety does not depend on time: the current (attempt, owner) may commit, however late, until
//! another worker claims the bundle. From then on only the new owner may.

use crate::{
    Attempt, ErrorPolicy, InvocationId, Nonce, Position,
    splits::{
        Bundle, BundleState, CommittedSplit, DeathEvidence, MAX_BUNDLE_SPLITS,
        MAX_INVOCATION_BYTES, SplitCommit, SplitKind, SplitOutcome, SplitPlace, SuspectSplit,
        TransitionOutcome, TransitionRefusal, WorkerTimes, bundle::error_line, invariants,
    },
};

/// The delay in milliseconds before a retry after a transient failure of `attempt`: 100 ms,
/// doubling up to 10 s.
pub fn retry_delay_ms(attempt: Attempt) -> u64 {
    100u64.checked_shl(attempt.saturating_sub(1).min(16)).unwrap_or(u64::MAX).min(10_000)
}

/// The outcome of a command that changed `before` to `after`.
fn step(before: &Bundle, after: Bundle) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
    invariants::assert_holds(|| invariants::bundle_step(Some(before), &after));
    Ok(TransitionOutcome::new(Some(before), after))
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
/// the wrong split. Refuses with [`TransitionRefusal::Lost`], [`TransitionRefusal::Contradiction`],
/// [`TransitionRefusal::Invalid`].
pub fn mark(
    before: Option<&Bundle>,
    command: &MarkTransition,
) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
    let before = before
        .filter(|bundle| bundle.is_leased_to(command.attempt, command.nonce))
        .ok_or(TransitionRefusal::Lost)?;
    let mut after = before.clone();
    set_current(&mut after, command.split_index)?;
    step(before, after)
}

fn set_current(bundle: &mut Bundle, split_index: u8) -> Result<(), TransitionRefusal> {
    let entry = bundle.entries.get(usize::from(split_index));
    let beyond = TransitionRefusal::Invalid { what: "mark is beyond the end of the bundle" };
    if entry.ok_or(beyond)?.is_some() {
        let what = "it cannot be started again";
        return Err(TransitionRefusal::Contradiction { split_index, what });
    }
    if let Some(split_index) = bundle.current_split.filter(|marked| *marked != split_index) {
        let what = "it is marked: commit it first";
        return Err(TransitionRefusal::Contradiction { split_index, what });
    }
    bundle.current_split = Some(split_index);
    Ok(())
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
/// Refuses with [`TransitionRefusal::Lost`], [`TransitionRefusal::Contradiction`],
/// [`TransitionRefusal::Invalid`].
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
    let current_split = after.current_split.filter(|current| !committed(*current));
    let suspect = after.suspect.filter(|suspect| !committed(suspect.split_index));
    (after.current_split, after.suspect) = (current_split, suspect);
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
    step(before, after)
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
/// committed. Refuses with [`TransitionRefusal::Lost`].
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
    step(before, after)
}

/// GIVE BACK without a failure: its owner has no room for more results. The bundle may be claimed at once. Its committed
/// splits stay committed, no attempt is counted, and no split is suspected for it. Refuses with
/// [`TransitionRefusal::Lost`].
pub fn give_back(
    before: Option<&Bundle>,
    attempt: Attempt,
    nonce: Nonce,
) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
    let before = before
        .filter(|bundle| (bundle.attempt, bundle.owner) == (attempt, nonce))
        .ok_or(TransitionRefusal::Lost)?;
    match before.state {
        BundleState::Returned => Ok(TransitionOutcome::AlreadyApplied(before.clone())),
        BundleState::Leased => {
            let state = BundleState::Returned;
            let after = Bundle { state, current_split: None, ..before.clone() };
            step(before, after)
        }
        _ => Err(TransitionRefusal::Lost),
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
/// the end was blameless. Refuses with [`TransitionRefusal::Lost`]: the invocation holds no lease
/// of this bundle; nothing to do.
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
            step(before, after)
        }
        _ => Err(TransitionRefusal::Lost),
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
/// owner may still commit until another worker claims. Refuses with [`TransitionRefusal::Lost`]:
/// there is no such lease any more.
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
    step(before, after)
}

/// Shortest lease, unless the caller has less time left. Ordinary jitter of storage would let
/// shorter leases lapse.
const MIN_LEASE_MS: u64 = 30_000;
/// A worker is presumed dead when it takes this many times the predicted time.
const LEASE_FACTOR: u64 = 4;
/// A worker's last call may be under way when its platform stops it.
const LEASE_GRACE_MS: u64 = 2_000;

/// Fewest consecutive deaths on one split that can make it poison. Each worker but the first had
/// completed a control before.
pub const POISON_STRIKES: u8 = 3;

/// Half an hour: long enough to notice a full disk or a denied bucket, and to mend it.
const RETRY_MS: u64 = 30 * 60 * 1000;

/// Failure limits of a job's bundles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BundleRetryLimits {
    /// The job fails after this many claims of one bundle, once `retry_ms` has passed as well.
    pub max_attempts: Attempt,
    /// Shortest time that a bundle is retried without a commit. A failure that occurs at once, such
    /// as a write to a full store, uses up any number of attempts within minutes.
    pub retry_ms: u64,
    /// Strikes that make a split poison; a value below [`POISON_STRIKES`] counts as that.
    pub poison_strikes: u8,
    /// Policy for poison: fail the job, or skip the split's records.
    pub on_error: ErrorPolicy,
}

impl Default for BundleRetryLimits {
    fn default() -> Self {
        Self {
            max_attempts: 50,
            retry_ms: RETRY_MS,
            poison_strikes: POISON_STRIKES,
            on_error: ErrorPolicy::Fail,
        }
    }
}

/// The basis of a lease's duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseTerm {
    pub now_ms: u64,
    /// Time until the platform stops the worker.
    pub remaining_ms: u64,
    /// Predicted time for what is left of the bundle, 0 when unknown.
    pub predicted_ms: u64,
}

/// When a lease taken or renewed now ends: min(remaining, max(30 s, 4 x predicted)) + 2 s.
pub fn lease_until_ms(term: LeaseTerm) -> u64 {
    let lease_ms = term.predicted_ms.saturating_mul(LEASE_FACTOR).max(MIN_LEASE_MS);
    term.now_ms.saturating_add(lease_ms.min(term.remaining_ms)).saturating_add(LEASE_GRACE_MS)
}

/// Estimates when a lease that ends at `until_ms` was last taken or renewed, as if it were the
/// shortest. A longer lease was renewed earlier, one cut by the worker's remaining time later.
pub(crate) fn renewed_ms(until_ms: u64) -> u64 {
    until_ms.saturating_sub(MIN_LEASE_MS + LEASE_GRACE_MS)
}

/// Asks for the lease of one bundle.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimTransition<'a> {
    /// One worker that does one thing at a time; fresh per invocation.
    pub nonce: Nonce,
    pub invocation: &'a InvocationId,
    pub term: LeaseTerm,
    /// The bundle's first position, for messages.
    pub first: Position,
    /// Source records of each position of the bundle, 1 to 8 of them.
    pub records: &'a [u32],
    /// The death of this bundle's last owner, as recorded in the death log, never that of another
    /// bundle; see [`TransitionRefusal::DeathUnrecorded`].
    pub death: Option<DeathEvidence>,
    /// A committed split to serve as control, if there is one. An owner that starts with a suspect
    /// gets it.
    pub control: Option<SplitPlace>,
}

/// CLAIM writes one of: a lease of the caller; a done bundle whose last open
/// split proved to be poison; a dead bundle. Committed splits carry over and are never redone.
/// Refuses with [`TransitionRefusal::Leased`], [`TransitionRefusal::NotDue`],
/// [`TransitionRefusal::Done`], [`TransitionRefusal::Dead`], [`TransitionRefusal::Lost`],
/// [`TransitionRefusal::DeathUnrecorded`], [`TransitionRefusal::Invalid`].
pub fn claim(
    before: Option<&Bundle>,
    command: &ClaimTransition<'_>,
    limits: &BundleRetryLimits,
) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
    let len = before.map_or(command.records.len(), |bundle| bundle.entries.len());
    if len != command.records.len() || !(1..=MAX_BUNDLE_SPLITS).contains(&len) {
        let what = "a bundle has 1 to 8 splits and keeps its size";
        return Err(TransitionRefusal::Invalid { what });
    }
    if command.invocation.0.len() > MAX_INVOCATION_BYTES {
        return Err(TransitionRefusal::Invalid { what: "invocation id is longer than 64 bytes" });
    }
    let Some(before) = before else {
        let after = lease(fresh(command), command);
        invariants::assert_holds(|| invariants::bundle_step(None, &after));
        return Ok(TransitionOutcome::Write(after));
    };
    let now_ms = command.term.now_ms;
    if before.is_held_by(command.nonce) && now_ms < before.until_ms {
        return Ok(TransitionOutcome::AlreadyApplied(before.clone()));
    }
    check_claimable(before, command)?;
    let mut after = before.clone();
    // An owner that claims its own bundle again is slow, not dead.
    if before.has_dead_owner(now_ms) && before.owner != command.nonce {
        // Only a report of the platform is evidence against a split. A lease may also have run out
        // because a clock is wrong; that is no evidence, and clears the suspect.
        let split_index = before.current_split.filter(|_| before.state == BundleState::Released);
        let unrecorded =
            TransitionRefusal::DeathUnrecorded { attempt: before.attempt, split_index };
        let death = command.death.filter(|death| death.attempt == before.attempt);
        let ordinal = death.ok_or(unrecorded.clone())?.ordinal;
        let controlled = before.had_control();
        after.suspect = match split_index {
            Some(at) => Some(struck(before.suspect, at, ordinal.ok_or(unrecorded)?, controlled)),
            None => None,
        };
        settle(&mut after, command, limits);
    }
    let after = match after.state {
        BundleState::Leased | BundleState::Released | BundleState::Failed
            if before.attempt >= limits.max_attempts
                && now_ms.saturating_sub(before.since_ms) >= limits.retry_ms =>
        {
            let why = after.error.take().unwrap_or_else(|| "its workers died".to_owned());
            let error = format!(
                "splits from position {} on: given up after {} attempts, {} min without one that \
                 succeeded: {why}",
                command.first,
                before.attempt,
                now_ms.saturating_sub(before.since_ms) / 60_000
            );
            dead(after, &error)
        }
        BundleState::Done | BundleState::Dead => after,
        _ => lease(after, command),
    };
    step(before, after)
}

/// Refuses a claim of a bundle that nobody, or not this caller, may claim now.
fn check_claimable(
    before: &Bundle,
    command: &ClaimTransition<'_>,
) -> Result<(), TransitionRefusal> {
    let now_ms = command.term.now_ms;
    match before.state {
        BundleState::Done => Err(TransitionRefusal::Done),
        BundleState::Dead => {
            Err(TransitionRefusal::Dead { error: before.error.clone().unwrap_or_default() })
        }
        BundleState::Leased if now_ms < before.until_ms => {
            Err(TransitionRefusal::Leased { until_ms: before.until_ms })
        }
        BundleState::Failed if now_ms < before.retry_at_ms => {
            Err(TransitionRefusal::NotDue { retry_at_ms: before.retry_at_ms })
        }
        // Every claim has a nonce of its own: this is a late copy of the claim that was given back.
        BundleState::Returned if before.owner == command.nonce => Err(TransitionRefusal::Lost),
        _ => Ok(()),
    }
}

fn fresh(command: &ClaimTransition<'_>) -> Bundle {
    Bundle {
        state: BundleState::Failed,
        attempt: 0,
        owner: command.nonce,
        invocation: command.invocation.clone(),
        until_ms: 0,
        retry_at_ms: 0,
        since_ms: command.term.now_ms,
        entries: vec![None; command.records.len()],
        current_split: None,
        suspect: None,
        control: None,
        error: None,
        times: WorkerTimes::default(),
    }
}

fn lease(mut bundle: Bundle, command: &ClaimTransition<'_>) -> Bundle {
    // Giving back is no failure: marks, trials and the limit of attempts count failures.
    if bundle.state != BundleState::Returned {
        bundle.attempt = bundle.attempt.saturating_add(1);
    }
    bundle.state = BundleState::Leased;
    bundle.owner = command.nonce;
    bundle.invocation = command.invocation.clone();
    bundle.until_ms = lease_until_ms(command.term);
    bundle.retry_at_ms = 0;
    bundle.current_split = None;
    // Every other attempt starts with the suspect itself, without a control. Otherwise a fault in
    // step with worker starts would spare each control and hit each suspect.
    let in_turn = bundle.attempt % 2 == 1;
    bundle.control = command.control.filter(|_| in_turn && bundle.wants_control());
    bundle
}

fn dead(mut bundle: Bundle, error: &str) -> Bundle {
    bundle.state = BundleState::Dead;
    bundle.current_split = None;
    bundle.error = Some(error_line(error));
    bundle
}

/// The suspicion after one more death on a split. It grows only if the previous recorded death was
/// on the same split, and the worker had completed a control or another split before it died.
fn struck(
    before: Option<SuspectSplit>,
    split_index: u8,
    ordinal: u64,
    controlled: bool,
) -> SuspectSplit {
    let run = before
        .filter(|s| s.split_index == split_index && s.ordinal.checked_add(1) == Some(ordinal));
    let strikes = run.map_or(1, |run| run.strikes.saturating_add(u8::from(controlled)));
    SuspectSplit { split_index, strikes, ordinal }
}

/// Applies the decision once a suspect has enough strikes.
fn settle(after: &mut Bundle, command: &ClaimTransition<'_>, limits: &BundleRetryLimits) {
    let Some(suspect) = after.suspect else { return };
    let needed = limits.poison_strikes.max(POISON_STRIKES);
    let position = command.first.saturating_add(u32::from(suspect.split_index));
    if suspect.strikes >= needed {
        let records = command.records.get(usize::from(suspect.split_index)).copied().unwrap_or(0);
        if limits.on_error == ErrorPolicy::Fail {
            let error = format!(
                "split at position {position} ({records} records) killed its worker {} times in a \
                 row, and each survived another split just before: correct the data, or choose \
                 on-error skip",
                suspect.strikes
            );
            *after = dead(after.clone(), &error);
            return;
        }
        let outcome = SplitOutcome::poisoned(records);
        let entry = CommittedSplit { attempt: after.attempt, nonce: after.owner, outcome };
        if let Some(slot) = after.entries.get_mut(usize::from(suspect.split_index)) {
            *slot = Some(entry);
        }
        after.error = Some(error_line(&format!("split at position {position} is poison")));
        after.current_split = None;
        if after.is_complete() {
            after.state = BundleState::Done;
        }
        // `after.suspect` stays beside the entry it explains until the next death.
    }
}

/// REVIVE: a bundle that was given up may be claimed again, because the job goes on after it has failed. Its suspect is
/// suspected anew. Refuses with [`TransitionRefusal::Invalid`] for a bundle that was never claimed.
pub fn revive(
    before: Option<&Bundle>,
    now_ms: u64,
) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
    let before =
        before.ok_or(TransitionRefusal::Invalid { what: "a bundle that was never claimed" })?;
    if before.state != BundleState::Dead {
        return Ok(TransitionOutcome::AlreadyApplied(before.clone()));
    }
    let after = Bundle {
        state: BundleState::Failed,
        retry_at_ms: 0,
        since_ms: now_ms,
        suspect: None,
        control: None,
        ..before.clone()
    };
    step(before, after)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod claim_tests;
