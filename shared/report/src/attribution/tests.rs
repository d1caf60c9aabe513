//! A table of epochs with the expected advice, and invariants of the attribution.

use super::*;
use proptest::prelude::*;

/// Unclaimed, working, fetch and decode seconds.
fn waits(parts: [f64; 4]) -> EpochWaits {
    let [unclaimed_s, working_s, fetch_s, decode_s] = parts;
    let total_s = parts.iter().sum();
    EpochWaits { total_s, unclaimed_s, working_s, fetch_s, decode_s, first_batch_s: None }
}

fn shares(workers: f64, max_workers: u32) -> WorkerShares {
    let op = |name: &str, seconds| OpSeconds { name: name.to_owned(), seconds };
    WorkerShares {
        source_s: 40.0,
        ops: vec![op("decode", 100.0), op("flip", 10.0), op("decode", 20.0)],
        put_s: 30.0,
        workers: Some(workers),
        max_workers: Some(max_workers),
    }
}

fn says(waits: &EpochWaits, shares: &WorkerShares, epoch_s: f64) -> String {
    attribute(waits, shares, epoch_s).advice.to_string()
}

#[test]
fn work_is_shared_out_as_workers_spent_their_time() {
    let stalls = attribute(
        &EpochWaits { total_s: 30.0, ..waits([4.0, 20.0, 3.0, 1.0]) },
        &shares(4.0, 8),
        100.0,
    );
    let parts: Vec<(String, f64)> =
        stalls.parts.iter().map(|part| (part.cause.to_string(), part.seconds)).collect();
    // 20 s of work, distributed as 40, 120, 10 and 30 of 200.
    let expected = [
        ("op decode", 12.0),
        ("queue", 4.0),
        ("source read", 4.0),
        ("object put", 3.0),
        ("fetch", 3.0),
        ("other", 2.0),
        ("op flip", 1.0),
        ("decode", 1.0),
    ];
    assert_eq!(parts, expected.map(|(cause, seconds)| (cause.to_owned(), seconds)));
    assert_eq!((stalls.total_s, stalls.percent), (30.0, 30.0));
    assert_eq!(stalls.parts[0].percent, 12.0);
    assert!(
        stalls.to_string().starts_with("waited 30.0 s (30 %): op decode 12.0 s, queue 4.00 s,")
    );
}

#[test]
fn work_of_unknown_workers_stays_whole() {
    let stalls = attribute(&waits([0.0, 5.0, 0.0, 0.0]), &WorkerShares::default(), 50.0);
    assert_eq!(stalls.parts, [StallPart { cause: StallCause::Work, seconds: 5.0, percent: 10.0 }]);
}

#[test]
fn advice_names_what_would_help() {
    let held = shares(4.0, 8);
    let first = EpochWaits { first_batch_s: Some(7.5), ..waits([6.0, 3.0, 0.0, 0.0]) };
    let table = [
        (waits([1.0, 1.0, 0.5, 0.0]), &held, "the trainer hardly waited: 2.5 % of the epoch"),
        (
            first,
            &held,
            "the wait was for the first batch, 7.50 s of 9.00 s: it comes once an epoch",
        ),
        (
            waits([10.0, 10.0, 5.0, 5.0]),
            &held,
            "more workers would help: the trainer waited for them 20 % of the epoch; about 5 instead \
             of 4 should do",
        ),
        (
            // Five times the workers, without the maximum.
            waits([40.0, 40.0, 0.0, 0.0]),
            &held,
            "more workers would help: the trainer waited for them 80 % of the epoch; about 8 instead \
             of 4 should do",
        ),
        (
            waits([30.0, 20.0, 0.0, 0.0]),
            &shares(7.8, 8),
            "more workers would help, and there may be no more: the trainer waited for them 50 % of \
             the epoch; raise --max-workers from 8 to about 16",
        ),
        (
            waits([2.0, 2.0, 30.0, 1.0]),
            &held,
            "more workers would not help, the trainer's network is the limit: 30.0 s (30 % of the \
             epoch) for batches on their way; send fewer bytes (cast later, a smaller dtype) or use \
             local workers",
        ),
        (
            waits([2.0, 2.0, 3.0, 12.0]),
            &held,
            "more workers would not help, the trainer's processor is the limit: 12.0 s (12 % of the \
             epoch) for batches being joined and decoded; do less in `deliver`, or use a smaller dtype",
        ),
        (
            EpochWaits { total_s: 20.0, ..waits([2.0, 2.0, 3.0, 1.0]) },
            &held,
            "most of the wait, 12.0 s (12 % of the epoch), was for nothing that was measured: \
             between polls, or with the trainer's host busy",
        ),
    ];
    for (waits, shares, expected) in table {
        assert_eq!(says(&waits, shares, 100.0), expected);
    }
    assert_eq!(
        says(&waits([0.5, 0.5, 0.0, 0.0]), &held, 1.9),
        "too short to say: the epoch took 1.90 s"
    );
    assert_eq!(
        says(&waits([99.0, 0.0, 0.0, 0.0]), &WorkerShares::default(), 100.0),
        "more workers would help: the trainer waited for them 99 % of the epoch"
    );
}

/// Seconds, valid and invalid.
fn any_seconds() -> impl Strategy<Value = f64> {
    prop_oneof![8 => 0.0..1e4_f64, 1 => any::<f64>()]
}

proptest! {
    #[test]
    fn parts_sum_to_the_total_and_are_never_negative(
        measured in [any_seconds(), any_seconds(), any_seconds(), any_seconds(), any_seconds()],
        epoch_s in any_seconds(),
        worked in proptest::collection::vec(any_seconds(), 0..5),
        counts in (proptest::option::of(any::<f64>()), proptest::option::of(any::<u32>())),
        first_batch_s in proptest::option::of(any_seconds()),
    ) {
        let [total_s, unclaimed_s, working_s, fetch_s, decode_s] = measured;
        let waits = EpochWaits { total_s, unclaimed_s, working_s, fetch_s, decode_s, first_batch_s };
        let op = |(index, seconds): (usize, &f64)| OpSeconds { name: format!("op{index}"), seconds: *seconds };
        let shares = WorkerShares {
            source_s: worked.first().copied().unwrap_or(0.0),
            ops: worked.iter().enumerate().skip(1).map(op).collect(),
            workers: counts.0,
            max_workers: counts.1,
            ..WorkerShares::default()
        };
        let stalls = attribute(&waits, &shares, epoch_s);
        let sum: f64 = stalls.parts.iter().map(|part| part.seconds).sum();
        prop_assert!((sum - stalls.total_s).abs() <= 1e-9 * stalls.total_s, "{sum} of {}", stalls.total_s);
        prop_assert!(stalls.parts.iter().all(|part| part.seconds > 0.0 && part.percent >= 0.0));
        prop_assert!(stalls.parts.is_sorted_by(|a, b| a.seconds >= b.seconds));
        prop_assert!((0.0..=100.0).contains(&stalls.percent));
        if total_s.is_finite() && total_s < 1e12 {
            prop_assert!(stalls.total_s >= total_s);
        }
        let line = stalls.advice.to_string();
        let odd = line.contains("NaN") || line.contains("inf ") || line.contains('\n');
        prop_assert!(!line.is_empty() && !odd, "{line}");
    }
}
