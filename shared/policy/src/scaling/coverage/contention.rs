//! Searches for the fewest workers that reach the greatest possible throughput, if that is below the trainer's demand:
//! a shared source or store, the window, or the trainer's own host is the limit.
//!
//! A count that is enough and one that is too low enclose the answer. Below the knee coverage grows with the count, so
//! one count that is too low locates the knee; before one is known, the workers' own times do.

use super::{
    Phase, Reason, Settings, State, TrainingReport,
    block::{Block, Capacity},
    capacity::{Point, whole},
    refine::{converge, judge},
    target::move_refined,
    thresholds::{
        ALONE, BACKPRESSURE, CERTAIN, CERTAIN_CONVERGED, GAIN_CLEAR, GAIN_FULL, GAIN_NONE,
        LOAD_CHANGE, REPORTS_GOOD, REPORTS_MOST, STEP_CONTENDED, WAITING,
    },
};

/// Reports of a trainer that waits behind a full window before the wait counts as permanent. Its batch time is the
/// reference for all lower counts.
const REPORTS_HELD_BACK: u32 = 20;
/// A smaller stall behind a full window is ignored.
const STALL_SLIGHT: f64 = 0.02;
/// Least idle share of the count before fewer are tried.
const IDLE: f64 = 0.03;
/// Relative standard error of the workers at work.
const BUSY_ERROR: f64 = 0.008;
/// Share of time with a full window from which it is the limit, if its size agrees; and windows that must be consumed
/// before the workers at work are an average.
const WINDOW_FULL: f64 = 0.03;
const WINDOWS_FEWEST: f64 = 10.0;
/// Least share at work, of the most that the window keeps busy, for the window to be the reason that others are idle.
const WINDOW_AT_WORK: f64 = 0.5;
/// Further gain of a count far above what a window keeps busy.
const WINDOW_MORE: f64 = 0.02;
/// Share of the count at work below which the others have found nothing to do.
const AT_WORK: f64 = 0.85;
/// The same if the trainer waits behind a full window; and for a count that a window of its size keeps busy, where some
/// are idle occasionally.
const IDLE_HELD: f64 = 0.01;
const IDLE_WINDOW: f64 = 0.045;
/// Least ratio of two counts for their gain to be significant.
const GAIN_APART: f64 = 1.2;

/// The window is full, or something behind it is the limit: the mean number of busy workers is the count.
pub(super) fn held_back(
    state: &mut State,
    report: &TrainingReport,
    settings: &Settings,
    capacity: &Capacity,
) -> Reason {
    let (reports, workers) = (state.block.reports, state.target);
    let waits = capacity.stall > STALL_SLIGHT;
    // Workers come and go in waves here, so an average needs several. A converged count should not be moved by a
    // moment either.
    let is_slow = waits || state.has_converged;
    let fewest = if is_slow { REPORTS_HELD_BACK } else { REPORTS_GOOD };
    // If the window stays full of batches that the host has yet to receive, the workers at work are the answer.
    let is_vague = is_slow
        && (is_brief(state) || !capacity.is_exact())
        && reports < REPORTS_MOST
        && !fills_host(state, capacity);
    if reports < fewest || is_vague {
        return Reason::Measuring { reports, workers };
    }
    if state.plateau.is_some() {
        return search(state, report, settings, capacity);
    }
    let count = f64::from(workers);
    let is_full = lacks_work(capacity, count) || fills_window(state, report, capacity);
    let busy = if is_full { capacity.workers.clamp(1.0, count) } else { busy(capacity, count) };
    let known = if waits { 0.0 } else { state.above_low(busy, settings) };
    let enough = whole((busy * settings.goal()).max(known)).min(workers);
    let window_most = state.window_most(report);
    let is_of_window = (window_most - count).abs() < (0.03 * count).max(1.5);
    let idle = if !(waits && is_full) {
        IDLE
    } else if is_of_window && state.crowd.alone(count) == count {
        IDLE_WINDOW
    } else {
        IDLE_HELD
    };
    let is_less = enough < workers && count - busy > idle * count;
    if waits && state.has_converged {
        return converge(state, capacity);
    }
    if !is_less {
        // All workers are busy: coverage shows whether they are slightly too many. If they wait for each other they are
        // busy waiting, and fewer may do.
        return if waits && waiting(state) <= WAITING {
            converge(state, capacity)
        } else {
            judge(state, report, settings, capacity)
        };
    }
    let here = Point { workers: count, covered: 1.0 - capacity.stall };
    let covered = if waits { here.covered } else { count / busy };
    if waits {
        // Fewer may do; the next count will show.
        if is_full && waiting(state) <= WAITING && !capacity.is_fetch {
            return begin_window(state, report, settings, capacity);
        }
        state.begin_search(here, here);
    } else {
        state.learn(&Point { workers: count, covered });
    }
    let reason = Reason::Surplus { covered, from: workers, workers: enough };
    move_refined(state, report, settings, enough, reason)
}

/// Whether workers keep the window full while the trainer waits for its own host: then they are enough.
fn fills_host(state: &State, capacity: &Capacity) -> bool {
    capacity.is_fetch && capacity.full > BACKPRESSURE && state.at_work.is_none()
}

/// Whether the measurement of a count is too short to average the workers at work.
fn is_brief(state: &State) -> bool {
    let Block { reports, .. } = state.block;
    (state.block.batches() as f64) < WINDOWS_FEWEST * state.window_batches
        || reports < REPORTS_HELD_BACK
}

/// Whether the window allows no more than these workers to be useful.
pub(super) fn fills_window(state: &State, report: &TrainingReport, capacity: &Capacity) -> bool {
    capacity.full > WINDOW_FULL && f64::from(state.target) + 1.0 >= state.window_most(report)
}

/// The window limits the workers: from here on the workers at work determine a count's coverage.
fn begin_window(
    state: &mut State,
    report: &TrainingReport,
    settings: &Settings,
    capacity: &Capacity,
) -> Reason {
    let count = f64::from(state.target);
    let covered = 1.0 - capacity.stall;
    // A count that the window's size allows is slightly below the best of higher counts.
    let is_best = count > state.window_most(report) + 1.0;
    let best = if is_best { covered } else { covered * (1.0 + WINDOW_MORE) };
    let at_count = |covered: f64| Point { workers: count, covered };
    state.begin_search(at_count(best), at_count(covered));
    state.at_work = Some(Point { workers: capacity.workers.max(1.0), covered });
    let workers = below(state, report, settings, capacity).min(state.target);
    if workers == state.target {
        return converge(state, capacity);
    }
    let reason = Reason::Surplus { covered, from: state.target, workers };
    move_refined(state, report, settings, workers, reason)
}

/// Coverage of a count by its workers at work, if the window is the limit: their number has no noise but that of the
/// waves.
fn by_busy(state: &State, report: &TrainingReport, capacity: &Capacity) -> Capacity {
    let Some(at_work) = state.at_work else { return *capacity };
    let count = f64::from(state.target);
    let idle = (1.0 - capacity.workers / count).clamp(0.0, 1.0);
    let generation = report.generation(count);
    let waves = state.block.batches() as f64 / generation.max(1.0);
    let busy = capacity.workers.max(1.0);
    let covered = at_work.covered * state.crowd.alone(busy) / state.crowd.alone(at_work.workers);
    let error = covered * BUSY_ERROR.hypot(idle * (1.0 - idle) / waves.max(1.0));
    Capacity { covered, error, ..*capacity }
}

/// Whether workers are missing or idle because nothing can be claimed.
pub(super) fn lacks_work(capacity: &Capacity, count: f64) -> bool {
    capacity.full > BACKPRESSURE || capacity.workers < AT_WORK * count
}

/// Whether a full window still has a part of a lease for nearly every worker: more workers then take smaller parts, and
/// more of the window is being worked on.
pub(super) fn finds_parts(state: &State, capacity: &Capacity) -> bool {
    let count = f64::from(state.target);
    state.has_parts_of_leases
        && state.plateau.is_none()
        && capacity.stall > STALL_SLIGHT
        && capacity.workers >= AT_WORK * count
}

/// Workers of this count that had work.
fn busy(capacity: &Capacity, count: f64) -> f64 {
    if lacks_work(capacity, count) {
        capacity.workers.clamp(1.0, count)
    } else {
        (count * (1.0 - capacity.stall) / capacity.covered).clamp(1.0, count)
    }
}

/// Share of a worker's time spent waiting for others at shared resources.
pub(super) fn waiting(state: &State) -> f64 {
    match (state.alone_shared_s, state.block.shared_s()) {
        (Some(alone_s), Some((shared_s, total_s))) if shared_s > ALONE * alone_s => {
            ((shared_s - alone_s) / total_s).clamp(0.0, 1.0)
        }
        _ => 0.0,
    }
}

/// Coverage to aim for under contention.
fn plateau_goal(state: &State, settings: &Settings) -> f64 {
    match state.plateau {
        Some(best) if best.covered < 1.0 => best.covered / (1.0 + settings.tolerance()),
        _ => settings.goal(),
    }
}

/// Searches for the fewest workers that cover the plateau.
pub(super) fn search(
    state: &mut State,
    report: &TrainingReport,
    settings: &Settings,
    capacity: &Capacity,
) -> Reason {
    let capacity = &by_busy(state, report, capacity);
    let (reports, workers) = (state.block.reports, state.target);
    let here = Point { workers: f64::from(workers), covered: capacity.covered.min(1.0) };
    let goal = plateau_goal(state, settings);
    let distance = (capacity.covered - goal).abs();
    if state.at_work.is_some() && is_brief(state) && reports < REPORTS_MOST {
        return Reason::Measuring { reports, workers };
    }
    let fills_host = fills_host(state, capacity);
    let is_certain =
        distance >= CERTAIN * capacity.error || fills_host && reports >= REPORTS_HELD_BACK;
    if reports < REPORTS_GOOD || !is_certain && reports < REPORTS_MOST {
        return Reason::Measuring { reports, workers };
    }
    if state.phase == Phase::Converged {
        let is_same = LOAD_CHANGE.contains(&(capacity.covered / goal));
        if is_same || distance < CERTAIN_CONVERGED * capacity.error {
            return converge(state, capacity);
        }
        // Neither step nor worker times changed, yet coverage did: restart the search here.
        state.forget_search();
        state.learn(&here);
        return judge(state, report, settings, capacity);
    }
    state.tries += 1;
    if let Some(best) = &mut state.plateau {
        best.covered = best.covered.max(capacity.covered - capacity.error).min(1.0);
    }
    // When in doubt, fewer workers.
    let is_good =
        fills_host || capacity.covered >= goal - capacity.error.min(0.5 * settings.tolerance());
    if let Some(low) = state.low.filter(|low| !is_good && adds_nothing(low, &here, capacity.error))
    {
        // The presumed best is out of reach: take what both cover.
        state.plateau = Some(Point { covered: low.covered.max(here.covered), ..here });
        state.high = Some(low);
        state.low = None;
        let desired = whole(low.workers);
        let reason = Reason::Contention { from: workers, workers: desired };
        return move_refined(state, report, settings, desired, reason);
    }
    let slot = if is_good { &mut state.high } else { &mut state.low };
    *slot = Some(here);
    let high = state.high.unwrap_or(here);
    // Fewer workers lost coverage in proportion to their number, so the best is not a plateau. This holds up to a knee,
    // above which fewer workers do as well.
    let best = state.plateau.unwrap_or(Point { workers: 0.0, covered: 1.0 });
    let no_plateau =
        |low: &Point| best.workers > GAIN_APART * low.workers && low.gain(&best) > GAIN_FULL;
    if let Some(low) = state.low.filter(|low| !is_good && no_plateau(low)) {
        state.forget_search();
        state.learn(&low);
        let desired = whole(low.ray(settings.goal()).min(high.workers * STEP_CONTENDED));
        let reason = Reason::Stalled { covered: low.covered, from: workers, workers: desired };
        return move_refined(state, report, settings, desired, reason);
    }
    let desired = next_count(state, report, settings, capacity, &high);
    if desired == workers && is_good {
        return converge(state, capacity);
    }
    let reason = Reason::Contention { from: workers, workers: desired };
    move_refined(state, report, settings, desired, reason)
}

/// Whether more workers should have covered more, and certainly do not.
fn adds_nothing(fewer: &Point, more: &Point, error: f64) -> bool {
    let expected = fewer.covered * (more.workers / fewer.workers - 1.0);
    expected > GAIN_CLEAR * error && more.covered - fewer.covered < GAIN_NONE * expected
}

/// The next count to try, or the answer: between the highest too low and the lowest sufficient count.
fn next_count(
    state: &State,
    report: &TrainingReport,
    settings: &Settings,
    capacity: &Capacity,
    high: &Point,
) -> u32 {
    let goal = plateau_goal(state, settings);
    let most = whole(high.workers);
    let Some(low) = state.low else {
        return below(state, report, settings, capacity).clamp(1, most);
    };
    if high.workers - low.workers <= (settings.tolerance() * high.workers).max(1.0) {
        return most;
    }
    // A knee is where the ray says; if capacity bends slowly, it is nearer the chord.
    let desired = match state.tries {
        0..=2 => low.ray(goal),
        _ => (low.ray(goal) + low.chord(high, goal)) / 2.0,
    };
    whole(desired.max(low.workers + 1.0)).min(most)
}

/// If the window is the limit: 0 if all of fewer workers would be at work, 1 if they would be idle as much as here.
/// Derived from the gain of further workers once two counts are known.
fn idle_share(state: &State, report: &TrainingReport, here: &Point, at_work: &Point) -> f64 {
    let first_at = state.plateau.map_or(0.0, |best| best.workers);
    let first = Point { workers: first_at, covered: at_work.workers };
    // If most of the window is ready and not taken, idle workers are of no use at all.
    if here.covered < WINDOW_AT_WORK * state.window_most(report) {
        0.0
    } else if first.workers > here.workers {
        here.gain(&first).clamp(0.0, 1.0)
    } else {
        0.5
    }
}

/// The count to try below one that is enough, before any is known to be too low.
pub(super) fn below(
    state: &State,
    report: &TrainingReport,
    settings: &Settings,
    capacity: &Capacity,
) -> u32 {
    let count = f64::from(state.target);
    if let Some(at_work) = state.at_work {
        let desired = state.crowded(at_work.ray(plateau_goal(state, settings)), at_work.workers);
        let here = Point { workers: count, covered: capacity.workers.clamp(1.0, count) };
        let share = idle_share(state, report, &here, &at_work);
        return whole(desired + share * (here.ray(desired) - desired));
    }
    let waits = waiting(state);
    let knee = if lacks_work(capacity, count) {
        busy(capacity, count)
    } else if waits > WAITING {
        count * (1.0 - waits)
    } else if state.alone_shared_s.is_some() && waits > 0.0 {
        // It has no contention and still covers the best there is.
        return state.target;
    } else {
        // Between computing all the time and never waiting.
        let share = state.block.shared_s().map_or(0.0, |(shared_s, total_s)| shared_s / total_s);
        count * (1.0 - (share / 2.0).max(0.07))
    };
    // Low enough to be certainly too few, unless it is enough.
    whole(knee * settings.goal())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_parts(target: u32) -> State {
        let mut state = State { target, has_parts_of_leases: true, ..State::default() };
        state.block.reports = 30;
        state.low = Some(Point { workers: 20.0, covered: 0.89 });
        state
    }

    fn capacity(stall: f64, workers: f64) -> Capacity {
        Capacity {
            covered: 1.0 - stall,
            error: 0.005,
            stall,
            full: 0.9,
            workers,
            downstream: false,
            may_be_downstream: false,
            is_explained: true,
            is_fetch: false,
        }
    }

    #[test]
    fn a_count_that_was_too_few_is_not_tried_again_though_no_more_are_busy() {
        let settings = Settings::default();
        let mut state = of_parts(24);
        held_back(&mut state, &TrainingReport::default(), &settings, &capacity(0.0, 19.6));
        // 20 covered 89 %: 22 cover the goal.
        assert_eq!(state.target, 22);
        let mut state = State { has_parts_of_leases: false, ..of_parts(24) };
        held_back(&mut state, &TrainingReport::default(), &settings, &capacity(0.0, 19.6));
        assert_eq!(state.target, 20);
    }

    #[test]
    fn fewer_of_those_that_wait_for_the_window_are_idle_too() {
        let report = TrainingReport { lease_batches: 20, ..TrainingReport::default() };
        let tried = |leases: f64, target: u32, at_work: f64, plateau_at: f64| {
            let at_work_first = Point { workers: 5.0, covered: 0.5 };
            let state = State {
                target,
                window_batches: 20.0 * leases,
                plateau: Some(Point { workers: plateau_at, covered: 0.515 }),
                at_work: Some(at_work_first),
                ..State::default()
            };
            below(&state, &report, &Settings::default(), &capacity(0.5, at_work))
        };
        // Five of eight are at work: five to eight do as much.
        assert_eq!(tried(9.0, 8, 5.0, 8.0), 7);
        // A seventh brought nothing: five do.
        assert_eq!(tried(9.0, 7, 5.0, 8.0), 5);
        // Five of many leases: the others are ready and not taken.
        assert_eq!(tried(40.0, 8, 5.0, 8.0), 5);
    }

    #[test]
    fn those_that_keep_the_window_full_for_a_slow_host_are_enough() {
        let (report, settings) = (TrainingReport::default(), Settings::default());
        // 10 of 18 are at work; the trainer waits for batches in transit, and by noise longer with 10 workers.
        let host = |is_fetch: bool, covered: f64| Capacity {
            is_fetch,
            covered,
            ..capacity(1.0 - covered, 10.0)
        };
        let mut state = State { target: 18, ..State::default() };
        state.block.reports = REPORTS_HELD_BACK;
        held_back(&mut state, &report, &settings, &host(true, 0.55));
        assert_eq!((state.target, state.at_work), (10, None));
        let tried = |is_fetch: bool| {
            let mut state = state;
            state.block.reports = REPORTS_MOST;
            search(&mut state, &report, &settings, &host(is_fetch, 0.52));
            (state.phase, state.target)
        };
        assert_eq!(tried(true), (Phase::Converged, 10));
        assert_ne!(tried(false), (Phase::Converged, 10));
    }

    #[test]
    fn a_full_window_that_gives_everybody_a_part_is_no_limit_yet() {
        assert!(finds_parts(&of_parts(20), &capacity(0.3, 18.0)));
        assert!(!finds_parts(&of_parts(20), &capacity(0.3, 12.0)), "most find nothing");
        assert!(!finds_parts(&of_parts(20), &capacity(0.0, 18.0)), "nobody waits");
        assert!(!finds_parts(
            &State { has_parts_of_leases: false, ..of_parts(20) },
            &capacity(0.3, 18.0)
        ));
    }

    /// 12 of 33 cover less than 33 and 15 do, in proportion to their number.
    fn below_a_knee(plateau_at: f64) -> State {
        let mut state = State {
            target: 12,
            need: 43.0,
            plateau: Some(Point { workers: plateau_at, covered: 0.34 }),
            high: Some(Point { workers: 15.0, covered: 0.34 }),
            ..State::default()
        };
        state.block.reports = REPORTS_MOST;
        state
    }

    #[test]
    fn workers_that_are_worth_their_number_below_a_knee_do_not_disprove_it() {
        let (settings, report) = (Settings::default(), TrainingReport::default());
        let here = Capacity { covered: 0.27, ..capacity(0.73, 12.0) };
        let mut state = below_a_knee(33.0);
        search(&mut state, &report, &settings, &here);
        assert_eq!(state.plateau.map(|best| best.covered), Some(0.34));
        assert_eq!(state.target, 15);
        let mut state = below_a_knee(15.0);
        search(&mut state, &report, &settings, &here);
        assert_eq!(state.plateau, None, "where none but 15 were tried it is none");
    }

    #[test]
    fn workers_that_wait_for_each_other_behind_a_full_window_are_not_the_right_count() {
        let busy = |shared_s: f64| {
            let mut state = State { target: 27, need: 19.0, ..State::default() };
            let report = TrainingReport {
                remote_source_s: shared_s,
                remote_compute_s: 1.0,
                ..TrainingReport::default()
            };
            (0..REPORTS_MOST).for_each(|i| state.block.add(&report, u64::from(i), 0.1));
            state.alone_shared_s = Some(0.1);
            state.low = Some(Point { workers: 21.0, covered: 0.78 });
            held_back(
                &mut state,
                &TrainingReport::default(),
                &Settings::default(),
                &capacity(0.23, 27.0),
            )
        };
        assert!(matches!(busy(0.1), Reason::Converged { .. }));
        assert!(matches!(busy(0.6), Reason::Measuring { .. } | Reason::Contention { .. }));
    }
}
