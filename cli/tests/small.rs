//! The small program, which a first build makes: it runs what needs no network, and refuses the rest in one line.

#![cfg(not(any(feature = "aws", feature = "web")))]
#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::{TestDir, run_json};
use std::fs;

const GRISTMILL: &str = env!("CARGO_BIN_EXE_gristmill");

/// Runs the program with each of `commands`, and expects that it refuses: in one line that begins with what was asked
/// for, and names `feature` and the remedy.
fn assert_refused(dir: &TestDir, feature: &str, commands: &[(&str, &[&str])]) -> Result<()> {
    for (asked, args) in commands {
        let output = dir.gristmill(args).output()?;
        let said = String::from_utf8(output.stderr)?;
        let line = format!(
            "gristmill: {asked}: this gristmill was built without the feature `{feature}`: build it without \
             --no-default-features\n"
        );
        assert_eq!((output.status.code(), &*said), (Some(2), &*line), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    Ok(())
}

#[test]
fn aws_is_refused_with_the_remedy_in_a_small_build() -> Result<()> {
    let dir = TestDir::new(GRISTMILL)?;
    dir.write_numbers()?;
    let own = "source: { jsonl: 's3://b/k', features: { id: { dtype: i64 } } }\nops: [batch: { size: 8 }]\n";
    fs::write(dir.path("s3.yaml"), own)?;
    let (p, s3) = (dir.path("p.yaml"), dir.path("s3.yaml"));
    let (p, s3) = (p.to_str().unwrap(), s3.to_str().unwrap());
    let data = "s3://b/k";
    let by_backend: [&[&str]; 7] = [
        &["run", p, "--backend", "aws"],
        &["fetcher", "--backend", "aws", "--job", "j", "--socket", "s"],
        &["status", "j", "--backend", "aws"],
        &["stop", "j", "--backend", "aws"],
        &["forget", "j", "--backend", "aws"],
        &["cache", "ls", "--backend", "aws"],
        &["doctor", "--backend", "aws"],
    ];
    assert_refused(&dir, "aws", &by_backend.map(|args| ("--backend aws", args)))?;
    assert_refused(
        &dir,
        "aws",
        &[
            (data, &["run", p, "--data", data]),
            (data, &["run", s3]),
            (data, &["demo", "--pipeline", p, "--data", data]),
            (data, &["plan", p, "--data", data, "--step-time", "1ms"]),
            (data, &["plan", s3, "--step-time", "1ms"]),
            (data, &["explain", p, "--data", data]),
            ("--aws-endpoint-url", &["up", "--ephemeral", "--aws-endpoint-url", "http://h"]),
            ("--aws-endpoint-url", &["up", "--ephemeral", "--aws-endpoint-url-s3", "http://h"]),
            (
                "--aws-endpoint-url",
                &["up", "--ephemeral", "--aws-endpoint-url-dynamodb", "http://h"],
            ),
            ("function coordinator", &["function", "coordinator"]),
            ("function scaler", &["function", "scaler"]),
            ("function worker", &["function", "worker"]),
        ],
    )
}

#[test]
fn files_of_web_servers_are_refused_with_the_remedy() -> Result<()> {
    let dir = TestDir::new(GRISTMILL)?;
    dir.write_numbers()?;
    let own = "source: { jsonl: 'https://h/k', features: { id: { dtype: i64 } } }\nops: [batch: { size: 8 }]\n";
    fs::write(dir.path("web.yaml"), own)?;
    let (p, web) = (dir.path("p.yaml"), dir.path("web.yaml"));
    let (p, web) = (p.to_str().unwrap(), web.to_str().unwrap());
    let data = "https://h/k?token=s3cret";
    assert_refused(
        &dir,
        "web",
        &[
            ("https://h", &["run", p, "--data", data]),
            ("https://h", &["run", web]),
            ("https://h", &["plan", p, "--data", data, "--step-time", "1ms"]),
            ("https://h", &["explain", p, "--data", data]),
        ],
    )
}

#[test]
fn the_simulation_of_readers_is_refused_with_the_remedy() -> Result<()> {
    let dir = TestDir::new(GRISTMILL)?;
    let commands: [&[&str]; 2] = [&["bench", "readers"], &["bench", "readers", "--readers", "1,8"]];
    assert_refused(&dir, "readers", &commands.map(|args| ("bench readers", args)))
}

#[test]
fn the_demo_and_local_commands_run() -> Result<()> {
    let dir = TestDir::new(GRISTMILL)?;
    dir.write_numbers()?;
    let demo = ["demo", "--images", "64", "--epochs", "1", "--step-time", "1ms", "--json"];
    let report = run_json(&mut dir.gristmill(&demo))?;
    assert_eq!(report["steps"], serde_json::json!([4]), "{report}");
    let p = dir.path("p.yaml");
    let run = run_json(&mut dir.gristmill(&[
        "run",
        p.to_str().unwrap(),
        "--step-time",
        "1ms",
        "--json",
    ]))?;
    assert_eq!(run["elements_delivered"], 1000 * 3, "{run}");
    Ok(())
}
