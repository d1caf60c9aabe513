//! The decision in closed loop with a host by arithmetic, and in single reports.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use proptest::prelude::*;

/// A trainer's host and its workers. The step is as in a plan: longer once the host is busier than the knee.
#[derive(Debug, Clone, Copy)]
struct FakeHost {
    cores: f64,
    trainer_cores: f64,
    knee: f64,
    step_s: f64,
    /// Seconds of a local worker and of a function for a batch.
    local_s: f64,
    remote_s: f64,
}

/// As a TPU's host with ResNet-50 (Pecan, section 6): 96 cores; a batch of 1,024 images at 8 ms.
const HOST: FakeHost = FakeHost {
    cores: 96.0,
    trainer_cores: 10.0,
    knee: 0.9,
    step_s: 0.2,
    local_s: 8.0,
    remote_s: 8.0,
};

impl FakeHost {
    /// The report on 100 batches, with noise.
    fn report(&self, target: WorkerTarget, batches: u64, noise: f64) -> TrainingReport {
        let local = f64::from(target.local);
        let free = (self.knee * self.cores - self.trainer_cores).max(0.0);
        let made = local.min(free) / self.local_s;
        let remote = f64::from(target.remote) / self.remote_s;
        let busy = (self.trainer_cores + local) / (self.knee * self.cores);
        let step_s = self.step_s * busy.max(1.0);
        let batch_s = step_s.max(1.0 / (made + remote).max(1e-9));
        let share = made / (made + remote);
        TrainingReport {
            batches,
            step_s: step_s * noise,
            stall_s: batch_s - step_s,
            remote_workers: (1.0 - share) / batch_s * self.remote_s,
            local_workers: share / batch_s * self.local_s * local / local.min(free).max(1.0),
            local_share: share,
            busy_cores: self.trainer_cores + local,
            remote_source_s: 0.0,
            remote_compute_s: if target.remote > 0 { self.remote_s } else { 0.0 },
            ..TrainingReport::default()
        }
    }

    /// Dollars of a batch.
    fn usd(&self, target: WorkerTarget, settings: &PlacementSettings) -> f64 {
        let report = self.report(target, 1, 1.0);
        let trainer = report.batch_time_s() * settings.usd_per_trainer_hour;
        let workers = report.remote_workers * report.batch_time_s();
        (trainer + workers * settings.usd_per_worker_hour) / 3_600.0
    }

    /// The end of a job of so many reports that starts at `start`; the scaling policy is a perfect one.
    fn run(&self, start: WorkerTarget, reports: u64, seed: u64) -> (PlacementState, Vec<String>) {
        let settings = PlacementSettings::default();
        let mut state = PlacementState::begin(start);
        let (mut said, mut noise) = (Vec::new(), seed);
        for at in 1..=reports {
            noise = noise
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let drawn = 1.0 + 0.02 * ((noise >> 33) as f64 / f64::from(1u32 << 30) - 1.0);
            let report = self.report(state.target, 100 * at, drawn);
            let facts = ScalerFacts { clients: 1, claimable: 10, ..ScalerFacts::default() };
            let part = state.remote_part(&report, &facts);
            let seen = PlacementObservation {
                report: &report,
                facts: &facts,
                remote: (self.remote_s / part.step_s).ceil() as u32,
                has_converged: true,
                lasts: true,
                host_cores: self.cores,
                batches_left: 100 * (10_000 - at),
            };
            let (next, decision) = place(&seen, &state, &settings);
            if !matches!(decision.reason, PlacementReason::Held | PlacementReason::Compared { .. })
            {
                said.push(format!("{at}: {}; {:?}", decision.reason, decision.target));
            }
            state = next;
        }
        (state, said)
    }
}

#[test]
fn idle_processors_replace_functions_until_the_step_pays_for_it() {
    let settings = PlacementSettings::default();
    let needs = [(8.0, "half"), (2.0, "all"), (30.0, "a part")];
    for (local_s, name) in needs {
        let host = FakeHost { local_s, remote_s: local_s, ..HOST };
        let remote = (host.remote_s / host.step_s).ceil() as u32;
        let best = (0..=90)
            .map(|local| {
                let left = f64::from(remote) - f64::from(local);
                WorkerTarget { remote: left.max(0.0).ceil() as u32, local }
            })
            .map(|target| host.usd(target, &settings))
            .fold(f64::INFINITY, f64::min);
        for start in [WorkerTarget { remote, local: 0 }, WorkerTarget { remote, local: 4 }] {
            for seed in 0..20 {
                let (state, said) = host.run(start, 400, seed);
                let usd = host.usd(state.target, &settings);
                assert!(
                    usd < 1.03 * best && state.moves <= MOVES_MOST && state.has_converged,
                    "{name} from {start:?}, seed {seed}: {usd} for {best}, {said:#?}"
                );
            }
        }
    }
}

#[test]
fn a_host_without_idle_processors_gets_no_local_worker() {
    let host = FakeHost { trainer_cores: 90.0, ..HOST };
    let (state, said) = host.run(WorkerTarget { remote: 40, local: 0 }, 100, 1);
    assert_eq!(state.target.local, 0, "{said:?}");
    assert!(state.has_converged && said.is_empty(), "{said:?}");
}

#[test]
fn too_many_local_workers_are_halved() {
    // Two of 96 processors are left below the knee: a local worker beyond them slows the step by 2.1 %, and saves 1.7 %.
    let host = FakeHost { trainer_cores: 46.0, knee: 0.5, ..HOST };
    let (state, said) = host.run(WorkerTarget { remote: 34, local: 8 }, 400, 3);
    assert!(state.target.local <= 4, "{said:#?}");
}

#[test]
fn remote_workers_end_where_local_ones_suffice_and_return_where_they_do_not() {
    let host = FakeHost { local_s: 1.0, remote_s: 1.0, ..HOST };
    let (state, said) = host.run(WorkerTarget { remote: 5, local: 0 }, 200, 1);
    assert_eq!(state.target.remote, 0, "{said:?}");
    assert!(state.target.local >= 5);
    // The same count does half as much: the trainer waits, and a function costs less than that.
    let slow = FakeHost { local_s: 4.0, ..host };
    let settings =
        PlacementSettings { max_local: state.target.local, ..PlacementSettings::default() };
    let facts = ScalerFacts { clients: 1, claimable: 10, ..ScalerFacts::default() };
    let mut after = state;
    for at in 201..=210 {
        let report = slow.report(after.target, 100 * at, 1.0);
        let seen = PlacementObservation {
            report: &report,
            facts: &facts,
            remote: 4,
            has_converged: true,
            lasts: true,
            host_cores: 96.0,
            batches_left: 1_000,
        };
        (after, _) = place(&seen, &after, &settings);
    }
    assert_eq!(after.target.remote, 4);
}

#[test]
fn the_remote_part_of_a_report_is_what_local_workers_leave() {
    let host = FakeHost { local_s: 8.0, ..HOST };
    let (state, _) = host.run(WorkerTarget { remote: 20, local: 20 }, 4, 1);
    let report = host.report(state.target, 500, 1.0);
    let part = state.remote_part(&report, &ScalerFacts::default());
    // 20 of 40 workers' work, of which 98 % are relied on.
    assert!((part.step_s / report.step_s - 1.0 / 0.51).abs() < 0.01, "{part:?}");
    assert!((part.batches as f64 - 500.0 * 0.51).abs() < 60.0, "{part:?}");
}

proptest! {
    /// Anything may be reported: the decision is within its limits, and the state can be stored.
    #[test]
    fn any_reports_give_a_decision_within_the_limits(
        reports in prop::collection::vec((any::<f64>(), any::<f64>(), 0.0f64..1.0, any::<f64>(), any::<f64>(), 0u64..10_000), 1..60),
        max_local in 0u32..100, remote in 1u32..5_000, cores in any::<f64>(), converged: bool, mode in 0u32..2,
    ) {
        let settings = PlacementSettings { max_local, ..PlacementSettings::default() };
        let mut state = PlacementState::begin(WorkerTarget { remote, local: max_local / 2 });
        let mut batches = 0;
        for (at, (step_s, stall_s, local_share, local_workers, busy_cores, more)) in reports.into_iter().enumerate() {
            batches += more;
            let report = TrainingReport {
                batches, step_s, stall_s, local_share, local_workers, busy_cores, ..TrainingReport::default()
            };
            let facts = ScalerFacts { mode: if at > 30 { mode } else { 0 }, ..ScalerFacts::default() };
            let part = state.remote_part(&report, &facts);
            prop_assert!(!report.is_plausible() || part.step_s >= report.step_s);
            let seen = PlacementObservation {
                report: &report, facts: &facts, remote, has_converged: converged, lasts: true,
                host_cores: cores, batches_left: 1_000_000,
            };
            let (next, decision) = place(&seen, &state, &settings);
            prop_assert!(decision.target.local <= max_local && decision.target.remote <= remote);
            prop_assert!(next.moves <= 2 * MOVES_MOST);
            let stored = serde_json::to_string(&next).unwrap();
            let read: PlacementState = serde_json::from_str(&stored).unwrap();
            prop_assert_eq!(read.target, next.target);
            state = next;
        }
    }
}
