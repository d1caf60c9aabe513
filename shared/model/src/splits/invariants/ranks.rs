//! Invariants of runs with several ranks.

use super::{InvariantCheck, hold};
use crate::splits::ranks::{KnownBatches, RunRanks, TailPolicy, TrainingStep};
use crate::splits::{Cursor, JobProgress, ReaderProgress};

/// 19. All ranks of a run take equally many steps in each epoch. `steps` holds the number of each
///     rank that has reached the end of the epoch.
pub fn invariant_19_ranks_take_equal_steps(tail: TailPolicy, steps: &[u64]) -> InvariantCheck {
    let equal = tail == TailPolicy::Uneven || steps.windows(2).all(|pair| pair[0] == pair[1]);
    hold(19, equal, "a rank took a step that another lacks")
}

/// 20. A batch goes to one rank of a run, marked repeats aside. `earlier` is the rank that took it
///     before.
pub fn invariant_20_batch_goes_to_one_rank(earlier: Option<u32>, rank: u32) -> InvariantCheck {
    hold(20, earlier.is_none_or(|earlier| earlier == rank), "two ranks took one batch")
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
