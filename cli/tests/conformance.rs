//! The cases of tf.data service's own tests, with the same small datasets. Those that differ on purpose say why.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::{TestDir, read_numbers, run_json};
use serde_json::Value;
use std::{collections::BTreeMap, fs, process::Command};

/// A folder of datasets of numbers.
struct Cluster(TestDir);

impl Cluster {
    /// One folder for each dataset, with a file for the numbers from each first to before each end.
    fn new(datasets: &[(&str, &[(i64, i64)])]) -> Result<Self> {
        let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
        for (name, files) in datasets {
            fs::create_dir(dir.path(name))?;
            for (number, &(first, end)) in files.iter().enumerate() {
                let lines = (first..end).map(|id| format!("{{\"id\": {id}}}\n"));
                fs::write(dir.path(&format!("{name}/{number}.jsonl")), lines.collect::<String>())?;
            }
        }
        Ok(Self(dir))
    }

    /// A run of `ops` over the datasets of `source`.
    fn command(&self, source: &str, ops: &str, more: &[&str]) -> Result<Command> {
        let pipeline = self.0.path("p.yaml");
        fs::write(&pipeline, format!("source: {source}\nops: [{ops}]\n"))?;
        let mut command = self.0.gristmill(&["run", "--json", "--step-time", "0ms", "--epochs"]);
        command.arg("1").arg(pipeline).args(more);
        Ok(command)
    }

    /// The numbers of one epoch, in order.
    fn epoch(&self, source: &str, ops: &str, more: &[&str]) -> Result<(Vec<i64>, Value)> {
        let sink = self.0.path("sink");
        let mut command = self.command(source, ops, more)?;
        let report = run_json(command.arg("--sink").arg(&sink))?;
        let mut epochs: BTreeMap<u32, Vec<i64>> = read_numbers(&sink, "id")?;
        fs::remove_file(&sink).or_else(|_| fs::remove_dir_all(&sink))?;
        Ok((epochs.remove(&0).unwrap_or_default(), report))
    }

    /// The one line with which a run is refused, and its exit code.
    fn refusal(&self, source: &str, ops: &str, more: &[&str]) -> Result<(Option<i32>, String)> {
        let output = self.command(source, ops, more)?.output()?;
        Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
    }
}

/// The dataset in the folder `name`.
fn jsonl(name: &str) -> String {
    format!("{{ jsonl: '{name}/*.jsonl', features: {{ id: {{ dtype: i64 }} }} }}")
}

const ONE: &str = "batch: { size: 1 }";
const IN_ORDER: &str = "in_order, batch: { size: 1 }";

fn sorted(mut numbers: Vec<i64>) -> Vec<i64> {
    numbers.sort_unstable();
    numbers
}

#[test]
fn case_01_without_sharding_each_worker_gives_every_element() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 20)])])?;
    let off = ["--workers", "2", "--sharding", "off"];
    let (numbers, _) = cluster.epoch(&jsonl("data"), ONE, &off)?;
    assert_eq!(sorted(numbers), sorted((0..20).chain(0..20).collect()));
    Ok(())
}

#[test]
fn case_02_with_dynamic_sharding_each_element_comes_once() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 20)])])?;
    let (numbers, _) = cluster.epoch(&jsonl("data"), ONE, &["--workers", "2"])?;
    assert_eq!(sorted(numbers), (0..20).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn case_03_a_repeated_dataset_gives_each_element_so_often() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 20)])])?;
    let ops = format!("repeat: {{ count: 5 }}, {ONE}");
    let (numbers, _) = cluster.epoch(&jsonl("data"), &ops, &["--workers", "2"])?;
    assert_eq!(sorted(numbers), sorted((0..20).collect::<Vec<_>>().repeat(5)));
    Ok(())
}

#[test]
fn case_05_a_zip_ends_with_its_shortest_dataset() -> Result<()> {
    let cluster = Cluster::new(&[("fifty", &[(0, 50)]), ("ten", &[(0, 10)])])?;
    let ten = "{ jsonl: 'ten/*.jsonl', repeat: 10, features: { other: { key: id, dtype: i64 } } }";
    let source = format!("{{ zip: [{}, {ten}] }}", jsonl("fifty"));
    let (numbers, _) = cluster.epoch(&source, IN_ORDER, &["--workers", "2"])?;
    assert_eq!(numbers, (0..50).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn case_06_concatenated_datasets_keep_their_order() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 10), (10, 15)]), ("more", &[(15, 30)])])?;
    let source = "{ jsonl: ['data/*.jsonl', 'more/*.jsonl'], features: { id: { dtype: i64 } } }";
    let (numbers, _) = cluster.epoch(source, IN_ORDER, &["--workers", "1"])?;
    assert_eq!(numbers, (0..30).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn case_07_file_sharding_with_too_few_files() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 10), (10, 20), (20, 30), (30, 40)])])?;
    let by_file = ["--shard", "0/5", "--shard-by", "file"];
    let (code, said) = cluster.refusal(&jsonl("data"), ONE, &by_file)?;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("4 files are not enough for 5 shards"), "{said}");
    Ok(())
}

#[test]
fn case_08_an_empty_dataset_ends_at_once() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 20)])])?;
    let ops = format!("skip: {{ count: 20 }}, {ONE}");
    let (numbers, report) = cluster.epoch(&jsonl("data"), &ops, &[])?;
    assert_eq!((numbers, &report["lost"]), (vec![], &0.into()));
    Ok(())
}

#[test]
fn case_11_jobs_of_other_names_each_get_everything() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 20)])])?;
    let state = cluster.0.path("state").display().to_string();
    for job in ["a", "b"] {
        let named = ["--state-dir", &state, "--job", job];
        let (numbers, _) = cluster.epoch(&jsonl("data"), ONE, &named)?;
        assert_eq!(sorted(numbers), (0..20).collect::<Vec<_>>(), "{job}");
    }
    Ok(())
}

#[test]
fn case_12_one_name_with_other_parameters_is_refused_with_both_values() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 20)]), ("other", &[(0, 30)])])?;
    let state = cluster.0.path("state").display().to_string();
    let named = ["--state-dir", &state, "--job", "a"];
    cluster.epoch(&jsonl("data"), ONE, &named)?;
    let seeded = [&named[..], &["--seed", "7"]].concat();
    for (source, ops, more, values) in [
        ("data", "batch: { size: 2 }", &named[..], ["batch size", "(1, not 2)"]),
        ("data", ONE, &seeded, ["0", "7"]),
        ("other", ONE, &named, ["dataset", "a"]),
    ] {
        let (code, said) = cluster.refusal(&jsonl(source), ops, more)?;
        assert_eq!(code, Some(2), "{said}");
        assert!(values.iter().all(|value| said.contains(value)), "{said}");
    }
    Ok(())
}

#[test]
fn case_28_killed_workers_change_no_byte() -> Result<()> {
    let cluster = Cluster::new(&[("data", &[(0, 400)])])?;
    let ops = "sleep: { ms: 2 }, batch: { size: 4 }";
    let (expected, calm) = cluster.epoch(&jsonl("data"), ops, &["--workers", "3"])?;
    let chaos = ["--workers", "3", "--chaos", "kill-workers", "--chaos-interval", "100ms"];
    let (numbers, killed) = cluster.epoch(&jsonl("data"), ops, &chaos)?;
    assert_eq!(numbers, expected);
    assert_eq!(killed["batches_blake3"], calm["batches_blake3"]);
    assert!(killed["kills"].as_u64() > Some(0), "{killed}");
    Ok(())
}
