//! Scenarios from outside: format errors, repeatable runs, sweeps against arithmetic, bars.

#![allow(clippy::unwrap_used, reason = "tests")]

use gristmill_policy::scaling::PolicyName;
use gristmill_scaling::{
    ScalingArgs, ScalingScenario, ScalingTick, SimulatedRun, check, measure, run, shipped,
    simulate, sweep,
};

const PLAIN: &str =
    "name = \"plain\"\n[trainer]\nstep = \"100ms\"\n[worker]\ncompute = \"800ms\"\n";

fn scenario(more: &str) -> ScalingScenario {
    ScalingScenario::parse(&format!("{PLAIN}{more}"), "test.toml").unwrap()
}

fn error(text: &str) -> String {
    ScalingScenario::parse(text, "test.toml").unwrap_err().to_string()
}

#[test]
fn mistakes_are_one_line_with_their_place() {
    for (more, says) in [
        (
            "[data]\nsplit_batchs = 8",
            "test.toml:7: unknown key `split_batchs` in `data`; did you mean `split_batches`?",
        ),
        ("[limit]\n", "test.toml:6: unknown key `limit`; did you mean `limits`?"),
        ("[limits]\nsource = \"71MB\"", "test.toml:7: `limits.source`: `71MB` is not a rate"),
        (
            "[data]\nsplit_batches = 0",
            "test.toml:7: `data.split_batches` must be from 1 to 10000, not 0",
        ),
        ("[data]\nwindow_batches = 9", "must hold two leases and a batch for each client: 16"),
        (
            "[[change]]\nat_batch = 9\nstepp = \"1s\"",
            "unknown key `stepp` in `change`; did you mean `step`?",
        ),
        ("[[change]]\nat_batch = 90000", "before the end (40000)"),
        ("[report]\nnoise = { value = 0.1, guessed = \"x\" }", "unknown key `guessed`"),
        ("[paper]\nsource = \"a figure\"", "stands beside a paper's figure: tag it"),
        ("[run\n", "test.toml:6: "),
    ] {
        let said = error(&format!("{PLAIN}{more}"));
        assert!(said.contains(says), "{said}\n  is to say: {says}");
        assert_eq!(said.lines().count(), 1);
    }
    assert!(error("name = \"x\"").contains("`trainer.step` is missing"));
}

#[test]
fn a_seed_decides_a_run() {
    let scenario = scenario("[run]\nbatches = 5000\n[data]\nbatch = \"1MB\"\n");
    let run = |seed| simulate(&scenario, seed, PolicyName::default());
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
    assert_eq!(run(3).batches, 5_000);
}

/// The scenario with a fixed number of workers.
fn held(mut scenario: ScalingScenario, workers: u32) -> ScalingScenario {
    scenario.held = Some(workers);
    scenario
}

/// Batch time of a fixed count without noise, in seconds.
fn batch_time_s(more: &str, workers: u32) -> f64 {
    let mut quiet = scenario(more);
    quiet.phases[0].conditions = quiet.phases[0].conditions.quiet();
    measure(&quiet, 0, workers).batch_time_s
}

#[test]
fn batch_time_is_what_arithmetic_says() {
    // Two calls of 10 ms for each split of 8 batches.
    let per_batch_s = 0.8 + 0.02 / 8.0;
    // The last: an epoch of two splits takes 6.4 s to make and 1.5 s until its last batch is taken, and then a poll
    // must invoke workers.
    for (more, workers, expected_s) in [
        ("", 1, per_batch_s),
        ("", 4, per_batch_s / 4.0),
        ("", 12, 0.1),
        ("[data]\nbatch = \"71MB\"\n", 4, (per_batch_s + 1.0) / 4.0),
        ("[data]\nsource_batch = \"10MB\"\n[limits]\nsource = \"50MB/s\"\n", 12, 0.2),
        ("[limits]\nputs_per_s = 0.5\n", 12, 0.25),
        ("[data]\nepoch_splits = 2\nepoch_barrier = true\n", 12, 0.5),
    ] {
        let measured_s = batch_time_s(more, workers);
        let off = (measured_s / expected_s - 1.0).abs();
        assert!(off < 0.03, "{more}{workers} workers: {measured_s} s, not {expected_s} s");
    }
    let ingest = PLAIN.replace("step = \"100ms\"", "step = \"100ms\"\ningest = \"4MB/s\"");
    let mut slow =
        ScalingScenario::parse(&format!("{ingest}[data]\nbatch = \"1MB\"\n"), "t").unwrap();
    slow.phases[0].conditions = slow.phases[0].conditions.quiet();
    assert!((measure(&slow, 0, 12).batch_time_s - 0.25).abs() < 0.01);
}

#[test]
fn the_sweep_finds_where_a_batch_costs_least() {
    // One too many costs nothing: it leaves when the window is full.
    let plain = sweep(&scenario(""), 0);
    assert!(plain.equal.0 == 8 && plain.equal.1 > 20, "{:?}", plain.equal);
    let limited = "[data]\nsource_batch = \"10MB\"\n[limits]\nsource = \"50MB/s\"\n";
    // A batch takes 0.94 s, the source delivers five a second; workers that collide wait.
    assert!((5..=6).contains(&sweep(&scenario(limited), 0).best.workers));
    assert_eq!(sweep(&scenario("[policy]\nmax_workers = 3\n"), 0).best.workers, 3);
}

#[test]
fn counts_beyond_what_a_window_lets_work_are_measured_alike() {
    let narrow = scenario("[data]\nsplit_batches = 20\nwindow_batches = 150\n");
    let seven = measure(&narrow, 0, 7);
    assert!(seven.batch_time_s < 0.97 * measure(&narrow, 0, 5).batch_time_s);
    for workers in [9, 20, 40] {
        assert_eq!(measure(&narrow, 0, workers).batch_time_s, seven.batch_time_s);
    }
}

#[test]
fn concurrency_and_deaths_are_accounted_for() {
    let throttled = scenario("[platform]\nconcurrency = 12\nothers = 7\n[run]\nbatches = 4000\n");
    let run = simulate(&held(throttled, 12), 1, PolicyName::default());
    assert!(run.ticks.iter().all(|tick| tick.workers <= 5.0));
    let text = PLAIN.replace("compute", "mean_life = \"60s\"\ncompute");
    let deadly = ScalingScenario::parse(&format!("{text}[run]\nbatches = 4000\n"), "t").unwrap();
    let run = simulate(&held(deadly, 12), 1, PolicyName::default());
    assert_eq!(run.batches, 4_000, "every split is done despite deaths");
    assert!(run.deaths > 10, "{}", run.deaths);
}

#[test]
fn the_bars_hold_here_and_fail_where_they_must() {
    let checked = check(&scenario(""), 0, 10);
    assert!(checked.holds(), "{:?}", checked.failures);
    assert_eq!(checked.phases[0].equal.0, 8);
    // No policy can follow a change five reports before the end.
    let late = "[[change]]\nat_batch = 39500\nstep = \"10ms\"\n";
    let checked = check(&scenario(late), 0, 5);
    assert!(!checked.holds() && checked.failures[0].starts_with("phase 1"));
}

/// Moves and end of the second of two runs, whose scenarios differ by `change`.
fn second_run(name: &str, seed: u64, change: fn(&mut ScalingScenario)) -> (u32, SimulatedRun) {
    let (_, text) = shipped().iter().find(|(shipped, _)| *shipped == name).unwrap();
    let mut scenario = ScalingScenario::parse(text, name).unwrap();
    let first = simulate(&scenario, seed, PolicyName::default());
    scenario.stored = first.metrics;
    assert!(scenario.stored.is_some(), "{name} has converged");
    change(&mut scenario);
    (first.chosen(0), simulate(&scenario, seed + 1_000, PolicyName::default()))
}

#[test]
fn a_second_job_starts_where_the_first_converged_and_moves_at_most_once() {
    for name in ["plain", "source-limit", "put-limit", "interference", "network-bound"] {
        let few = (0..100).filter(|seed| {
            let (chosen, run) = second_run(name, *seed, |_| {});
            assert_eq!(run.start, chosen, "{name}, seed {seed}");
            run.moves(0) <= 1
        });
        let few = few.count();
        assert!(few >= 95, "{name}: {few} of 100 seeds");
    }
}

#[test]
fn a_second_job_under_another_load_discards_what_was_stored_and_says_so() {
    let changes: [fn(&mut ScalingScenario); 2] = [
        |scenario| scenario.phases[0].conditions.step_s *= 2.0,
        |scenario| scenario.phases[0].conditions.compute_s *= 2.0,
    ];
    for change in changes {
        let (_, run) = second_run("plain", 7, change);
        let discards = |tick: &ScalingTick| tick.decision.to_string().contains("discarded");
        let at = run.ticks.iter().position(discards).unwrap();
        assert!(at <= 4, "at the third report with times, not the {at}th");
    }
    let (_, run) = second_run("plain", 7, |_| {});
    assert!(!run.ticks.iter().any(|tick| tick.decision.to_string().contains("discarded")));
}

#[test]
fn every_scenario_that_is_built_in_parses() {
    assert!(shipped().len() >= 30);
    for (name, text) in shipped() {
        let scenario = ScalingScenario::parse(text, name).unwrap();
        assert!(!scenario.about.is_empty(), "{name}");
    }
}

fn args(text: &[&str]) -> ScalingArgs {
    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: ScalingArgs,
    }
    let argv = ["simulate"].iter().chain(text);
    <Cli as clap::Parser>::try_parse_from(argv).unwrap().args
}

#[test]
fn the_command_prints_tables_and_json() {
    let mut out = Vec::new();
    assert!(run(&args(&["plain", "--seeds", "3", "--json"]), &mut out).unwrap());
    let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(value["holds"], true);
    assert_eq!(value["scenarios"][0]["phases"][0]["equal"][0], 16);
    for (wrong, says) in [
        (vec!["nowhere.toml"], "nowhere.toml"),
        (vec!["plain", "--policy", "best"], "`best`"),
        (vec![], "--all"),
    ] {
        let said = run(&args(&wrong), &mut Vec::new()).unwrap_err().to_string();
        assert!(said.contains(says), "{said}");
    }
}
