//! The cost of a run, beside its plan; and measurements of its first splits.

use super::super::*;
use super::{assert_near, job, jpegs};
use crate::cost::{BilledRequests, PriceList, TransferPrices};
use gristmill_model::wire::{CacheMode, OpWork, WorkProfile};

/// An epoch of the plan, delivered as planned.
fn delivered(mode: CacheMode) -> DeliveredEpoch {
    DeliveredEpoch {
        mode,
        seconds: 1875.0,
        splits: 2605,
        object_bytes: 1e6 * 150_528.0,
        ..DeliveredEpoch::default()
    }
}

fn kinds(cost: CostBreakdown) -> [f64; 5] {
    cost.items().map(|(_, usd)| usd.0)
}

#[test]
fn a_run_that_goes_as_planned_costs_what_its_plan_says() {
    let mut job = job();
    job.prices.transfer = TransferPrices { source_usd_per_gb: 0.02, delivery_usd_per_gb: 0.09 };
    let plan = plan(&jpegs(), &job, &PlanLimits::default());
    let near = |planned: CostBreakdown, spent: CostBreakdown| {
        for (planned, spent) in kinds(planned).into_iter().zip(kinds(spent)) {
            assert!((planned - spent).abs() <= 1e-9 * planned, "{planned} {spent}");
        }
    };
    let spent = |mode| job.spent(&jpegs(), &delivered(mode));
    near(plan.functions.cost, spent(CacheMode::Compute));
    // Ten epochs with each cache are those of its alternative.
    for (point, made) in [(0, 2.0), (1, 1.0)] {
        let (put, get) = (spent(CacheMode::Put { point }), spent(CacheMode::Get { point }));
        let first = spent(CacheMode::Profile) * (made - 1.0);
        let name = ["cache after `decode`", "cache after `batch`"][point as usize];
        let planned = super::named(&plan, name).cost * 10.0;
        near(planned, first + put + get * (10.0 - made));
    }
}

#[test]
fn splits_of_the_trainers_host_cost_no_function_and_no_put() {
    let all = DeliveredEpoch { local_splits: 2605, ..delivered(CacheMode::Compute) };
    let cost = job().spent(&jpegs(), &all);
    assert_eq!((cost.compute.0, cost.storage.0), (0.0, 0.0));
    assert_near(cost.requests.0, BilledRequests::LOCAL_SPLIT.usd(&PriceList::default()).0 * 2605.0);
    let half = DeliveredEpoch { local_splits: 1000, ..all };
    let [half, remote] = [half, delivered(CacheMode::Compute)].map(|of| job().spent(&jpegs(), &of));
    assert_near(half.compute.0, remote.compute.0 * 1605.0 / 2605.0);
}

#[test]
fn functions_that_ran_cost_the_time_that_they_took() {
    let ran = DeliveredEpoch { function_s: Some(5000.0), ..delivered(CacheMode::Compute) };
    let cost = job().spent(&jpegs(), &ran);
    // 5,000 s x $0.000023034
    assert_near(cost.compute.0, 0.115_17);
    assert_eq!(cost.requests, job().spent(&jpegs(), &delivered(CacheMode::Compute)).requests);
}

#[test]
fn requests_of_a_million_records_are_not_those_of_many_small_splits() {
    // 1,000 records in 64 splits.
    let small = PlannedJob { records: 1_000, splits: Some(64), ..job() };
    let plan = plan(&jpegs(), &small, &PlanLimits::default());
    assert_near(plan.functions.cost.requests.0, 64.0 * 9.0e-6);
    // 2,605 of 64 MiB.
    assert_near(plan.per_million.requests.0, 0.023_445);
    let given = PlannedJob { million_splits: Some(100), ..small };
    let plan = super::plan(&jpegs(), &given, &PlanLimits::default());
    assert_near(plan.per_million.requests.0, 100.0 * 9.0e-6);
}

#[test]
fn the_last_split_is_no_larger_than_what_is_left() {
    // 80 records in splits of 64 are two splits of 40.
    let job = PlannedJob { records: 80, splits: Some(2), ..job() };
    let work = job.epoch_work(&jpegs());
    assert_near(work.split.cpu_s * work.splits as f64, 80.0 * 0.008);
    assert_near(work.split.bytes_out * work.splits as f64, 80.0 * 150_528.0);
}

#[test]
fn first_splits_are_measured_in_processor_time() {
    let op = |op: &str, active_us, elements, bytes| OpWork {
        op: op.into(),
        active_us,
        elements,
        bytes,
        ..OpWork::default()
    };
    let profile = WorkProfile {
        splits: 4,
        batches: 8,
        records: 64,
        object_bytes: 900,
        // Other processes took two thirds of the time.
        cpu_us: 10_000,
        ops: vec![
            op("source", 6_000, 64, 1_000),
            OpWork { waits: true, ..op("sleep", 128_000, 64, 1_000) },
            op("resize", 24_000, 64, 800),
            OpWork { is_point: true, ..op("autocache", 0, 64, 800) },
            op("batch", 0, 8, 0),
        ],
        // Those of two splits.
        reads: vec![(300, 5), (200, 5)],
        source_wait_ms: 0,
    };
    let measured = MeasuredSample::from(&profile);
    let times = |op: &OpCost| [op.cpu_s, op.wait_s].map(|s| (s * 1e6).round());
    let of_ops: Vec<_> = measured.ops.iter().map(times).collect();
    assert_eq!(of_ops, [[2e3, 0.0], [0.0, 128e3], [8e3, 0.0], [0.0; 2], [0.0; 2]]);
    assert_eq!((measured.records, measured.rows, measured.row_bytes), (64.0, 64.0, 900.0));
    assert_eq!(measured.source_bytes, 1_000.0);
    let point = PlannedCachePoint { after_op: 3, ..PlannedCachePoint::default() };
    assert_eq!(point.name(&measured), "cache after `resize`");
    let unmeasured = MeasuredSample::from(&WorkProfile { cpu_us: 0, ..profile });
    assert_eq!(times(&unmeasured.ops[2]), [24e3, 0.0], "what an older worker reports");
    assert_eq!(MeasuredSample::from(&WorkProfile::default()).records, 0.0);
}
