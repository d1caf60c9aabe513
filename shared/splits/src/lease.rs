//! Transitions of a bundle: claim, mark, flush, fail, release.
//!
//! Safety does not rest on time: whoever comes with the current (attempt, owner) may commit, however
//! late, until somebody else has claimed; from then on nobody but the new owner can.

use crate::bundle::error_line;
use crate::invariants;
use crate::{
    Bundle, BundleState, Death, Entry, EntryKind, MAX_BUNDLE_SPLITS, MAX_INVOCATION_BYTES, Metrics,
    Outcome, Refusal, Suspect,
};
use gristmill_types::{Attempt, ErrorPolicy, InvocationId, Nonce, Position};

/// Shortest lease that is not cut by the caller's remaining time: below this, ordinary jitter of
/// storage would let leases lapse.
const MIN_LEASE_MS: u64 = 30_000;
/// A worker that takes this many times what was predicted is taken for dead.
const LEASE_FACTOR: u64 = 4;
/// A worker's last call may be under way when its platform stops it.
const LEASE_GRACE_MS: u64 = 2_000;

/// What a job tolerates of its bundles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Claims of one bundle before the job fails.
    pub max_attempts: Attempt,
    /// Isolated deaths on one split before it counts as poison.
    pub poison_strikes: u8,
    /// How long a split that needs but one more strike is left alone. Meanwhile workers do other
    /// splits; if it is the host that kills them they die there, and the suspicion ends.
    pub isolation_ms: u64,
    /// What becomes of poison: fail the job, or skip the split's records.
    pub on_error: ErrorPolicy,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_attempts: 50,
            poison_strikes: 3,
            isolation_ms: 5_000,
            on_error: ErrorPolicy::Fail,
        }
    }
}

/// What a lease is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Term {
    pub now_ms: u64,
    /// Time until the platform stops the worker.
    pub remaining_ms: u64,
    /// Predicted time for what is left of the bundle, 0 when unknown.
    pub predicted_ms: u64,
}

/// When a lease taken or renewed now ends: min(remaining, max(30 s, 4 x predicted)) + 2 s.
pub fn lease_until_ms(term: Term) -> u64 {
    let wanted = term.predicted_ms.saturating_mul(LEASE_FACTOR).max(MIN_LEASE_MS);
    term.now_ms.saturating_add(wanted.min(term.remaining_ms)).saturating_add(LEASE_GRACE_MS)
}

/// How long to wait after a failure of `attempt` that may pass: 100 ms doubling up to 10 s.
pub fn retry_delay_ms(attempt: Attempt) -> u64 {
    100u64.checked_shl(attempt.saturating_sub(1).min(16)).unwrap_or(u64::MAX).min(10_000)
}

/// Asks for the lease of one bundle.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim<'a> {
    /// One worker that does one thing at a time; fresh per invocation.
    pub nonce: Nonce,
    pub invocation: &'a InvocationId,
    pub term: Term,
    /// The bundle's first position, for messages.
    pub first: Position,
    /// Source records of each position of the bundle, 1 to 8 of them.
    pub records: &'a [u32],
    /// The death of the last owner as the death log has it; see [`Refusal::DeathUnrecorded`].
    pub death: Option<Death>,
}

/// CLAIM. What is written is one of: a lease of the caller ([`Bundle::lease`]); a failed bundle whose
/// suspect is to be left alone for a while; a done one whose last open split proved to be poison; a
/// dead one. Committed splits carry over and are never redone.
///
/// # Errors
/// [`Refusal::Leased`], [`Refusal::NotDue`], [`Refusal::Done`], [`Refusal::Dead`],
/// [`Refusal::DeathUnrecorded`], [`Refusal::Invalid`].
pub fn claim(
    before: Option<&Bundle>,
    command: &Claim<'_>,
    limits: &Limits,
) -> Result<Outcome<Bundle>, Refusal> {
    let len = before.map_or(command.records.len(), |bundle| bundle.entries.len());
    if len != command.records.len() || !(1..=MAX_BUNDLE_SPLITS).contains(&len) {
        return Err(Refusal::Invalid { what: "a bundle has 1 to 8 splits and keeps its size" });
    }
    if command.invocation.0.len() > MAX_INVOCATION_BYTES {
        return Err(Refusal::Invalid { what: "invocation id is longer than 64 bytes" });
    }
    let Some(before) = before else {
        return Ok(Outcome::Write(lease(fresh(command), command)));
    };
    let now_ms = command.term.now_ms;
    match before.state {
        BundleState::Done => return Err(Refusal::Done),
        BundleState::Dead => {
            return Err(Refusal::Dead { error: before.error.clone().unwrap_or_default() });
        }
        BundleState::Leased if now_ms < before.until_ms => {
            return match before.owner == command.nonce {
                true => Ok(Outcome::AlreadyApplied(before.clone())),
                false => Err(Refusal::Leased { until_ms: before.until_ms }),
            };
        }
        BundleState::Failed if now_ms < before.retry_at_ms => {
            return Err(Refusal::NotDue { retry_at_ms: before.retry_at_ms });
        }
        BundleState::Leased | BundleState::Released | BundleState::Failed => {}
    }
    let mut after = before.clone();
    // An owner that claims its own bundle again is slow, not dead.
    if before.has_dead_owner(now_ms) && before.owner != command.nonce {
        let at = before.cur;
        let death = command.death.filter(|death| death.attempt == before.attempt);
        let Some(death) = death else {
            return Err(Refusal::DeathUnrecorded { attempt: before.attempt, at });
        };
        after.suspect = at.map(|at| struck(before.suspect, at, death.ordinal));
        settle(&mut after, command, limits);
    }
    let after = match after.state {
        BundleState::Leased | BundleState::Released | BundleState::Failed
            if before.attempt >= limits.max_attempts =>
        {
            let why = after.error.take().unwrap_or_else(|| "its workers died".to_owned());
            let error = format!(
                "splits from position {} on: given up after {} attempts: {why}",
                command.first, before.attempt
            );
            dead(after, &error)
        }
        BundleState::Failed if after.retry_at_ms > now_ms => after,
        BundleState::Leased | BundleState::Released | BundleState::Failed => lease(after, command),
        BundleState::Done | BundleState::Dead => after,
    };
    invariants::check_bundle_step(Some(before), &after);
    Ok(Outcome::Write(after))
}

fn fresh(command: &Claim<'_>) -> Bundle {
    Bundle {
        state: BundleState::Failed,
        attempt: 0,
        owner: command.nonce,
        invocation: command.invocation.clone(),
        until_ms: 0,
        retry_at_ms: 0,
        entries: vec![None; command.records.len()],
        cur: None,
        suspect: None,
        error: None,
        metrics: Metrics::default(),
    }
}

fn lease(mut bundle: Bundle, command: &Claim<'_>) -> Bundle {
    bundle.state = BundleState::Leased;
    bundle.attempt = bundle.attempt.saturating_add(1);
    bundle.owner = command.nonce;
    bundle.invocation = command.invocation.clone();
    bundle.until_ms = lease_until_ms(command.term);
    bundle.retry_at_ms = 0;
    bundle.cur = None;
    bundle
}

fn dead(mut bundle: Bundle, error: &str) -> Bundle {
    bundle.state = BundleState::Dead;
    bundle.cur = None;
    bundle.error = Some(error_line(error));
    bundle
}

/// The suspicion after one more death on `at`: it grows only if the death before was there too.
fn struck(before: Option<Suspect>, at: u8, ordinal: u64) -> Suspect {
    let run = before.filter(|s| s.at == at && s.ordinal.checked_add(1) == Some(ordinal));
    let strikes = run.map_or(0, |suspect| suspect.strikes).saturating_add(1);
    Suspect { at, strikes, ordinal }
}

/// Draws the consequence of a death: nothing yet, a pause before the decisive trial, or the verdict.
fn settle(after: &mut Bundle, command: &Claim<'_>, limits: &Limits) {
    let Some(suspect) = after.suspect else { return };
    let needed = limits.poison_strikes.max(1);
    let position = command.first.saturating_add(u32::from(suspect.at));
    if suspect.strikes >= needed {
        let records = command.records.get(usize::from(suspect.at)).copied().unwrap_or(0);
        if limits.on_error == ErrorPolicy::Fail {
            let error = format!(
                "split at position {position} ({records} records) killed its worker {} times in a \
                 row while no other split did: mend the data, or choose on-error skip",
                suspect.strikes
            );
            *after = dead(after.clone(), &error);
            return;
        }
        let entry = poison(after, records);
        if let Some(slot) = after.entries.get_mut(usize::from(suspect.at)) {
            *slot = Some(entry);
        }
        after.error = Some(error_line(&format!("split at position {position} is poison")));
        after.cur = None;
        if after.is_complete() {
            after.state = BundleState::Done;
        }
        // `after.suspect` stays beside the entry it explains until the next death.
    } else if suspect.strikes + 1 == needed && limits.isolation_ms > 0 {
        after.state = BundleState::Failed;
        after.cur = None;
        after.retry_at_ms = command.term.now_ms.saturating_add(limits.isolation_ms);
    }
}

fn poison(bundle: &Bundle, records: u32) -> Entry {
    Entry {
        kind: EntryKind::Poison,
        attempt: bundle.attempt,
        nonce: bundle.owner,
        bytes: 0,
        crc32c: 0,
        rows: 0,
        batches: 0,
        remainder: 0,
        skipped: records,
    }
}

/// Says that split `cur` is about to be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark {
    pub attempt: Attempt,
    pub nonce: Nonce,
    /// Index in the bundle.
    pub cur: u8,
}

/// MARK, needed from attempt 2 on before each split. One split at a time: the one marked before has
/// to be committed first, so that a late copy of an old mark cannot blame the wrong split.
///
/// # Errors
/// [`Refusal::Lost`], [`Refusal::Contradiction`], [`Refusal::Invalid`].
pub fn mark(before: Option<&Bundle>, command: &Mark) -> Result<Outcome<Bundle>, Refusal> {
    let before = before
        .filter(|bundle| bundle.is_leased_to(command.attempt, command.nonce))
        .ok_or(Refusal::Lost)?;
    let mut after = before.clone();
    set_cur(&mut after, command.cur)?;
    if after == *before {
        return Ok(Outcome::AlreadyApplied(after));
    }
    invariants::check_bundle_step(Some(before), &after);
    Ok(Outcome::Write(after))
}

fn set_cur(bundle: &mut Bundle, cur: u8) -> Result<(), Refusal> {
    match bundle.entries.get(usize::from(cur)) {
        None => return Err(Refusal::Invalid { what: "mark is beyond the end of the bundle" }),
        Some(Some(_)) => {
            return Err(Refusal::Contradiction { at: cur, what: "it cannot be started again" });
        }
        Some(None) => {}
    }
    match bundle.cur {
        Some(marked) if marked != cur => {
            Err(Refusal::Contradiction { at: marked, what: "it is marked: commit it first" })
        }
        _ => {
            bundle.cur = Some(cur);
            Ok(())
        }
    }
}

/// One finished split, as its worker reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Commit {
    /// Index in the bundle.
    pub at: u8,
    /// No object was put: the content is with the trainer's host.
    pub local: bool,
    pub bytes: u64,
    /// CRC32C of the content.
    pub crc32c: u32,
    pub rows: u32,
    pub batches: u32,
    /// Rows left over.
    pub remainder: u32,
    /// Records left out.
    pub skipped: u32,
}

impl Commit {
    fn entry(&self, attempt: Attempt, nonce: Nonce) -> Entry {
        Entry {
            kind: if self.local { EntryKind::Local } else { EntryKind::Object },
            attempt,
            nonce,
            bytes: self.bytes,
            crc32c: self.crc32c,
            rows: self.rows,
            batches: self.batches,
            remainder: self.remainder,
            skipped: self.skipped,
        }
    }
}

/// Commits splits and renews the lease; without commits it only renews.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Flush<'a> {
    pub attempt: Attempt,
    pub nonce: Nonce,
    pub commits: &'a [Commit],
    /// The split to be started next, if it is to be marked: saves a MARK.
    pub next: Option<u8>,
    pub term: Term,
    /// Spent since the last flush.
    pub spent: Metrics,
}

/// FLUSH: all of its commits or none. Still allowed after the lease ran out, if nobody has claimed.
///
/// Sent again after its answer was lost it is recognised by its commits, whoever owns the bundle by
/// then; `AlreadyApplied` does not say that the lease still holds.
///
/// # Errors
/// [`Refusal::Lost`], [`Refusal::Contradiction`], [`Refusal::Invalid`].
pub fn flush(before: Option<&Bundle>, command: &Flush<'_>) -> Result<Outcome<Bundle>, Refusal> {
    let before = before.ok_or(Refusal::Lost)?;
    let mut after = before.clone();
    let mut added = false;
    for commit in command.commits {
        let entry = commit.entry(command.attempt, command.nonce);
        let slot = after
            .entries
            .get_mut(usize::from(commit.at))
            .ok_or(Refusal::Invalid { what: "commit is beyond the end of the bundle" })?;
        match slot {
            Some(committed) if *committed == entry => {}
            Some(committed)
                if committed.attempt == command.attempt && committed.nonce == command.nonce =>
            {
                let what = "the same attempt reports another result";
                return Err(Refusal::Contradiction { at: commit.at, what });
            }
            // Someone else's: a lost lease, unless the caller does hold it.
            Some(_) if before.is_leased_to(command.attempt, command.nonce) => {
                let what = "by an earlier attempt: it is not to be redone";
                return Err(Refusal::Contradiction { at: commit.at, what });
            }
            Some(_) => return Err(Refusal::Lost),
            None => {
                *slot = Some(entry);
                added = true;
            }
        }
    }
    if !added && !command.commits.is_empty() {
        return Ok(Outcome::AlreadyApplied(before.clone()));
    }
    if !before.is_leased_to(command.attempt, command.nonce) {
        return Err(Refusal::Lost);
    }
    let committed = |at: u8| after.entry(at).is_some();
    let (cur_done, suspect_done) =
        (after.cur.is_some_and(committed), after.suspect.is_some_and(|s| committed(s.at)));
    if cur_done {
        after.cur = None;
    }
    if suspect_done {
        after.suspect = None;
    }
    if let Some(next) = command.next {
        set_cur(&mut after, next)?;
    }
    after.until_ms = after.until_ms.max(lease_until_ms(command.term));
    if added {
        after.metrics = after.metrics.plus(command.spent);
    }
    if after.is_complete() {
        after.state = BundleState::Done;
        after.error = None;
    }
    if after == *before {
        return Ok(Outcome::AlreadyApplied(after));
    }
    invariants::check_bundle_step(Some(before), &after);
    Ok(Outcome::Write(after))
}

/// Gives a bundle back after a failure the worker survived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fail<'a> {
    pub attempt: Attempt,
    pub nonce: Nonce,
    /// One line; cut to 200 bytes.
    pub error: &'a str,
    /// When it may be claimed again; see [`retry_delay_ms`].
    pub retry_at_ms: u64,
    /// Trying again cannot help (a bad record under policy `fail`, a changed file): the job fails.
    pub fatal: bool,
}

/// FAIL: the bundle becomes failed, or dead if the failure is fatal. What is committed stays.
///
/// # Errors
/// [`Refusal::Lost`].
pub fn fail(before: Option<&Bundle>, command: &Fail<'_>) -> Result<Outcome<Bundle>, Refusal> {
    let before = before.ok_or(Refusal::Lost)?;
    let same_lease = before.attempt == command.attempt && before.owner == command.nonce;
    let failed = matches!(before.state, BundleState::Failed | BundleState::Dead);
    if same_lease && failed {
        return Ok(Outcome::AlreadyApplied(before.clone()));
    }
    if !before.is_leased_to(command.attempt, command.nonce) {
        return Err(Refusal::Lost);
    }
    let mut after = before.clone();
    after.cur = None;
    after.error = Some(error_line(command.error));
    if command.fatal {
        after.state = BundleState::Dead;
    } else {
        after.state = BundleState::Failed;
        after.retry_at_ms = command.retry_at_ms;
    }
    invariants::check_bundle_step(Some(before), &after);
    Ok(Outcome::Write(after))
}

/// The platform reported that an invocation died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Release<'a> {
    pub invocation: &'a InvocationId,
    /// The attempt it held, where the reporter knows.
    pub attempt: Option<Attempt>,
}

/// RELEASE: the bundle may be claimed at once. Nothing but the lease of that very invocation is
/// touched, so that a late or wrong report does no harm. `cur` stays for the claimant to find.
///
/// # Errors
/// [`Refusal::Lost`]: the invocation holds no lease of this bundle; nothing to do.
pub fn release(before: Option<&Bundle>, command: &Release<'_>) -> Result<Outcome<Bundle>, Refusal> {
    let before = before
        .filter(|bundle| bundle.invocation == *command.invocation)
        .filter(|bundle| command.attempt.is_none_or(|attempt| attempt == bundle.attempt))
        .ok_or(Refusal::Lost)?;
    match before.state {
        BundleState::Released => Ok(Outcome::AlreadyApplied(before.clone())),
        BundleState::Leased => {
            let after = Bundle { state: BundleState::Released, ..before.clone() };
            invariants::check_bundle_step(Some(before), &after);
            Ok(Outcome::Write(after))
        }
        BundleState::Failed | BundleState::Done | BundleState::Dead => Err(Refusal::Lost),
    }
}

#[cfg(test)]
mod tests;
