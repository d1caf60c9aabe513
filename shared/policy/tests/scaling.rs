//! The scaling policy by table and by property: results it must never have, for any input.

#![allow(clippy::unwrap_used, reason = "tests")]

use gristmill_model::wire::TrainingReport;
use gristmill_policy::placement::LocalPart;
use gristmill_policy::scaling::{
    CoverageState, Decision, PolicyName, Reason, ScalerFacts, SearchPhase, Settings, decide,
};
use proptest::prelude::*;

/// Reports of an ideal system: `workers` that take `work_s` for a batch, a trainer that takes `step_s`.
struct Ideal {
    facts: ScalerFacts,
    step_s: f64,
    work_s: f64,
    batches: u64,
    queue: f64,
}

impl Ideal {
    fn new(step_s: f64, work_s: f64) -> Self {
        let facts = ScalerFacts { clients: 1, claimable: 100, ..ScalerFacts::default() };
        Self { facts, step_s, work_s, batches: 0, queue: 0.0 }
    }

    fn report(&mut self, workers: u32) -> TrainingReport {
        let covered = f64::from(workers) * self.step_s / self.work_s;
        self.batches += 100;
        self.queue = (self.queue + 100.0 * (covered - 1.0)).clamp(0.0, 5_000.0);
        let stall_s = if self.queue > 0.0 { 0.0 } else { self.step_s * (1.0 / covered - 1.0) };
        self.facts.outstanding = workers;
        // Those that a full window gives no work leave.
        let is_full = self.queue >= 5_000.0;
        let at_work = if is_full { f64::from(workers) / covered } else { f64::from(workers) };
        TrainingReport {
            batches: self.batches,
            step_s: self.step_s,
            stall_s: stall_s.max(0.0),
            queue_batches: self.queue,
            window_full: if is_full { 0.9 } else { 0.0 },
            ahead_batches: self.queue as u64 + u64::from(workers),
            lease_batches: 1,
            remote_workers: at_work,
            remote_compute_s: self.work_s,
            ..TrainingReport::default()
        }
    }

    /// Lets the policy run; returns its targets.
    fn run(&mut self, state: &mut CoverageState, settings: &Settings, reports: usize) -> Vec<u32> {
        let decided = (0..reports).map(|_| {
            let report = self.report(state.target.max(1));
            self.decide(&report, state, settings).target
        });
        decided.collect()
    }

    /// Takes one report.
    fn decide(
        &self,
        report: &TrainingReport,
        state: &mut CoverageState,
        settings: &Settings,
    ) -> Decision {
        let (next, decision) = decide(report, &self.facts, state, settings);
        *state = next;
        decision
    }
}

#[test]
fn it_covers_the_demand_with_few_to_spare_and_stays() {
    for (step_s, work_s, optimum) in [
        (0.1, 1.6, 16),
        (0.1, 0.05, 1),
        (0.1, 0.1, 1),
        (0.1, 0.19, 2),
        (0.01, 6.0, 600),
        (0.01, 29.9, 2_990),
        (2.0, 61.0, 31),
    ] {
        let settings = Settings { max_workers: 5_000, concurrency: 5_000, ..Settings::default() };
        let mut state = CoverageState::begin(&settings, None);
        // Batches of 2,900 workers that were asked for at once take 30 reports to arrive.
        let targets = Ideal::new(step_s, work_s).run(&mut state, &settings, 300);
        let last = targets[299];
        assert!((optimum..=optimum + 1 + optimum / 16).contains(&last), "{last}, not {optimum}");
        assert!(matches!(state.phase, SearchPhase::Converged { .. }));
        let moves = targets.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(moves <= 2, "{targets:?} for {optimum}");
        assert!(targets[150..].iter().all(|target| *target == last), "it moves after that");
    }
}

#[test]
fn the_first_report_is_enough_for_an_estimate() {
    let settings = Settings::default();
    let mut state = CoverageState::begin(&settings, None);
    let mut ideal = Ideal::new(0.12, 1.2);
    let report = ideal.report(1);
    let decision = ideal.decide(&report, &mut state, &settings);
    assert_eq!(decision.target, 11);
    assert_eq!(
        decision.to_string(),
        "estimate: a worker makes a batch in 1.20 s, the trainer takes 120 ms: 11 workers"
    );
}

#[test]
fn indistinct_times_are_no_contention() {
    let settings = Settings::default();
    let mut state = CoverageState::begin(&settings, None);
    // Calls make a batch cost 0.37 s, of which the worker's times tell 0.25.
    let mut ideal = Ideal::new(0.1, 0.37);
    let mut targets = Vec::new();
    for _ in 0..60 {
        let mut report = ideal.report(state.target);
        report.remote_compute_s = 0.25;
        targets.push(ideal.decide(&report, &mut state, &settings).target);
    }
    targets.dedup();
    assert_eq!(targets, [3, 4]);
}

#[test]
fn a_change_of_load_is_followed_within_ten_reports() {
    for (factor, optimum) in [(0.5, 20), (2.0, 5)] {
        let settings = Settings::default();
        let mut state = CoverageState::begin(&settings, None);
        let mut ideal = Ideal::new(0.1, 1.0);
        ideal.run(&mut state, &settings, 60);
        assert_eq!(state.target, 11);
        ideal.step_s *= factor;
        let targets = ideal.run(&mut state, &settings, 10);
        // A surplus that costs nothing stays.
        // Batches that filled the window while 11 were measured count as not made: a tenth.
        let is_followed =
            if optimum > 10 { (20..=23).contains(&targets[9]) } else { targets[9] <= 11 };
        assert!(is_followed, "{targets:?}, not {optimum}");
    }
}

#[test]
fn a_full_window_adds_no_workers() {
    let settings = Settings::default();
    let mut state = CoverageState::begin(&settings, None);
    let mut ideal = Ideal::new(0.1, 1.0);
    for _ in 0..80 {
        let mut report = ideal.report(state.target);
        // The transport lets through four workers' batches.
        (report.stall_s, report.remote_workers) = (0.15, 4.0);
        (report.window_full, report.queue_batches) = (0.9, 400.0);
        report.ahead_batches = 432;
        ideal.decide(&report, &mut state, &settings);
        assert!(state.target <= 11, "never more than the estimate");
    }
}

#[test]
fn limits_hold_and_are_named() {
    let unlimited = Settings::default();
    let budget = Settings { budget_workers: Some(5), ..unlimited };
    for (settings, most, says) in [
        (Settings { max_workers: 7, ..unlimited }, 7, "the job's maximum allows 7"),
        (Settings { concurrency: 6, ..unlimited }, 6, "the account's concurrency allows 6"),
        (budget, 5, "the budget allows 5"),
    ] {
        let mut state = CoverageState::begin(&settings, None);
        let mut ideal = Ideal::new(0.1, 1.6);
        let targets = ideal.run(&mut state, &settings, 60);
        assert!(targets.iter().all(|target| *target <= most));
        assert_eq!(targets[59], most);
        let report = ideal.report(most);
        let decision = ideal.decide(&report, &mut CoverageState::begin(&settings, None), &settings);
        assert!(decision.to_string().contains(says), "{decision}");
    }
}

#[test]
fn remote_workers_make_what_local_ones_leave() {
    let settings = Settings::default();
    let mut state = CoverageState::begin(&settings, None);
    let (mut ideal, mut local) = (Ideal::new(0.1, 1.6), LocalPart::default());
    for _ in 0..200 {
        let mut report = ideal.report(state.target);
        // Local workers make four batches a second of the ten that the trainer takes.
        let made = f64::from(state.target) / 1.6 + 4.0;
        (report.stall_s, report.local_share) = ((1.0 / made - 0.1).max(0.0), 4.0 / made.min(10.0));
        report.remote_workers = f64::from(state.target).min(6.0 * 1.6);
        (report.queue_batches, report.window_full, report.ahead_batches) = (0.0, 0.0, 20);
        report.local_workers = 4.0;
        let left = local.remote_part(&report, 4.0, &ideal.facts);
        local.add(&report, 4.0, &ideal.facts, true);
        ideal.decide(&left, &mut state, &settings);
    }
    assert!((10..=11).contains(&state.target), "{}, of 17 without them", state.target);
}

#[test]
fn refused_invocations_count_as_a_limit() {
    let settings = Settings::default();
    let mut state = CoverageState::begin(&settings, None);
    let mut ideal = Ideal::new(0.1, 1.6);
    for _ in 0..30 {
        let granted = state.target.min(9);
        let report = ideal.report(granted);
        ideal.facts.throttled = state.target - granted;
        ideal.decide(&report, &mut state, &settings);
    }
    assert_eq!(state.target, 9);
}

#[test]
fn stale_reports_and_impossible_ones_change_nothing() {
    let settings = Settings::default();
    let mut state = CoverageState::begin(&settings, None);
    let mut ideal = Ideal::new(0.1, 1.6);
    ideal.run(&mut state, &settings, 5);
    let good = ideal.report(state.target);
    let stale = TrainingReport { batches: 100, ..good };
    let zero = TrainingReport { step_s: 0.0, ..good };
    let nan = TrainingReport { stall_s: f64::NAN, ..good };
    for report in [stale, zero, nan] {
        let (next, decision) = decide(&report, &ideal.facts, &state, &settings);
        assert_eq!(next, state);
        assert_eq!(decision.target, state.target);
    }
}

#[test]
fn a_change_of_work_that_shows_with_its_first_stall_is_followed_at_once() {
    let settings = Settings::default();
    let mut state = CoverageState::begin(&settings, None);
    let mut ideal = Ideal::new(0.1, 1.6);
    ideal.run(&mut state, &settings, 60);
    assert_eq!(state.target, 17);
    ideal.work_s = 3.2;
    // The first split of the new kind is reported with the wait for it, and one report brings none.
    let mut reasons = Vec::new();
    for i in 0..4 {
        let mut report = ideal.report(state.target);
        if i == 1 {
            report.remote_compute_s = 0.0;
        }
        reasons.push(ideal.decide(&report, &mut state, &settings).reason);
    }
    let is_change = |reason: &Reason| matches!(reason, Reason::WorkerChanged { .. });
    assert!(reasons.iter().any(is_change), "{reasons:?}");
    assert!((32..=36).contains(&state.target), "{}", state.target);
}

#[test]
fn another_mode_is_measured_anew() {
    let settings = Settings::default();
    let mut state = CoverageState::begin(&settings, None);
    let mut ideal = Ideal::new(0.1, 1.6);
    ideal.run(&mut state, &settings, 40);
    assert_eq!(state.target, 17);
    (ideal.work_s, ideal.facts.mode) = (0.3, 1);
    ideal.run(&mut state, &settings, 200);
    assert!((4..=5).contains(&state.target), "{}", state.target);
}

#[test]
fn a_fixed_count_decides_nothing() {
    let settings = Settings { fixed: Some(8), ..Settings::default() };
    let mut policy = PolicyName::default().begin(&settings, None);
    assert_eq!(policy.target(&settings), 8);
    let mut ideal = Ideal::new(0.1, 9.0);
    let decision = policy.decide(&ideal.report(8), &ideal.facts, &settings);
    assert_eq!(decision, Decision { target: 8, reason: Reason::Fixed });
}

#[test]
fn state_is_small_and_tolerates_other_versions() {
    let settings = Settings { max_workers: 5_000, concurrency: 5_000, ..Settings::default() };
    let mut state = CoverageState::begin(&settings, None);
    Ideal::new(0.01, 30.0).run(&mut state, &settings, 200);
    let text = serde_json::to_string(&state).unwrap();
    assert!(text.len() < 2_560, "{} bytes", text.len());
    let newer = text.replacen('{', "{\"from_the_future\":1,", 1);
    assert_eq!(serde_json::from_str::<CoverageState>(&newer).unwrap(), state);
    let older: CoverageState = serde_json::from_str("{\"target\":7}").unwrap();
    assert_eq!(older.target, 7);
}

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![
        0.0..10.0f64,
        any::<f64>(),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(0.0),
        Just(1e-300),
        Just(1e300)
    ]
}

prop_compose! {
    fn any_report()(
        numbers in proptest::array::uniform8(any_number()),
        counts in proptest::array::uniform7(prop_oneof![0..2_000u32, any::<u32>()]),
        batches in prop_oneof![0..100_000u64, any::<u64>()],
        has_times in any::<bool>(),
    ) -> (TrainingReport, ScalerFacts) {
        let [step_s, stall_s, fetch_stall_s, queue_batches, window_full, remote_workers, source_s, compute_s] =
            numbers;
        let [clients, outstanding, throttled, mode, claimable, lease_batches, ahead] = counts;
        let times = |seconds: f64| if has_times { seconds } else { 0.0 };
        let report = TrainingReport {
            batches, step_s, stall_s, fetch_stall_s, queue_batches, ahead_batches: u64::from(ahead),
            lease_batches, window_full, remote_workers, remote_source_s: times(source_s),
            remote_compute_s: times(compute_s), remote_put_s: times(source_s), ..TrainingReport::default()
        };
        (report, ScalerFacts { clients, claimable, outstanding, throttled, mode: mode % 3 })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_reports_keep_to_the_limits(
        reports in proptest::collection::vec(any_report(), 1..60),
        max_workers in 1..6_000u32,
        concurrency in 1..6_000u32,
    ) {
        let settings = Settings { max_workers, concurrency, ..Settings::default() };
        let mut state = CoverageState::begin(&settings, None);
        for (report, facts) in &reports {
            let (next, decision) = decide(report, facts, &state, &settings);
            prop_assert!((1..=max_workers.min(concurrency)).contains(&decision.target));
            prop_assert_eq!(next.target, decision.target);
            prop_assert!(!decision.to_string().contains('\n'));
            let (again, repeated) = decide(report, facts, &next, &settings);
            prop_assert_eq!(repeated.target, decision.target, "a repeated report");
            prop_assert_eq!(&again, &next);
            let text = serde_json::to_string(&next).unwrap();
            prop_assert!(text.len() < 2_560);
            let back: CoverageState = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(&back, &next);
            state = next;
        }
    }
}

#[test]
fn wrong_first_reports_of_a_step_are_corrected() {
    let settings = Settings::default();
    let mut state = CoverageState::begin(&settings, None);
    let mut ideal = Ideal::new(0.2, 8.0);
    ideal.run(&mut state, &settings, 100);
    assert!((40..=42).contains(&state.target), "{}", state.target);
    let mut targets = Vec::new();
    for i in 0..40 {
        // Two reports 20 % above the truth, at which 40 becomes 80.
        ideal.step_s = if i < 2 { 0.12 } else { 0.1 };
        targets.extend(ideal.run(&mut state, &settings, 1));
    }
    assert!(targets[3] > 60, "the change is noticed at once: {targets:?}");
    assert!((74..=90).contains(&targets[39]), "{targets:?}");
}
