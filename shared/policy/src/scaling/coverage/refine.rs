//! Judges a count by its measured coverage.

use super::{
    Phase, Reason, ScalerFacts, Settings, State, TrainingReport,
    block::{Block, Capacity, Times},
    capacity::{Point, whole},
    contention::{below, fills_window, finds_parts, held_back, lacks_work, search, waiting},
    state::OfLoad,
    target::{move_refined, move_to},
    thresholds::{
        BACKPRESSURE, CERTAIN, CERTAIN_CONVERGED, GAIN_CLEAR, GAIN_FULL, GAIN_NONE, REPORTS_GOOD,
        REPORTS_MOST, STEP_CONTENDED, WAITING,
    },
};

/// Least reports at one count before it is judged.
const REPORTS_FEWEST: u32 = 3;
/// Standard error, as a share of the demand, at which a count is judged; for few workers, of half a worker.
const DOUBT: f64 = 0.006;
const DOUBT_WORKERS: f64 = 0.25;
/// Generations of splits for judging a converged count: if new splits take longer than earlier ones, nothing arrives for
/// most of one generation.
const GENERATIONS_CONVERGED: f64 = 2.0;
/// Share of the target at work below which a report does not apply to the target.
const SHORT_HANDED: f64 = 0.7;
/// Reports to wait for missing workers: longer than a cold start, after which they will not come.
const SHORT_HANDED_REPORTS: u32 = 5;
/// Reports of a converged count that are judged together.
const REPORTS_REMEMBERED: u32 = 200;
/// Reports after which a count receives its last correction, even if the measurement is vague.
const REPORTS_POLISH: u32 = 120;
/// Share of the count that is worth a last correction; below 30 workers a whole one.
const POLISH: f64 = 0.012;
/// Share by which a converged count must be off to be corrected; so below 50 workers none is moved by
/// this.
const CORRECTION: f64 = 0.02;
/// Share of the coverage of fewer workers below which the load must have changed.
const LESS: f64 = 0.85;
/// Least reports before contention is assumed, which begins a search.
const REPORTS_CONTENTION: u32 = 10;

/// Adds a report to the measurement of this count, and judges the count once there is enough.
pub(super) fn refine(
    state: &mut State,
    report: &TrainingReport,
    facts: &ScalerFacts,
    settings: &Settings,
    from_batch: u64,
) -> Reason {
    let workers = state.target;
    let short =
        report.remote_workers < SHORT_HANDED * f64::from(workers) && report.window_full < 0.05;
    if short && state.short_handed < SHORT_HANDED_REPORTS {
        state.short_handed += 1;
        return Reason::Settling { workers };
    }
    if !short {
        state.short_handed = 0;
    }
    // With a full window, measurements differ from those before.
    if report.window_full > BACKPRESSURE && state.block.is_never_full() {
        state.block = Block::default();
    }
    state.block.add(report, from_batch, state.step.mean);
    let reports = state.block.reports;
    // Splits of one generation of workers arrive together: less than a generation is no average.
    let generation = report.generation(f64::from(workers));
    let due = if state.has_converged {
        reports >= settings.revisit_reports.max(REPORTS_FEWEST)
    } else {
        reports >= REPORTS_FEWEST
    };
    let times = Times {
        clients: facts.clients(),
        generation,
        step_sigma: state.step.sigma(),
        work_sigma: state.work.sigma(),
        step: state.step.typical(),
        compute: state.crowd.compute_at(state.block.workers()),
    };
    let generations = if state.has_converged { GENERATIONS_CONVERGED } else { 1.0 };
    let due = due && state.block.batches() as f64 >= generations * generation;
    let capacity = state.block.capacity(&times).filter(|_| due);
    // The next report may show a change of load, whose count is then known at once.
    let may_be_load =
        state.of_load.is_some() && report.remote_batch_s().is_some() && state.work.is_in_doubt();
    let capacity = capacity.filter(|_| !may_be_load);
    let Some(capacity) = capacity else { return Reason::Measuring { reports, workers } };
    let is_idle = capacity.full > BACKPRESSURE
        || lacks_work(&capacity, f64::from(workers)) && facts.throttled == 0;
    if is_idle && !finds_parts(state, &capacity)
        || capacity.downstream
        || fills_window(state, report, &capacity) && state.at_work.is_none()
    {
        return held_back(state, report, settings, &capacity);
    }
    judge(state, report, settings, &capacity)
}

/// Compares a count's coverage with the goal.
pub(super) fn judge(
    state: &mut State,
    report: &TrainingReport,
    settings: &Settings,
    capacity: &Capacity,
) -> Reason {
    let (reports, workers) = (state.block.reports, state.target);
    let count = f64::from(workers);
    let here = Point { workers: count, covered: capacity.covered };
    let certain = if state.has_converged { CERTAIN_CONVERGED } else { CERTAIN };
    if capacity.may_be_downstream && reports < REPORTS_MOST {
        // More workers would only lengthen the queue.
        return Reason::Measuring { reports, workers };
    }
    if state.plateau.is_some() {
        return search(state, report, settings, capacity);
    }
    let doubt = certain * capacity.error;
    // The fewest that may be enough, and the fewest that certainly are.
    let fewest = whole(here.ray(1.0) / (1.0 + settings.tolerance()));
    let at_best = Point { covered: capacity.covered + doubt, ..here };
    let at_worst = Point { covered: (capacity.covered - doubt).max(1e-6), ..here };
    if workers < whole(at_best.ray(1.0) / (1.0 + settings.tolerance())) {
        return too_few(state, report, settings, &here, capacity);
    }
    if workers > whole(at_worst.ray(1.0)) && capacity.covered > 1.0 {
        let desired = state.crowded(here.ray(settings.goal()), count);
        let desired = whole(desired.max(state.above_low(here.ray(1.0), settings))).min(workers);
        if desired == workers {
            return converge(state, capacity);
        }
        state.learn(&here);
        let reason = Reason::Surplus { covered: capacity.covered, from: workers, workers: desired };
        return move_refined(state, report, settings, desired, reason);
    }
    if state.has_converged {
        let desired = whole(state.crowded(here.ray(settings.goal()), count));
        let off = f64::from(desired.abs_diff(workers)) / count;
        if count < 50.0 || off < CORRECTION || off < doubt {
            return converge(state, capacity);
        }
        return move_refined(
            state,
            report,
            settings,
            desired,
            correction(capacity, workers, desired),
        );
    }
    let is_known = capacity.error <= DOUBT.max(DOUBT_WORKERS / count);
    if !(is_known && reports >= REPORTS_GOOD || reports >= REPORTS_POLISH) {
        return Reason::Measuring { reports, workers };
    }
    let desired = whole(state.crowded(here.ray(settings.goal()), count));
    let off = f64::from(desired.abs_diff(workers)) / count;
    let looks_right =
        workers >= fewest && workers <= whole(here.ray(1.0)) && (off < POLISH || count < 30.0);
    if desired > workers && !looks_right && waiting(state) > WAITING {
        return too_few(state, report, settings, &here, capacity);
    }
    let settled = converge(state, capacity);
    if looks_right || state.direction != 0 {
        return settled;
    }
    // The last correction: too small to be certain while more reports were to come.
    if desired > workers {
        state.low = Some(here);
    }
    move_to(state, report, settings, desired, correction(capacity, workers, desired))
}

/// The reason for a small correction.
fn correction(capacity: &Capacity, from: u32, workers: u32) -> Reason {
    let covered = capacity.covered;
    if workers > from {
        Reason::Stalled { covered, from, workers }
    } else {
        Reason::Surplus { covered, from, workers }
    }
}

/// Whether coverage agrees with the workers' own times, and these show no contention.
fn meet_nobody(state: &State, capacity: &Capacity) -> bool {
    let slow_each_other = state.crowd.alone(capacity.workers) < capacity.workers;
    capacity.is_explained && waiting(state) <= WAITING && !slow_each_other
}

/// More workers are needed, unless there is contention.
fn too_few(
    state: &mut State,
    report: &TrainingReport,
    settings: &Settings,
    here: &Point,
    capacity: &Capacity,
) -> Reason {
    let (reports, workers) = (state.block.reports, state.target);
    let goal = settings.goal();
    let alone = Point { workers: 1.0, covered: 1.0 / state.need.max(1.0) };
    // Coverage that drops this far with more workers is no contention: their work has grown.
    if state.low.is_some_and(|low| here.covered + capacity.error < LESS * low.covered) {
        state.forget_search();
    }
    let before = state.low.unwrap_or(alone);
    // A gain within the noise is no sign of contention; nor is a smaller gain than expected if nobody waits and the times
    // explain it: workers may have died.
    let expected = before.covered * (here.workers / before.workers - 1.0);
    let waits = waiting(state) > WAITING;
    // The same when compared with an estimate by times: overhead that times omit is independent of other workers.
    let is_clear = expected > GAIN_CLEAR * capacity.error
        && !meet_nobody(state, capacity)
        && (state.low.is_some() || waits);
    let gain = if is_clear { before.gain(here) } else { 1.0 };
    state.estimated = None;
    let granted = state.throttle.granted.unwrap_or(u32::MAX);
    let at_limit = workers >= granted.min(settings.enough());
    let is_contended = gain < GAIN_FULL || waits;
    let generation = report.generation(f64::from(workers));
    // All other counts are compared with this one, so it must be known more precisely than a count that is too low.
    let is_exact = capacity.is_exact() || reports >= REPORTS_MOST;
    let is_long = reports >= REPORTS_CONTENTION
        && state.block.batches() as f64 > 2.0 * generation
        && is_exact;
    if is_contended && !is_long {
        return Reason::Measuring { reports, workers };
    }
    let waits = waits && gain < GAIN_FULL;
    if waits || (state.low.is_some() && gain < GAIN_NONE) {
        let high = if waits { *here } else { before };
        state.begin_search(Point { covered: high.covered.max(here.covered), ..*here }, high);
        let desired = below(state, report, settings, capacity).min(whole(high.workers));
        let reason = Reason::Contention { from: workers, workers: desired };
        return move_refined(state, report, settings, desired, reason);
    }
    if at_limit {
        return stay_limited(state, report, settings, here);
    }
    let desired = if gain < GAIN_FULL {
        let curve = before.hyperbola(here, goal).unwrap_or(f64::INFINITY);
        curve.min(here.workers * STEP_CONTENDED).max(here.workers + 1.0)
    } else {
        state.learn(here);
        state.crowded(here.ray(goal), here.workers)
    };
    state.low = Some(*here);
    let window_most = state.window_most(report).max(here.workers + 1.0);
    let desired = whole(desired.min(window_most));
    let reason = Reason::Stalled { covered: here.covered, from: workers, workers: desired };
    move_refined(state, report, settings, desired, reason)
}

/// More workers would help but are not allowed: holds as many as are worth it under the limit.
fn stay_limited(
    state: &mut State,
    report: &TrainingReport,
    settings: &Settings,
    here: &Point,
) -> Reason {
    let (reports, workers) = (state.block.reports, state.target);
    let ((most, limit), enough) = (settings.cap(), settings.enough());
    let desired = whole(here.ray(settings.goal()));
    state.learn(here);
    // A converged count is not moved by the small difference between the two.
    if workers > enough && !state.has_converged {
        let reason = Reason::Limited { limit, desired, workers: enough };
        return move_to(state, report, settings, enough, reason);
    }
    state.phase = Phase::Converged;
    state.has_converged = true;
    if reports >= REPORTS_REMEMBERED {
        state.block = Block::default();
    }
    match state.throttle.granted {
        Some(granted) if granted < most => Reason::Throttled { granted },
        _ => Reason::Limited { limit, desired, workers },
    }
}

/// Accepts the count; it is checked again periodically.
pub(super) fn converge(state: &mut State, capacity: &Capacity) -> Reason {
    let workers = state.target;
    if state.plateau.is_none() && capacity.full <= BACKPRESSURE {
        state.learn(&Point { workers: f64::from(workers), covered: capacity.covered });
    }
    state.estimated = None;
    if state.of_load.is_none_or(|of_load| of_load.target == workers) {
        let State { need, need_at, target, .. } = *state;
        state.of_load = Some(OfLoad { need, need_at, target });
    }
    state.phase = Phase::Converged;
    // Longer measurement reveals smaller errors, but conditions drift, so it is bounded.
    if !state.has_converged || state.block.reports >= REPORTS_REMEMBERED {
        state.block = Block::default();
    }
    state.has_converged = true;
    Reason::Converged { covered: capacity.covered, workers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_a_limit_what_has_converged_stays() {
        let settings = Settings { max_workers: 200, ..Settings::default() };
        let stays = |has_converged: bool| {
            let mut state = State { target: 200, has_converged, ..State::default() };
            let here = Point { workers: 200.0, covered: 0.96 };
            stay_limited(&mut state, &TrainingReport::default(), &settings, &here);
            state.target
        };
        assert_eq!((stays(false), stays(true)), (195, 200));
    }
}
