//! Sets the target: within the limits, and in one direction only once converged.

use super::{
    Phase, Reason, Settings, State, TrainingReport, block::Block, state::OfLoad,
    thresholds::LOAD_CHANGE,
};

/// A count that exceeds the allowed one by this factor is certainly too high.
const FAR: f64 = 1.2;

/// Moves the target as measurements ask. Once converged it moves in one direction only, unless coverage is so far off
/// that the load must have changed.
pub(super) fn move_refined(
    state: &mut State,
    report: &TrainingReport,
    settings: &Settings,
    desired: u32,
    reason: Reason,
) -> Reason {
    let direction = (i64::from(desired) - i64::from(state.target)).signum() as i8;
    let covered = match reason {
        Reason::Stalled { covered, .. } | Reason::Surplus { covered, .. } => covered,
        _ => 1.0,
    };
    // With few workers a neighbouring whole number may look far off without a change of load.
    let needed = f64::from(state.target) / covered;
    let is_other_need = |of_load: OfLoad| !LOAD_CHANGE.contains(&(needed / of_load.need));
    let is_other_load = !LOAD_CHANGE.contains(&covered) && state.of_load.is_none_or(is_other_need);
    if state.has_converged && direction != 0 {
        if state.direction == -direction && !is_other_load {
            state.phase = Phase::Converged;
            return Reason::Converged { covered, workers: state.target };
        }
        state.direction = direction;
        if is_other_load {
            // A search of its own follows.
            state.has_converged = false;
            state.direction = 0;
        }
    }
    if !state.has_converged {
        state.phase = Phase::Scaling;
    }
    move_to(state, report, settings, desired, reason)
}

/// Sets the target within the limits, and restarts the measurement if it changed.
pub(super) fn move_to(
    state: &mut State,
    report: &TrainingReport,
    settings: &Settings,
    desired: u32,
    reason: Reason,
) -> Reason {
    let (most, limit) = settings.cap();
    let granted = state.throttle.granted.unwrap_or(u32::MAX);
    let enough = settings.enough();
    // Far above the limit, the fewest equivalent to the most allowed are enough; a target in between stays.
    let allowed = match state.target {
        _ if desired <= most => desired,
        at if (enough..=most).contains(&at) => at,
        _ if f64::from(desired) > FAR * f64::from(most) => enough,
        _ => most,
    };
    let target = allowed.clamp(1, granted.max(1));
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
        _ if desired > target && granted < most => Reason::Throttled { granted },
        _ if desired > target => Reason::Limited { limit, desired, workers: target },
        Reason::StepChanged { before_s, after_s, .. } => {
            Reason::StepChanged { before_s, after_s, workers: target }
        }
        Reason::WorkerChanged { before_s, after_s, .. } => {
            Reason::WorkerChanged { before_s, after_s, workers: target }
        }
        _ => reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two workers, though one was enough but for measurement noise; the target has gone up once.
    fn at_two(need: f64) -> State {
        let of_load = Some(OfLoad { need, need_at: 1.0, target: 2 });
        State {
            target: 2,
            phase: Phase::Converged,
            has_converged: true,
            direction: 1,
            of_load,
            ..State::default()
        }
    }

    #[test]
    fn the_other_whole_number_is_no_other_load() {
        let reason = || Reason::Surplus { covered: 1.95, from: 2, workers: 1 };
        let moved = |need: f64| {
            let mut state = at_two(need);
            move_refined(&mut state, &TrainingReport::default(), &Settings::default(), 1, reason());
            state.target
        };
        assert_eq!(moved(1.03), 2, "it was known that 1.03 are needed");
        assert_eq!(moved(2.0), 1, "half of what was needed");
    }

    #[test]
    fn of_what_is_allowed_as_many_as_are_enough() {
        let settings = Settings { max_workers: 200, ..Settings::default() };
        assert_eq!(settings.enough(), 195);
        let limited = |from: u32, desired: u32| {
            let mut state = State { target: from, ..State::default() };
            let reason = Reason::Retry { workers: desired };
            let reason =
                move_to(&mut state, &TrainingReport::default(), &settings, desired, reason);
            assert!(matches!(reason, Reason::Limited { .. }) == (desired > 200), "{reason}");
            state.target
        };
        assert_eq!(limited(10, 190), 190);
        assert_eq!(limited(10, 210), 200, "fewer may be needed than it seems");
        assert_eq!(limited(10, 300), 195);
        assert_eq!([limited(197, 210), limited(197, 300)], [197, 197]);
        assert_eq!(limited(250, 210), 200, "the limit was lowered");
    }
}
