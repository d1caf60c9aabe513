//! `compress`: trainers get the same batches from compressed and uncompressed objects.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::{Result, bail, ensure};
use gristmill_tests::{Background, TestDir, read_frames, run_json};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    process::{Command, Stdio},
};

const PIPELINE: &str = "
source:
  jsonl: tokens.jsonl
  features:
    tokens: { dtype: i64, shape: [-1] }
ops:
  - padded_batch: { size: 16 }
";

/// Stored bytes of an epoch, and the hash of all batches.
fn outcome(report: &Value) -> (u64, String) {
    assert_eq!((report["lost"].as_u64(), report["duplicates"].as_u64()), (Some(0), Some(0)));
    let stored = report["epochs"][0]["stored_bytes"].as_u64().unwrap();
    (stored, report["batches_blake3"].as_str().unwrap().to_owned())
}

#[test]
fn batches_are_the_same_and_objects_smaller() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    let record = |i: usize| {
        let tokens: Vec<String> = (0..i % 90).map(|k| (k * i % 30_000).to_string()).collect();
        format!("{{\"tokens\": [{}]}}\n", tokens.join(", "))
    };
    fs::write(dir.path("tokens.jsonl"), (0..700).map(record).collect::<String>())?;
    fs::write(dir.path("p.yaml"), PIPELINE)?;
    fs::write(dir.path("zstd.yaml"), format!("compress: zstd{PIPELINE}"))?;
    let run = |pipeline: &str, more: &[&str]| -> Result<(u64, String)> {
        let mut command = dir.gristmill(&["run"]);
        command.arg(dir.path(pipeline)).args(["--epochs", "2", "--step-time", "0ms", "--json"]);
        Ok(outcome(&run_json(command.args(more))?))
    };
    let (raw, expected) = run("p.yaml", &["--compress", "none"])?;
    let (packed, batches) = run("p.yaml", &["--compress", "zstd"])?;
    assert_eq!(batches, expected);
    assert!(packed < raw / 3, "{packed} of {raw} bytes");
    // Nothing crosses a network, so `auto` does not compress.
    assert_eq!(run("p.yaml", &["--compress", "auto"])?, (raw, expected.clone()));
    assert_eq!(run("zstd.yaml", &[])?, (packed, expected.clone()));
    assert_eq!(run("zstd.yaml", &["--compress", "none"])?, (raw, expected.clone()));
    // Splits of the trainer's process are not stored.
    assert_eq!(run("zstd.yaml", &["--workers", "0", "--local-workers", "1"])?, (raw, expected));
    Ok(())
}

/// Batches that `gristmill-fetcher` sends for a job, by epoch and number in the epoch.
type Frames = BTreeMap<(u32, u64), Vec<u8>>;

fn fetched(command: &mut Command) -> Result<Frames> {
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    let frames = read_frames(&output.stdout)?;
    ensure!(frames.len() == EPOCHS * RECORDS.div_ceil(16), "{} batches: {said}", frames.len());
    Ok(frames)
}

const RECORDS: usize = 210;
/// So many that storing elements pays.
const EPOCHS: usize = 4;

/// A job that caches with one setting feeds jobs with the other, for whole batches and for elements
/// within a pipeline.
#[test]
fn a_fetcher_delivers_the_same_from_a_cache_that_is_compressed_or_not() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    let record = |i: usize| {
        let tokens: Vec<String> = (0..1 + i % 90).map(|k| (k * i % 300).to_string()).collect();
        format!("{{\"tokens\": [{}]}}\n", tokens.join(", "))
    };
    fs::write(dir.path("tokens.jsonl"), (0..RECORDS).map(record).collect::<String>())?;
    let source = PIPELINE.split("ops:").next().unwrap();
    let batched = "padded_batch: { size: 16 }";
    let ops = [
        ("computed", format!("sleep: {{ ms: 20 }}, {batched}")),
        ("batches", format!("sleep: {{ ms: 20 }}, {batched}, autocache")),
        ("elements", format!("sleep: {{ ms: 20 }}, autocache, {batched}")),
    ];
    for (name, ops) in ops {
        fs::write(dir.path(&format!("{name}.yaml")), format!("{source}ops: [{ops}]\n"))?;
    }
    let state = dir.path("state").display().to_string();
    let mut up = Background::start(&mut dir.gristmill(&["up", "--state-dir", &state]))?;
    up.line()?;
    let cached = || -> Result<Vec<u64>> {
        let found =
            run_json(&mut dir.gristmill(&["cache", "ls", "--json", "--state-dir", &state]))?;
        let entries = found["entries"].as_array().unwrap();
        Ok(entries.iter().map(|entry| entry["bytes"].as_u64().unwrap()).collect())
    };
    let fetch = |pipeline: &str, compress: &str, job: &str| -> Result<Frames> {
        let mut command =
            dir.fetcher(&["--state-dir", &state, "--socket", "-", "--epochs", &EPOCHS.to_string()]);
        command.args(["--job", job, "--compress", compress, "--pipeline"]);
        fetched(command.arg(dir.path(&format!("{pipeline}.yaml"))))
    };
    let expected = fetch("computed", "none", "computed")?;
    let mut sizes = BTreeMap::new();
    for pipeline in ["batches", "elements"] {
        for by in ["none", "zstd", "auto"] {
            ensure!(cached()?.is_empty());
            ensure!(fetch(pipeline, by, &format!("{pipeline}-{by}"))? == expected, "put with {by}");
            let [bytes] = cached()?[..] else { bail!("{:?}", cached()?) };
            sizes.insert((pipeline, by), bytes);
            let with = if by == "zstd" { "none" } else { "zstd" };
            let job = format!("{pipeline}-{by}-{with}");
            ensure!(fetch(pipeline, with, &job)? == expected, "put with {by}, read with {with}");
            let status =
                dir.gristmill(&["status", &job, "--json", "--state-dir", &state]).output()?;
            let status: Value = serde_json::from_slice(&status.stdout)?;
            ensure!(status["modes"][0]["mode"] == "get", "{status}");
            let rm = dir.gristmill(&["cache", "rm", "--all", "--state-dir", &state]).status()?;
            ensure!(rm.success());
        }
        let size = |by| sizes[&(pipeline, by)];
        ensure!(size("zstd") < size("none") / 2 && size("auto") == size("none"), "{sizes:?}");
    }
    Ok(())
}
