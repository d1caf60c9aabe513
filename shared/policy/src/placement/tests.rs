//! Placements against figures worked out by hand, and a search that tries everything.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::cost::{
    CostBreakdown, EpochBound, EpochWork, FunctionShape, PriceList, SplitWork, TrainerDemand,
    TransferPrices,
};
use crate::plan::{
    MeasuredSample, PlanLimits, PlannedCachePoint, PlannedJob,
    tests::{jpegs, op},
};
use proptest::prelude::*;
use std::time::Instant;

fn prices() -> PriceList {
    PriceList { accelerator_usd_per_hour: 4.96, ..PriceList::default() }
}

/// A million images of 8 ms in batches of 64: 2,243 splits, without any overhead.
fn a_million() -> (EpochWork, HostWork) {
    let splits = 2_243;
    let split = SplitWork { cpu_s: 8_000.0 / splits as f64, ..SplitWork::default() };
    let work =
        EpochWork { splits, batches: 15_625, records: 1_000_000, split, ..EpochWork::default() };
    (work, HostWork { local_s: 0.512, remote_s: 0.0 })
}

fn terms<'t>(
    host: PlacedHost,
    limits: &'t PlanLimits,
    prices: &'t PriceList,
) -> PlacementTerms<'t> {
    PlacementTerms {
        shape: FunctionShape::default(),
        trainer: TrainerDemand { step_s: 0.064, ingest_bytes_per_s: 0.0 },
        host,
        limits,
        prices,
    }
}

fn near(actual: f64, expected: f64, within: f64) {
    assert!((actual / expected - 1.0).abs() <= within, "{actual} is not {expected}");
}

#[test]
fn four_idle_processors_make_half_of_what_nine_functions_make() {
    let (work, host_work) = a_million();
    let (limits, prices) = (PlanLimits::default(), prices());
    let remote = place_epoch(&work, &host_work, 0, &terms(PlacedHost::default(), &limits, &prices));
    // A batch is 0.512 s of a function, due every 0.064 s: 8, and 2 % more.
    assert_eq!((remote.remote, remote.local, remote.bound), (9, 0, EpochBound::Trainer));
    // 8,000 s x $2.303e-5 + 2,243 x $9.0e-6
    near(remote.cost.preprocessing().0, 0.204, 5e-3);
    let host = PlacedHost::with_idle(4.0);
    let both = place_epoch(&work, &host_work, 4, &terms(host, &limits, &prices));
    assert_eq!((both.remote, both.local), (5, 4));
    near(both.share_local, 0.5, 1e-9);
    assert_eq!((both.batch_time_s, both.stall), (0.064, 0.0));
    // Half of each: $0.0921 + 1,121.5 x ($9.0e-6 + $3.6e-6)
    near(both.cost.preprocessing().0, 0.106, 5e-3);
    // The trainer's 1,000 s cost $1.378.
    let saved = remote.cost.preprocessing() - both.cost.preprocessing();
    near(saved.0 / both.cost.accelerator.0, 0.071, 5e-3);
}

#[test]
fn a_busy_host_lengthens_the_step_and_decoding_takes_processors_too() {
    let (work, host_work) = a_million();
    let (limits, prices) = (PlanLimits::default(), prices());
    // 10 processors of which 9 may be busy, 7 by training: four local workers share 2.
    let host = PlacedHost { cores: 10.0, trainer_cores: 7.0, ..PlacedHost::default() };
    let placed = place_epoch(&work, &host_work, 4, &terms(host, &limits, &prices));
    near(placed.share_local, 0.25, 1e-9);
    assert_eq!((placed.remote, placed.bound), (7, EpochBound::Trainer));
    // Decoding of 0.192 s a batch takes 3 processors of 9 - 7: one too many.
    let heavy = HostWork { remote_s: 0.192, ..host_work };
    let placed = place_epoch(&work, &heavy, 0, &terms(host, &limits, &prices));
    near(placed.step_s, 0.064 * 10.0 / 9.0, 1e-9);
    assert_eq!(placed.bound, EpochBound::TrainerHost);
}

#[test]
fn limits_keep_functions_few_and_the_trainer_waits() {
    let (work, host_work) = a_million();
    let (limits, prices) = (PlanLimits { max_workers: 4, ..PlanLimits::default() }, prices());
    let placed = place_epoch(&work, &host_work, 0, &terms(PlacedHost::default(), &limits, &prices));
    assert_eq!((placed.remote, placed.bound), (4, EpochBound::Workers));
    near(placed.batch_time_s, 0.128, 1e-9);
    near(placed.stall, 0.5, 1e-9);
}

fn order(name: &'static str, measured: MeasuredSample) -> PlacedOrder {
    PlacedOrder { name, measured, points: Vec::new(), packed: None }
}

fn input(host: PlacedHost) -> PlacementInput {
    PlacementInput {
        orders: vec![order("author", jpegs())],
        job: PlannedJob {
            records: 1_000_000,
            batch_size: 64,
            epochs: 10,
            step_s: 0.064,
            kept_days: 2.0,
            prices: prices(),
            ..PlannedJob::default()
        },
        limits: PlanLimits::default(),
        host,
    }
}

#[test]
fn the_search_takes_idle_processors_and_says_what_else_there_is() {
    let plan = search(&input(PlacedHost::with_idle(4.0)));
    assert_eq!((plan.local, plan.remote, plan.cache, plan.memory_mb), (4, 5, None, 1769));
    assert_eq!((plan.order.as_str(), plan.codec.as_str()), ("author", "stored"));
    let without = plan.alternatives.iter().find(|other| other.dimension == "local").unwrap();
    assert_eq!((without.local, without.remote, without.value.as_str()), (0, 9, "no local worker"));
    assert!(without.usd > plan.usd.total().0);
    let none = search(&input(PlacedHost::default()));
    assert_eq!((none.local, none.remote), (0, 9));
    assert!(none.reasons.iter().any(|why| why.contains("no idle processor")), "{:?}", none.reasons);
}

#[test]
fn each_dimension_is_chosen_where_it_pays() {
    let base = input(PlacedHost::default());
    // Another order that takes half the time.
    let mut quick = jpegs();
    quick.ops[2].cpu_s = 0.0;
    let mut two = base.clone();
    two.orders.push(order("AutoOrder", quick));
    assert_eq!(search(&two).order, "AutoOrder");
    two.orders.swap(0, 1);
    assert_eq!(search(&two).order, "AutoOrder");
    // 1.2 ms an image: the network is the limit, and less memory is as fast.
    let mut light = base.clone();
    light.orders[0].measured.ops.iter_mut().for_each(|op| op.cpu_s *= 0.15);
    let plan = search(&light);
    assert_eq!((plan.memory_mb, plan.bound), (512, EpochBound::Trainer));
    // Compression to a tenth that costs next to nothing; beside the trainer's price it would not count.
    light.job.prices.accelerator_usd_per_hour = 0.0;
    light.orders[0].measured.ops.iter_mut().for_each(|op| op.cpu_s *= 0.1);
    let packed = PackedBytes { ratio: 0.1, pack_s_per_byte: 1e-10, unpack_s_per_byte: 1e-10 };
    light.orders[0].packed = Some(packed);
    assert_eq!(search(&light).codec, "zstd-1");
    // Batches are greater than the source: workers stay with the trainer. Smaller: with the data.
    let mut far = base.clone();
    far.job.prices.transfer = TransferPrices { source_usd_per_gb: 0.02, delivery_usd_per_gb: 0.0 };
    assert_eq!(search(&far).region, WorkerRegion::Trainer);
    far.orders[0].measured.source_bytes *= 10.0;
    assert_eq!(search(&far).region, WorkerRegion::Data);
    // A cache of all that is delivered, over a hundred epochs in a week.
    let mut cached = base.clone();
    cached.orders[0].points =
        vec![PlannedCachePoint { after_op: 3, ..PlannedCachePoint::default() }];
    cached.job.epochs = 100;
    let plan = search(&cached);
    assert_eq!((plan.cache.as_deref(), plan.remote), (Some("cache after `batch`"), 0));
    cached.job.epochs = 1;
    assert_eq!(search(&cached).cache, None);
}

fn cut_of(input: &PlacementInput) -> String {
    let reasons = search(input).reasons;
    reasons.into_iter().find(|why| why.starts_with("cut")).unwrap()
}

#[test]
fn a_cut_is_priced_and_reported() {
    // Decoded images are four times what is delivered: to send them takes a worker longer, and the host decodes them.
    let mut six = input(PlacedHost::with_idle(6.0));
    let cut = cut_of(&six);
    assert!(cut.contains("no other gains 5 %") && cut.contains("`decode`"), "{cut}");
    // An operator that runs together with the next gives no elements.
    six.orders[0].measured.ops[1].bytes = 0.0;
    assert!(cut_of(&six).contains("no idle processors"), "{}", cut_of(&six));
    // Small elements that a cheap operator makes large, and a host that can run it and nothing more.
    let mut grows = input(PlacedHost::with_idle(0.3));
    let measured = &mut grows.orders[0].measured;
    measured.ops[1] = op("tokenize", 0.30, 300.0 * 10e3);
    measured.ops[2] = op("one_hot", 0.003, 300.0 * 1.5e6);
    measured.ops[3].bytes = 300.0 * 1.5e6;
    measured.row_bytes = 300.0 * 1.5e6;
    let cut = cut_of(&grows);
    assert!(cut.contains("after `tokenize` would save"), "{cut}");
    grows.host = PlacedHost::default();
    assert!(cut_of(&grows).contains("no idle processors"), "{}", cut_of(&grows));
}

#[test]
fn everything_is_tried_at_once() {
    let mut all = input(PlacedHost::with_idle(96.0));
    all.job.prices.transfer.source_usd_per_gb = 0.02;
    let mut long = jpegs();
    for at in 0..5 {
        long.ops.insert(2, op(&format!("flip{at}"), 0.1, 300.0 * 150_528.0));
    }
    let points =
        [1, 5, 8].map(|after_op| PlannedCachePoint { after_op, ..PlannedCachePoint::default() });
    let packed = Some(PackedBytes { ratio: 0.6, pack_s_per_byte: 2e-9, unpack_s_per_byte: 1e-9 });
    all.orders = ["author", "AutoOrder"]
        .map(|name| PlacedOrder { name, measured: long.clone(), points: points.to_vec(), packed })
        .to_vec();
    let began = Instant::now();
    let plan = search(&all);
    println!("{} combinations in {:?}", plan.combinations, began.elapsed());
    assert!((1_000..30_000).contains(&plan.combinations), "{}", plan.combinations);
}

proptest! {
    /// No placement that is listed costs less and is as fast, and nothing is not a number.
    #[test]
    fn nothing_that_is_shown_is_better(
        cpu_ms in 0.0f64..50.0, step_s in 0.0f64..1.0, idle in 0.0f64..64.0, bytes in 0.0f64..1e7,
        memory_mb in prop::sample::select(vec![512u32, 1769, 3008]), usd in 0.0f64..40.0,
        records in 0u64..2_000_000, max_workers in 1u32..500,
    ) {
        let mut input = input(PlacedHost::with_idle(idle));
        input.orders[0].measured.ops[1].cpu_s = cpu_ms * 0.3;
        input.orders[0].measured.row_bytes = 300.0 * bytes;
        input.job.step_s = step_s;
        input.job.records = records;
        input.job.shape.memory_mb = memory_mb;
        input.job.prices.accelerator_usd_per_hour = usd;
        input.limits.max_workers = max_workers;
        let plan = search(&input);
        let CostBreakdown { compute, requests, storage, transfer, accelerator } = plan.usd;
        let parts = [compute.0, requests.0, storage.0, transfer.0, accelerator.0, plan.batch_time_s, plan.stall];
        prop_assert!(parts.iter().all(|part| part.is_finite() && *part >= 0.0), "{parts:?}");
        prop_assert!(plan.remote <= max_workers && f64::from(plan.local) <= idle);
        for other in &plan.alternatives {
            let is_fast = other.batch_time_s <= plan.batch_time_s * (1.0 + 1e-9);
            prop_assert!(!is_fast || other.usd >= 0.98 * plan.usd.total().0, "{other:?} {plan:?}");
        }
    }
}
