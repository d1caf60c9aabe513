//! Dataset operators end to end: which records are delivered, how often, in which order.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::{TestDir, read_numbers, run_json};
use std::{collections::BTreeMap, fs, process::Output};

/// Records of each file; file f has the numbers from 1000 f on.
const FILES: [i64; 4] = [37, 5, 0, 24];

struct Dataset {
    dir: TestDir,
    runs: std::cell::Cell<u32>,
}

impl Dataset {
    fn new() -> Result<Self> {
        let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
        fs::create_dir(dir.path("data"))?;
        for (file, records) in (0..).zip(FILES) {
            let lines = (0..records).map(|i| format!("{{\"id\": {}}}\n", 1000 * file + i));
            let name = format!("data/part-{file}.jsonl");
            fs::write(dir.path(&name), lines.collect::<String>())?;
        }
        Ok(Dataset { dir, runs: std::cell::Cell::default() })
    }

    fn command(&self, ops: &str, more: &[&str]) -> Result<(std::process::Command, String)> {
        let run = self.runs.replace(self.runs.get() + 1);
        let (pipeline, sink) = (self.dir.path(&format!("{run}.yaml")), format!("sink-{run}"));
        let source = "source: { jsonl: x, features: { id: { dtype: i64 } } }";
        fs::write(&pipeline, format!("{source}\nops: [{ops}, batch: {{ size: 4 }}]\n"))?;
        let mut command = self.dir.gristmill(&["run"]);
        command.arg(pipeline).arg("--data").arg(self.dir.path("data"));
        command.args(["--epochs", "2", "--step-time", "0ms", "--json"]);
        if !more.contains(&"--split-batches") {
            command.args(["--split-batches", "3"]);
        }
        command.arg("--sink").arg(self.dir.path(&sink)).args(more);
        Ok((command, sink))
    }

    /// The records of each of two epochs.
    fn epochs(&self, ops: &str, more: &[&str]) -> Result<BTreeMap<u32, Vec<i64>>> {
        let (mut command, sink) = self.command(ops, more)?;
        let report = run_json(&mut command)?;
        assert_eq!((report["lost"].as_u64(), report["duplicates"].as_u64()), (Some(0), Some(0)));
        read_numbers(&self.dir.path(&sink), "id")
    }

    fn refusal(&self, ops: &str) -> Result<Output> {
        Ok(self.command(ops, &[])?.0.output()?)
    }
}

/// All numbers in the order of the dataset.
fn all() -> Vec<i64> {
    (0..)
        .zip(FILES)
        .flat_map(|(file, records)| (0..records).map(move |i| 1000 * file + i))
        .collect()
}

fn sorted(mut numbers: Vec<i64>) -> Vec<i64> {
    numbers.sort_unstable();
    numbers
}

#[test]
fn take_skip_and_repeat_are_those_of_a_list() -> Result<()> {
    let dataset = Dataset::new()?;
    let epochs = dataset.epochs("skip: { count: 30 }, take: { count: 20 }, in_order", &[])?;
    assert_eq!(epochs[&0], all()[30..50]);
    assert_eq!(epochs[&1], all()[30..50]);
    let epochs = dataset.epochs("in_order, take: { count: 5 }, repeat: { count: 3 }", &[])?;
    assert_eq!(epochs[&0], all()[..5].repeat(3));
    let epochs = dataset.epochs("repeat: { count: 2 }, skip: { count: 60 }", &[])?;
    assert_eq!(sorted(epochs[&0].clone()), sorted([all(), all()].concat()[60..].to_vec()));
    // After operators that make one element of one, they mean the same.
    let ops = "sleep: { ms: 0 }, take: { count: 7 }, filter: { field: id, min: 2 }, in_order";
    assert_eq!(dataset.epochs(ops, &[])?[&1], all()[2..7]);
    Ok(())
}

#[test]
fn remainders_of_splits_keep_their_place() -> Result<()> {
    let dataset = Dataset::new()?;
    let workers = ["--workers", "3", "--split-batches", "1"];
    assert_eq!(dataset.epochs("in_order", &workers)?[&1], all());
    let listed: Vec<i64> = all().into_iter().filter(|id| id % 3 > 0).collect();
    let ops = format!("in_order, filter: {{ field: id, in: {listed:?} }}");
    for more in [&["--workers", "3"][..], &["--workers", "0", "--local-workers", "2"]] {
        assert_eq!(dataset.epochs(&ops, &[more, &["--split-batches", "1"]].concat())?[&0], listed);
    }
    let thrice: Vec<i64> = listed.iter().flat_map(|id| [*id; 3]).collect();
    let ops = format!("{ops}, duplicate: {{ copies: 3 }}");
    assert_eq!(dataset.epochs(&ops, &workers)?[&1], thrice);
    let off = ["--workers", "2", "--sharding", "off"];
    assert_eq!(dataset.epochs("in_order", &off)?[&0], all().repeat(2));
    Ok(())
}

#[test]
fn a_shuffle_mixes_files_and_loses_nothing() -> Result<()> {
    let dataset = Dataset::new()?;
    let shuffle = "shuffle: { blocks: 4 }";
    let epochs = dataset.epochs(shuffle, &["--workers", "3"])?;
    assert_eq!(sorted(epochs[&0].clone()), all());
    assert_eq!(sorted(epochs[&1].clone()), all());
    assert_ne!(epochs[&0], epochs[&1]);
    assert_eq!(dataset.epochs(shuffle, &["--workers", "1"])?, epochs, "with any number of workers");
    let local = ["--workers", "0", "--local-workers", "2"];
    assert_eq!(dataset.epochs(shuffle, &local)?, epochs);
    assert_ne!(dataset.epochs("shuffle: { blocks: 4, seed: 1 }", &[])?, epochs);
    let neighbours = |numbers: &[i64]| numbers.windows(2).filter(|w| w[1] == w[0] + 1).count();
    let plain = dataset.epochs("sleep: { ms: 0 }", &[])?;
    assert!(neighbours(&epochs[&0]) < 12 && neighbours(&plain[&0]) > 40, "{epochs:?}");
    Ok(())
}

#[test]
fn interleaved_files_take_turns() -> Result<()> {
    let dataset = Dataset::new()?;
    let ops = "interleave: { cycle_length: 2, block_length: 3 }, in_order";
    let epochs = dataset.epochs(ops, &[])?;
    let begins = [0, 1, 2, 1000, 1001, 1002, 3, 4, 5, 1003, 1004, 6, 7, 8];
    assert_eq!(epochs[&0][..begins.len()], begins);
    assert_eq!(sorted(epochs[&0].clone()), all());
    Ok(())
}

#[test]
fn records_are_selected_by_number_in_the_order_given() -> Result<()> {
    let dataset = Dataset::new()?;
    let epochs = dataset.epochs("select: { records: '40-42, 0, 36-38' }, in_order", &[])?;
    let all = all();
    let expected: Vec<i64> = [40, 41, 42, 0, 36, 37, 38].map(|place: usize| all[place]).to_vec();
    assert_eq!((&epochs[&0], &epochs[&1]), (&expected, &expected));
    let shuffled = dataset.epochs("select: { records: 7-60 }, shuffle", &["--workers", "3"])?;
    assert_eq!(sorted(shuffled[&1].clone()), all[7..=60]);
    Ok(())
}

#[test]
fn shards_share_no_record_and_are_the_whole_together() -> Result<()> {
    let dataset = Dataset::new()?;
    let parts = |ops: &str, count: u32, by: &str| -> Result<Vec<Vec<i64>>> {
        let part = |index| {
            let shard = format!("{index}/{count}");
            let more = ["--shard", &shard, "--shard-by", by, "--split-batches", "1"];
            Ok(dataset.epochs(ops, &more)?.remove(&1).unwrap_or_default())
        };
        (0..count).map(part).collect()
    };
    let by_batches = parts("in_order", 3, "data")?;
    assert_eq!(by_batches[1][..8], [4, 5, 6, 7, 16, 17, 18, 19]);
    assert_eq!(sorted(by_batches.concat()), all());
    assert_eq!(sorted(parts("shuffle: { blocks: 2 }", 2, "data")?.concat()), all());
    let some = parts("take: { count: 50 }, repeat: { count: 2 }, in_order", 2, "data")?;
    assert_eq!(sorted(some.concat()), sorted(all()[..50].repeat(2)));
    let by_files = parts("in_order", 2, "file")?;
    assert_eq!(by_files[1], all()[37..], "files 1 and 3");
    assert_eq!(sorted(by_files.concat()), all());
    let enough = parts("shuffle", 2, "file-or-data")?;
    assert_eq!(sorted(enough[1].clone()), by_files[1]);
    let own = "shard: { by: file }, interleave: { cycle_length: 2, block_length: 3 }, in_order";
    let turns = parts(own, 2, "hint")?;
    assert_eq!(turns[0][..3], [0, 1, 2], "an empty file has no turn");
    assert_eq!(turns[1][..9], [1000, 1001, 1002, 3000, 3001, 3002, 1003, 1004, 3003]);
    let too_many = ["--shard", "1/5", "--shard-by", "file"];
    let refused = dataset.command("in_order", &too_many)?.0.output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("4 files are not enough for 5 shards"), "{said}");
    Ok(())
}

#[test]
fn unresolvable_operators_are_refused_in_a_line() -> Result<()> {
    let dataset = Dataset::new()?;
    for (ops, said) in [
        ("filter: { field: id, min: 2 }, take: { count: 3 }", "comes after `filter`"),
        ("take: { count: 3 }, interleave", "`interleave` works on files"),
        ("repeat", "`repeat` needs a `count`"),
        ("shuffle, shard: { count: 2 }", "`shard` comes after `shuffle`"),
        ("shard: { index: 2, count: 2 }", "numbered from 0 to 1"),
        ("take: { count: 9 }, shard: { by: file }", "`shard` works on files"),
        ("select: { records: '3, 1-4' }", "record 3 is given twice"),
        ("take: { count: 0 }", "whole number from 1 on"),
    ] {
        let output = dataset.refusal(ops)?;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), error.contains(said)), (Some(2), true), "{ops}: {error}");
    }
    Ok(())
}

#[test]
fn operators_that_leave_nothing_make_a_run_without_batches() -> Result<()> {
    let dataset = Dataset::new()?;
    assert_eq!(dataset.epochs("skip: { count: 1000 }", &[])?, Default::default());
    Ok(())
}
