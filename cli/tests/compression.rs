//! `compress`: trainers get the same batches whatever is done to the objects they come in.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::{TestDir, run_json};
use serde_json::Value;
use std::fs;

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
    // Nothing is sent anywhere: there is nothing to win.
    assert_eq!(run("p.yaml", &["--compress", "auto"])?, (raw, expected.clone()));
    assert_eq!(run("zstd.yaml", &[])?, (packed, expected.clone()));
    assert_eq!(run("zstd.yaml", &["--compress", "none"])?, (raw, expected.clone()));
    // Work in the trainer's process is not stored.
    assert_eq!(run("zstd.yaml", &["--workers", "0", "--local-workers", "1"])?, (raw, expected));
    Ok(())
}
