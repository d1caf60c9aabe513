//! `gristmill up` with table and objects in other services: the stand-ins of the AWS adapters, or those that
//! `scripts/test-peers` names.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

#[path = "../../shared/aws/tests/stand_ins/dynamodb.rs"]
mod dynamodb;
#[path = "../../shared/aws/tests/stand_ins/loopback.rs"]
mod loopback;
#[path = "../../shared/aws/tests/stand_ins/s3.rs"]
mod s3;
#[path = "../../shared/aws/tests/stand_ins/signature.rs"]
mod signature;

use anyhow::Result;
use gristmill_tests::{Background, TestDir, read_numbers, run_json};
use serde_json::Value;
use signature::{ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY};
use std::{env, fs, path::Path, process::Command};
use tokio::runtime::Runtime;

const BOTH: &str = "--aws-endpoint-url";
const S3: &str = "--aws-endpoint-url-s3";
const DYNAMODB: &str = "--aws-endpoint-url-dynamodb";

/// Endpoints by the options that set them, and keys.
struct Others {
    endpoints: Vec<(&'static str, String)>,
    keys: Option<[String; 2]>,
}

impl Others {
    /// Those of the stand-ins, with their keys.
    fn stand_ins(endpoints: &[(&'static str, &str)]) -> Self {
        let endpoints = endpoints.iter().map(|(option, url)| (*option, (*url).to_owned()));
        let keys = [ACCESS_KEY_ID, SECRET_ACCESS_KEY].map(str::to_owned);
        Self { endpoints: endpoints.collect(), keys: Some(keys) }
    }

    /// The endpoint that `option` sets, or the option for all.
    fn at(&self, option: &str) -> Option<&str> {
        let named = |name: &str| self.endpoints.iter().find(|(option, _)| *option == name);
        named(option).or_else(|| named(BOTH)).map(|(_, endpoint)| endpoint.as_str())
    }

    /// A service that keeps nothing itself of what `endpoints` provide.
    fn up(&self, dir: &TestDir) -> Command {
        let mut up = dir.gristmill(&["up", "--json", "--state-dir"]);
        up.arg(dir.path("state"));
        up.args(self.endpoints.iter().flat_map(|(option, endpoint)| [*option, endpoint.as_str()]));
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"] {
            up.env_remove(name);
        }
        if let Some([id, secret]) = &self.keys {
            up.env("AWS_ACCESS_KEY_ID", id).env("AWS_SECRET_ACCESS_KEY", secret);
        }
        up.env("AWS_REGION", REGION);
        up
    }
}

fn train(dir: &TestDir, sink: &str, place: &[&str]) -> Result<Value> {
    let mut run = dir.gristmill(&["run", "--json", "--epochs", "2", "--step-time", "0ms"]);
    run.arg(dir.path("p.yaml")).args(["--workers", "3", "--sink"]).arg(dir.path(sink)).args(place);
    let report = run_json(&mut run)?;
    assert_eq!((&report["lost"], &report["duplicates"]), (&0.into(), &0.into()), "{report}");
    for (epoch, mut numbers) in read_numbers(&dir.path(sink), "id")? {
        numbers.sort_unstable();
        assert_eq!(numbers, (0..1000).collect::<Vec<_>>(), "epoch {epoch}");
    }
    Ok(report)
}

/// Trains over other services and over a local one: the batches are the same, this machine keeps nothing that the others
/// keep, and a job survives a restart of the service.
fn trains(job: &str, others: &Others) -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    dir.write_numbers()?;
    let own = train(&dir, "own", &[])?;
    let mut up = Background::start(&mut others.up(&dir))?;
    let ready: Value = serde_json::from_str(&up.line()?)?;
    assert_eq!(ready["ready"], true, "{ready}");
    assert_eq!(ready["s3"].as_str(), others.at(S3), "{ready}");
    let state = dir.path("state");
    assert_eq!(ready["state_dir"].as_str(), state.canonicalize()?.to_str(), "{ready}");
    let endpoint = ready["endpoint"].as_str().unwrap();
    let by_others = train(&dir, "theirs", &["--endpoint", endpoint, "--job", job])?;
    assert_eq!(own["batches_blake3"], by_others["batches_blake3"]);
    assert_eq!(has_files(&state.join("objects")), others.at(S3).is_none(), "{job}: objects");
    assert_eq!(has_files(&state.join("table")), others.at(DYNAMODB).is_none(), "{job}: table");
    assert_eq!(up.interrupt()?, Some(0));

    let mut up = Background::start(&mut others.up(&dir))?;
    up.line()?;
    let mut status = dir.gristmill(&["status", job, "--json", "--state-dir"]);
    let known = run_json(status.arg(state))?;
    assert_eq!(known["state"], "done", "{known}");
    Ok(())
}

fn has_files(dir: &Path) -> bool {
    let Ok(entries) = fs::read_dir(dir) else { return false };
    entries.flatten().any(|entry| match entry.path() {
        path if path.is_dir() => has_files(&path),
        _ => true,
    })
}

#[test]
fn table_and_objects_of_another_service_are_used() -> Result<()> {
    // It serves the stand-ins as long as it lives.
    let runtime = Runtime::new()?;
    let (s3, dynamodb) = runtime.block_on(async { (s3::start().await, dynamodb::start().await) });
    trains("objects", &Others::stand_ins(&[(S3, &s3)]))?;
    trains("table", &Others::stand_ins(&[(DYNAMODB, &dynamodb)]))?;
    trains("both", &Others::stand_ins(&[(BOTH, &s3), (DYNAMODB, &dynamodb)]))
}

/// Exit code and standard error of a service that does not start.
fn refusal(others: &Others, set: Option<(&str, &str)>) -> Result<(Option<i32>, String)> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    let output = others.up(&dir).envs(set).output()?;
    Ok((output.status.code(), String::from_utf8(output.stderr)?))
}

#[test]
fn a_missing_service_is_one_line_of_error() -> Result<()> {
    let nobody = "http://127.0.0.1:9";
    for option in [BOTH, S3, DYNAMODB] {
        let (code, said) = refusal(&Others::stand_ins(&[(option, nobody)]), None)?;
        assert_eq!((code, said.lines().count()), (Some(1), 1), "{option}: {said}");
        assert!(said.contains(nobody) && said.contains("refused"), "{option}: {said}");
    }
    for none in ["127.0.0.1:4566", "http://", "http://a/b"] {
        let (code, said) = refusal(&Others::stand_ins(&[(BOTH, none)]), None)?;
        assert_eq!(code, Some(2), "{none}: {said}");
    }
    Ok(())
}

#[test]
fn a_refused_key_is_one_line_of_error() -> Result<()> {
    let runtime = Runtime::new()?;
    let (s3, dynamodb) = runtime.block_on(async { (s3::start().await, dynamodb::start().await) });
    let another = [ACCESS_KEY_ID, "another-secret"].map(str::to_owned);
    for (option, url) in [(S3, &s3), (DYNAMODB, &dynamodb)] {
        // Without keys in the environment, it takes some that these services refuse.
        for keys in [Some(another.clone()), None] {
            let others = Others { keys, ..Others::stand_ins(&[(option, url)]) };
            let (code, said) = refusal(&others, None)?;
            assert_eq!((code, said.lines().count()), (Some(1), 1), "{option}: {said}");
            assert!(said.contains(url.as_str()), "{option}: {said}");
            assert!(!said.contains("another-secret"), "{option}: {said}");
        }
    }
    let temporary = ("AWS_SESSION_TOKEN", "token");
    let (code, said) = refusal(&Others::stand_ins(&[(S3, &s3)]), Some(temporary))?;
    assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("AWS_SESSION_TOKEN"), "{said}");
    Ok(())
}

/// Tests against services that are already running; `scripts/test-peers` gives their endpoints.
mod peer {
    use super::*;

    #[test]
    #[ignore = "needs a peer"]
    fn trains_over_the_services_of_a_peer() -> Result<()> {
        let named = [(S3, "GRISTMILL_PEER_S3"), (DYNAMODB, "GRISTMILL_PEER_DYNAMODB")];
        let endpoints: Vec<_> = named
            .into_iter()
            .filter_map(|(option, name)| Some((option, env::var(name).ok()?)))
            .collect();
        assert!(!endpoints.is_empty(), "no peer is named");
        let get = |name| env::var(name).ok();
        let keys = get("AWS_ACCESS_KEY_ID").zip(get("AWS_SECRET_ACCESS_KEY"));
        trains("peer", &Others { endpoints, keys: keys.map(|(id, secret)| [id, secret]) })
    }
}
