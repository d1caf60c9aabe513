//! Plans against figures worked out by hand, and invariants of any plan.

use super::*;
use crate::cost::{CostBreakdown, EpochEstimate, FunctionShape, PriceList};
use proptest::prelude::*;

mod local;
mod machine;
mod spent;

/// Equal within a tenth of a percent: hand arithmetic rounds.
fn assert_near(actual: f64, expected: f64) {
    assert!((actual / expected - 1.0).abs() < 1e-3, "{actual} is not {expected}");
}

pub(crate) fn op(name: &str, cpu_s: f64, bytes: f64) -> OpCost {
    OpCost { op: name.into(), cpu_s, elements: 300.0, bytes, ..OpCost::default() }
}

/// 300 JPEGs of 110 KB: 8 ms of a processor each, 224 x 224 x 3 bytes come out.
pub(crate) fn jpegs() -> MeasuredSample {
    MeasuredSample {
        records: 300.0,
        source_bytes: 300.0 * 110e3,
        rows: 300.0,
        row_bytes: 300.0 * 150_528.0,
        ops: vec![
            op("source", 0.03, 300.0 * 110e3),
            op("decode", 1.50, 300.0 * 562_500.0),
            op("random_resized_crop", 0.87, 300.0 * 150_528.0),
            op("batch", 0.0, 300.0 * 150_528.0),
        ],
        function_slowdown: 1.0,
    }
}

/// A million of them in batches of 64, ten times, on an accelerator of $4.96 an hour at 0.12 s a step.
fn job() -> PlannedJob {
    let point = |after_op| PlannedCachePoint { after_op, ..PlannedCachePoint::default() };
    PlannedJob {
        records: 1_000_000,
        batch_size: 64,
        epochs: 10,
        step_s: 0.12,
        spare_cores: 8.0,
        points: vec![point(1), point(3)],
        kept_days: 2.0,
        prices: PriceList { accelerator_usd_per_hour: 4.96, ..PriceList::default() },
        ..PlannedJob::default()
    }
}

fn named<'a>(plan: &'a JobPrediction, name: &str) -> &'a PlanAlternative {
    let found = plan.alternatives.iter().find(|alternative| alternative.name == name);
    found.unwrap_or_else(|| panic!("no {name} in {:?}", plan.alternatives))
}

#[test]
fn a_million_jpegs_on_functions() {
    let plan = plan(&jpegs(), &job(), &PlanLimits::default());
    // 64 MiB are 6 batches of 9.63 MB: 384 records, 2,605 splits.
    assert_eq!((plan.batches, plan.splits), (15_625, 2605));
    // A split takes 384 x 8 ms + 50 ms = 3.122 s (its network 1.41 s); 2,605 of them over 15,625
    // batches are 0.5205 s; the trainer's 15,625 x 0.12 s are 1,875 s: 8,133 / 1,875 = 4.34.
    assert_near(plan.worker_batch_s, 0.5205);
    assert_eq!((plan.workers, plan.functions.bound), (5, EpochBound::Trainer));
    let EpochEstimate { seconds, cost, .. } = plan.functions;
    assert_near(seconds, 1875.0);
    // 8,133 s x 1.7275 GB x $0.0000133334
    assert_near(cost.compute.0, 0.187_33);
    // 2,605 x $0.000009
    assert_near(cost.requests.0, 0.023_445);
    // 2 GiB of run-ahead for 1,875 s of a month's 2,592,000 s, at $0.023
    assert_near(cost.storage.0, 3.328e-5);
    // 1,875 / 3,600 x $4.96
    assert_near(cost.accelerator.0, 2.5833);
    assert_eq!(cost.total().to_string(), "$2.79");
    assert_eq!(plan.per_million, cost, "it is a million");
}

#[test]
fn alternatives_are_listed_beside_the_plan() {
    let plan = plan(&jpegs(), &job(), &PlanLimits::default());
    // Half the workers: 8,133 s / 2 = 4,066 s; the trainer's time costs $5.60.
    let half = named(&plan, "2 functions");
    assert_near(half.seconds, 4066.0);
    assert_near(half.cost.accelerator.0, 5.602);
    assert_near(half.cost.compute.0, 0.187_33);
    assert_near(named(&plan, "10 functions").seconds, 1875.0);
    // At the end: epoch 1 for $0.21081, nine of 2,605 gets ($0.001042), 140.19 GB for 2 of 30 days x
    // $0.023 = $0.21496: $0.43515, over 10.
    let last = named(&plan, "cache after `batch`");
    assert_near(last.cost.preprocessing().0, 0.043_515);
    assert_eq!((last.workers, last.bound), (0.0, EpochBound::Trainer));
    // After `decode` 384 x 2.9 ms + 50 ms = 1.164 s of computing, but (384 x 562,500 + 57.8 MB) / 71
    // MB/s + 50 ms = 3.906 s of network: 10,176 s are 6 workers.
    let inner = named(&plan, "cache after `decode`");
    assert_eq!(inner.workers, 6.0);
    // c7g: 2,605 x 3.072 s / 60 % = 13,338 s x $0.03625 an hour
    let c7g = named(&plan, "c7g at 60 % utilisation");
    assert_near(c7g.cost.compute.0, 0.134_30);
    assert_eq!(c7g.seconds, plan.functions.seconds);
    // 15 % more
    let managed = named(&plan, "managed, c7g at 60 % utilisation");
    assert_near(managed.cost.compute.0, 0.154_45);
    // The trainer's 8 spare cores do 8,000 s of work in 1,000 s, less than it trains. Requests: 2,605
    // x (0.2 + 0.4 + 2.5 + 0.5) / M
    let own = named(&plan, "the trainer's 8 spare cores");
    assert_near(own.seconds, 1875.0);
    assert_near(own.cost.preprocessing().0, 0.009_378);
    assert_eq!(plan.alternatives[plan.cheapest].kind, AlternativeKind::TrainerCpu);
    assert_eq!(plan.fastest, plan.cheapest, "all are as fast as training");
}

#[test]
fn how_long_a_cache_pays() {
    let plan = plan(&jpegs(), &job(), &PlanLimits::default());
    let [inner, last] = &plan.break_even[..] else { panic!("{:?}", plan.break_even) };
    // $0.21081 - $0.00104 saved, 140.19 GB x $0.023 / 30 = $0.10748 a day
    assert_near(last.saved_usd.0, 0.209_77);
    assert_near(last.usd_per_day.0, 0.107_48);
    assert_near(last.days, 1.952);
    // Reading decoded images takes longer than decoding them again.
    assert_eq!((inner.days, inner.saved_usd.0 < 0.0), (0.0, true));
}

#[test]
fn it_says_so_when_functions_are_not_the_cheapest() {
    let plan = plan(&jpegs(), &job(), &PlanLimits::default());
    assert_eq!(
        plan.verdicts,
        [
            "a worker makes a batch in 0.520 s, a step takes 0.120 s: 5 workers, and the trainer never waits",
            "functions are not the cheapest: c7g at 60 % utilisation would be 25 % cheaper ($0.158 instead \
             of $0.211 an epoch, the accelerator aside)",
            "functions are not the cheapest: the trainer's 8 spare cores would be 96 % cheaper ($0.00938 \
             instead of $0.211 an epoch, the accelerator aside)",
            "cache after `batch` pays if it is read again within 2.0 days (saves $0.21 an epoch, keeping it \
             costs $0.107 a day)",
            "instances cost less than functions from 43 % use on, Lambda Managed Instances from 49 % use on \
             (public documentation, not tried; at least three, and slow to grow)",
            "a trainer outside AWS also pays $12.62 an epoch to receive it ($0.09 a GB): train in the stack's \
             region, compress, or use smaller dtypes",
        ]
    );
    // At 40 % utilisation functions are.
    let mut idle = job();
    (idle.prices.instance.utilisation, idle.spare_cores) = (0.40, 0.0);
    let plan = super::plan(&jpegs(), &idle, &PlanLimits::default());
    assert!(!plan.verdicts.iter().any(|said| said.contains("not the cheapest")), "{plan}");
}

#[test]
fn slow_cores_of_the_trainer_are_no_substitute() {
    // 8,000 s of work on 2 cores: 4,000 s of an accelerator.
    let job = PlannedJob { spare_cores: 2.0, ..job() };
    let plan = plan(&jpegs(), &job, &PlanLimits::default());
    let own = named(&plan, "the trainer's 2 spare cores");
    assert_near(own.seconds, 4000.0);
    assert!(!plan.verdicts.iter().any(|said| said.contains("spare cores")));
}

#[test]
fn a_network_bound_worker_is_reported() {
    let mut fast = jpegs();
    fast.ops.iter_mut().for_each(|op| op.cpu_s *= 0.15);
    let plan = plan(&fast, &PlannedJob { step_s: 0.001, ..job() }, &PlanLimits::default());
    // 1.2 ms a record: 384 take 0.461 s, and 100 MB at 71 MB/s 1.409 s: 2,605 x 1.459 s = 3,801 s of
    // work; 15,625 steps of 1 ms are 15.6 s: 244 workers.
    assert_eq!(plan.workers, 244);
    assert_eq!(plan.functions.bound, EpochBound::Trainer);
    let limits = PlanLimits { max_workers: 100, ..PlanLimits::default() };
    let plan = super::plan(&fast, &PlannedJob { step_s: 0.001, ..job() }, &limits);
    assert_eq!((plan.workers, plan.functions.bound), (100, EpochBound::WorkerNetwork));
    // 38.0 s for 15.6 s of training.
    assert!(plan.verdicts[0].ends_with("waits 59 % of the time for the workers' network"));
    assert_eq!(plan.verdicts[1], "the limit of 100 workers at a time keeps it at 100 workers");
    assert!(plan.verdicts.iter().any(|said| said.contains("less memory costs less")));
    // 1,769 MB x 0.461 s / 1.409 s = 579 MB: as fast, for 579/1,769 of $0.0875.
    let small = named(&plan, "100 functions of 579 MB");
    assert_near(small.seconds, plan.functions.seconds);
    assert_near(small.cost.compute.0, plan.functions.cost.compute.0 * 579.0 / 1769.0);
}

#[test]
fn the_same_job_on_this_machine() {
    let run = LocalJob::from_measured(&jpegs(), &job(), 8.0, 4);
    // A million x 8 ms on 4 workers are 2,000 s, on 8 cores 1,000 s and what is around them.
    assert_eq!((run.splits, run.batches, run.workers), (2605, 15_625, 4));
    assert_near(run.cpu_s, 8000.0);
    assert_near(run.delivered_bytes, 150.528e9);
    let estimate = predict_local(&run, &LocalCosts::default());
    assert_eq!(estimate.bound, LocalBound::Workers);
    // (8,000 + 2,605 x 15.2 ms) / 4 = 2,009.9 s; cores: 8,000 + 39.6 + (110 + 2 x 150.5) GB x 0.9 ns +
    // 15,625 x 1.3 ms + 150.5 GB x 2.2 ns = 8,761 s / 8 = 1,095 s: 0.4 % more for the two together.
    assert_near(estimate.workers_s, 2009.9);
    assert_near(estimate.processors_s, 1095.1);
    assert!(estimate.seconds > 2009.9 && estimate.seconds < 2.06e3, "{estimate:?}");
}

#[test]
fn a_budget_limits_the_workers() {
    // A worker's hour is 3,600 x $0.000023034 = $0.0829: three for $0.25.
    let limits = PlanLimits { budget_usd_per_hour: Some(0.25), ..PlanLimits::default() };
    let plan = plan(&jpegs(), &job(), &limits);
    assert_eq!(plan.workers, 3);
    assert_eq!(plan.limited_by.as_deref(), Some("the budget of $0.25 an hour"));
}

#[test]
fn random_points_are_refused() {
    let mut job = job();
    job.points[1].random = true;
    let plan = plan(&jpegs(), &job, &PlanLimits::default());
    let refused = named(&plan, "cache after `batch`").refused.as_deref();
    assert_eq!(refused, Some("random: `reuse_random: true` allows it"));
    assert_eq!(plan.break_even.len(), 1);
    job.points[1].reuse_random = true;
    assert_eq!(super::plan(&jpegs(), &job, &PlanLimits::default()).break_even.len(), 2);
}

#[test]
fn a_plan_is_read_at_a_glance() {
    let mut job = job();
    job.points = (0..20)
        .map(|i| PlannedCachePoint { after_op: i % 4, ..PlannedCachePoint::default() })
        .collect();
    let text = plan(&jpegs(), &job, &PlanLimits::default()).to_string();
    assert!(text.lines().count() <= 25, "{text}");
    let widest = text.lines().take(16).map(|line| line.chars().count()).max();
    assert!(widest <= Some(132), "{widest:?}\n{text}");
    let text = plan(&jpegs(), &super::tests::job(), &PlanLimits::default()).to_string();
    println!("{text}");
    let total = "5 functions                        5 31 min 15 s    $0.187   $0.0234 $0.000033        $0     $2.58     $2.79";
    assert!(text.lines().any(|line| line == total), "{text}");
    assert!(text.contains("2026-11"));
}

#[test]
fn durations_are_people_s() {
    let shown = [(0.5, "0.50 s"), (59.0, "59.00 s"), (75.4, "1 min 15 s"), (7500.0, "2 h 05 min")];
    for (seconds, text) in shown {
        assert_eq!(duration(seconds), text);
    }
}

#[test]
fn a_plan_is_data() {
    let made = plan(&jpegs(), &job(), &PlanLimits::default());
    let json = serde_json::to_string(&made).unwrap();
    assert_eq!(serde_json::from_str::<JobPrediction>(&json).unwrap(), made);
    let job: PlannedJob =
        toml::from_str("records = 5\nstep_s = 0.1\n[shape]\nmemory_mb = 885\n").unwrap();
    assert_eq!((job.batch_size, job.shape.memory_mb), (1, 885));
}

/// Any number, including NaN and infinities.
fn any_quantity() -> impl Strategy<Value = f64> {
    prop_oneof![8 => 0.0..1e9, 1 => Just(0.0), 1 => any::<f64>()]
}

prop_compose! {
    fn any_measured()(
        records in any_quantity(), source_bytes in any_quantity(), rows in any_quantity(),
        row_bytes in any_quantity(), function_slowdown in any_quantity(),
        ops in prop::collection::vec((any_quantity(), any_quantity(), any_quantity()), 0..5),
    ) -> MeasuredSample {
        let of = |(cpu_s, wait_s, bytes)| OpCost { cpu_s, wait_s, elements: 1.0, bytes, ..op("op", 0.0, 0.0) };
        let ops = ops.into_iter().map(of).collect();
        MeasuredSample { records, source_bytes, rows, row_bytes, ops, function_slowdown }
    }
}

prop_compose! {
    fn any_job()(
        records in 0u64..u64::MAX, batch_size in 0u32..u32::MAX, epochs in 0u32..1000,
        step_s in any_quantity(), spare_cores in any_quantity(), ingest_bytes_per_s in any_quantity(),
        splits in prop::option::of(0u64..100_000), kept_days in any_quantity(),
        points in prop::collection::vec(0usize..7, 0..4), memory_mb in 0u32..10_240,
    ) -> PlannedJob {
        let point = |after_op| PlannedCachePoint { after_op, ..PlannedCachePoint::default() };
        PlannedJob {
            records, batch_size, epochs, step_s, spare_cores, ingest_bytes_per_s, splits, kept_days,
            points: points.into_iter().map(point).collect(),
            shape: FunctionShape { memory_mb, ..FunctionShape::default() },
            ..super::tests::job()
        }
    }
}

proptest! {
    #[test]
    fn no_plan_has_a_figure_that_is_none(
        measured in any_measured(), job in any_job(), max_workers in 0u32..10_000,
        budget_usd_per_hour in prop::option::of(any_quantity()),
    ) {
        let limits = PlanLimits { max_workers, budget_usd_per_hour };
        let plan = plan(&measured, &job, &limits);
        prop_assert!((1..=max_workers.max(1)).contains(&plan.workers));
        let cheapest = &plan.alternatives[plan.cheapest];
        let fastest = &plan.alternatives[plan.fastest];
        for alternative in &plan.alternatives {
            let CostBreakdown { compute, requests, storage, transfer, accelerator } = alternative.cost;
            let parts = [compute, requests, storage, transfer, accelerator];
            prop_assert!(parts.iter().all(|part| part.0 >= 0.0 && part.0.is_finite()), "{alternative:?}");
            let sum: f64 = parts.iter().map(|part| part.0).sum();
            let total = alternative.cost.total().0;
            prop_assert!((total - sum).abs() <= sum * 1e-12);
            prop_assert!(alternative.seconds >= 0.0 && alternative.seconds.is_finite());
            if alternative.refused.is_none() {
                prop_assert!(cheapest.cost.total().0 <= total);
                prop_assert!(fastest.seconds <= alternative.seconds * 1.011);
            }
        }
        prop_assert!(plan.break_even.iter().all(|point| point.days >= 0.0 && point.days.is_finite()));
        prop_assert!(plan.to_string().lines().count() <= 25);
        prop_assert!(!plan.to_string().contains("NaN"), "{plan}");
    }

    #[test]
    fn dearer_functions_make_nothing_cheaper_and_instances_better(factor in 1.0f64..50.0) {
        let mut dear = job();
        dear.prices.function.arm64_usd_per_gb_second *= factor;
        let (cheap, dear) = (
            plan(&jpegs(), &job(), &PlanLimits::default()), plan(&jpegs(), &dear, &PlanLimits::default()),
        );
        for (a, b) in cheap.alternatives.iter().zip(&dear.alternatives) {
            prop_assert!(b.cost.total() >= a.cost.total());
        }
        prop_assert_eq!(cheap.functions.seconds, dear.functions.seconds);
    }
}

#[test]
fn a_plan_of_a_large_job_says_what_its_stack_needs() {
    let wide = PlannedJob { step_s: 1e-4, records: 10_000_000, ..job() };
    let planned =
        |max_workers| plan(&jpegs(), &wide, &PlanLimits { max_workers, ..PlanLimits::default() });
    let says =
        |plan: &JobPrediction, words: &str| plan.verdicts.iter().any(|said| said.contains(words));
    let small = planned(424);
    assert_eq!(small.workers, 424);
    for words in ["most accounts", "AWS adds", "objects a second"] {
        assert!(!says(&small, words), "{:?}", small.verdicts);
    }
    // 5,000 + 834 + 5, twice; 834 x 10; 4 intervals after the first 1,000.
    let large = planned(5_000);
    assert_eq!(large.workers, 5_000);
    for words in ["need 11678", "serves 8340 requests", "run after 40 s", "a new table serves"] {
        assert!(says(&large, words), "{words}: {:?}", large.verdicts);
    }
    // The same records in six times as many splits.
    let split = PlannedJob { splits: Some(156_250), ..wide };
    let split = plan(&jpegs(), &split, &PlanLimits { max_workers: 5_000, ..PlanLimits::default() });
    assert!(says(&split, "S3 takes 3500"), "{:?}", split.verdicts);
}

#[test]
fn a_plan_says_that_its_workers_put_more_objects_than_a_prefix_takes() {
    for (splits, seconds, said) in [(7_000, 2.0, false), (7_002, 2.0, true), (16_000, 1.0, true)] {
        let sentence = super::deployment::puts(splits, seconds);
        assert_eq!(sentence.is_some(), said, "{splits} in {seconds} s: {sentence:?}");
    }
    assert!(super::deployment::puts(16_000, 1.0).unwrap().contains("put 16000 objects a second"));
    assert_eq!(super::deployment::puts(0, 0.0), None);
    assert_eq!(super::deployment::puts(1, 0.0), None);
}

#[test]
fn a_trainer_outside_aws_pays_for_what_it_receives() {
    // 2,605 x 384 x 150,528 B = 140.2 GiB: x $0.09 = $12.6
    let planned = plan(&jpegs(), &job(), &PlanLimits::default());
    assert!(
        planned.verdicts.iter().any(|said| said.contains("$12.62 an epoch")),
        "{:?}",
        planned.verdicts
    );
    let mut priced = job();
    priced.prices.transfer.delivery_usd_per_gb = 0.09;
    let planned = plan(&jpegs(), &priced, &PlanLimits::default());
    assert!(planned.verdicts.iter().all(|said| !said.contains("outside AWS")));
}
