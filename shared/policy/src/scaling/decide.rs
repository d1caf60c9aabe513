//! One report, one decision.

use super::{
    Decision, Phase, Reason, Report, Settings, State,
    block::{Block, Capacity, Times},
    capacity::{Point, whole},
};

/// Reports at one count before it is judged.
const REPORTS_FEWEST: u32 = 3;
/// Reports at one count after which it is judged by what is known, however little.
const REPORTS_MOST: u32 = 60;
/// Standard error, as a share of the demand, at which a count is judged; for few workers half of one.
const DOUBT: f64 = 0.01;
const DOUBT_WORKERS: f64 = 0.25;
/// Reports that are enough for a count that looks right.
const REPORTS_GOOD: u32 = 8;
/// Standard errors a difference must exceed while scaling. It is asked at each of many reports.
const CERTAIN: f64 = 3.0;
/// The same once converged, where reports come for ever.
const CERTAIN_CONVERGED: f64 = 4.0;
/// Share of polls with a full window from which workers run ahead as far as they may.
const BACKPRESSURE: f64 = 0.25;
/// Most workers to go to at once where some already stand in each other's way.
const STEP_CONTENDED: f64 = 1.5;
/// Gain of added workers below which they add nothing, and above which they do not meet at all.
const GAIN_NONE: f64 = 0.15;
const GAIN_FULL: f64 = 0.75;
/// A converged count that covers this much less or more has met another load, whatever changed.
const LOAD_CHANGE: std::ops::Range<f64> = 0.7..1.6;
/// Share of the target at work below which a report says nothing about the target.
const SHORT_HANDED: f64 = 0.7;
/// Reports to wait for missing workers: longer than a cold start, after that they will not come.
const SHORT_HANDED_REPORTS: u32 = 5;
/// Reports after an estimate at which it is renewed by the steps measured meanwhile, and the share by which it
/// must differ: for jobs whose splits take longer than that to arrive.
/// Reports of a converged count that are judged together.
const REPORTS_REMEMBERED: u32 = 200;
/// Share of the count that is worth a last correction; of fewer than 30 workers it is a whole one.
const POLISH: f64 = 0.012;
/// Share of the count by which a converged one must be off to be corrected; so of fewer than 50 workers
/// none is moved for this.
const CORRECTION: f64 = 0.02;
/// Reports before workers are said to meet: what follows is a search.
const REPORTS_CONTENTION: u32 = 10;
/// Reports before a trainer that waits behind a full window is taken to do so for good: its batch time is
/// what all fewer workers are compared with.
const REPORTS_HELD_BACK: u32 = 20;
/// Share of a worker's time spent waiting for the others, above which it is waiting for them.
const WAITING: f64 = 0.04;
const RENEW: [(u32, f64); 3] = [(3, 0.06), (5, 0.06), (12, 0.04)];
/// A trainer or a worker that is this much faster or slower (in logarithm) has changed; less is left to the
/// capacity measured.
const CHANGED: f64 = 0.2;

/// The next state and the target, with its reason. Never above the limits; O(1).
pub fn decide(report: &Report, state: &State, settings: &Settings) -> (State, Decision) {
    let mut next = *state;
    let (most, _) = settings.cap();
    if next.target == 0 {
        next.target = State::begin(settings).target;
    }
    if let Some(workers) = settings.fixed {
        next.target = workers.min(most);
        let reason = Reason::Fixed { workers: next.target };
        return (next, Decision { target: next.target, reason });
    }
    let reason = observe(&mut next, report, settings);
    if next.target > most {
        // Limits may be lowered while a job runs.
        next.target = most;
        next.block = Block::default();
    }
    (next, Decision { target: next.target, reason })
}

fn observe(state: &mut State, report: &Report, settings: &Settings) -> Reason {
    let workers = state.target;
    if !report.is_plausible() {
        return Reason::Implausible { workers };
    }
    let from_batch = match state.batches {
        Some(before) if report.batches <= before => return Reason::Repeated { workers },
        before => before.unwrap_or(0),
    };
    let is_first = state.batches.replace(report.batches).is_none();
    if state.mode != report.mode && !is_first {
        state.forget_workers();
        state.settled_at = report.batches.saturating_add(report.ahead_batches);
        state.mode = report.mode;
        return Reason::ModeChanged { workers };
    }
    state.mode = report.mode;
    if report.claimable == 0 && report.window_full < 0.05 && report.workers < f64::from(workers) {
        return Reason::NothingLeft { workers };
    }
    let settled = from_batch >= state.settled_at;
    let step_before = state.step.add(report.step_s);
    let work = report.worker_batch_s().filter(|_| settled);
    let work_before = work.and_then(|work_s| state.work.add(work_s));
    track_fresh(state, report);
    if state.throttle.observe(report, state.target) {
        let granted = state.throttle.granted.unwrap_or(1);
        return move_to(state, report, settings, granted, Reason::Throttled { granted });
    }
    if state.throttle.is_over() {
        let asked = state.target.saturating_add(1 + state.target / 20);
        state.throttle.retry();
        return move_to(state, report, settings, asked, Reason::Retry { workers: asked });
    }
    match state.phase {
        Phase::Starting => starting(state, report, settings, settled),
        _ => {
            if let Some(reason) = load_changed(state, report, settings, step_before, work_before) {
                return reason;
            }
            if let Some(reason) = renew(state, report, settings) {
                return reason;
            }
            if !settled {
                return Reason::Settling { workers };
            }
            refine(state, report, settings, from_batch)
        }
    }
}

/// While there is only an estimate, follows what a worker takes by itself: what it waits for others
/// at what they share does not count.
fn track_fresh(state: &mut State, report: &Report) {
    if let (Some(_), Some(times)) = (state.estimated, report.worker_times()) {
        let alone_s = state.alone_shared_s.unwrap_or(f64::INFINITY);
        // Beyond a quarter it is waiting.
        state.fresh.add(times.compute_s + times.shared_s().min(1.25 * alone_s));
    }
}

/// The first target: what a worker takes over what the trainer takes.
fn starting(state: &mut State, report: &Report, settings: &Settings, settled: bool) -> Reason {
    let workers = state.target;
    if !settled {
        return Reason::Settling { workers };
    }
    let at_work = report.workers.clamp(1.0, f64::from(workers).max(1.0));
    let clients = f64::from(report.clients.max(1));
    // Without a flush since the report before, the rate at which batches came says the same.
    let worker_batch_s = match state.work.samples {
        0 => at_work * report.batch_time_s() / clients,
        _ => state.work.mean,
    };
    let need = worker_batch_s * clients / state.step.mean;
    state.alone_shared_s = report.worker_times().map(|times| times.shared_s());
    state.need = need;
    state.need_step_s = state.step.mean;
    state.need_work_s = worker_batch_s;
    state.fresh.restart();
    state.fresh.add(worker_batch_s);
    state.estimated = Some(0);
    state.phase = Phase::Scaling;
    let wanted = whole(need * settings.goal());
    let reason = Reason::Estimate { worker_batch_s, step_s: state.step.mean, workers: wanted };
    move_to(state, report, settings, wanted, reason)
}

/// Follows a change of the trainer's step or of the workers' speed at once, by proportion.
fn load_changed(
    state: &mut State,
    report: &Report,
    settings: &Settings,
    step_before: Option<f64>,
    work_before: Option<f64>,
) -> Option<Reason> {
    let differs = |before: &f64, after: f64| (after / before).ln().abs() > CHANGED;
    let step_before = step_before.filter(|before| differs(before, state.step.mean));
    let work_before = work_before.filter(|before| differs(before, state.work.mean));
    if step_before.is_none() && work_before.is_none() {
        return None;
    }
    let workers = state.target;
    if let Some(before_s) = work_before {
        state.need *= state.work.mean / before_s;
        state.need_work_s = state.work.mean;
        state.alone_shared_s = None;
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
    let wanted = wanted(state, settings);
    if state.plateau.is_none() {
        state.estimated = Some(0);
        state.is_following = true;
        state.fresh.restart();
        // Splits of before the change are still among the first samples: begin without them.
        if work_before.is_none() {
            state.need_work_s = 0.0;
        }
    }
    Some(move_to(state, report, settings, wanted, reason))
}

/// What was learnt, restated for a step that is `ratio` times as long.
fn rescale(state: &mut State, ratio: f64) {
    state.need /= ratio;
    state.need_step_s *= ratio;
    for point in [&mut state.low, &mut state.high].into_iter().flatten() {
        point.covered *= ratio;
    }
    state.plateau = state.plateau.map(|covered| covered * ratio).filter(|covered| *covered < 1.0);
    if state.plateau.is_none() {
        state.forget_search();
    }
}

/// The count the search has come to.
fn wanted(state: &State, settings: &Settings) -> u32 {
    match (state.plateau, state.high) {
        (Some(_), Some(high)) => whole(high.workers),
        _ => whole(state.need * settings.goal()),
    }
}

/// Renews an estimate nothing has been measured against yet, from the steps averaged meanwhile.
fn renew(state: &mut State, report: &Report, settings: &Settings) -> Option<Reason> {
    let age = state.estimated? + 1;
    state.estimated = Some(age);
    let (_, least) = RENEW.into_iter().find(|(due, _)| *due == age)?;
    if state.plateau.is_some() {
        return None;
    }
    rescale(state, state.step.mean / state.need_step_s.max(1e-12));
    if state.need_work_s > 0.0 && state.fresh.samples >= 2 {
        state.need *= state.fresh.mean / state.need_work_s;
        state.need_work_s = state.fresh.mean;
    }
    let wanted = whole(state.need * settings.goal());
    let difference = f64::from(wanted.abs_diff(state.target));
    // Of a few workers one more or less is told better by what they cover.
    let fewest = if state.is_following { 1.0 } else { 2.0 };
    if difference < fewest || difference < least * f64::from(state.target) {
        return None;
    }
    let step_s = state.step.mean;
    let worker_batch_s = state.need * step_s / f64::from(report.clients.max(1));
    let reason = Reason::Estimate { worker_batch_s, step_s, workers: wanted };
    Some(move_to(state, report, settings, wanted, reason))
}

/// Judges the count by what was measured at it.
fn refine(state: &mut State, report: &Report, settings: &Settings, from_batch: u64) -> Reason {
    let workers = state.target;
    let short = report.workers < SHORT_HANDED * f64::from(workers) && report.window_full < 0.05;
    if short && state.short_handed < SHORT_HANDED_REPORTS {
        state.short_handed += 1;
        return Reason::Settling { workers };
    }
    if !short {
        state.short_handed = 0;
    }
    // From a full window on other things are measured than before it was.
    if report.window_full > BACKPRESSURE && state.block.is_never_full() {
        state.block = Block::default();
    }
    state.block.add(report, from_batch);
    let reports = state.block.reports;
    // Splits of one generation of workers arrive together: less than a generation is no average.
    let generation = f64::from(workers) * f64::from(report.lease_batches.max(1));
    let due = match state.has_converged {
        true => reports >= settings.revisit_reports.max(REPORTS_FEWEST),
        false => reports >= REPORTS_FEWEST,
    };
    let times = Times {
        workers: f64::from(workers),
        clients: f64::from(report.clients.max(1)),
        generation,
        step_sigma: state.step.sigma(),
        work_sigma: state.work.sigma(),
    };
    let due = due && state.block.batches() as f64 >= generation;
    let capacity = state.block.capacity(&times).filter(|_| due);
    let Some(capacity) = capacity else { return Reason::Measuring { reports, workers } };
    if capacity.full > BACKPRESSURE || capacity.downstream {
        return held_back(state, report, settings, &capacity);
    }
    judge(state, report, settings, &capacity)
}

/// The window is full, or what lies behind it is the limit: the workers busy on average are the count.
fn held_back(
    state: &mut State,
    report: &Report,
    settings: &Settings,
    capacity: &Capacity,
) -> Reason {
    let (reports, workers) = (state.block.reports, state.target);
    // Workers come and go in waves here: an average needs several.
    let fewest = if capacity.stall > 0.05 { REPORTS_HELD_BACK } else { REPORTS_GOOD };
    if reports < fewest {
        return Reason::Measuring { reports, workers };
    }
    let made = if capacity.full > BACKPRESSURE {
        capacity.workers
    } else {
        f64::from(workers) * (1.0 - capacity.stall) / capacity.covered
    };
    let enough = whole(made * settings.goal());
    let covered = f64::from(workers) / made.max(1e-9);
    let margin = 0.03 * f64::from(workers);
    if enough < workers && f64::from(workers) - made > margin {
        if capacity.stall > 0.05 {
            // Fewer may do: the next count tells.
            let covered = 1.0 - capacity.stall;
            if state.plateau.is_some() {
                return search(state, report, settings, capacity);
            }
            state.plateau = Some(covered);
            state.high = Some(Point { workers: f64::from(workers), covered });
            state.low = None;
        } else {
            state.need = made;
            state.need_step_s = state.step.mean;
        }
        state.estimated = None;
        let reason = Reason::Surplus { covered, from: workers, workers: enough };
        return move_refined(state, report, settings, enough, reason);
    }
    converge(state, capacity)
}

/// Compares what a count covers with what it should.
fn judge(state: &mut State, report: &Report, settings: &Settings, capacity: &Capacity) -> Reason {
    let (reports, workers) = (state.block.reports, state.target);
    let count = f64::from(workers);
    let here = Point { workers: count, covered: capacity.covered };
    let certain = if state.has_converged { CERTAIN_CONVERGED } else { CERTAIN };
    if state.plateau.is_some() {
        return search(state, report, settings, capacity);
    }
    let doubt = certain * capacity.error;
    // The fewest that may do, and the fewest that surely do.
    let fewest = whole(here.ray(1.0) / (1.0 + settings.tolerance()));
    let at_best = Point { covered: capacity.covered + doubt, ..here };
    let at_worst = Point { covered: (capacity.covered - doubt).max(1e-6), ..here };
    if workers < whole(at_best.ray(1.0) / (1.0 + settings.tolerance())) {
        return too_few(state, report, settings, &here);
    }
    if workers > whole(at_worst.ray(1.0)) && capacity.covered > 1.0 {
        state.need = here.ray(1.0);
        state.need_step_s = state.step.mean;
        state.estimated = None;
        let wanted = whole(state.need * settings.goal());
        let reason = Reason::Surplus { covered: capacity.covered, from: workers, workers: wanted };
        return move_refined(state, report, settings, wanted, reason);
    }
    if state.has_converged {
        let wanted = whole(here.ray(settings.goal()));
        let off = f64::from(wanted.abs_diff(workers)) / count;
        if count < 50.0 || off < CORRECTION || off < doubt {
            return converge(state, capacity);
        }
        return move_refined(
            state,
            report,
            settings,
            wanted,
            correction(capacity, workers, wanted),
        );
    }
    let is_known = capacity.error <= DOUBT.max(DOUBT_WORKERS / count);
    if !(is_known && reports >= REPORTS_GOOD || reports >= REPORTS_MOST) {
        return Reason::Measuring { reports, workers };
    }
    let wanted = whole(here.ray(settings.goal()));
    let off = f64::from(wanted.abs_diff(workers)) / count;
    let looks_right =
        workers >= fewest && workers <= whole(here.ray(1.0)) && (off < POLISH || count < 30.0);
    let settled = converge(state, capacity);
    if looks_right || state.direction != 0 {
        return settled;
    }
    // The last correction: too small to be certain of while there was more to come.
    move_to(state, report, settings, wanted, correction(capacity, workers, wanted))
}

fn correction(capacity: &Capacity, from: u32, workers: u32) -> Reason {
    let covered = capacity.covered;
    match workers > from {
        true => Reason::Stalled { covered, from, workers },
        false => Reason::Surplus { covered, from, workers },
    }
}

/// More workers are needed, unless they stand in each other's way.
fn too_few(state: &mut State, report: &Report, settings: &Settings, here: &Point) -> Reason {
    let (reports, workers) = (state.block.reports, state.target);
    let goal = settings.goal();
    let alone = Point { workers: 1.0, covered: 1.0 / state.need.max(1.0) };
    let before = state.low.unwrap_or(alone);
    let gain = if here.workers > before.workers { before.gain(here) } else { 1.0 };
    state.estimated = None;
    let (most, limit) = settings.cap();
    let at_limit = workers >= state.throttle.granted.unwrap_or(u32::MAX).min(most);
    let waits = waiting(state) > WAITING;
    let is_contended = gain < GAIN_FULL || waits;
    let generation = f64::from(workers) * f64::from(report.lease_batches.max(1));
    let is_long = reports >= REPORTS_CONTENTION && state.block.batches() as f64 > 2.0 * generation;
    if is_contended && !is_long {
        return Reason::Measuring { reports, workers };
    }
    let waits = waits && gain < GAIN_FULL;
    if waits || (state.low.is_some() && gain < GAIN_NONE) {
        let high = if waits { *here } else { before };
        state.plateau = Some(high.covered.max(here.covered));
        state.high = Some(high);
        state.low = None;
        state.tries = 0;
        let wanted = match waits {
            true => whole(here.workers * (1.0 - waiting(state)) * goal),
            false => between(state, settings),
        };
        let reason = Reason::Contention { from: workers, workers: wanted };
        return move_refined(state, report, settings, wanted, reason);
    }
    if at_limit {
        state.phase = Phase::Converged;
        state.has_converged = true;
        state.need = here.ray(1.0);
        state.need_step_s = state.step.mean;
        if reports >= REPORTS_REMEMBERED {
            state.block = Block::default();
        }
        let wanted = whole(here.ray(goal));
        return match state.throttle.granted {
            Some(granted) if granted < most => Reason::Throttled { granted },
            _ => Reason::Limited { limit, wanted, workers },
        };
    }
    let wanted = if gain < GAIN_FULL {
        let curve = before.hyperbola(here, goal).unwrap_or(f64::INFINITY);
        curve.min(here.workers * STEP_CONTENDED).max(here.workers + 1.0)
    } else {
        state.need = here.ray(1.0);
        state.need_step_s = state.step.mean;
        here.ray(goal)
    };
    state.low = Some(*here);
    let wanted = whole(wanted);
    let reason = Reason::Stalled { covered: here.covered, from: workers, workers: wanted };
    move_refined(state, report, settings, wanted, reason)
}

/// Share of a worker's time spent waiting for the others at what they share.
fn waiting(state: &State) -> f64 {
    match (state.alone_shared_s, state.block.shared_s()) {
        (Some(alone_s), Some((shared_s, total_s))) if shared_s > 1.25 * alone_s => {
            ((shared_s - alone_s) / total_s).clamp(0.0, 1.0)
        }
        _ => 0.0,
    }
}

/// The share of the demand to aim for where workers meet.
fn plateau_goal(state: &State, settings: &Settings) -> f64 {
    match state.plateau {
        Some(covered) if covered < 1.0 => covered / (1.0 + settings.tolerance()),
        _ => settings.goal(),
    }
}

/// The next count to try between `low` and `high`.
fn between(state: &State, settings: &Settings) -> u32 {
    let goal = plateau_goal(state, settings);
    let base = Point { workers: 1.0, covered: 1.0 / state.need.max(1.0) };
    let (low, high) = (state.low.unwrap_or(base), state.high.unwrap_or(base));
    let ray = low.ray(goal);
    // A knee is where the ray says; where capacity bends slowly, it is nearer the chord.
    let wanted = if state.low.is_some() && state.tries >= 2 {
        (ray + low.chord(&high, goal)) / 2.0
    } else {
        ray
    };
    let lowest = if state.low.is_some() { low.workers + 1.0 } else { 1.0 };
    whole(wanted.max(lowest).min(high.workers))
}

/// Looks for the fewest workers that cover the plateau.
fn search(state: &mut State, report: &Report, settings: &Settings, capacity: &Capacity) -> Reason {
    let (reports, workers) = (state.block.reports, state.target);
    let count = f64::from(workers);
    let here = Point { workers: count, covered: capacity.covered.min(1.0) };
    let goal = plateau_goal(state, settings);
    let distance = (capacity.covered - goal).abs();
    if reports < REPORTS_GOOD || (distance < CERTAIN * capacity.error && reports < REPORTS_MOST) {
        return Reason::Measuring { reports, workers };
    }
    if state.phase == Phase::Converged {
        if LOAD_CHANGE.contains(&(capacity.covered / goal))
            || distance < CERTAIN_CONVERGED * capacity.error
        {
            return converge(state, capacity);
        }
        // Neither step nor worker changed, and yet: begin anew from here.
        state.forget_search();
        state.need = here.ray(1.0);
        state.need_step_s = state.step.mean;
        return judge(state, report, settings, capacity);
    }
    state.tries += 1;
    state.plateau = state.plateau.map(|best| best.max(capacity.covered - capacity.error).min(1.0));
    // In doubt for fewer workers.
    let is_good = capacity.covered >= goal - capacity.error.min(0.015);
    let slot = if is_good { &mut state.high } else { &mut state.low };
    *slot = Some(here);
    let high = state.high.unwrap_or(here);
    let low = state.low;
    let gap = high.workers - low.map_or(0.0, |low| low.workers);
    let is_close = gap <= (settings.tolerance() * high.workers).max(1.0);
    let waits = waiting(state);
    let wanted = match (is_good, low) {
        _ if is_close => whole(high.workers),
        (true, _) if waits > WAITING => {
            let knee = whole(count * (1.0 - waits) * settings.goal());
            knee.max(low.map_or(1, |low| low.workers as u32 + 1)).min(workers)
        }
        // It waits for nobody and still covers the best there is.
        (true, None) if waits > 0.0 || workers < 10 => workers,
        // The first guess rests on one report: measure below it.
        (true, None) => whole(0.93 * count),
        _ => between(state, settings),
    };
    if wanted == workers && is_good {
        return converge(state, capacity);
    }
    // Fewer workers were worse by what they were fewer: not a plateau at all.
    if let Some(low) = low.filter(|low| !is_good && low.gain(&high) > GAIN_FULL) {
        state.forget_search();
        state.need = low.ray(1.0);
        state.need_step_s = state.step.mean;
        let wanted = whole(low.ray(settings.goal()).min(high.workers * STEP_CONTENDED));
        let covered = low.covered;
        let reason = Reason::Stalled { covered, from: workers, workers: wanted };
        return move_refined(state, report, settings, wanted, reason);
    }
    let reason = Reason::Contention { from: workers, workers: wanted };
    move_refined(state, report, settings, wanted, reason)
}

fn converge(state: &mut State, capacity: &Capacity) -> Reason {
    let workers = state.target;
    if state.plateau.is_none() && capacity.full <= BACKPRESSURE {
        state.need = f64::from(workers) / capacity.covered;
        state.need_step_s = state.step.mean;
    }
    state.estimated = None;
    state.phase = Phase::Converged;
    // The longer it is measured the smaller an error shows; but not for ever, things drift.
    if !state.has_converged || state.block.reports >= REPORTS_REMEMBERED {
        state.block = Block::default();
    }
    state.has_converged = true;
    Reason::Converged { covered: capacity.covered, workers }
}

/// A move that follows from measurement: once converged it goes one way only, unless what is covered
/// is so far off that the load must have changed.
fn move_refined(
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
fn move_to(
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
        state.target = target;
        state.decisions = state.decisions.saturating_add(1);
        state.settled_at = report.batches.saturating_add(report.ahead_batches);
        state.block = Block::default();
        state.work.restart();
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
