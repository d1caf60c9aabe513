//! `gristmill up` with table and objects in foreign services.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::{Background, TestDir, read_numbers, run_json};
use serde_json::Value;
use std::{env, fs, path::Path, process::Command};

const BOTH: &str = "--aws-endpoint-url";
const S3: &str = "--aws-endpoint-url-s3";
const DYNAMODB: &str = "--aws-endpoint-url-dynamodb";

/// Endpoints by the options that set them, and keys.
struct Others {
    endpoints: Vec<(&'static str, String)>,
    keys: Option<[String; 2]>,
}

impl Others {
    fn options(&self) -> impl Iterator<Item = &str> {
        self.endpoints.iter().flat_map(|(option, endpoint)| [*option, endpoint.as_str()])
    }

    /// A service that keeps nothing itself of what `endpoints` provide.
    fn up(&self, dir: &TestDir) -> Command {
        let mut up = dir.gristmill(&["up", "--json", "--state-dir"]);
        up.arg(dir.path("state")).args(self.options());
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"] {
            up.env_remove(name);
        }
        if let Some([id, secret]) = &self.keys {
            up.env("AWS_ACCESS_KEY_ID", id).env("AWS_SECRET_ACCESS_KEY", secret);
        }
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

/// Trains over foreign services and over a local one: the batches are the same, and a job survives
/// a restart of the service.
fn trains(job: &str, others: &Others) -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    dir.write_numbers()?;
    let own = train(&dir, "own", &[])?;
    let mut up = Background::start(&mut others.up(&dir))?;
    let ready: Value = serde_json::from_str(&up.line()?)?;
    for (option, endpoint) in &others.endpoints {
        let names: &[&str] = match *option {
            S3 => &["s3"],
            DYNAMODB => &["dynamodb"],
            _ => &["s3", "dynamodb"],
        };
        for name in names {
            assert_eq!(ready[*name].as_str(), Some(endpoint.as_str()), "{ready}");
        }
    }
    let endpoint = ready["endpoint"].as_str().unwrap();
    let by_others = train(&dir, "theirs", &["--endpoint", endpoint, "--job", job])?;
    assert_eq!(own["batches_blake3"], by_others["batches_blake3"]);
    assert_eq!(up.interrupt()?, Some(0));

    let mut up = Background::start(&mut others.up(&dir))?;
    up.line()?;
    let mut status = dir.gristmill(&["status", job, "--json", "--state-dir"]);
    let known = run_json(status.arg(dir.path("state")))?;
    assert_eq!(known["state"], "done", "{known}");
    Ok(())
}

/// Our own stand-ins take the place of foreign services; their functions are unused.
#[test]
fn table_and_objects_of_another_service_are_used() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    let state = dir.path("state");
    let mut up = dir.gristmill(&["up", "--json", "--state-dir"]);
    let mut up = Background::start(up.arg(&state))?;
    up.line()?;
    let file: Value = serde_json::from_slice(&fs::read(state.join("endpoint.json"))?)?;
    let text = |name: &str| file[name].as_str().unwrap().to_owned();
    let keys = Some([text("access_key_id"), text("secret_access_key")]);
    trains("objects", &Others { endpoints: vec![(S3, text("s3"))], keys: keys.clone() })?;
    trains("table", &Others { endpoints: vec![(DYNAMODB, text("dynamodb"))], keys: keys.clone() })?;
    let both = vec![(S3, text("s3")), (DYNAMODB, text("dynamodb"))];
    trains("both", &Others { endpoints: both, keys })?;
    assert!(!has_files(&state.join("objects/gristmill.local/t/default/jobs")));
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
fn a_missing_service_or_a_refused_key_is_one_line_of_error() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    let nobody = "http://127.0.0.1:9";
    let refused = |others: Others, set: Option<(&str, &str)>| -> Result<(Option<i32>, String)> {
        let output = others.up(&dir).envs(set).output()?;
        Ok((output.status.code(), String::from_utf8(output.stderr)?))
    };
    let at = |option| Others { endpoints: vec![(option, nobody.to_owned())], keys: None };
    for option in [BOTH, S3, DYNAMODB] {
        let (code, said) = refused(at(option), None)?;
        assert_eq!((code, said.lines().count()), (Some(1), 1), "{option}: {said}");
        assert!(said.contains(nobody) && said.contains("refused"), "{option}: {said}");
    }
    let (code, said) = refused(at(BOTH), Some(("AWS_SESSION_TOKEN", "token")))?;
    assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
    for none in ["127.0.0.1:4566", "http://", "http://a/b"] {
        let others = Others { endpoints: vec![(BOTH, none.to_owned())], keys: None };
        assert_eq!(refused(others, None)?.0, Some(2), "{none}");
    }
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
