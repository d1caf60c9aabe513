//! Runs of several ranks: the batches of one rank, in equally many steps for all.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::{TestDir, read_numbers, run_json};
use serde_json::{Value, json};

/// The report of two epochs with `args`; every batch that a rank got is written below `sink`.
fn train(dir: &TestDir, sink: &str, args: &[&str]) -> Result<Value> {
    let mut run = dir.gristmill(&["run", "--json", "--epochs", "2", "--step-time", "1ms"]);
    run.arg(dir.path("p.yaml")).args(["--workers", "2", "--sink"]).arg(dir.path(sink)).args(args);
    let report = run_json(&mut run)?;
    assert_eq!((&report["lost"], &report["duplicates"]), (&0.into(), &0.into()), "{report}");
    Ok(report)
}

/// Whether each of two epochs below `sink` has every number once.
fn check_all(dir: &TestDir, sink: &str) -> Result<()> {
    let epochs = read_numbers(&dir.path(sink), "id")?;
    for (epoch, mut numbers) in epochs {
        numbers.sort_unstable();
        assert_eq!(numbers, (0..1000).collect::<Vec<_>>(), "epoch {epoch} of {sink}");
    }
    Ok(())
}

#[test]
fn any_number_of_ranks_trains_on_the_batches_of_one() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    dir.write_numbers()?;
    let one = train(&dir, "one", &[])?;
    assert_eq!((&one["steps"], &one["left_out_batches"]), (&json!([250]), &0.into()));
    let ranks = one["ranks"].as_array().unwrap();
    let [only] = &ranks[..] else { panic!("{one}") };
    assert_eq!(
        (&only["rank"], &only["steps"], &only["repeats"]),
        (&0.into(), &250.into(), &0.into())
    );
    // 125 batches are 31 steps of four ranks, and one step in which three of them repeat.
    let four = train(&dir, "four", &["--ranks", "4"])?;
    assert_eq!((&four["steps"], &four["tail_repeats"]), (&json!([64, 64, 64, 64]), &6.into()));
    assert_eq!(four["batches_blake3"], one["batches_blake3"]);
    let stalls = |rank: usize| &four["ranks"][rank]["stalls"];
    assert!(
        stalls(0)["seconds"].is_number() && (1..4).all(|rank| stalls(rank) == stalls(0)),
        "{four}"
    );
    check_all(&dir, "four")?;
    // 20 steps of four ranks, 10 of three, 3 of five in the first epoch; 25 in the second.
    let resized =
        train(&dir, "resized", &["--ranks", "4", "--resize", "5@30", "--resize", "3@20"])?;
    assert_eq!(resized["steps"], json!([58, 58, 58, 48, 28]));
    assert_eq!(resized["batches_blake3"], one["batches_blake3"]);
    assert_eq!(resized["runs"], json!([vec![20; 4], vec![10; 3], vec![28; 5]]));
    assert_eq!((&resized["repeated_batches"], &resized["tail_repeats"]), (&0.into(), &0.into()));
    check_all(&dir, "resized")
}

#[test]
fn batches_that_are_too_few_for_a_step_are_left_out_and_counted() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    dir.write_numbers()?;
    let dropped = train(&dir, "dropped", &["--ranks", "3", "--tail", "drop"])?;
    assert_eq!(dropped["steps"], json!([82, 82, 82]));
    // Two of 125 batches in each epoch.
    assert_eq!(dropped["left_out_batches"], 4);
    let delivered: usize =
        read_numbers(&dir.path("dropped"), "id")?.into_values().map(|n| n.len()).sum();
    assert_eq!(delivered, 2 * 41 * 3 * 8);
    let uneven = train(&dir, "uneven", &["--ranks", "3", "--tail", "uneven"])?;
    assert_eq!(uneven["steps"], json!([84, 84, 82]));
    check_all(&dir, "uneven")
}
