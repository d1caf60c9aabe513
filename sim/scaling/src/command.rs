//! The `simulate` command: arguments and output.

use crate::{
    ScalingScenario, ScenarioCheck, ScenarioError, SimulatedRun, check, random_scenario,
    read::show_seconds, scenario::shipped, simulate, sweeps, table, vary,
};
use gristmill_policy::scaling::{PolicyName, UnknownPolicy};
use parking_lot::Mutex;
use std::{
    fmt, fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    thread,
};

/// Runs scaling policies against modelled jobs: how many workers they choose, and how many are optimal.
#[derive(Debug, Clone, clap::Args)]
pub struct ScalingArgs {
    /// A scenario file (docs/scenarios.md), or the name of one that is built in.
    pub scenario: Option<String>,
    /// Check every built-in scenario.
    #[arg(long, conflicts_with = "scenario")]
    pub all: bool,
    /// Check this many random scenarios, starting with number `--first`.
    #[arg(long, value_name = "N", conflicts_with_all = ["scenario", "all"],
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub random: Option<u64>,
    /// The first random scenario.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "random")]
    pub first: u64,
    /// Check this many variants of each built-in scenario: every number times 0.6 to 1.6.
    #[arg(long, value_name = "N", conflicts_with_all = ["scenario", "all", "random"])]
    pub vary: Option<u64>,
    /// Check whether the bars hold, with this many seeds.
    #[arg(long, value_name = "N")]
    pub seeds: Option<u32>,
    /// The seed of a single run, and the first of many.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    #[arg(long, default_value_t = PolicyName::default().to_string(),
          help = format!("The policy of a single run: {}, or fixed:N", PolicyName::choices()))]
    pub policy: String,
    /// Try every count, and print the optimum.
    #[arg(long)]
    pub sweep: bool,
    /// One JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    /// Write the scenarios of `--all`, `--random` or `--vary` into this directory.
    #[arg(long, value_name = "DIR")]
    pub write: Option<PathBuf>,
}

/// Default seeds of `--all`, `--random` and `--vary`.
const SEEDS: u32 = 100;

/// Runs the command; all output goes to `out`. Returns whether every bar holds.
pub fn run(args: &ScalingArgs, out: &mut dyn Write) -> Result<bool, ScenarioError> {
    let say = |out: &mut dyn Write, text: &str| {
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        written.map_err(|error| unwritable(&"standard output", &error))
    };
    if let Some(texts) = many(args)? {
        if let Some(directory) = &args.write {
            write_all(directory, &texts)?;
        }
        let checks = check_all(&texts, args.seed, args.seeds.unwrap_or(SEEDS).max(1))?;
        say(out, &show_checks(&checks, args.json))?;
        return Ok(checks.iter().all(ScenarioCheck::holds));
    }
    let Some(name) = &args.scenario else {
        let names: Vec<&str> = shipped().iter().map(|(name, _)| *name).collect();
        let message = format!(
            "name a scenario file, --all, --random N or --vary N; built in are: {}",
            names.join(", ")
        );
        return Err(ScenarioError(message));
    };
    let scenario = load(name)?;
    if let Some(seeds) = args.seeds {
        let checks = [check(&scenario, args.seed, seeds.max(1))];
        say(out, &show_checks(&checks, args.json))?;
        return Ok(checks.iter().all(ScenarioCheck::holds));
    }
    let (policy, selected) = select(&args.policy, &scenario)?;
    let run = simulate(&selected, args.seed, policy);
    let sweeps = if args.sweep { sweeps(&scenario) } else { Vec::new() };
    let text = if args.json {
        let value = serde_json::json!({
            "scenario": scenario.name,
            "policy": args.policy,
            "provenance": scenario.provenance,
            "run": run,
            "sweep": sweeps,
        });
        format!("{value}\n")
    } else {
        show_run(&scenario, &run, &sweeps)
    };
    say(out, &text)?;
    Ok(true)
}

/// Scenario files to check together; `None` for a single run.
fn many(args: &ScalingArgs) -> Result<Option<Vec<(String, String)>>, ScenarioError> {
    let all = || shipped().iter().copied();
    Ok(match *args {
        ScalingArgs { all: true, .. } => {
            let file = |(name, text)| (format!("{name}.toml"), String::from(text));
            Some(all().map(file).collect())
        }
        ScalingArgs { random: Some(count), first, .. } => {
            let numbers = first..first.saturating_add(count);
            Some(numbers.map(|n| (format!("random-{n}.toml"), random_scenario(n))).collect())
        }
        ScalingArgs { vary: Some(count), .. } => {
            let file = |(name, text), n| Ok((format!("{name}-{n}.toml"), vary(name, text, n)?));
            let variants = |of| (0..count).map(move |n| file(of, n));
            Some(all().flat_map(variants).collect::<Result<_, ScenarioError>>()?)
        }
        _ => None,
    })
}

fn show_checks(checks: &[ScenarioCheck], json: bool) -> String {
    if json {
        let holds = checks.iter().all(ScenarioCheck::holds);
        return format!("{}\n", serde_json::json!({ "holds": holds, "scenarios": checks }));
    }
    table(checks)
}

fn load(name: &str) -> Result<ScalingScenario, ScenarioError> {
    if let Some((_, text)) = shipped().iter().find(|(shipped, _)| *shipped == name) {
        return ScalingScenario::parse(text, name);
    }
    let text = read_file(name)
        .map_err(|error| ScenarioError(format!("{name}: cannot be read: {error}")))?;
    ScalingScenario::parse(&text, name)
}

const MAX_BYTES: u64 = 1 << 20;

/// Reads a regular file only: a mistyped name may be a pipe or a device.
fn read_file(name: &str) -> io::Result<String> {
    if !fs::metadata(name)?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut text = String::new();
    let n = fs::File::open(name)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if n as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_BYTES} bytes")));
    }
    Ok(text)
}

fn write_all(directory: &Path, files: &[(String, String)]) -> Result<(), ScenarioError> {
    fs::create_dir_all(directory).map_err(|error| unwritable(&directory.display(), &error))?;
    for (name, text) in files {
        let path = directory.join(name);
        fs::write(&path, text).map_err(|error| unwritable(&path.display(), &error))?;
    }
    Ok(())
}

fn unwritable(path: &dyn fmt::Display, error: &io::Error) -> ScenarioError {
    ScenarioError(format!("cannot write {path}: {error}"))
}

/// The policy that `--policy` names, and the scenario for it: `fixed:N` holds a number of workers.
fn select(
    name: &str,
    scenario: &ScalingScenario,
) -> Result<(PolicyName, ScalingScenario), ScenarioError> {
    let mut scenario = scenario.clone();
    if let Some(Ok(workers)) = name.strip_prefix("fixed:").map(str::parse) {
        scenario.held = Some(workers);
        return Ok((PolicyName::default(), scenario));
    }
    let unknown = |error: UnknownPolicy| ScenarioError(format!("{error}, or fixed:N"));
    Ok((name.parse().map_err(unknown)?, scenario))
}

/// Checks all scenarios, in parallel as far as the machine allows; results in the given order.
fn check_all(
    texts: &[(String, String)],
    first: u64,
    seeds: u32,
) -> Result<Vec<ScenarioCheck>, ScenarioError> {
    let scenarios: Vec<ScalingScenario> = texts
        .iter()
        .map(|(name, text)| ScalingScenario::parse(text, name))
        .collect::<Result<_, _>>()?;
    let threads = thread::available_parallelism().map_or(1, |count| count.get());
    let mut checks: Vec<Option<ScenarioCheck>> = vec![None; scenarios.len()];
    let open = Mutex::new(scenarios.iter().zip(&mut checks));
    let next = || open.lock().next();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((scenario, checked)) = next() {
                    *checked = Some(check(scenario, first, seeds));
                }
            });
        }
    });
    Ok(checks.into_iter().flatten().collect())
}

fn show_run(
    scenario: &ScalingScenario,
    run: &SimulatedRun,
    sweeps: &[crate::PhaseSweep],
) -> String {
    let mut text = format!("{}\n", scenario.name);
    let mut last = 0;
    for tick in &run.ticks {
        let is_news = tick.decision.target != tick.before
            || tick.has_converged && last != tick.decision.target;
        if is_news {
            text += &format!(
                "batch {:>8}  {:>9}  {}\n",
                tick.batches,
                show_seconds(tick.batch_time_s),
                tick.decision
            );
            last = if tick.has_converged { tick.decision.target } else { 0 };
        }
    }
    for sweep in sweeps {
        let best = show_seconds(sweep.best.batch_time_s);
        text += &format!(
            "phase {}: {} chosen; the sweep says {}, best batch time {best}\n",
            sweep.phase,
            run.chosen(sweep.phase),
            sweep.best.workers
        );
        for at in &sweep.counts {
            text += &format!(
                "{:>8}  {:>9}  ${:.6} a thousand\n",
                at.workers,
                show_seconds(at.batch_time_s),
                at.usd * 1e3
            );
        }
    }
    let cost = run.cost;
    text += &format!(
        "{} batches in {}; workers {:.0} s, ${:.4}; requests ${:.4}; accelerator ${:.4}\n",
        run.batches,
        show_seconds(run.elapsed_s),
        run.worker_s,
        cost.workers_usd,
        cost.requests_usd,
        cost.accelerator_usd
    );
    text
}
