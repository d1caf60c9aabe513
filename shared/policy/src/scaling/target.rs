//! Setting the target: within the limits, and once converged in one direction only.

use super::{Phase, Reason, Report, Settings, State, block::Block, thresholds::LOAD_CHANGE};

/// A move that follows from measurement: once converged it goes one way only, unless what is covered
/// is so far off that the load must have changed.
pub(super) fn move_refined(
    state: &mut State,
    report: &Report,
    settings: &Settings,
    wanted: u32,
    reason: Reason,
) -> Reason {
    let direction = (i64::from(wanted) - i64::from(state.target)).signum() as i8;
    let covered = match reason {
        Reason::Stalled { covered, .. } | Reason::Surplus { covered, .. } => covered,
        _ => 1.0,
    };
    let is_other_load = !LOAD_CHANGE.contains(&covered);
    if state.has_converged && direction != 0 {
        if state.direction == -direction && !is_other_load {
            state.phase = Phase::Converged;
            return Reason::Converged { covered, workers: state.target };
        }
        state.direction = direction;
        if is_other_load {
            // What follows is a search of its own.
            state.has_converged = false;
            state.direction = 0;
        }
    }
    if !state.has_converged {
        state.phase = Phase::Scaling;
    }
    move_to(state, report, settings, wanted, reason)
}

/// Sets the target within the limits, and begins to measure anew where it differs.
pub(super) fn move_to(
    state: &mut State,
    report: &Report,
    settings: &Settings,
    wanted: u32,
    reason: Reason,
) -> Reason {
    let (most, limit) = settings.cap();
    let granted = state.throttle.granted.unwrap_or(u32::MAX);
    let target = wanted.clamp(1, most.min(granted).max(1));
    if target != state.target {
        if state.of_load.is_none() {
            state.work.restart();
            state.work_settled_at = report.batches.saturating_add(report.ahead_batches);
        }
        state.target = target;
        state.since_move_s = 0.0;
        state.decisions = state.decisions.saturating_add(1);
        state.settled_at = report.batches.saturating_add(report.ahead_batches);
        state.block = Block::default();
        state.short_handed = 0;
    }
    match reason {
        Reason::Throttled { .. } => reason,
        _ if wanted > target && granted < most => Reason::Throttled { granted },
        _ if wanted > target => Reason::Limited { limit, wanted, workers: target },
        Reason::StepChanged { before_s, after_s, .. } => {
            Reason::StepChanged { before_s, after_s, workers: target }
        }
        Reason::WorkerChanged { before_s, after_s, .. } => {
            Reason::WorkerChanged { before_s, after_s, workers: target }
        }
        _ => reason,
    }
}
