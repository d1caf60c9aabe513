//! Predictions for one machine: against hand arithmetic and runs, and invariants.

use super::super::*;
use proptest::prelude::*;

/// Costs of nothing but the pipeline.
const FREE: LocalCosts = LocalCosts {
    worker_s_per_split: 0.0,
    service_s_per_split: 0.0,
    service_s_per_byte: 0.0,
    fetcher_s_per_batch: 0.0,
    fetcher_s_per_byte: 0.0,
    startup_s: 0.0,
};

/// Seconds rounded to a hundredth.
fn seconds(run: LocalJob) -> (f64, LocalBound) {
    let estimate = predict_local(&run, &FREE);
    ((estimate.seconds * 100.0).round() / 100.0, estimate.bound)
}

#[test]
fn waiting_takes_workers_and_computing_takes_cores() {
    let sleep = LocalJob {
        cores: 2.0,
        workers: 4,
        splits: 100,
        batches: 100,
        wait_s: 40.0,
        step_wait_s: 0.01,
        ..LocalJob::default()
    };
    // 40 s of waiting by 4 workers are 10 s, regardless of the cores; the trainer takes 1 s.
    assert_eq!(seconds(sleep), (10.0, LocalBound::Workers));
    assert_eq!(seconds(LocalJob { workers: 80, ..sleep }), (1.0, LocalBound::Trainer));
    // The same as work: 2 cores take 20 s for it, and 40 workers no longer; (20^6 + 1^6)^(1/6) = 20.00
    let work = LocalJob { wait_s: 0.0, cpu_s: 40.0, ..sleep };
    assert_eq!(seconds(LocalJob { workers: 40, ..work }), (20.0, LocalBound::Processors));
    // 1 worker takes 40 s, 2 cores 20 s: (40^6 + 20^6)^(1/6) = 40.10
    assert_eq!(seconds(LocalJob { workers: 1, ..work }), (40.1, LocalBound::Workers));
    // 2 workers take as long as 2 cores: 20 x 2^(1/6) = 22.45
    assert_eq!(seconds(LocalJob { workers: 2, ..work }).0, 22.45);
    // Half a core: 80 s, and a single worker the same.
    assert_eq!(seconds(LocalJob { workers: 100, cores: 0.5, ..work }).0, 80.0);
    let slow = predict_local(&LocalJob { workers: 1, cores: 0.5, ..work }, &FREE);
    assert_eq!((slow.workers_s, slow.processors_s), (80.0, 80.0));
    // A trainer that computes for 0.3 s a step takes a core for 30 s: 70 s on 2.
    let busy = LocalJob { step_cpu_s: 0.3, workers: 100, ..work };
    assert_eq!(seconds(busy), (35.0, LocalBound::Processors));
    // At most one worker per split is useful.
    assert_eq!(seconds(LocalJob { splits: 2, workers: 8, ..sleep }), (20.0, LocalBound::Workers));
}

#[test]
fn costs_around_a_pipeline_count() {
    let costs = LocalCosts {
        worker_s_per_split: 0.01,
        service_s_per_split: 0.02,
        service_s_per_byte: 1e-9,
        fetcher_s_per_batch: 0.005,
        fetcher_s_per_byte: 2e-9,
        startup_s: 0.5,
    };
    let run = LocalJob {
        cores: 2.0,
        workers: 2,
        splits: 10,
        batches: 20,
        cpu_s: 5.0,
        wait_s: 1.0,
        source_bytes: 1e9,
        delivered_bytes: 2e9,
        ..LocalJob::default()
    };
    let estimate = predict_local(&run, &costs);
    // Cores: 5 + 10 x 0.01 + 10 x 0.02 + (1 + 2 x 2) s of bytes + 20 x 0.005 + 4 s of bytes = 14.4 s
    assert!((estimate.processors_s - 7.2).abs() < 1e-9, "{estimate:?}");
    // Workers: (5 + 0.1 + 1 + 0.2) / 2
    assert!((estimate.workers_s - 3.15).abs() < 1e-9, "{estimate:?}");
    // The fetcher alone: 20 x 0.005 + 4 s.
    assert!((estimate.fetcher_s - 4.1).abs() < 1e-9, "{estimate:?}");
    // (7.2^6 + 3.15^6)^(1/6) = 7.208; the first epoch begins 0.5 s and a split of 0.63 s later.
    assert!((estimate.seconds - 7.208).abs() < 1e-3, "{estimate:?}");
    assert!((estimate.first_seconds - 8.338).abs() < 1e-3, "{estimate:?}");
}

/// A run of `gristmill demo` over 2,000 records, with the duration of its second and third epochs. The two cores
/// were shared with other work (load 5 to 8), so runs that compute are of no use there. The cost of a split was
/// taken from the first five; of a ninth run (80 splits that sleep 2 ms an element, 3 workers) one epoch took 7 %
/// and one 23 % longer than predicted.
struct Run {
    splits: u64,
    batches: u64,
    /// Sleep per element.
    sleep_ms: f64,
    workers: u32,
    step_ms: f64,
    measured_s: [f64; 2],
}

const fn run(
    (splits, batches): (u64, u64),
    sleep_ms: f64,
    workers: u32,
    step_ms: f64,
    measured_s: [f64; 2],
) -> Run {
    Run { splits, batches, sleep_ms, workers, step_ms, measured_s }
}

const RUNS: [Run; 8] = [
    run((112, 100), 4.0, 1, 10.0, [9.631, 8.851]),
    run((112, 100), 4.0, 2, 10.0, [4.934, 5.328]),
    run((112, 100), 4.0, 4, 10.0, [2.644, 2.520]),
    run((112, 100), 20.0, 8, 10.0, [5.411, 5.150]),
    run((112, 100), 4.0, 6, 40.0, [4.350, 4.184]),
    run((48, 40), 10.0, 5, 20.0, [4.336, 4.256]),
    run((48, 40), 10.0, 12, 20.0, [1.750, 1.802]),
    run((16, 16), 6.0, 3, 50.0, [4.114, 4.288]),
];

#[test]
fn runs_that_wait_are_predicted_within_15_percent() {
    for Run { splits, batches, sleep_ms, workers, step_ms, measured_s } in RUNS {
        let run = LocalJob {
            cores: 2.0,
            workers,
            splits,
            batches,
            wait_s: 2000.0 * sleep_ms / 1e3,
            step_wait_s: step_ms / 1e3,
            ..LocalJob::default()
        };
        let estimate = predict_local(&run, &LocalCosts::default());
        for seconds in measured_s {
            let off = estimate.seconds / seconds - 1.0;
            println!(
                "{sleep_ms} ms, {workers} workers: {:.2} s, took {seconds} s",
                estimate.seconds
            );
            assert!(
                off.abs() < 0.15,
                "{sleep_ms} ms, {workers} workers: {estimate:?}, not {seconds}"
            );
        }
    }
}

proptest! {
    #[test]
    fn nothing_that_is_added_makes_it_faster(
        workers in 1u32..100, splits in 0u64..10_000, batches in 0u64..100_000,
        cores in prop_oneof![any::<f64>(), 0.1f64..64.0], cpu_s in any::<f64>(), wait_s in 0.0f64..1e6,
        delivered_bytes in 0.0f64..1e12, step_wait_s in 0.0f64..10.0, more in 1u32..10,
    ) {
        // With next to no core, times exceed what numbers can express.
        prop_assume!(!(cores > 0.0 && cores < 1e-3));
        let costs = LocalCosts::default();
        let run = LocalJob {
            cores, workers, splits, batches, cpu_s, wait_s, delivered_bytes, step_wait_s,
            ..LocalJob::default()
        };
        let base = predict_local(&run, &costs).seconds;
        prop_assert!(base.is_finite() && base >= 0.0);
        let with = |run: LocalJob| predict_local(&run, &costs).seconds;
        let more_workers = with(LocalJob { workers: workers + more, ..run });
        prop_assert!(more_workers <= base * (1.0 + 1e-12));
        let slower = [
            LocalJob { wait_s: wait_s * f64::from(more), ..run },
            LocalJob { step_wait_s: step_wait_s + 1.0, ..run },
            LocalJob { delivered_bytes: delivered_bytes * 2.0, ..run },
        ];
        prop_assert!(slower.into_iter().all(|run| with(run) >= base * (1.0 - 1e-12)));
        prop_assert!(predict_local(&run, &costs).first_seconds >= base);
    }
}
