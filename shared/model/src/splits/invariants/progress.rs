//! Invariants of the job's progress, and of the batches that its trainer received.

use super::{InvariantCheck, hold};
use crate::splits::JobProgress;

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

/// The invariants of every step of a job's progress.
pub fn progress_step(before: Option<&JobProgress>, after: &JobProgress) -> InvariantCheck {
    invariant_11_ack_is_monotone(before, after)?;
    invariant_12_nobody_is_behind_the_horizon(before, after)?;
    super::invariant_22_superseded_runs_stay_superseded(before, after)
}
