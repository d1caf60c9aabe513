//! The cost model against figures worked out by hand, and its invariants.

use super::*;
use proptest::prelude::*;

/// Equal within a tenth of a percent: hand arithmetic rounds.
fn assert_near(actual: f64, expected: f64) {
    assert!((actual / expected - 1.0).abs() < 1e-3, "{actual} is not {expected}");
}

/// A million images of 224 x 224 x 3 as u8 at `cpu_ms` each, from JPEGs of 110 KB, in splits of
/// 64 MiB: 67,108,864 / 150,528 = 445.8 images, about 2,243 splits.
fn a_million_images(cpu_ms: f64) -> EpochWork {
    let images_per_split = 67_108_864.0 / 150_528.0;
    EpochWork {
        splits: (1e6 / images_per_split) as u64,
        batches: 1_000_000 / 64,
        records: 1_000_000,
        split: SplitWork {
            cpu_s: images_per_split * cpu_ms / 1e3,
            bytes_out: 67_108_864.0,
            bytes_in: images_per_split * 110e3,
            ..SplitWork::default()
        },
        origin: SplitOrigin::Function,
        held_bytes: 0.0,
    }
}

#[test]
fn dollars_print_as_people_write_them() {
    let shown = [
        (0.0, "$0"),
        (0.0123, "$0.0123"),
        (0.000_034, "$0.000034"),
        (0.000_000_128, "$0.00000013"),
        (0.003_28, "$0.00328"),
        (0.2, "$0.20"),
        (0.184_27, "$0.184"),
        (0.999_9, "$1.00"),
        (4.96, "$4.96"),
        (12.3, "$12.30"),
        (1234.56, "$1235"),
        (-0.05, "-$0.05"),
    ];
    for (amount, text) in shown {
        assert_eq!(Usd(amount).to_string(), text);
    }
    assert_eq!(format!("{:>8}|", Usd(0.2)), "   $0.20|");
}

#[test]
fn one_split_costs_nine_millionths_of_requests() {
    // $0.20/M + $5/M + 2 x $0.40/M + 4 x $0.625/M + 4 x $0.125/M = (0.2 + 5 + 0.8 + 2.5 + 0.5)/M
    assert_near(BilledRequests::SPLIT.usd(&PriceList::default()).0, 9.0e-6);
    // One get.
    assert_near(BilledRequests::CACHED_SPLIT.usd(&PriceList::default()).0, 0.4e-6);
}

#[test]
fn a_million_images_of_8_ms_cost_what_the_documentation_says() {
    let prices = PriceList::default();
    let trainer = TrainerDemand { step_s: 0.12, ingest_bytes_per_s: 0.0 };
    let cost = |architecture| {
        let shape = FunctionShape { architecture, ..FunctionShape::default() };
        a_million_images(8.0).on_functions(8, &shape, &trainer, &prices).cost
    };
    // 1e6 x 8 ms = 8,000 s of 1,769/1,024 = 1.7275 GB: 13,820 GB-s x $0.0000133334 = $0.1843
    let arm64 = cost(FunctionArchitecture::Arm64);
    assert!((arm64.compute.0 - 0.184).abs() < 0.001, "{}", arm64.compute);
    // x $0.0000166667 = $0.2303
    assert!((cost(FunctionArchitecture::X86_64).compute.0 - 0.230).abs() < 0.001);
    // 2,243 x $9.0e-6 = $0.0202
    assert!((arm64.requests.0 - 0.0202).abs() < 0.0001, "{}", arm64.requests);
    assert_eq!(arm64.total().to_string(), "$0.204");
}

#[test]
fn fast_workers_wait_for_their_network() {
    let shape = FunctionShape::default();
    let work = a_million_images(1.2).split;
    // 445.8 x 1.2 ms = 0.535 s; (67.1 + 49.0 MB) / 71 MB/s = 1.636 s
    assert_near(work.compute_s(&shape), 0.535);
    assert_near(work.network_s(&shape), 1.636);
    assert_near(work.worker_s(&shape), 1.636);
    assert_eq!(work.bound(&shape), EpochBound::WorkerNetwork);
    let slow = a_million_images(8.0).split;
    // 445.8 x 8 ms = 3.567 s
    assert_near(slow.worker_s(&shape), 3.567);
    assert_eq!(slow.bound(&shape), EpochBound::Workers);
    // A third of the memory computes in 3 x 0.535 = 1.605 s, still less than the network takes, and a
    // second of it costs a third (589/1,769).
    let small = FunctionShape { memory_mb: 589, ..shape };
    assert_near(work.worker_s(&small), 1.636);
    assert_near(small.usd_per_second(&PriceList::default()).0, 7.669e-6);
}

#[test]
fn the_documentation_says_what_the_model_does() {
    let documentation = include_str!("../../../../docs/cost.md");
    let prices = PriceList::default();
    let full = FunctionShape::default();
    let small = FunctionShape { memory_mb: 589, ..full };
    // 2,243 splits; 140.2 GiB kept for a day of 30: x $0.023 / 30 = $0.107. Cached, an epoch takes 2,243
    // gets: $0.0009.
    let row = |cpu_ms: f64, shape: &FunctionShape| {
        let work = a_million_images(cpu_ms);
        let cost = work.on_functions(8, shape, &TrainerDemand::default(), &prices).cost;
        let splits = work.splits as f64;
        let saved = cost.total() - BilledRequests::CACHED_SPLIT.usd(&prices) * splits;
        let usd_per_day = prices.stored(splits * work.split.bytes_out, DAY_S);
        (cost, format!("{:.1} days", saved.0 / usd_per_day.0))
    };
    let rows = [
        // 8,000 s of a worker
        ("8 ms", row(8.0, &full), [0.184, 0.0202, 0.204]),
        // 2,243 x 1.636 s = 3,669 s of network
        ("1.2 ms", row(1.2, &full), [0.0845, 0.0202, 0.105]),
        ("1.2 ms, on 589 MB", row(1.2, &small), [0.0281, 0.0202, 0.0483]),
    ];
    for (name, (cost, days), expected) in rows {
        let CostBreakdown { compute, requests, .. } = cost;
        for (usd, expected) in [compute, requests, cost.total()].into_iter().zip(expected) {
            assert!((usd.0 / expected - 1.0).abs() < 4e-3, "{name}: {usd}, not {expected}");
        }
        let line = format!("| {name} | {compute} | {requests} | **{}** | {days} |", cost.total());
        assert!(documentation.contains(&line), "docs/cost.md should have: {line}");
    }
}

#[test]
fn instances_are_as_cheap_as_the_documentation_says() {
    let documentation = include_str!("../../../../docs/cost.md");
    let instance = InstancePrices::default();
    let function_usd = FunctionShape::default().usd_per_second(&PriceList::default()) * 8000.0;
    // 8,000 s are 2.222 vCPU-hours x $0.03625 = $0.0806; / 0.6 = $0.134; 0.0806 / 0.184 = 44 %.
    let used_fully = Usd(8000.0 / HOUR_S * instance.usd_per_vcpu_hour);
    let used = used_fully * (1.0 / instance.utilisation);
    let said = [
        format!("${} a vCPU-hour", instance.usd_per_vcpu_hour),
        format!("for {used}, which"),
        format!("used for {:.0} % of the time", 1e2 * instance.utilisation),
        format!("is {:.0} % less than {function_usd}", 1e2 * (1.0 - used.0 / function_usd.0)),
        format!("below about {:.0} %", 1e2 * used_fully.0 / function_usd.0),
    ];
    for said in said {
        assert!(documentation.contains(&said), "docs/cost.md should have: {said}");
    }
}

#[test]
fn memory_brings_processors_for_computing_and_waiting_needs_none() {
    let work = SplitWork { cpu_s: 2.0, wait_s: 1.0, overhead_s: 0.5, ..SplitWork::default() };
    let of = |memory_mb| work.worker_s(&FunctionShape { memory_mb, ..FunctionShape::default() });
    // 2 + 1 + 0.5; 2 / 5.789 + 1 + 0.5 on six threads; 2 / (884.5/1,769) + 1 + 0.5 with half of one
    assert_near(of(1769), 3.5);
    assert_near(of(10_240), 1.8455);
    // Two threads share the 1.7 processors of 3,008 MB; one has one of the 1.2 of 2,048 MB to itself.
    assert_near(of(3008), 2.0 / (3008.0 / 1769.0) + 1.5);
    assert_near(of(2048), 3.5);
    assert_near(of(885), 5.498);
}

#[test]
fn an_epoch_is_as_long_as_the_slowest_of_those_who_work_on_it() {
    // 100 splits of 8 batches, 4 s each on one processor; 800 steps of 0.1 s are 80 s
    let work = EpochWork {
        splits: 100,
        batches: 800,
        records: 51_200,
        split: SplitWork { cpu_s: 4.0, bytes_out: 71e6, ..SplitWork::default() },
        ..EpochWork::default()
    };
    let shape = FunctionShape::default();
    let trainer = TrainerDemand { step_s: 0.1, ingest_bytes_per_s: 0.0 };
    let table = [
        (1, 400.0, EpochBound::Workers),
        (4, 100.0, EpochBound::Workers),
        (5, 80.0, EpochBound::Trainer), // 400 s of work in fifths are 80 s as well
        (50, 80.0, EpochBound::Trainer),
    ];
    for (workers, seconds, bound) in table {
        assert_eq!(work.seconds(workers, &shape, &trainer), (seconds, bound), "{workers}");
    }
    assert_eq!(work.workers_needed(&shape, &trainer, 1000), 5);
    assert_eq!(work.workers_needed(&shape, &trainer, 2), 2, "the limit");
    let eager = TrainerDemand { step_s: 0.0, ingest_bytes_per_s: 0.0 };
    assert_eq!(work.workers_needed(&shape, &eager, 1000), 100, "a worker a split");
    // 100 x 71 MB into 50 MB/s: 142 s, which 3 workers (133 s) keep up with and 2 (200 s) do not.
    let narrow = TrainerDemand { step_s: 0.1, ingest_bytes_per_s: 50e6 };
    assert_eq!(work.seconds(50, &shape, &narrow), (142.0, EpochBound::TrainerNetwork));
    assert_eq!(work.workers_needed(&shape, &narrow, 1000), 3);
    // 2 x 71 MB of input beside the output: 3 s < 4 s; 4 x: 5 s > 4 s
    let input = |bytes_in| EpochWork { split: SplitWork { bytes_in, ..work.split }, ..work };
    assert_eq!(input(142e6).seconds(1, &shape, &trainer), (400.0, EpochBound::Workers));
    assert_eq!(input(284e6).seconds(1, &shape, &trainer), (500.0, EpochBound::WorkerNetwork));
}

#[test]
fn storage_transfer_and_the_accelerator_are_billed_by_their_units() {
    let mut prices = PriceList { accelerator_usd_per_hour: 4.96, ..PriceList::default() };
    // 100 GB for 15 of 30 days: 50 GB-months x $0.023 = $1.15
    assert_near(prices.stored(100.0 * BILLED_GB_BYTES, 15.0 * DAY_S).0, 1.15);
    // A quarter of an hour.
    assert_near(prices.accelerator(900.0).0, 1.24);
    assert_eq!(prices.transferred(1e12, 1e12), Usd(0.0), "within a region");
    prices.transfer = TransferPrices { source_usd_per_gb: 0.02, delivery_usd_per_gb: 0.09 };
    // 10 GB x $0.02 + 20 GB x $0.09 = $2.00
    let (source, delivered) = (10.0 * BILLED_GB_BYTES, 20.0 * BILLED_GB_BYTES);
    assert_near(prices.transferred(source, delivered).0, 2.0);
}

#[test]
fn a_user_replaces_a_part_of_the_prices() {
    let text = "accelerator_usd_per_hour = 4.96\n[objects]\nusd_per_gb_month = 0.025\n";
    let prices: PriceList = toml::from_str(text).unwrap();
    assert_eq!((prices.accelerator_usd_per_hour, prices.objects.usd_per_gb_month), (4.96, 0.025));
    assert_eq!(prices.objects.usd_per_thousand_puts, 0.005);
    assert_eq!(prices.check(), Ok(()));
    let json = serde_json::to_string(&prices).unwrap();
    assert_eq!(serde_json::from_str::<PriceList>(&json).unwrap(), prices);
    let misspelt = toml::from_str::<PriceList>("[objects]\nusd_per_gb_moth = 1\n");
    assert!(misspelt.unwrap_err().to_string().contains("usd_per_gb_moth"));
}

#[test]
fn invalid_prices_are_named() {
    let mut prices = PriceList::default();
    prices.table.usd_per_million_reads = -1.0;
    assert_eq!(
        prices.check().unwrap_err().to_string(),
        "price `table.usd_per_million_reads` is -1: give a number of 0 or more"
    );
    prices = PriceList::default();
    prices.instance.utilisation = f64::NAN;
    assert_eq!(
        prices.check().unwrap_err().to_string(),
        "price `instance.utilisation` is NaN: give a number of 0.01 or more, at most 1"
    );
}

/// Any number, including NaN and infinities.
fn any_quantity() -> impl Strategy<Value = f64> {
    prop_oneof![8 => 0.0..1e12, 1 => Just(0.0), 1 => any::<f64>()]
}

prop_compose! {
    fn any_work()(
        splits in 0u64..1_000_000, batches in 0u64..100_000_000, records in 0u64..u64::MAX,
        cpu_s in any_quantity(), wait_s in any_quantity(), bytes_in in any_quantity(),
        bytes_out in any_quantity(), overhead_s in any_quantity(), held_bytes in any_quantity(),
    ) -> EpochWork {
        let split = SplitWork { cpu_s, wait_s, bytes_in, bytes_out, overhead_s };
        EpochWork { splits, batches, records, split, origin: SplitOrigin::Function, held_bytes }
    }
}

proptest! {
    #[test]
    fn more_workers_never_take_longer_and_nothing_is_not_a_number(
        work in any_work(), workers in 1u32..10_000, more in 1u32..10_000,
        memory_mb in 0u32..20_000, step_s in any_quantity(), ingest_bytes_per_s in any_quantity(),
    ) {
        let shape = FunctionShape { memory_mb, ..FunctionShape::default() };
        let trainer = TrainerDemand { step_s, ingest_bytes_per_s };
        let prices = PriceList { accelerator_usd_per_hour: 5.0, ..PriceList::default() };
        let few = work.on_functions(workers, &shape, &trainer, &prices);
        let many = work.on_functions(workers + more, &shape, &trainer, &prices);
        prop_assert!(many.seconds <= few.seconds);
        let CostBreakdown { compute, requests, storage, transfer, accelerator } = few.cost;
        let parts = [compute, requests, storage, transfer, accelerator];
        prop_assert!(parts.iter().all(|part| !part.0.is_nan() && part.0 >= 0.0), "{parts:?}");
        let sum: f64 = parts.iter().map(|part| part.0).sum();
        prop_assert!((few.cost.total().0 - sum).abs() <= sum * 1e-12);
        let needed = work.workers_needed(&shape, &trainer, 5000);
        prop_assert!((1..=5000).contains(&needed));
    }

    #[test]
    fn no_price_makes_anything_cheaper_by_rising(
        work in any_work(), which in 0usize..9, factor in 1.0f64..100.0,
    ) {
        let dear = |times: f64| {
            let mut prices = PriceList { accelerator_usd_per_hour: 5.0, ..PriceList::default() };
            prices.transfer = TransferPrices { source_usd_per_gb: 0.01, delivery_usd_per_gb: 0.09 };
            let price = [
                &mut prices.function.arm64_usd_per_gb_second,
                &mut prices.function.usd_per_million_requests,
                &mut prices.objects.usd_per_thousand_puts,
                &mut prices.objects.usd_per_thousand_gets,
                &mut prices.objects.usd_per_gb_month,
                &mut prices.table.usd_per_million_writes,
                &mut prices.table.usd_per_million_reads,
                &mut prices.transfer.delivery_usd_per_gb,
                &mut prices.accelerator_usd_per_hour,
            ];
            *price.into_iter().nth(which).unwrap() *= times;
            let trainer = TrainerDemand { step_s: 0.1, ingest_bytes_per_s: 0.0 };
            work.on_functions(7, &FunctionShape::default(), &trainer, &prices).cost.total()
        };
        prop_assert!(dear(factor) >= dear(1.0));
    }

    #[test]
    fn the_needed_workers_are_the_fewest(
        splits in 1u64..5000, cpu_s in 0.01f64..100.0, step_s in 0.001f64..10.0,
    ) {
        let split = SplitWork { cpu_s, ..SplitWork::default() };
        let work = EpochWork { splits, batches: splits * 7, split, ..EpochWork::default() };
        let (shape, trainer) = (FunctionShape::default(), TrainerDemand { step_s, ..TrainerDemand::default() });
        let needed = work.workers_needed(&shape, &trainer, u32::MAX);
        let seconds = |workers| work.seconds(workers, &shape, &trainer).0;
        prop_assert!(seconds(needed) <= seconds(u32::MAX) * (1.0 + 1e-6));
        prop_assert!(needed == 1 || seconds(needed - 1) > seconds(u32::MAX));
    }
}

#[test]
fn a_shape_is_memory_and_architecture() {
    let shape: FunctionShape = "3008/x86_64".parse().unwrap();
    assert_eq!((shape.memory_mb, shape.architecture), (3008, FunctionArchitecture::X86_64));
    assert_eq!("1769/arm64".parse(), Ok(FunctionShape::default()));
    for wrong in ["", "1769", "1769/arm", "64/arm64", "20000/arm64", "x/arm64", "1769/arm64/"] {
        assert!(wrong.parse::<FunctionShape>().is_err(), "{wrong}");
    }
}
