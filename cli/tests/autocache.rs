//! `autocache` end to end: the decisions, the cached reads, and the fingerprints.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::{TestDir, run_json};
use serde_json::Value;
use std::{fs, path::PathBuf, process::Command};

/// Computing a record takes three milliseconds, so that keeping the batches is worth it.
const SLOW: &str = "sleep: { ms: 3 }";
/// So that a put of its own pays within three epochs.
const SLOWER: &str = "sleep: { ms: 20 }";

struct Place {
    dir: TestDir,
}

impl Place {
    fn new() -> Result<Self> {
        let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
        fs::create_dir(dir.path("data"))?;
        for file in 0..3 {
            let lines = (0..70).map(|i| format!("{{\"id\": {}}}\n", 1000 * file + i));
            fs::write(dir.path(&format!("data/part-{file}.jsonl")), lines.collect::<String>())?;
        }
        Ok(Place { dir })
    }

    fn pipeline(&self, name: &str, ops: &str) -> Result<PathBuf> {
        let path = self.dir.path(name);
        let source = "source: { jsonl: x, features: { id: { dtype: i64 } } }";
        fs::write(&path, format!("{source}\nops: [{ops}]\n"))?;
        Ok(path)
    }

    fn command(&self, ops: &str, more: &[&str]) -> Result<Command> {
        let mut command = self.dir.gristmill(&["run"]);
        command.arg(self.pipeline("p.yaml", ops)?).arg("--data").arg(self.dir.path("data"));
        command.args(["--step-time", "0ms", "--json", "--split-batches", "3"]).args(more);
        Ok(command)
    }

    fn run(&self, ops: &str, more: &[&str]) -> Result<Value> {
        let report = run_json(&mut self.command(ops, more)?)?;
        assert_eq!((report["lost"].as_u64(), report["duplicates"].as_u64()), (Some(0), Some(0)));
        Ok(report)
    }

    fn cache(&self, args: &[&str]) -> Result<Value> {
        let mut command = self.dir.gristmill(&["cache"]);
        run_json(command.args(args).arg("--json"))
    }
}

fn modes(report: &Value) -> Vec<&str> {
    report["epochs"].as_array().unwrap().iter().map(|e| e["mode"].as_str().unwrap()).collect()
}

fn worker_seconds(report: &Value, epoch: usize) -> f64 {
    let seconds = report["epochs"][epoch]["worker_seconds"].as_object().unwrap();
    seconds.values().filter_map(Value::as_f64).sum()
}

#[test]
fn delivered_splits_are_computed_once() -> Result<()> {
    let place = Place::new()?;
    let computed = place.run(&format!("{SLOW}, batch: {{ size: 8 }}"), &[])?;
    assert_eq!(modes(&computed), ["compute", "compute", "compute"]);
    assert!(computed["epochs"][0]["reason"].is_null());
    let ops = format!("{SLOW}, batch: {{ size: 8 }}, autocache");
    let cached = place.run(&ops, &[])?;
    assert_eq!(modes(&cached), ["profile", "get", "get"], "{cached}");
    assert_eq!(cached["batches_blake3"], computed["batches_blake3"]);
    assert!(worker_seconds(&cached, 0) > 0.3);
    assert_eq!((worker_seconds(&cached, 1), worker_seconds(&cached, 2)), (0.0, 0.0));

    // A job with another seed finds it too, and needs no remote worker.
    let found = place.run(&ops, &["--seed", "5", "--workers", "0", "--local-workers", "1"])?;
    assert_eq!(modes(&found), ["get", "get", "get"], "{found}");
    assert_eq!(worker_seconds(&found, 0), 0.0);
    let own = place.run(&format!("{SLOW}, batch: {{ size: 8 }}"), &["--seed", "5"])?;
    assert_eq!(found["batches_blake3"], own["batches_blake3"]);
    Ok(())
}

#[test]
fn a_point_within_is_put_and_then_read_by_workers() -> Result<()> {
    let place = Place::new()?;
    let rest = "filter: { field: id, min: 4 }, batch: { size: 8 }";
    let computed = place.run(&format!("{SLOWER}, {rest}"), &[])?;
    for workers in [&["--workers", "3"][..], &["--workers", "1", "--local-workers", "1"]] {
        let cached = place.run(&format!("{SLOWER}, autocache, {rest}"), workers)?;
        assert_eq!(modes(&cached), ["profile", "put", "get"], "{cached}");
        assert_eq!(cached["batches_blake3"], computed["batches_blake3"]);
        assert!(worker_seconds(&cached, 2) < worker_seconds(&cached, 0) / 2.0, "{cached}");
        place.cache(&["rm", "--all"])?;
    }
    Ok(())
}

#[test]
fn the_cache_is_listed_explained_and_removed() -> Result<()> {
    let place = Place::new()?;
    assert_eq!(place.cache(&["ls"])?["entries"].as_array().map(Vec::len), Some(0));
    let ops = format!("{SLOW}, batch: {{ size: 8 }}, autocache");
    place.run(&ops, &["--epochs", "2"])?;
    let listed = place.cache(&["ls"])?;
    let entry = &listed["entries"][0];
    assert_eq!((entry["rows"].as_u64(), entry["after"].as_str()), (Some(210), Some("batch")));

    let data = place.dir.path("data");
    let explain = |ops: &str| -> Result<Value> {
        let pipeline = place.pipeline("q.yaml", ops)?;
        let found =
            place.cache(&["explain", pipeline.to_str().unwrap(), "--data", data.to_str().unwrap()]);
        Ok(found?["points"][0].clone())
    };
    assert_eq!(explain(&ops)?["hit"], true);
    let other = explain("sleep: { ms: 4 }, batch: { size: 8 }, autocache")?;
    assert_eq!(other["hit"], false);
    assert!(other["why"].to_string().contains("op 1 `sleep`: ms is 4.0, was 3.0"), "{other}");
    fs::write(data.join("part-1.jsonl"), "{\"id\": 7}\n")?;
    let changed = explain(&ops)?;
    assert!(changed["why"].to_string().contains("part-1.jsonl has changed"), "{changed}");

    let name = &entry["fingerprint"].as_str().unwrap()[..12];
    assert_eq!(place.cache(&["rm", name])?["removed"], 1);
    let again = place.dir.gristmill(&["cache", "rm", name]).output()?;
    assert_eq!(again.status.code(), Some(2));
    Ok(())
}

#[test]
fn draws_are_not_repeated_unless_the_author_says_so() -> Result<()> {
    let place = Place::new()?;
    let shuffled =
        |point: &str| format!("shuffle: {{ blocks: 3 }}, {SLOW}, batch: {{ size: 8 }}, {point}");
    let refused = place.command(&shuffled("autocache"), &[])?.output()?;
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{message}");
    assert!(message.contains("reuse_random: true") && message.contains("line 2"), "{message}");

    let allowed = shuffled("autocache: { reuse_random: true }");
    let first = place.run(&allowed, &["--epochs", "3"])?;
    assert_eq!(modes(&first), ["profile", "get", "get"]);
    // Another seed draws differently, so it has another prefix.
    let other = place.run(&allowed, &["--epochs", "1", "--seed", "3"])?;
    assert_eq!(modes(&other), ["profile"]);
    assert_eq!(modes(&place.run(&allowed, &["--epochs", "1"])?), ["get"]);
    Ok(())
}

#[test]
fn computing_stays_where_reading_is_no_faster() -> Result<()> {
    let place = Place::new()?;
    // There is nothing to compute: a cache would hold what the source holds.
    let report = place.run("batch: { size: 8 }, autocache", &["--epochs", "2"])?;
    let seen = modes(&report);
    assert_eq!(seen[0], "profile");
    assert!(["compute", "get"].contains(&seen[1]), "{report}");
    assert!(report["epochs"][1]["reason"].as_str().unwrap().contains("1,000 elements"), "{report}");
    Ok(())
}
