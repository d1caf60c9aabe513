//! One decision per report.

use super::{
    Decision, Phase, Reason, ScalerFacts, Settings, State, TrainingReport,
    block::Block,
    estimate::{renew, starting, track_fresh},
    load::load_changed,
    refine::refine,
    target::move_to,
};

/// Reports of workers' times before a change of them counts as a change of load.
const WORK_SAMPLES: u32 = 4;

/// Generations of splits after which fast and slow workers are represented evenly.
const WAVES: f64 = 2.0;

/// The next state, and the target with its reason, within the limits. Takes constant time.
pub fn decide(
    report: &TrainingReport,
    facts: &ScalerFacts,
    state: &State,
    settings: &Settings,
) -> (State, Decision) {
    let mut next = *state;
    let (most, _) = settings.cap();
    if next.target == 0 {
        next.target = State::begin(settings).target;
    }
    let reason = observe(&mut next, report, facts, settings);
    if next.target > most {
        // Limits may be lowered while a job runs.
        next.target = most;
        next.block = Block::default();
    }
    (next, Decision { target: next.target, reason })
}

/// Takes a report and passes it to the step of the search that it concerns.
fn observe(
    state: &mut State,
    report: &TrainingReport,
    facts: &ScalerFacts,
    settings: &Settings,
) -> Reason {
    let workers = state.target;
    if !report.is_plausible() {
        return Reason::Implausible { workers };
    }
    let from_batch = match state.batches {
        Some(before) if report.batches <= before => return Reason::Repeated { workers },
        before => before.unwrap_or(0),
    };
    let is_first = state.batches.replace(report.batches).is_none();
    if std::mem::replace(&mut state.mode, facts.mode) != facts.mode && !is_first {
        state.begin_mode();
        state.settled_at = report.batches.saturating_add(report.ahead_batches);
        state.work_settled_at = state.settled_at;
        return Reason::ModeChanged { workers };
    }
    let is_short = report.remote_workers < f64::from(workers);
    if facts.claimable == 0 && report.window_full < 0.05 && is_short {
        return Reason::NothingLeft { workers };
    }
    let settled = from_batch >= state.settled_at;
    let is_current = settled || state.times_are_new(report);
    let rounds = (report.batches - from_batch) as f64 / facts.clients();
    let elapsed_s = rounds * report.batch_time_s();
    state.since_move_s += elapsed_s;
    let step_before = state.step.add(report.step_s);
    let work = report.remote_batch_s().filter(|_| from_batch >= state.work_settled_at);
    // A change needs a known mean: right after a start the few splits are one worker's.
    let is_known = state.work.samples >= WORK_SAMPLES;
    let generation = report.generation(f64::from(workers));
    let wave = (WAVES * generation / (report.batches - from_batch) as f64).ceil() as u32;
    let work_before =
        work.and_then(|work_s| state.work.add_of_waves(work_s, wave)).filter(|_| is_known);
    track_fresh(state, report, is_current, wave);
    state.pass_before(elapsed_s);
    state.observe_window(report, facts);
    if settled && report.remote_batch_s().is_some() {
        state.crowd.add(report.remote_workers, report.remote_compute_s);
    }
    if state.throttle.observe(facts, state.target) {
        let granted = state.throttle.granted.unwrap_or(1);
        return move_to(state, report, settings, granted, Reason::Throttled { granted });
    }
    if state.throttle.is_over() {
        let asked = state.target.saturating_add(1 + state.target / 20);
        state.throttle.retry();
        return move_to(state, report, settings, asked, Reason::Retry { workers: asked });
    }
    match state.phase {
        Phase::Starting => starting(state, report, facts, settings, settled),
        _ => {
            if let Some(reason) = load_changed(state, report, settings, step_before, work_before) {
                return reason;
            }
            if let Some(reason) = renew(state, report, facts, settings, settled) {
                return reason;
            }
            if !settled {
                return Reason::Settling { workers };
            }
            refine(state, report, facts, settings, from_batch)
        }
    }
}
