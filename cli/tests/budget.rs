//! A job with a budget: it ends when the budget does, and goes on with more to the same batches.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_synthetic::tfrecord::{RecordWriter, TfExample};
use gristmill_tests::{TestDir, run_json};
use serde_json::Value;
use std::{fs, process::Command};

/// 2,000 splits in eight epochs, whose requests cost more than their computing.
const RECORDS: i64 = 1_000;
const PIPELINE: &str = "
source: { tfrecord: data, features: { id: { dtype: i64 } } }
ops: [sleep: { ms: 3 }, batch: { size: 4 }]
";
/// Enough for a third of it. A tenth is more than a worker needs to start, so nobody waits for what is held for copies of
/// events.
const LITTLE: &str = "0.006";

fn command(dir: &TestDir, name: &str, more: &[&str]) -> Command {
    let mut command = dir.gristmill(&["run", "--json", "--epochs", "8", "--step-time", "0ms"]);
    command.arg(dir.path("p.yaml")).arg("--state-dir").arg(dir.path(name));
    command.args(["--job", "j", "--split-batches", "1"]).args(more);
    command
}

#[test]
fn a_job_ends_with_its_budget_and_goes_on_with_more() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    fs::write(dir.path("p.yaml"), PIPELINE)?;
    fs::create_dir(dir.path("data"))?;
    let mut bytes = Vec::new();
    let mut writer = RecordWriter::new(&mut bytes);
    for id in 0..RECORDS {
        writer.write(&TfExample::default().with_int("id", id))?;
    }
    writer.finish()?;
    fs::write(dir.path("data/0"), bytes)?;
    let whole = run_json(&mut command(&dir, "whole", &["--local-workers", "4", "--workers", "0"]))?;

    let short = ["--workers", "1", "--budget-usd", LITTLE];
    let ended = command(&dir, "short", &short).output()?;
    let why = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{why}");
    assert!(why.contains("its budget is spent") && why.contains("--budget-usd"), "{why}");
    let state = dir.path("short");
    let status = || -> Result<Value> {
        let mut status = dir.gristmill(&["status", "j", "--json"]);
        run_json(status.arg("--state-dir").arg(&state))
    };
    let spent = status()?["spent_usd"].as_f64().unwrap();
    assert!(spent > 0.8 * LITTLE.parse::<f64>()? && spent <= LITTLE.parse()?, "{spent}");
    assert_eq!(status()?["budget_usd"].as_f64(), Some(LITTLE.parse()?));

    // Local workers need no functions; they pay for requests, and go on where the job was.
    let more = ["--workers", "0", "--local-workers", "4", "--budget-usd", "0.02"];
    let rest = run_json(&mut command(&dir, "short", &more))?;
    let all = rest["spent_usd"].as_f64().unwrap();
    assert!(spent < all && all < 0.02, "{spent} {all}");
    assert!(rest["elements_delivered"].as_u64() < whole["elements_delivered"].as_u64());
    Ok(())
}
