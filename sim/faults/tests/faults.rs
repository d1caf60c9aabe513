//! Thousands of simulations with faults, and the bugs that they must detect.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a step that fails fails the test")]

use gristmill_faults::{
    FaultKind, Mutant, SimulationOutcome, simulate, simulate_large, simulate_only, simulate_ranks,
};
use std::{
    io,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

const SEEDS: u64 = 1_000;
/// Simulations with several ranks, which take longer.
const SEEDS_OF_RANKS: u64 = 300;
/// Simulations in which each bug must be detected.
const SEEDS_PER_MUTANT: u64 = 2_000;

/// A simulation of one seed.
type Simulate = fn(u64, Option<Mutant>, bool) -> io::Result<SimulationOutcome>;

/// Runs `seeds` simulations on all cores, until `found` accepts one.
fn search(
    simulate: Simulate,
    (seeds, mutant): (u64, Option<Mutant>),
    found: impl Fn(&SimulationOutcome) -> bool + Sync,
) -> Option<SimulationOutcome> {
    let next = AtomicU64::new(0);
    let result = Mutex::new(None);
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while next.load(Ordering::Relaxed) < seeds {
                    let outcome =
                        simulate(next.fetch_add(1, Ordering::Relaxed), mutant, false).unwrap();
                    if found(&outcome) {
                        next.store(seeds, Ordering::Relaxed);
                        *result.lock().unwrap() = Some(outcome);
                    }
                }
            });
        }
    });
    result.into_inner().unwrap()
}

fn is_broken(outcome: &SimulationOutcome) -> bool {
    !outcome.counts.violations.is_empty()
}

#[test]
fn no_seed_breaks_an_invariant() {
    if let Some(SimulationOutcome { seed, counts, .. }) = search(simulate, (SEEDS, None), is_broken)
    {
        panic!("seed {seed}: {:#?}", counts.violations);
    }
}

#[test]
fn no_seed_of_several_ranks_breaks_an_invariant() {
    let broken = search(simulate_ranks, (SEEDS_OF_RANKS, None), is_broken);
    if let Some(SimulationOutcome { seed, counts, .. }) = broken {
        panic!("seed {seed} with ranks: {:#?}", counts.violations);
    }
}

#[test]
fn one_seed_is_one_run() {
    for (simulate, seeds) in [(simulate as Simulate, 0..20), (simulate_ranks, 0..5)] {
        for seed in seeds {
            let run = || simulate(seed, None, false).unwrap();
            let (one, again) = (run(), run());
            assert_eq!(one.counts, again.counts, "seed {seed}");
            assert_eq!((one.took, one.replays), (again.took, again.replays), "seed {seed}");
        }
    }
}

#[test]
fn every_mistake_is_noticed() {
    Mutant::single_rank().for_each(|mutant| check_noticed(simulate, mutant));
    Mutant::OF_RANKS.iter().for_each(|mutant| check_noticed(simulate_ranks, *mutant));
}

/// Bounds on memory that lock the job, each in a simulation of its kind.
const LOCKS: [(Simulate, Mutant); 2] =
    [(simulate, Mutant::StoreStopsClaims), (simulate_ranks, Mutant::JudgedBySlowest)];

fn is_locked(outcome: &SimulationOutcome) -> bool {
    outcome.counts.violations.first().is_some_and(|first| first.contains("no batch came for"))
}

#[test]
fn a_bound_that_stops_what_the_trainer_needs_next_is_noticed() {
    for (simulate, mutant) in LOCKS {
        let locked = search(simulate, (SEEDS_PER_MUTANT, Some(mutant)), is_locked);
        let Some(SimulationOutcome { seed, .. }) = locked else {
            panic!("{mutant:?} locks no trainer in {SEEDS_PER_MUTANT} simulations");
        };
        let outcome = simulate(seed, None, false).unwrap();
        assert_eq!(outcome.counts.violations, Vec::<String>::new(), "{mutant:?}: seed {seed}");
    }
}

fn check_noticed(simulate: Simulate, mutant: Mutant) {
    let noticed = search(simulate, (SEEDS_PER_MUTANT, Some(mutant)), is_broken);
    let Some(SimulationOutcome { seed, counts, .. }) = noticed else {
        panic!("{mutant:?} is not noticed in {SEEDS_PER_MUTANT} simulations");
    };
    println!("{mutant:?}: seed {seed}: {}", counts.violations[0]);
}

/// Splits of an epoch that is large for the control plane: reporting all of them in one answer to a returning trainer
/// would take 27 MB, where the platform allows 6.
const MANY_SPLITS: u32 = 100_000;

#[test]
fn a_trainer_comes_back_at_the_end_of_an_epoch_of_many_splits() {
    let SimulationOutcome { counts, batches, .. } = simulate_large(MANY_SPLITS).unwrap();
    assert_eq!(counts.violations, Vec::<String>::new());
    assert_eq!(batches, MANY_SPLITS as usize);
}

/// A store or table that throttles costs time, but hardly any split is computed again. Throttling lasts half a minute on
/// average, recurs quickly, and for the table may outlast a lease.
#[test]
fn throttling_costs_time_and_little_else() {
    let expected = [
        (FaultKind::StoreThrottled, 20),
        (FaultKind::StoreFull, 4),
        (FaultKind::TableThrottled, 2),
    ];
    for (fault, spells_per_split) in expected {
        let (mut lasting, mut again) = (0, 0);
        for seed in 0..60 {
            let SimulationOutcome { counts, .. } = simulate_only(seed, &[fault]).unwrap();
            // A worker that is asked to leave drops the split that it has just begun.
            let calm = simulate_only(seed, &[]).unwrap().counts;
            assert_eq!(counts.violations, Vec::<String>::new(), "{fault:?}, seed {seed}");
            lasting += counts.faults.get(&fault).copied().unwrap_or_default();
            again += counts.computed_again.saturating_sub(calm.computed_again);
        }
        println!("{fault:?}: {lasting} lasting, {again} splits computed again");
        assert!(
            again * spells_per_split < lasting,
            "{fault:?}: {again} splits again, {lasting} lasting"
        );
    }
}
