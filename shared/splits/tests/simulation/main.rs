//! Whole runs of the split protocol under a schedule drawn from a seed: many coordinators over one
//! table of versioned items, workers, a trainer, a collector.
//!
//! Everything takes a random time and anything may go wrong between any two steps: coordinators die
//! between read and write, answers are lost, copies of calls arrive up to six hours late, clocks are
//! ten minutes off, workers crash or freeze beyond their lease, reports of death are lost, late or
//! doubled, one event starts two workers, the trainer dies and restores an old checkpoint. After a
//! while faults stop, and the job has to end. One seed gives one trace.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]
#![allow(clippy::collapsible_match, clippy::single_range_in_vec_init, reason = "reads better so")]

mod actors;
mod coordinator;
mod sim;

use gristmill_types::ErrorPolicy;
use sim::{End, Sim};

/// Seeds of an ordinary test run; a study sets another number.
const SEEDS: u64 = 3_000;

#[test]
fn every_seed_ends_with_each_record_once() {
    let (mut done, mut poisoned, mut wronged) = (0, 0, 0);
    let (mut replays, mut attempts, mut conflicts) = (0, 0, 0);
    for seed in 0..SEEDS {
        let report = Sim::new(seed, ErrorPolicy::Skip).run();
        // A pure function of the seed ends well; only exhausted attempts may fail a job.
        done += u64::from(report.end == End::Done);
        poisoned += report.poisoned;
        wronged += report.wronged;
        replays += report.replays;
        attempts += report.attempts;
        conflicts += report.conflicts;
    }
    println!(
        "{SEEDS} seeds: {done} done, {poisoned} splits poisoned ({wronged} of them wrongly), {replays} batches replayed, \
         {attempts} attempts, {conflicts} lost races"
    );
    assert!(done > SEEDS * 9 / 10, "only {done} of {SEEDS} jobs were done");
    // The faults do happen.
    assert!(poisoned > SEEDS / 10 && replays > SEEDS / 2 && conflicts > SEEDS);
    // Chance may kill one split three times in a row, but hardly ever does.
    assert!(wronged * 100 <= poisoned, "{wronged} innocent splits of {poisoned} poisoned");
}

#[test]
fn under_policy_fail_a_poison_split_fails_the_job_and_names_itself() {
    let mut failed = 0;
    for seed in 0..300 {
        let report = Sim::new(seed, ErrorPolicy::Fail).run();
        match report.end {
            End::Failed(error) => {
                failed += 1;
                assert!(error.contains("position"), "{error:?}");
                assert!(report.has_poison || error.contains("attempts"), "seed {seed}: {error}");
            }
            End::Done => assert!(!report.has_poison, "seed {seed}: poison went unnoticed"),
        }
    }
    assert!(failed > 0);
}

#[test]
fn one_seed_gives_one_trace() {
    let trace = |seed| {
        let mut sim = Sim::new(seed, ErrorPolicy::Skip);
        sim.traced = true;
        sim.run().trace
    };
    for seed in 0..50 {
        assert_eq!(trace(seed), trace(seed), "seed {seed}");
    }
    assert_ne!(trace(0), trace(1));
}
