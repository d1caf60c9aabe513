//! Superfluous workers leave soon, and nothing is lost.

#![allow(clippy::unwrap_used, reason = "a simulation that cannot be created fails the test")]

use gristmill_faults::{RemovalOutcome, simulate_removal};
use std::time::Duration;

#[test]
fn workers_too_many_are_gone_within_two_splits_and_two_seconds() {
    let (from, to) = (8, 4);
    for split_ms in [200, 500, 1_000] {
        let outcome = simulate_removal(from, to, split_ms).unwrap();
        let RemovalOutcome { took, least, again, counts, batches } = outcome;
        println!("{from} to {to}, splits of {split_ms} ms: {took:?}");
        assert_eq!(counts.violations, Vec::<String>::new());
        assert_eq!((batches, least), (600, to), "{from} to {to}");
        assert_eq!(again, 0, "splits at hand are finished");
        let most = Duration::from_millis(2 * split_ms + 2_000);
        assert!(took <= most, "{from} to {to}, {split_ms} ms: {took:?}");
    }
}
