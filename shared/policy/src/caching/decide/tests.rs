//! Decisions worked out by hand.

use super::*;
use crate::caching::OpProfile;
use proptest::prelude::*;

fn op(name: &str, active_s: f64, elements: f64, bytes: f64) -> OpProfile {
    OpProfile { op: name.into(), active_s, elements, bytes }
}

/// 10,000 records in 20 splits: source 2 s, decode 60 s, crop 30 s, batch 8 s; an epoch is 100 times
/// as much. Points after the source, after `decode` and at the end, 20 objects each.
fn profile() -> CachingProfile {
    let point = |after_op| PointProfile { after_op, objects: 20.0, ..PointProfile::default() };
    CachingProfile {
        batches: 300,
        records: 1e4,
        epoch_records: 1e6,
        ops: vec![
            op("source", 2.0, 1e4, 1.1e9),
            op("decode", 60.0, 1e4, 6e9),
            op("crop", 30.0, 1e4, 1.5e9),
            op("batch", 8.0, 156.0, 1.5e9),
        ],
        source_wait_s: 5.0,
        points: vec![point(0), point(1), point(3)],
        reads: ReadOverlap::InTurn,
    }
}

/// No latency; 100 MB/s.
fn reads_of_100_mb_per_s() -> ReadTime {
    ReadTime::fit(&[[(0.0, 0.0); 3], [(1e9, 10.0); 3]].concat())
}

fn profiled(decision: &CachingDecision) -> Vec<f64> {
    decision.options.iter().map(|option| (option.profiled_s * 1e6).round() / 1e6).collect()
}

#[test]
fn the_formula_of_the_paper() {
    let decision = decide(&profile(), &reads_of_100_mb_per_s(), &CachingSettings::default());
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
    let decision = decide(&ahead, &reads_of_100_mb_per_s(), &CachingSettings::default());
    // max(11, 98), max(60, 38), max(15, 0)
    assert_eq!(profiled(&decision), [105.0, 98.0, 60.0, 15.0]);
}

#[test]
fn a_tie_computes_since_that_stores_nothing() {
    // One point after `decode` that saves 62 + 5 of 105 s of work and reads for r: better by
    // 67 - r.
    let tie = |seconds_of_reads: f64| {
        let mut profile = profile();
        profile.points = vec![profile.points[1].clone()];
        let object_bytes = 6e9 / 20.0;
        let read_time = ReadTime::fit(&[(object_bytes, seconds_of_reads / 20.0); 3]);
        decide(&profile, &read_time, &CachingSettings::default())
    };
    // 3 % of 105 s are 3.15 s.
    assert_eq!(tie(63.7).mode, Mode::Put { point: 0 });
    assert_eq!(tie(63.9).mode, Mode::Compute);
    assert!(tie(63.9).reason.contains("a tie"), "{}", tie(63.9).reason);
    assert_eq!(tie(70.0).mode, Mode::Compute);
    assert!(!tie(70.0).reason.contains("a tie"), "{}", tie(70.0).reason);
}

#[test]
fn random_prefixes_need_their_authors_consent() {
    let mut profile = profile();
    profile.points[2].random = true;
    let read_time = reads_of_100_mb_per_s();
    let decision = decide(&profile, &read_time, &CachingSettings::default());
    assert_eq!(decision.mode, Mode::Put { point: 1 }, "98 s against 105 s");
    let refused = decision.options[3].refused.as_deref().unwrap();
    assert!(refused.contains("reuse_random: true"), "{refused}");
    profile.points[2].reuse_random = true;
    assert_eq!(
        decide(&profile, &read_time, &CachingSettings::default()).mode,
        Mode::Put { point: 2 }
    );
    profile.points.iter_mut().for_each(|point| (point.random, point.reuse_random) = (true, false));
    let decision = decide(&profile, &read_time, &CachingSettings::default());
    assert_eq!(decision.mode, Mode::Compute);
    assert!(decision.reason.contains("no autocache point may be used: random"));
}

#[test]
fn the_cost_covers_requests_and_storage() {
    let settings = CachingSettings { epochs: 2.0, kept_days: 30.0, ..CachingSettings::default() };
    let decision = decide(&profile(), &reads_of_100_mb_per_s(), &settings);
    // A worker's second is $0.0000133334 x 1,769/1,024 = $0.000023034. An epoch of 10,500 s is
    // $0.24186, its 2,000 splits x $9.0e-6 = $0.018: $0.25986; two are $0.5197.
    assert_eq!(decision.options[0].total_usd.to_string(), "$0.52");
    assert!((decision.options[0].epoch_usd.0 - 0.259_86).abs() < 1e-4);
    // At the end: one epoch $0.25986, one of 2,000 gets $0.0008, 150 GB (139.7 GiB) a month x $0.023 =
    // $3.213.
    let last = &decision.options[3];
    assert!((last.total_usd.0 - (0.259_86 + 0.000_8 + 3.213)).abs() < 1e-3, "{}", last.total_usd);
    // Kept for a day, and read 9 times: $0.25986 + 9 x $0.0008 + $0.107 = $0.374 against $2.60.
    let soon = CachingSettings { epochs: 10.0, kept_days: 1.0, ..settings };
    let decision = decide(&profile(), &reads_of_100_mb_per_s(), &soon);
    assert_eq!(decision.mode, Mode::Put { point: 2 });
    assert_eq!(decision.options[3].total_usd.to_string(), "$0.374");
    // After `decode`: $0.25986 + 2,000 puts of $0.000005 + 9 x (9,800 s x $0.000023034 + $0.018) +
    // 600 GB (558.8 GiB) / 30 x $0.023 ($0.428) = $2.892
    assert!(
        (decision.options[2].total_usd.0 - 2.892).abs() < 2e-3,
        "{}",
        decision.options[2].total_usd
    );
}

/// Cachew 6.3, Figure 8: elements are read, made 2.5 times larger and held for a while. The source cache is best up to
/// 350 ms a batch, computing up to 400 ms, and the full cache beyond. The figure gives these two limits (published).
/// The time to read a batch, 350 ms from the data lake, 160 ms and 2.5 x 160 ms from the cache, is fitted to them.
#[test]
fn the_regimes_of_cachews_figure_8() {
    let (lake_s, bytes) = (0.350, 16e6);
    let decided = |sleep_ms: f64| {
        let sleep_s = sleep_ms / 1e3;
        let point = |after_op| PointProfile { after_op, objects: 1.0, ..PointProfile::default() };
        let batch = CachingProfile {
            batches: 300,
            records: 1.0,
            epoch_records: 1.0,
            ops: vec![
                op("source", 0.0, 1.0, bytes),
                op("inflate", 0.0, 1.0, 2.5 * bytes),
                op("sleep", sleep_s, 1.0, 2.5 * bytes),
            ],
            // Reading overlaps computing.
            source_wait_s: (lake_s - sleep_s).max(0.0),
            points: vec![point(0), point(2)],
            reads: ReadOverlap::Ahead,
        };
        decide(&batch, &reads_of_100_mb_per_s(), &CachingSettings::default()).mode
    };
    let (source, full) = (Mode::Put { point: 0 }, Mode::Put { point: 1 });
    assert_eq!([50.0, 200.0, 330.0].map(decided), [source; 3]);
    // 3 % beyond the limits are ties, which compute.
    assert_eq!([345.0, 360.0, 400.0, 410.0].map(decided), [Mode::Compute; 4]);
    assert_eq!([415.0, 500.0, 900.0].map(decided), [full; 3]);
}

#[test]
fn the_reason_has_the_figures() {
    let decision = decide(&profile(), &reads_of_100_mb_per_s(), &CachingSettings::default());
    assert_eq!(
        decision.reason,
        "cache after `batch` takes a worker 96.154 s for 1,000 elements, computing 673.077 s; 10 epochs \
         cost $1.02, computed $2.60"
    );
    assert_eq!(decision.to_string().lines().count(), 5);
}

#[test]
fn nothing_measured_computes() {
    let read_time = ReadTime::fit(&[]);
    let mut nothing = profile();
    nothing
        .ops
        .iter_mut()
        .for_each(|op| *op = OpProfile { op: op.op.clone(), ..OpProfile::default() });
    nothing.source_wait_s = f64::NAN;
    (nothing.records, nothing.batches) = (0.0, 0);
    assert_eq!(decide(&nothing, &read_time, &CachingSettings::default()).mode, Mode::Compute);
    let pointless = CachingProfile { points: Vec::new(), ..profile() };
    let decision = decide(&pointless, &read_time, &CachingSettings::default());
    assert_eq!((decision.mode, decision.options.len()), (Mode::Compute, 1));
    let nowhere = PointProfile { after_op: 99, objects: 20.0, ..PointProfile::default() };
    let lost = CachingProfile { points: vec![nowhere], ..profile() };
    assert_eq!(decide(&lost, &read_time, &CachingSettings::default()).mode, Mode::Compute);
}

proptest! {
    #[test]
    fn no_figure_is_not_a_number_and_the_choice_is_allowed(
        ops in prop::collection::vec((any::<f64>(), any::<f64>(), any::<f64>()), 0..6),
        points in prop::collection::vec((0usize..8, any::<bool>(), any::<bool>(), any::<f64>()), 0..4),
        records in any::<f64>(), epoch_records in any::<f64>(), source_wait_s in any::<f64>(),
        epochs in any::<f64>(), ahead in any::<bool>(),
    ) {
        let profile = CachingProfile {
            batches: 300,
            records,
            epoch_records,
            ops: ops.into_iter().map(|(s, n, b)| op("op", s, n, b)).collect(),
            source_wait_s,
            points: points
                .into_iter()
                .map(|(after_op, random, reuse_random, objects)| {
                    PointProfile { after_op, random, reuse_random, objects }
                })
                .collect(),
            reads: if ahead { ReadOverlap::Ahead } else { ReadOverlap::InTurn },
        };
        let settings = CachingSettings { epochs, ..CachingSettings::default() };
        let decision = decide(&profile, &reads_of_100_mb_per_s(), &settings);
        for option in &decision.options {
            let CachingOption { profiled_s, epoch_s, total_usd, elements_per_s, .. } = option;
            prop_assert!(![*profiled_s, *epoch_s, total_usd.0, *elements_per_s].iter().any(|x| x.is_nan()));
        }
        let chosen = decision.options.iter().find(|option| option.mode == decision.mode).unwrap();
        prop_assert_eq!(&chosen.refused, &None);
        prop_assert!(!decision.reason.contains('\n'));
    }
}
