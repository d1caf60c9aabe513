//! Runs many simulations and reports faults and violations.

use clap::Parser;
use gristmill_faults::{FaultKind, Mutant, SimulationOutcome, simulate, simulate_ranks};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

/// Run the production coordinator, workers, scaler and fetcher in simulations full of faults.
///
/// Each seed determines one simulation: its job, its faults and their times. Every write and deletion is
/// checked against the invariants of the split protocol, and the deliveries against exactly-once. A seed
/// gives the same run every time: `--seed S` prints every event of a failing one, with VIOLATION at the
/// first broken invariant. Exit code: 0 no violation, 1 violations, 2 bad usage.
#[derive(Debug, Parser)]
#[command(name = "simulate-faults", max_term_width = 100)]
struct Args {
    /// Simulations to run
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run this seed only and print every event
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Put this deliberate bug into every simulation, to see how it is detected
    #[arg(long, value_enum, hide_possible_values = true)]
    mutant: Option<Mutant>,
    /// Train with several ranks, which meet at a barrier after each step and resume with other numbers
    #[arg(long)]
    ranks: bool,
    /// Print one JSON object as the last line of standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    fn simulate(&self, seed: u64, verbose: bool) -> io::Result<SimulationOutcome> {
        let ranks = self.ranks || self.mutant.is_some_and(|m| Mutant::OF_RANKS.contains(&m));
        if ranks {
            simulate_ranks(seed, self.mutant, verbose)
        } else {
            simulate(seed, self.mutant, verbose)
        }
    }
}

#[derive(Default)]
struct Sum {
    simulations: u64,
    calls: u64,
    batches: u64,
    replays: u64,
    given_up: u64,
    virtual_seconds: u64,
    faults: BTreeMap<FaultKind, u64>,
    broken: Vec<SimulationOutcome>,
    /// Simulations that could not be run.
    errors: Vec<String>,
}

impl Sum {
    fn add(&mut self, seed: u64, outcome: io::Result<SimulationOutcome>) {
        self.simulations += 1;
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return self.errors.push(format!("seed {seed}: {error}")),
        };
        self.calls += outcome.counts.calls;
        self.batches += outcome.batches as u64;
        self.replays += outcome.replays;
        self.given_up += u64::from(outcome.given_up);
        self.virtual_seconds += outcome.took.as_secs();
        for (fault, count) in &outcome.counts.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        if !outcome.counts.violations.is_empty() {
            self.broken.push(outcome);
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let began = Instant::now();
    let sum = match args.seed {
        Some(seed) => {
            let mut sum = Sum::default();
            sum.add(seed, args.simulate(seed, true));
            sum
        }
        None => run_all(&args),
    };
    print(&sum, began.elapsed().as_secs_f64());
    if args.json {
        println!("{}", as_json(&sum));
    }
    if sum.broken.is_empty() && sum.errors.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run_all(args: &Args) -> Sum {
    let (next, end) = (AtomicU64::new(args.first), args.first.saturating_add(args.seeds));
    let sum = Mutex::new(Sum::default());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let outcome = args.simulate(seed, false);
                    let mut sum = sum.lock();
                    sum.add(seed, outcome);
                    progress(&sum, args.seeds);
                }
            });
        }
    });
    let mut sum = sum.into_inner();
    sum.broken.sort_by_key(|outcome| outcome.seed);
    sum
}

/// One line that is written over, for people only.
fn progress(sum: &Sum, seeds: u64) {
    if sum.simulations.is_multiple_of(100) && io::stderr().is_terminal() {
        let broken = sum.broken.len() + sum.errors.len();
        eprint!("\r{} of {seeds} simulations, {broken} broken ", sum.simulations);
        let _ = io::stderr().flush();
    }
}

fn print(sum: &Sum, seconds: f64) {
    if io::stderr().is_terminal() {
        eprintln!();
    }
    println!(
        "{} simulations in {seconds:.0} s: {} calls, {} batches, {} of them replayed, {} h of virtual time",
        sum.simulations,
        sum.calls,
        sum.batches,
        sum.replays,
        sum.virtual_seconds / 3600
    );
    for (fault, count) in &sum.faults {
        println!("{count:>12}  {fault:?}");
    }
    println!("{:>12}  faults", sum.faults.values().sum::<u64>());
    println!("{:>12}  jobs that failed as their policy says", sum.given_up);
    println!("{:>12}  simulations with violations", sum.broken.len() + sum.errors.len());
    for outcome in sum.broken.iter().take(20) {
        println!("seed {}: {}", outcome.seed, outcome.counts.violations.join("; "));
    }
    for error in sum.errors.iter().take(20) {
        println!("{error}");
    }
}

fn as_json(sum: &Sum) -> serde_json::Value {
    let faults = sum.faults.iter().map(|(fault, count)| (format!("{fault:?}"), *count));
    let broken: Vec<u64> = sum.broken.iter().map(|outcome| outcome.seed).collect();
    serde_json::json!({
        "seeds": sum.simulations,
        "calls": sum.calls,
        "batches": sum.batches,
        "replays": sum.replays,
        "given_up": sum.given_up,
        "faults": faults.collect::<BTreeMap<_, _>>(),
        "violations": broken.len() + sum.errors.len(),
        "broken_seeds": broken,
    })
}
