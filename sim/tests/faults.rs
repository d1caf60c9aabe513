//! Thousands of worlds in which everything goes wrong, and the mistakes they must notice.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use gristmill_sim::{Mutant, simulate};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

const SEEDS: u64 = 2_000;
/// Worlds a mistake may hide in.
const SEEDS_PER_MUTANT: u64 = 300;

#[test]
fn no_seed_breaks_an_invariant() {
    let next = AtomicU64::new(0);
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= SEEDS {
                        return;
                    }
                    let outcome = simulate(seed, None, false).unwrap();
                    let violations = outcome.tally.violations;
                    assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
                }
            });
        }
    });
}

#[test]
fn one_seed_is_one_world() {
    for seed in 0..20 {
        let (one, again) =
            (simulate(seed, None, false).unwrap(), simulate(seed, None, false).unwrap());
        assert_eq!(one.tally, again.tally, "seed {seed}");
        assert_eq!((one.took, one.replays), (again.took, again.replays), "seed {seed}");
    }
}

#[test]
fn every_mistake_is_noticed() {
    for mutant in Mutant::ALL {
        let caught = (0..SEEDS_PER_MUTANT).find(|&seed| {
            !simulate(seed, Some(mutant), false).unwrap().tally.violations.is_empty()
        });
        assert!(caught.is_some(), "{mutant:?} is not noticed in {SEEDS_PER_MUTANT} worlds");
    }
}
