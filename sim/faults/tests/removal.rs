//! Superfluous workers leave soon, and nothing is lost.

#![allow(clippy::unwrap_used, reason = "a simulation that cannot be created fails the test")]

use gristmill_faults::{RemovalOutcome, simulate_removal};
use gristmill_model::WorkerRemoval;
use std::time::Duration;

const FROM: u32 = 8;
const TO: u32 = 4;

/// A job in which a split takes `split_ms`, give or take a fifth: its superfluous workers are gone within `most_ms`.
fn remove(split_ms: u64, removal: WorkerRemoval, most_ms: u64) -> u64 {
    let outcome = simulate_removal(FROM, TO, split_ms, removal).unwrap();
    let RemovalOutcome { took, least, again, counts, batches } = outcome;
    println!(
        "{FROM} to {TO}, splits of {split_ms} ms, {removal}: {took:?}, {again} begun again, then {least}"
    );
    assert_eq!(counts.violations, Vec::<String>::new());
    assert_eq!(batches, 1_200, "{FROM} to {TO}");
    assert_eq!(least, TO, "nobody else leaves");
    assert!(took <= Duration::from_millis(most_ms), "splits of {split_ms} ms: {took:?}");
    again
}

#[test]
fn workers_too_many_are_gone_within_a_split_and_two_seconds() {
    for split_ms in [200, 500, 700, 950, 1_000, 1_500, 3_000] {
        let longest_ms = split_ms * 6 / 5;
        let again = remove(split_ms, WorkerRemoval::Split, longest_ms + 2_000);
        assert_eq!(again, 0, "splits at hand are finished");
    }
}

#[test]
fn workers_that_leave_now_do_not_finish_the_split_at_hand() {
    for split_ms in [1_000, 3_000, 10_000] {
        let again = remove(split_ms, WorkerRemoval::Now, 3_000);
        assert!(again <= 4, "one of each: {again}");
    }
}
