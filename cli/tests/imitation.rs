//! Runs on a service that imitates Lambda: calls are throttled, and workers wait for environments.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_client::ServiceFile;
use gristmill_host::HostServiceClient;
use gristmill_tests::{Background, TestDir, read_sink, run_json};
use serde_json::Value;
use std::{collections::BTreeMap, fs};

const RECORDS: usize = 1000;

fn test_dir() -> Result<TestDir> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    dir.write_numbers()?;
    // So slow that calls and kills meet the run.
    let slow = "source: { jsonl: data, features: { id: { dtype: i64 } } }\n\
                ops: [sleep: { ms: 4 }, batch: { size: 8 }]\n";
    fs::write(dir.path("p.yaml"), slow)?;
    Ok(dir)
}

/// A service with more options, and its address.
fn up(dir: &TestDir, state: &str, more: &[&str]) -> Result<(Background, String)> {
    let state = dir.path(state).display().to_string();
    let mut command = dir.gristmill(&["up", "--json", "--state-dir", &state]);
    let mut up = Background::start(command.args(more))?;
    let ready: Value = serde_json::from_str(&up.line()?)?;
    Ok((up, ready["endpoint"].as_str().unwrap().to_owned()))
}

/// The report of an epoch, of which each record is delivered once.
fn run(dir: &TestDir, endpoint: &str, sink: &str, more: &[&str]) -> Result<Value> {
    let sink = dir.path(sink);
    let mut command = dir.gristmill(&["run", "--json", "--epochs", "1", "--endpoint", endpoint]);
    command.arg(dir.path("p.yaml")).args(["--step-time", "0ms", "--split-batches", "2"]);
    command.args(["--workers", "3", "--local-workers", "0"]).args(more).arg("--sink").arg(&sink);
    let report = run_json(&mut command)?;
    read_sink(&sink)?.assert_exact(1, RECORDS, 8);
    Ok(report)
}

/// The counts of the service on `state`.
fn counts(dir: &TestDir, state: &str) -> Result<BTreeMap<String, u64>> {
    let calls = HostServiceClient::new(&ServiceFile::from_state_dir(&dir.path(state))?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(calls.status())?.counts)
}

#[test]
fn a_run_within_small_limits_of_lambda_delivers_each_batch_once() -> Result<()> {
    let dir = test_dir()?;
    let (_calm, endpoint) = up(&dir, "calm", &[])?;
    let calm = run(&dir, &endpoint, "calm-sink", &[])?;
    assert!(!counts(&dir, "calm")?.contains_key("coordinator.throttled"));
    // One worker is added in a second, and the URL serves less than three and a trainer ask for.
    let small = ["--imitate-lambda", "--concurrency", "30", "--url-rate", "30"];
    let small = [small.as_slice(), &["--worker-growth", "1"]].concat();
    for (state, more) in [
        ("throttled", [].as_slice()),
        ("killed", &["--chaos", "kill-workers", "--chaos-interval", "500ms"]),
    ] {
        let (_small, endpoint) = up(&dir, state, &small)?;
        let report = run(&dir, &endpoint, &format!("{state}-sink"), more)?;
        assert_eq!(report["batches_blake3"], calm["batches_blake3"], "{state}");
        let throttled = counts(&dir, state)?.get("coordinator.throttled").copied();
        assert!(throttled > Some(20), "{state}: {throttled:?} of {:?}", counts(&dir, state)?);
        if state == "killed" {
            assert!(report["kills"].as_u64() >= Some(2), "{report}");
        }
    }
    Ok(())
}

#[test]
fn its_sizes_need_the_imitation() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    for option in ["--concurrency", "--url-rate", "--worker-growth"] {
        let refused = dir.gristmill(&["up", "--ephemeral", option, "100"]).output()?;
        assert_eq!(refused.status.code(), Some(2), "{option}");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("--imitate-lambda"), "{said}");
    }
    Ok(())
}
