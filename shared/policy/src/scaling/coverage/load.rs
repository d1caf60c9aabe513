//! Changes of load: another step time, or workers of another speed.

use super::{
    Phase, Reason, Settings, State, TrainingReport,
    block::Block,
    capacity::{Point, whole},
    crowd::Crowd,
    estimate::estimated,
    state::{Doubt, Following},
    target::move_to,
    thresholds::BACKPRESSURE,
    tracker::Tracker,
};

/// Change of the trainer's or a worker's time (in logarithm) that is a change of load; smaller ones are left to the
/// measured coverage.
const CHANGED: f64 = 0.2;
/// The same for workers that seem faster behind a full window: workers leave and return, and others may be faster.
const FASTER_BEHIND_WINDOW: f64 = 0.35;
/// Reports in which a small change may turn out to be large.
const DOUBT_REPORTS: u32 = 4;
/// Coverage below which a plateau is a real limit; a higher one may be due to deaths or a briefly full window.
const PLATEAU_LOW: f64 = 0.9;

/// Reacts to a change of the trainer's step or the workers' speed at once, in proportion.
pub(super) fn load_changed(
    state: &mut State,
    report: &TrainingReport,
    settings: &Settings,
    step_before: Option<f64>,
    work_before: Option<f64>,
) -> Option<Reason> {
    let step_before = step_before.filter(|before| distance(*before, state.step.mean) > CHANGED);
    let work_before = work_change(state, report, work_before);
    if step_before.is_none() && work_before.is_none() {
        return None;
    }
    let workers = state.target;
    let work_s = state.work.mean;
    state.knee = Tracker::default();
    if let Some(before_s) = work_before {
        state.covered_before = state.plateau_of_source();
        if let Some(of_load) = state.of_load.take() {
            (state.need, state.need_at) = (of_load.need, of_load.need_at);
        }
        state.need *= state.work.mean / before_s;
        state.need_work_s = state.work.mean;
        state.crowd = Crowd::default();
        state.forget_search();
    }
    let mut reason = Reason::WorkerChanged {
        before_s: work_before.unwrap_or_default(),
        after_s: state.work.mean,
        workers,
    };
    if let Some(before_s) = step_before {
        let after_s = state.step.mean;
        rescale(state, after_s / state.need_step_s.max(1e-12));
        reason = Reason::StepChanged { before_s, after_s, workers };
    }
    state.phase = Phase::Scaling;
    state.direction = 0;
    state.has_converged = false;
    state.block = Block::default();
    state.throttle = Default::default();
    state.of_load = None;
    let desired = desired(state, report, settings);
    if state.plateau.is_none() || step_before.is_some() {
        state.estimated = Some(0);
        state.fresh.restart();
        state.following = match work_before {
            Some(before_s) => Following::Work { before_s: before_s * report.lease() },
            None => {
                state.need_work_s = work_s;
                Following::Step
            }
        };
    }
    Some(move_to(state, report, settings, desired, reason))
}

/// Difference of two durations, in logarithm.
fn distance(before: f64, after: f64) -> f64 {
    (after / before).ln().abs()
}

/// The workers' time before a change of load, if there was one. A smaller change is decided by the next reports: the
/// first one mixes splits from before and after.
fn work_change(state: &mut State, report: &TrainingReport, noticed: Option<f64>) -> Option<f64> {
    if let Some(before_s) = noticed {
        state.doubt = Some(Doubt { before_s, reports: DOUBT_REPORTS });
    }
    // Right after a move there is no average yet.
    let Doubt { before_s, reports } = state.doubt.filter(|_| state.work.samples >= 2)?;
    let after_s = state.work.mean;
    let noise = if report.window_full > BACKPRESSURE && after_s < before_s {
        FASTER_BEHIND_WINDOW
    } else {
        CHANGED
    };
    // A move of the target explains a change in proportion to the count at most: workers wait for each other.
    let moved = state
        .of_load
        .map_or(0.0, |of_load| distance(f64::from(of_load.target), f64::from(state.target)));
    let has_changed = distance(before_s, after_s) > noise + moved;
    state.doubt = (!has_changed && reports > 1).then_some(Doubt { before_s, reports: reports - 1 });
    has_changed.then_some(before_s)
}

/// Restates what was learnt for a step that takes `ratio` times as long.
pub(super) fn rescale(state: &mut State, ratio: f64) {
    state.need /= ratio;
    if let Some(of_load) = &mut state.of_load {
        of_load.need /= ratio;
    }
    state.need_step_s *= ratio;
    for point in [&mut state.low, &mut state.high, &mut state.at_work].into_iter().flatten() {
        point.covered *= ratio;
    }
    state.covered_before =
        state.covered_before.map(|covered| covered * ratio).filter(|covered| *covered < 1.0);
    // A limit that hardly mattered does not predict what a faster trainer would meet.
    let plateau = state.plateau.filter(|best| best.covered < PLATEAU_LOW);
    let is_knee = state.following.is_any() || state.phase == Phase::Converged;
    if let (Some(best), Some(high), true) = (plateau, state.high, is_knee)
        && best.covered * ratio >= 1.0
    {
        // The former limit no longer applies; below it capacity was proportional to the count.
        state.need = high.ray(1.0);
        state.need_at = high.workers;
    }
    let restated = plateau.map(|best| Point { covered: best.covered * ratio, ..best });
    state.plateau = restated.filter(|best| best.covered < 1.0);
    if state.plateau.is_none() {
        state.forget_search();
    }
}

/// The count that the search has arrived at.
fn desired(state: &State, report: &TrainingReport, settings: &Settings) -> u32 {
    match (state.plateau, state.high) {
        (Some(_), Some(high)) => whole(high.workers),
        _ => estimated(state, report, settings),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::state::OfLoad, *};

    /// 166 workers cover the 58 % that their source allows.
    fn at_the_knee(phase: Phase) -> State {
        State {
            phase,
            need: 340.0,
            need_step_s: 0.04,
            plateau: Some(Point { workers: 200.0, covered: 0.6 }),
            high: Some(Point { workers: 166.0, covered: 0.58 }),
            ..State::default()
        }
    }

    #[test]
    fn a_slower_trainer_needs_what_the_knee_was_worth() {
        let mut state = at_the_knee(Phase::Converged);
        rescale(&mut state, 2.0);
        assert_eq!(state.plateau, None, "1.2 times the demand is no limit");
        assert!((state.need - 166.0 / 1.16).abs() < 1e-6, "{}", state.need);
        // Not yet known to be the knee: the times count.
        let mut state = at_the_knee(Phase::Scaling);
        rescale(&mut state, 2.0);
        assert!((state.need - 170.0).abs() < 1e-6, "{}", state.need);
    }

    #[test]
    fn a_limit_that_still_holds_is_restated() {
        let mut state = at_the_knee(Phase::Converged);
        rescale(&mut state, 1.5);
        assert!(state.plateau.is_some_and(|best| (best.covered - 0.9).abs() < 1e-9));
        assert!((state.high.map_or(0.0, |high| high.covered) - 0.87).abs() < 1e-9);
    }

    /// 69 workers were right; then 80 were requested, and a batch takes `work_s`.
    fn moved_since(work_s: f64) -> (State, TrainingReport) {
        let of_load = Some(OfLoad { need: 70.0, need_at: 69.0, target: 69 });
        let mut state =
            State { target: 80, need: 90.0, need_step_s: 0.1, of_load, ..State::default() };
        state.step.add(0.1);
        state.work.add(work_s);
        state.work.add(work_s);
        (state, TrainingReport { batches: 5_000, ..TrainingReport::default() })
    }

    #[test]
    fn a_change_that_shows_after_a_move_is_one_of_what_was_known_before_it() {
        let (mut state, report) = moved_since(14.0);
        let reason = load_changed(&mut state, &report, &Settings::default(), None, Some(7.0));
        assert!(matches!(reason, Some(Reason::WorkerChanged { .. })), "{reason:?}");
        // Not 1.8 times the size of the move, which already followed the change.
        assert!((state.need - 140.0).abs() < 1e-9, "{}", state.need);
        assert_eq!(state.of_load, None);
    }

    #[test]
    fn what_the_move_explains_is_no_change() {
        let (mut state, report) = moved_since(7.0 * 1.3);
        let before = state;
        let reason = load_changed(&mut state, &report, &Settings::default(), None, Some(7.0));
        assert_eq!(reason, None, "they may wait for each other");
        assert_eq!(State { doubt: None, ..state }, before);
    }

    /// Workers took 0.9 s; the mean of two splits shows that they take `work_s`.
    fn noticed(work_s: f64, window_full: f64) -> (State, TrainingReport, Option<f64>) {
        let mut state = State { target: 9, ..State::default() };
        state.work.add(work_s);
        state.work.add(work_s);
        let report = TrainingReport { window_full, ..TrainingReport::default() };
        let before = work_change(&mut state, &report, Some(0.9));
        (state, report, before)
    }

    #[test]
    fn a_change_that_shows_only_in_part_is_one_once_it_shows_in_full() {
        let (mut state, report, before) = noticed(1.05, 0.0);
        assert_eq!(before, None, "17 % may be noise");
        state.work.mean = 1.4;
        assert_eq!(work_change(&mut state, &report, None), Some(0.9));
        assert_eq!(work_change(&mut state, &report, None), None, "it is reported once");
        let (mut state, report, _) = noticed(1.05, 0.0);
        for _ in 0..DOUBT_REPORTS {
            assert_eq!(work_change(&mut state, &report, None), None);
        }
        state.work.mean = 1.4;
        assert_eq!(
            work_change(&mut state, &report, None),
            None,
            "what comes later is noticed anew"
        );
    }

    #[test]
    fn behind_a_full_window_others_may_be_at_work() {
        assert_eq!(noticed(0.7, 0.0).2, Some(0.9));
        assert_eq!(noticed(0.7, 0.9).2, None);
        assert_eq!(noticed(0.45, 0.9).2, Some(0.9), "half is not by chance");
        assert_eq!(noticed(1.2, 0.9).2, Some(0.9), "slower ones are too few");
    }
}
