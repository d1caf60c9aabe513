//! Placement on modelled hosts: ours beside Pecan's AutoPlacement and FastFlow.

#![allow(clippy::unwrap_used, reason = "tests")]

use gristmill_policy::scaling::PolicyName;
use gristmill_scaling::{HostPlacement, ScalingScenario, SimulatedRun, simulate};

/// ResNet-50 on TPUv2-8 (Pecan, section 6.4). Published: an epoch of 395 s, so 79 ms for each of 5,004 batches of 256
/// (the batch size is assumed); 18 GiB for 500 batches; prices; 96 processors, here 12 of the size of a remote worker
/// (8). Fitted: the worker's time, so that 12 remote ones keep up (Fig. 7), and the speed of local ones, so that 9 of
/// them leave work for one remote worker (Table 4). Assumed: what training keeps busy, the knee, the noise.
const TABLE4: &str = r#"
name = "pecan-table4"
[trainer]
step = "79ms"
noise = 0.3
[host]
cores = 12
trainer_cores = 1.2
local_speed = 1.25
ingest_cpu_per_gb = 0.3
[worker]
compute = "900ms"
network = "2GB/s"
[data]
batch = "38.7MB"
[prices]
usd_per_worker_hour = 0.42
accelerator_usd_per_hour = 4.96
[report]
noise = 0.0
[run]
batches = 60000
"#;

fn scenario(text: &str, placement: HostPlacement) -> ScalingScenario {
    let mut scenario = ScalingScenario::parse(text, "test.toml").unwrap();
    scenario.placement = placement;
    scenario
}

/// Dollars of a batch at the end, and those spent until the policy converged.
fn usd(scenario: &ScalingScenario, run: &SimulatedRun) -> (f64, f64) {
    let converged = run.ticks.iter().find(|tick| tick.has_converged).or(run.ticks.last()).unwrap();
    let spent = scenario.prices.usd(converged.at_s, converged.worker_s);
    (run.usd_at_end(0, &scenario.prices), spent)
}

fn runs(text: &str, placement: HostPlacement) -> (f64, f64, SimulatedRun) {
    let scenario = scenario(text, placement);
    let runs: Vec<SimulatedRun> =
        (0..3).map(|seed| simulate(&scenario, seed, PolicyName::default())).collect();
    let all: Vec<(f64, f64)> = runs.iter().map(|run| usd(&scenario, run)).collect();
    let mean = |of: fn(&(f64, f64)) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    (mean(|one| one.0), mean(|one| one.1), runs.into_iter().next().unwrap())
}

#[test]
fn ours_costs_no_more_than_pecan_at_the_end_and_half_until_then() {
    let (ours_usd, ours_until, run) = runs(TABLE4, HostPlacement::Auto);
    let last = run.ticks.last().unwrap();
    let epoch = 5_004.0;
    for (at, tick) in run.ticks.iter().enumerate().take(120) {
        println!("{at} {} {} {}+{} {:.4} {:.4} w{:.2} {} {}", tick.batches, tick.reason, tick.target, tick.local, tick.batch_time_s, tick.stall_s, tick.workers, tick.has_converged, 0);
    }
    println!(
        "ours: ${:.3} an epoch, ${ours_until:.3} until then; {} + {}",
        ours_usd * epoch,
        last.target,
        last.local
    );
    for batches in [100.0, 500.0, 1_000.0] {
        for threshold in [0.01, 0.03, 0.07] {
            let pecan = HostPlacement::Pecan { threshold, batches };
            let (usd, until, run) = runs(TABLE4, pecan);
            let last = run.ticks.last().unwrap();
            println!(
                "X {batches} T {threshold}: ${:.3} an epoch, ${until:.3} until then; {} + {}",
                usd * epoch,
                last.target,
                last.local
            );
            assert!(ours_usd <= 1.01 * usd, "X {batches}, T {threshold}: {ours_usd} for {usd}");
            assert!(
                ours_until <= 0.5 * until,
                "X {batches}, T {threshold}: {ours_until} for {until}"
            );
        }
    }
}
