//! The first target, from the times of one worker and of the trainer, and its updates until coverage is measured.

use super::{
    Phase, Reason, ScalerFacts, Settings, State, TrainingReport,
    capacity::{Point, whole},
    load::rescale,
    state::Following,
    target::move_to,
    thresholds::{ALONE, FETCHING},
    tracker::Tracker,
};

/// Reports after an estimate at which it is updated by the times measured meanwhile, and the least relative
/// difference: for jobs whose splits take longer than that to arrive.
const RENEW: [(u32, f64); 4] = [(3, 0.06), (5, 0.06), (12, 0.04), (24, 0.02)];
/// Reports after a change of load in which the estimate is updated every time, even after batches of its count have
/// arrived: until then measured coverage mixes two loads.
const FOLLOWING_REPORTS: u32 = 12;
/// Least difference for an update after a change of load, in standard errors and as a share. The estimate began with
/// two samples of a new step, or splits begun before the change. A later move costs more than it gains, because each
/// postpones the measurement.
const FOLLOWING: (f64, f64) = (0.8, 0.03);
const FOLLOWING_LATE: (f64, f64) = (1.25, 0.05);
/// Reports of fresh times that count then; earlier ones precede the change.
const FRESH_MOST: u32 = 4;
/// The same after all earlier splits have arrived: then only noise is left, and each move postpones the measurement.
const FRESH_LATE: u32 = 40;
/// Least reports of workers' times for an estimate after a change of mode: a single one is noise.
const FRESH_FEWEST: u32 = 2;

/// Ratio of a worker's time to its time alone from which it certainly waits for others; and least reports after a
/// change of load that show how many workers would not wait.
const MEETING: f64 = 1.2;
const KNEE_FEWEST: u32 = 3;

/// First estimates of at most this many workers wait for more reports.
const FEW: u32 = 4;
const FEW_REPORTS: u32 = 3;

/// Ratio of a worker's actual time per batch to its reported times from which claims and flushes matter: three
/// standard deviations of the quotient of two single reports.
const UNSEEN: f64 = 1.6;

/// Share of all batches that are ready and not taken, and of its step that the trainer waits, for a pile-up.
const PILE: f64 = 0.1;
const PILE_STALL: f64 = 0.2;

/// Before coverage is measured, tracks a worker's time by itself, without its waits for others at
/// shared resources.
pub(super) fn track_fresh(state: &mut State, report: &TrainingReport, is_current: bool, wave: u32) {
    let following = state.following;
    let is_wanted = state.estimated.is_some() || following.is_any();
    let alone_s = state.alone_shared_s.unwrap_or(f64::INFINITY);
    if let (true, Some(waiting)) = (is_wanted, slowed(report, alone_s)) {
        if let Some(before_s) = following.work() {
            let most = if before_s > 0.0 { FRESH_MOST } else { FRESH_LATE };
            state.fresh.samples = state.fresh.samples.min(most - 1);
            // A mix of splits from before and after the change is not noise.
            state.fresh.vary_like(&state.work);
        }
        // Excess time at shared resources is waiting for others; use the time alone instead.
        let shared_s = match report.remote_shared_s() {
            shared_s if shared_s <= ALONE * alone_s => shared_s,
            _ if following.is_any() => alone_s,
            _ => ALONE * alone_s,
        };
        // If only the step changed, the question is how workers do at their new number.
        if is_current || following != Following::Step {
            // A new kind of split needs several waves for an average; a new count shows at once.
            let is_new_work = following.work() == Some(0.0);
            let wave = if is_new_work { wave } else { 0 };
            state.fresh.add_of_waves(report.remote_compute_s + shared_s, wave);
        }
        // Right after a move all workers begin together, and meet once.
        if is_current && following.is_any() && waiting > MEETING {
            state.knee.samples = state.knee.samples.min(FRESH_MOST - 1);
            state.knee.add(report.remote_workers / waiting);
        }
    }
}

/// Ratio of a remote worker's time to its time without the others, if it is known.
fn slowed(report: &TrainingReport, alone_s: f64) -> Option<f64> {
    let alone_s = report.remote_compute_s + report.remote_shared_s().min(alone_s);
    report.remote_batch_s().map(|actual_s| actual_s / alone_s)
}

/// Whether workers certainly wait for each other.
fn meet(state: &State, report: &TrainingReport) -> bool {
    let waiting = state.alone_shared_s.and_then(|alone_s| slowed(report, alone_s));
    waiting.is_some_and(|waiting| waiting > MEETING)
}

/// The count derived from times, within the known limits.
pub(super) fn estimated(state: &State, report: &TrainingReport, settings: &Settings) -> u32 {
    whole(estimated_workers(state, report, settings))
}

fn estimated_workers(state: &State, report: &TrainingReport, settings: &Settings) -> f64 {
    // The best count under contention includes some workers that wait.
    let needed = state.need * state.covered_before.unwrap_or(settings.goal());
    state.crowded(needed, state.need_at).min(state.window_most(report))
}

/// After a change of load, the count whose work a shared resource lets through, if workers wait for each other.
fn knee(state: &mut State, report: &TrainingReport, settings: &Settings) -> Option<Reason> {
    let workers = state.target;
    let is_known =
        state.following.is_any() && state.plateau.is_none() && state.knee.samples >= KNEE_FEWEST;
    let desired = whole(state.knee.mean);
    if !is_known || desired >= workers {
        return None;
    }
    let covered = (state.knee.mean / state.need).min(1.0);
    let here = Point { workers: f64::from(workers), covered };
    state.begin_search(here, here);
    let reason = Reason::Contention { from: workers, workers: desired };
    Some(move_to(state, report, settings, desired, reason))
}

/// A single worker's seconds per batch by the rate of arrivals; `None` if the window was full.
fn between_batches_s(report: &TrainingReport, facts: &ScalerFacts) -> Option<f64> {
    let rounds = report.batches as f64;
    // The window was not full, and all batches made were taken, except those being worked on.
    let waiting = report.ahead_batches as f64 - report.workers() * f64::from(report.lease_batches);
    let is_exact =
        report.window_full < 0.05 && waiting < 0.1 * rounds && report.stall_s > report.step_s;
    is_exact.then(|| report.remote_workers * report.batch_time_s() / facts.clients())
}

/// Whether more is made than the trainer takes although it waits: then the transport between is the limit, and more
/// workers would only lengthen the queue.
fn piles_up(report: &TrainingReport) -> bool {
    let at_work = (report.workers() + 1.0) * report.lease();
    let waiting = report.ahead_batches as f64 - at_work;
    report.stall_s > PILE_STALL * report.step_s
        && report.fetch_stall_s > FETCHING * report.stall_s
        && waiting > PILE * report.batches as f64
}

/// The first target: the worker's time over the trainer's. After a change of mode it does not wait until all earlier
/// batches have arrived.
pub(super) fn starting(
    state: &mut State,
    report: &TrainingReport,
    facts: &ScalerFacts,
    settings: &Settings,
    settled: bool,
) -> Reason {
    let workers = state.target;
    let is_fresh = state.following.is_any() && state.fresh.samples >= FRESH_FEWEST;
    if !settled && !is_fresh {
        return Reason::Settling { workers };
    }
    let at_work = report.remote_workers.clamp(1.0, f64::from(workers).max(1.0));
    let clients = facts.clients();
    let worker_batch_s = match (is_fresh, state.work.samples) {
        (true, _) => state.fresh.mean,
        (_, 0) => at_work * report.batch_time_s() / clients,
        // A worker's overhead beside its splits shows in the rate at which its batches arrived.
        _ => match between_batches_s(report, facts) {
            Some(between_s) if between_s > UNSEEN * state.work.mean => between_s,
            _ => state.work.mean,
        },
    };
    if !is_fresh {
        state.alone_shared_s = report.remote_batch_s().map(|_| report.remote_shared_s());
        state.following = Following::Nothing;
    }
    state.need = worker_batch_s * clients / state.step.mean;
    state.need_at = at_work;
    state.need_step_s = state.step.mean;
    // Prefer the worker's own times: later reports are compared with them.
    state.need_work_s = if is_fresh { worker_batch_s } else { state.work.mean };
    state.fresh.restart();
    if !is_fresh && state.work.samples > 0 {
        state.fresh.add(state.work.mean);
    }
    state.estimated = Some(0);
    state.phase = Phase::Scaling;
    let desired = if piles_up(report) { workers } else { estimated(state, report, settings) };
    // With few workers, one more or less matters: worth two more reports.
    if desired > 1 && desired <= FEW && !is_fresh && state.step.samples < FEW_REPORTS {
        state.phase = Phase::Starting;
        state.estimated = None;
        return Reason::Settling { workers };
    }
    let reason = Reason::Estimate { worker_batch_s, step_s: state.step.mean, workers: desired };
    move_to(state, report, settings, desired, reason)
}

/// Updates an estimate whose coverage has not been measured yet, from the times averaged meanwhile.
pub(super) fn renew(
    state: &mut State,
    report: &TrainingReport,
    facts: &ScalerFacts,
    settings: &Settings,
    settled: bool,
) -> Option<Reason> {
    let age = state.estimated? + 1;
    state.estimated = Some(age);
    let fewest = if state.following == Following::Step { FRESH_MOST } else { FRESH_FEWEST };
    let has_fresh = state.need_work_s > 0.0 && state.fresh.samples >= fewest;
    let least = if state.following.is_any() {
        (!settled || age <= FOLLOWING_REPORTS).then(|| following_least(state, age, has_fresh))?
    } else {
        RENEW.into_iter().find(|(due, _)| *due == age)?.1
    };
    if state.plateau.is_some() && !state.following.is_any() {
        return None;
    }
    rescale(state, state.step.mean / state.need_step_s.max(1e-12));
    if state.plateau.is_some() {
        return None;
    }
    if has_fresh {
        state.need *= state.fresh.mean / state.need_work_s;
        state.need_work_s = state.fresh.mean;
        state.need_at = report.remote_workers.max(1.0);
    }
    if let Some(reason) = knee(state, report, settings) {
        return Some(reason);
    }
    let count = estimated_workers(state, report, settings);
    let desired = whole(count);
    let target = f64::from(state.target);
    if !state.following.is_any() && desired > state.target && meet(state, report) {
        // A shared resource is the limit: it can be measured at this count as well as at a higher one.
        return None;
    }
    let (difference, fewest) = if state.following.is_any() {
        // A count is rounded up, by a half on average.
        ((count - (target - 0.5)).abs(), 0.0)
    } else {
        // With few workers, coverage decides about one more or less.
        (f64::from(desired.abs_diff(state.target)), 3.0)
    };
    if desired == state.target || difference < fewest || difference < least * target {
        return None;
    }
    let step_s = state.step.mean;
    let worker_batch_s = state.need * step_s / facts.clients();
    let reason = Reason::Estimate { worker_batch_s, step_s, workers: desired };
    Some(move_to(state, report, settings, desired, reason))
}

/// Least relative difference for an update after a change of load.
fn following_least(state: &State, age: u32, has_fresh: bool) -> f64 {
    let error =
        |tracker: &Tracker, samples: u32| tracker.sigma() / f64::from(samples.max(1)).sqrt();
    // An exponential mean with rate 1 / n is worth 2 n - 1 samples.
    let work_error = if has_fresh { error(&state.fresh, 2 * state.fresh.samples - 1) } else { 0.0 };
    let step_error = error(&state.step, state.step.samples);
    let (errors, least) = if age <= FOLLOWING_REPORTS { FOLLOWING } else { FOLLOWING_LATE };
    (errors * step_error.hypot(work_error)).max(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pile_before_a_trainer_that_waits_asks_for_no_more_workers() {
        let report = |ahead_batches: u64, stall_s: f64| TrainingReport {
            batches: 300,
            ahead_batches,
            stall_s,
            fetch_stall_s: stall_s,
            step_s: 0.1,
            lease_batches: 19,
            remote_workers: 1.0,
            ..TrainingReport::default()
        };
        assert!(piles_up(&report(200, 0.06)));
        assert!(!piles_up(&report(200, 0.0)), "nobody waits");
        assert!(!piles_up(&report(38, 0.06)), "a lease at work and one that just came");
        assert!(
            !piles_up(&TrainingReport { fetch_stall_s: 0.0, ..report(200, 0.06) }),
            "behind one split"
        );
    }

    #[test]
    fn workers_that_take_longer_than_alone_at_what_they_share_meet() {
        let state = State { alone_shared_s: Some(0.2), ..State::default() };
        let report = |source_s: f64| TrainingReport {
            remote_source_s: source_s,
            remote_compute_s: 1.0,
            ..TrainingReport::default()
        };
        assert!(meet(&state, &report(0.6)));
        assert!(!meet(&state, &report(0.3)), "by noise");
        assert!(!meet(&State::default(), &report(0.6)), "nobody was alone");
    }
}
