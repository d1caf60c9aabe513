//! Invariants, each stated once, under its number in the protocol's list.
//!
//! Three users: the transitions of this crate check every step they make (in builds with debug
//! assertions, which the release profile keeps on for this crate), the model checker every state it
//! reaches, and the simulation every state it passes. Numbers 15, 17 and 18 are about caches, key
//! names and memory, which are not in this crate's state. Numbers 24 to 27
//! are not in use.

use crate::{
    Attempt, BundleIndex, Epoch, InvocationId, Nonce, Position,
    splits::{
        Bundle, BundleState, CommittedSplit, Cursor, DeathRecord, JobProgress, POISON_STRIKES,
        ReaderProgress, SplitKind, SplitPlace, TransitionRefusal,
        collect::{ChunkName, CollectionDecision},
        epoch::{EpochItem, EpochState, SealedTotals},
        ranks::{KnownBatches, RunRanks, TailPolicy, TrainingStep},
    },
};
use std::{collections::BTreeMap, fmt};

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
        let present = self.bundles.iter().filter_map(|(first, bundle)| Some((*first, (*bundle)?)));
        let entries = present.flat_map(|(first, bundle)| (first..).zip(&bundle.entries));
        entries.filter_map(|(at, entry)| Some((at, entry.as_ref()?)))
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
    decision: CollectionDecision,
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
    let orphan = !committed && decision != CollectionDecision::Keep;
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

pub(crate) fn assert_holds(check: impl FnOnce() -> InvariantCheck) {
    if cfg!(debug_assertions)
        && let Err(violation) = check()
    {
        panic!("{violation}");
    }
}

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

/// 14, against the order of deaths: the last three found by the time of the decision, at least, were all on this
/// very split, and before all but the first a control lived. `found` holds every death, in the order in which
/// they were found.
pub fn invariant_14_deaths_were_isolated(
    epoch: Epoch,
    bundle: BundleIndex,
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
    let decision = after.entry(suspect.split_index).map(|entry| entry.attempt);
    let latest = |found: &FoundDeath| is_here(found) && Some(found.death.attempt) == decision;
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

/// 7. A batch delivered again is the same batch.
pub fn invariant_07_replay_is_identical<T: PartialEq>(first: &T, again: &T) -> InvariantCheck {
    hold(7, first == again, "a batch delivered again differs")
}

/// 8. Exactly once: what was delivered and what was skipped together are the dataset, each record
///    once. `times` says how often each record was delivered or skipped, replays counted once.
pub fn invariant_08_exactly_once(times: impl IntoIterator<Item = u32>) -> InvariantCheck {
    for times in times {
        hold(8, times >= 1, "a record was neither delivered nor skipped")?;
        hold(8, times <= 1, "a record was delivered or skipped twice")?;
    }
    Ok(())
}

/// 9. At-most-once: no record of an epoch comes twice, even after deaths.
pub fn invariant_09_at_most_once(times: impl IntoIterator<Item = u32>) -> InvariantCheck {
    for times in times {
        hold(9, times <= 1, "a record was delivered twice")?;
    }
    Ok(())
}

/// 11. An ack is monotone within a generation, and generations only grow.
pub fn invariant_11_ack_is_monotone(
    before: Option<&JobProgress>,
    after: &JobProgress,
) -> InvariantCheck {
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
    before: Option<&JobProgress>,
    generation: u64,
    applied: bool,
) -> InvariantCheck {
    let old = before.is_some_and(|before| generation < before.generation);
    hold(11, !(old && applied), "an ack of an old generation was applied")
}

/// 12. No trainer falls behind what has been collected, and the horizon never goes back. Only a run
///     that begins at an older checkpoint starts behind it.
pub fn invariant_12_nobody_is_behind_the_horizon(
    before: Option<&JobProgress>,
    after: &JobProgress,
) -> InvariantCheck {
    let is_ahead =
        |of: &JobProgress| of.durable >= of.collected && of.durable_place >= of.collected_place;
    let is_of_before = |before: &JobProgress| before.generation == after.generation;
    let was_behind = before.is_some_and(|before| !is_of_before(before) || !is_ahead(before));
    hold(12, is_ahead(after) || was_behind, "a trainer fell behind the collected horizon")?;
    let kept = before.is_none_or(|before| {
        after.collected >= before.collected && after.collected_place >= before.collected_place
    });
    hold(12, kept, "the collected horizon went back")
}

/// 28. In order: no row is delivered before one that precedes it in the dataset.
pub fn invariant_28_in_order<T: PartialOrd>(places: &[T]) -> InvariantCheck {
    hold(28, places.is_sorted(), "a row was delivered before one that precedes it")
}

/// Invariant 29: what a job has cost, by the real durations of its invocations, is within its budget.
pub fn invariant_29_within_the_budget(spent: u64, cap: u64) -> InvariantCheck {
    hold(29, spent <= cap, "a job has cost more than its budget")
}

/// The invariants of every step of a job's progress.
pub fn progress_step(before: Option<&JobProgress>, after: &JobProgress) -> InvariantCheck {
    invariant_11_ack_is_monotone(before, after)?;
    invariant_12_nobody_is_behind_the_horizon(before, after)?;
    invariant_22_superseded_runs_stay_superseded(before, after)
}

/// 19. All ranks of a run take equally many steps in each epoch. `steps` holds the number of each
///     rank that has reached the end of the epoch.
pub fn invariant_19_ranks_take_equal_steps(tail: TailPolicy, steps: &[u64]) -> InvariantCheck {
    let equal = tail == TailPolicy::Uneven || steps.windows(2).all(|pair| pair[0] == pair[1]);
    hold(19, equal, "a rank took a step that another lacks")
}

/// 20. A batch goes to one data rank of a run, marked repeats aside: to one rank and its replicas. `earlier`
///     is the data rank that took it before.
pub fn invariant_20_batch_goes_to_one_rank(earlier: Option<u32>, data_rank: u32) -> InvariantCheck {
    hold(20, earlier.is_none_or(|earlier| earlier == data_rank), "two ranks took one batch")
}

/// 21. The job's durable cursor is at or below that of every rank of its generation. `durable` holds
///     what each rank has saved.
pub fn invariant_21_durable_for_every_rank(
    job: &JobProgress,
    durable: impl IntoIterator<Item = Cursor>,
) -> InvariantCheck {
    let holds = durable.into_iter().all(|durable| job.durable <= durable);
    hold(21, holds, "the job's progress is durable beyond a rank's checkpoint")
}

/// 21. Within a generation, a reader's progress never goes back, and a replaced reader never
///     returns.
pub fn invariant_21_reader_is_monotone(
    before: &ReaderProgress,
    after: &ReaderProgress,
) -> InvariantCheck {
    let is_later = after.generation > before.generation;
    let is_monotone = after.generation == before.generation
        && after.reader >= before.reader
        && after.ranks == before.ranks
        && after.delivered >= before.delivered
        && after.durable >= before.durable
        && after.durable_place >= before.durable_place;
    hold(21, is_later || is_monotone, "a reader's progress went back within a generation")
}

/// 22. A run has one number of ranks and one beginning; a superseded run changes nothing.
pub fn invariant_22_superseded_runs_stay_superseded(
    before: Option<&JobProgress>,
    after: &JobProgress,
) -> InvariantCheck {
    let Some(before) = before else { return Ok(()) };
    if before.generation == after.generation {
        let kept = before.run == after.run && before.past == after.past;
        return hold(22, kept, "a run changed");
    }
    // A reader of all ranks takes the place of an earlier one of the same run with a new generation.
    let remembered = before.run.is_none_or(|run| {
        let goes_on = after.run.is_some_and(|after| after == run);
        goes_on || after.past.contains(run.token)
    });
    hold(22, remembered, "a superseded run was forgotten")?;
    let returned = after.run.is_some_and(|run| before.past.contains(run.token));
    hold(22, !returned, "a superseded run took the job back")
}

/// 23. A step is released only whole: its batches are committed for all ranks, or the end of the
///     epoch is known.
pub fn invariant_23_step_is_released_whole(
    ranks: &RunRanks,
    step: TrainingStep,
    known: KnownBatches,
) -> InvariantCheck {
    let is_whole = known.is_all || known.count >= ranks.first_of(step.next());
    hold(23, is_whole, "a step was released before all of its batches were known")
}
