//! Decisions worked out by hand.

use super::*;
use crate::{
    cost::{FunctionShape, PriceList},
    plan::{MeasuredSample, OpCost},
};
use proptest::prelude::*;

fn op(name: &str, cpu_s: f64, elements: f64, bytes: f64) -> OpCost {
    OpCost { op: name.into(), cpu_s, elements, bytes, ..OpCost::default() }
}

fn point(after_op: usize) -> PlannedCachePoint {
    PlannedCachePoint { after_op, ..PlannedCachePoint::default() }
}

/// 10,000 records in 20 splits: source 2 s, decode 60 s, crop 30 s, batch 8 s.
fn profile() -> CachingProfile {
    CachingProfile {
        batches: 300,
        measured: MeasuredSample {
            records: 1e4,
            rows: 156.0,
            row_bytes: 1.5e9,
            ops: vec![
                op("source", 2.0, 1e4, 1.1e9),
                op("decode", 60.0, 1e4, 6e9),
                op("crop", 30.0, 1e4, 1.5e9),
                op("batch", 8.0, 156.0, 1.5e9),
            ],
            ..MeasuredSample::default()
        },
        source_wait_s: 5.0,
        objects: 20.0,
        reads: ReadOverlap::InTurn,
    }
}

/// Ten epochs of 100 times as much, on a network of which only what was measured counts. Points after the source,
/// after `decode` and at the end.
fn job() -> PlannedJob {
    PlannedJob {
        records: 1_000_000,
        splits: Some(2000),
        epochs: 10,
        points: vec![point(0), point(1), point(3)],
        shape: FunctionShape { network_bytes_per_s: 0.0, ..FunctionShape::default() },
        ..PlannedJob::default()
    }
}

/// No latency; 100 MB/s.
fn reads_of_100_mb_per_s() -> ReadTime {
    ReadTime::fit(&[[(0.0, 0.0); 3], [(1e9, 10.0); 3]].concat())
}

fn profiled(decision: &CachingDecision) -> Vec<f64> {
    decision.options.iter().map(|option| (option.profiled_s * 1e6).round() / 1e6).collect()
}

fn decided(profile: &CachingProfile, job: &PlannedJob) -> CachingDecision {
    decide(profile, job, &reads_of_100_mb_per_s())
}

#[test]
fn the_formula_of_the_paper() {
    let decision = decided(&profile(), &job());
    // Compute: 5 + 2 + 60 + 30 + 8 = 105 s. At the source: 11 s of reads + 98 s; after decode: 60 s of
    // reads + 38 s; at the end: 15 s of reads and nothing left.
    assert_eq!(profiled(&decision), [105.0, 109.0, 98.0, 15.0]);
    assert_eq!(decision.mode, Mode::Put { point: 2 });
    // 156 batches in 15 s; an epoch is 100 times 15 s.
    assert_eq!(decision.options[3].elements_per_s, 156.0 / 15.0);
    assert!((decision.options[3].epoch_s - 1500.0).abs() < 1e-6);
}

#[test]
fn reads_ahead_overlap_what_is_computed() {
    let ahead = CachingProfile { reads: ReadOverlap::Ahead, ..profile() };
    // max(11, 98), max(60, 38), max(15, 0)
    assert_eq!(profiled(&decided(&ahead, &job())), [105.0, 98.0, 60.0, 15.0]);
}

#[test]
fn a_tie_computes_since_that_stores_nothing() {
    // At the end: $0.26936 and $0.10711 a day it is kept, against $2.6216.
    let kept = |kept_days: f64| {
        let job = PlannedJob { points: vec![point(3)], kept_days, ..job() };
        decided(&profile(), &job)
    };
    // 3 % less than $2.6216 are $2.543: 21.23 days.
    assert_eq!(kept(21.0).mode, Mode::Put { point: 0 });
    assert_eq!(kept(21.5).mode, Mode::Compute);
    assert!(kept(21.5).reason.contains("a tie"), "{}", kept(21.5).reason);
    assert_eq!(kept(23.0).mode, Mode::Compute);
    assert!(!kept(23.0).reason.contains("a tie"), "{}", kept(23.0).reason);
}

#[test]
fn a_cache_that_is_faster_and_dearer_is_not_chosen() {
    // Nothing is faster than batches that are ready, but two epochs do not pay for keeping 140 GiB for a week.
    let decision = decided(&profile(), &PlannedJob { epochs: 2, ..job() });
    let [compute, .., last] = &decision.options[..] else { panic!("{decision}") };
    assert!(last.profiled_s < compute.profiled_s / 5.0 && last.total_usd > compute.total_usd);
    assert_eq!(decision.mode, Mode::Compute);
}

#[test]
fn random_prefixes_need_their_authors_consent() {
    let mut job = PlannedJob { kept_days: 0.0, ..job() };
    job.points[2].random = true;
    let decision = decided(&profile(), &job);
    assert_eq!(decision.mode, Mode::Put { point: 1 }, "98 s against 105 s");
    let refused = decision.options[3].refused.as_deref().unwrap();
    assert!(refused.contains("reuse_random: true"), "{refused}");
    job.points[2].reuse_random = true;
    assert_eq!(decided(&profile(), &job).mode, Mode::Put { point: 2 });
    job.points.iter_mut().for_each(|point| (point.random, point.reuse_random) = (true, false));
    let decision = decided(&profile(), &job);
    assert_eq!(decision.mode, Mode::Compute);
    assert!(decision.reason.contains("no autocache point may be used: random"));
}

#[test]
fn the_cost_covers_requests_and_storage() {
    let month = PlannedJob { epochs: 2, kept_days: 30.0, ..job() };
    let decision = decided(&profile(), &month);
    // A worker's second is $0.0000133334 x 1,769/1,024 = $0.000023034. An epoch of 10,500 s and 2,000 x 50 ms is
    // $0.24416, its 2,000 splits x $9.0e-6 = $0.018: $0.26216; two are $0.5243.
    assert_eq!(decision.options[0].total_usd.to_string(), "$0.524");
    assert!((decision.options[0].epoch_usd.0 - 0.262_16).abs() < 1e-4);
    // At the end: one epoch $0.26216, one of 2,000 gets $0.0008, 150 GB (139.7 GiB) a month x $0.023 =
    // $3.213.
    let last = &decision.options[3];
    assert!((last.total_usd.0 - (0.262_16 + 0.000_8 + 3.213)).abs() < 1e-3, "{}", last.total_usd);
    // Kept for a day, and read 9 times: $0.26216 + 9 x $0.0008 + $0.107 = $0.376 against $2.62.
    let decision = decided(&profile(), &PlannedJob { kept_days: 1.0, ..job() });
    assert_eq!(decision.mode, Mode::Put { point: 2 });
    assert_eq!(decision.options[3].total_usd.to_string(), "$0.376");
    // After `decode`: 2 x $0.26216 + 2,000 puts of $0.000005 + 8 x (9,900 s x $0.000023034 + $0.018) +
    // 600 GB (558.8 GiB) / 30 x $0.023 ($0.428) = $2.931
    let decoded = decision.options[2].total_usd;
    assert!((decoded.0 - 2.931).abs() < 2e-3, "{decoded}");
}

#[test]
fn it_says_what_a_plan_says() {
    let profile = CachingProfile { source_wait_s: 0.0, ..profile() };
    // No read takes longer than a plan takes it to.
    let read_time = ReadTime::fit(&[(0.0, 0.0), (1e9, 0.0)]);
    let job = PlannedJob { shape: FunctionShape::default(), ..job() };
    let decision = decide(&profile, &job, &read_time);
    let plan = crate::plan::plan(&profile.measured, &job, &crate::plan::PlanLimits::default());
    let of_plan = |name: &str| {
        let found = plan.alternatives.iter().find(|alternative| alternative.name == name);
        found.unwrap_or_else(|| panic!("no {name}: {plan}")).cost
    };
    for cached in &decision.options[1..] {
        let planned = of_plan(&cached.name).preprocessing().0 * f64::from(job.epochs);
        // A plan also counts the window of batches that wait, for the minutes that they do.
        assert!((cached.total_usd.0 / planned - 1.0).abs() < 5e-3, "{plan}\n{decision}");
    }
    let computed = plan.functions.cost.preprocessing().0 * f64::from(job.epochs);
    assert!((decision.options[0].total_usd.0 / computed - 1.0).abs() < 5e-3, "{plan}\n{decision}");
}

/// Cachew 6.3, Figure 8: elements are read, made 2.5 times larger and held for a while. The source cache is best up to
/// 350 ms a batch, computing up to 400 ms, and the full cache beyond. The figure gives these two limits (published).
/// The time to read a batch, 350 ms from the data lake, 160 ms and 2.5 x 160 ms from the cache, is fitted to them.
#[test]
fn the_regimes_of_cachews_figure_8() {
    let (lake_s, bytes) = (0.350, 16e6);
    // Nothing but time costs, and a job is so long that its first epoch does not count.
    let mut prices = PriceList::default();
    prices.function.usd_per_million_requests = 0.0;
    let (objects, table) = (&mut prices.objects, &mut prices.table);
    (objects.usd_per_thousand_puts, objects.usd_per_thousand_gets) = (0.0, 0.0);
    objects.usd_per_gb_month = 0.0;
    (table.usd_per_million_writes, table.usd_per_million_reads) = (0.0, 0.0);
    let points = vec![point(0), point(2)];
    let job = PlannedJob { records: 1, splits: Some(1), epochs: 10_000, points, prices, ..job() };
    let decided = |sleep_ms: f64| {
        let sleep_s = sleep_ms / 1e3;
        let sleep = OpCost { wait_s: sleep_s, ..op("sleep", 0.0, 1.0, 2.5 * bytes) };
        let batch = CachingProfile {
            batches: 300,
            measured: MeasuredSample {
                records: 1.0,
                rows: 1.0,
                row_bytes: 2.5 * bytes,
                ops: vec![
                    op("source", 0.0, 1.0, bytes),
                    op("inflate", 0.0, 1.0, 2.5 * bytes),
                    sleep,
                    // After the last operator no worker would read.
                    op("batch", 0.0, 1.0, 2.5 * bytes),
                ],
                ..MeasuredSample::default()
            },
            // Reading overlaps computing.
            source_wait_s: (lake_s - sleep_s).max(0.0),
            objects: 1.0,
            reads: ReadOverlap::Ahead,
        };
        self::decided(&batch, &job).mode
    };
    let (source, full) = (Mode::Put { point: 0 }, Mode::Put { point: 1 });
    assert_eq!([50.0, 200.0, 330.0].map(decided), [source; 3]);
    // 3 % beyond the limits are ties, which compute.
    assert_eq!([345.0, 360.0, 400.0, 410.0].map(decided), [Mode::Compute; 4]);
    assert_eq!([415.0, 500.0, 900.0].map(decided), [full; 3]);
}

#[test]
fn the_reason_has_the_figures() {
    let decision = decided(&profile(), &job());
    assert_eq!(
        decision.reason,
        "10 epochs cost $2.62 computed, $1.02 with a cache after `batch`; a worker takes 673.077 s and 96.154 s for \
         1,000 elements"
    );
    assert_eq!(decision.to_string().lines().count(), 5);
}

#[test]
fn nothing_measured_computes() {
    let read_time = ReadTime::fit(&[]);
    let measured = MeasuredSample { ops: vec![OpCost::default(); 4], ..MeasuredSample::default() };
    let nothing = CachingProfile { batches: 0, measured, source_wait_s: f64::NAN, ..profile() };
    assert_eq!(decide(&nothing, &job(), &read_time).mode, Mode::Compute);
    let pointless = PlannedJob { points: Vec::new(), ..job() };
    let decision = decide(&profile(), &pointless, &read_time);
    assert_eq!((decision.mode, decision.options.len()), (Mode::Compute, 1));
    let lost = PlannedJob { points: vec![point(99)], ..job() };
    assert_eq!(decide(&profile(), &lost, &read_time).mode, Mode::Compute);
}

proptest! {
    #[test]
    fn no_figure_is_not_a_number_and_the_choice_is_allowed(
        ops in prop::collection::vec((any::<f64>(), any::<f64>(), any::<f64>()), 0..6),
        points in prop::collection::vec((0usize..8, any::<bool>(), any::<bool>()), 0..4),
        (records, rows, row_bytes) in (any::<f64>(), any::<f64>(), any::<f64>()),
        (source_wait_s, objects) in (any::<f64>(), any::<f64>()),
        (epochs, epoch_records) in (any::<u32>(), any::<u64>()), ahead in any::<bool>(),
    ) {
        let ops = ops.into_iter().map(|(s, n, b)| op("op", s, n, b)).collect();
        let profile = CachingProfile {
            batches: 300,
            measured: MeasuredSample { records, rows, row_bytes, ops, ..MeasuredSample::default() },
            source_wait_s,
            objects,
            reads: if ahead { ReadOverlap::Ahead } else { ReadOverlap::InTurn },
        };
        let point = |(after_op, random, reuse_random)| PlannedCachePoint { after_op, random, reuse_random };
        let points = points.into_iter().map(point).collect();
        let job = PlannedJob { records: epoch_records, epochs, points, ..job() };
        let decision = decided(&profile, &job);
        for option in &decision.options {
            let CachingOption { profiled_s, epoch_s, total_usd, elements_per_s, .. } = option;
            prop_assert!(![*profiled_s, *epoch_s, total_usd.0, *elements_per_s].iter().any(|x| x.is_nan()));
        }
        let chosen = decision.options.iter().find(|option| option.mode == decision.mode).unwrap();
        prop_assert_eq!(&chosen.refused, &None);
        prop_assert!(!decision.reason.contains('\n'));
    }
}
