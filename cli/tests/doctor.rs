//! `gristmill doctor` on healthy and on faulty setups.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::{Background, TestDir};
use serde_json::Value;
use std::{collections::BTreeMap, net::TcpListener, process::Command};

const GRISTMILL: &str = env!("CARGO_BIN_EXE_gristmill");

fn closed_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// The doctor's checks and its exit code.
struct Said {
    checks: BTreeMap<String, (String, String)>,
    code: Option<i32>,
}

impl Said {
    fn by(command: &mut Command) -> Result<Self> {
        let output = command.output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.lines().count() <= 1, "one line at most: {errors}");
        let said: Value = serde_json::from_slice(&output.stdout)?;
        let text = |check: &Value, member: &str| check[member].as_str().unwrap().to_owned();
        let checks = said["checks"].as_array().unwrap().iter().map(|check| {
            let found = format!("{}; {}", text(check, "found"), text(check, "advice"));
            (text(check, "name"), (text(check, "verdict"), found))
        });
        assert_eq!(said["ok"] == true, output.status.success(), "{said}: {errors}");
        Ok(Self { checks: checks.collect(), code: output.status.code() })
    }

    fn expect(&self, name: &str, verdict: &str, words: &str) {
        let (said, found) = &self.checks[name];
        assert!(said == verdict && found.contains(words), "{name}: {said}: {found}");
    }

    fn verdicts(&self, verdict: &str) -> Vec<&str> {
        let of = self.checks.iter().filter(|(_, (said, _))| said == verdict);
        of.map(|(name, _)| name.as_str()).collect()
    }
}

fn doctor(dir: &TestDir, args: &[&str]) -> Command {
    dir.gristmill(&[["doctor", "--json"].as_slice(), args].concat())
}

/// The doctor for AWS with `variables`, and with nothing else of this environment.
fn on_aws(dir: &TestDir, variables: &[(&str, &str)]) -> Command {
    let mut command = doctor(dir, &["--backend", "aws"]);
    command.env_clear().env("HOME", dir.path("")).env("AWS_REGION", "us-east-1");
    command.envs(variables.iter().copied());
    command
}

#[test]
fn a_local_service_is_well_until_its_process_is_gone() -> Result<()> {
    let dir = TestDir::new(GRISTMILL)?;
    let state = dir.path("state").display().to_string();
    let mut up = Background::start(&mut dir.gristmill(&["up", "--json", "--state-dir", &state]))?;
    let ready: Value = serde_json::from_str(&up.line()?)?;
    let endpoint = ready["endpoint"].as_str().unwrap();
    for place in [["--state-dir", &state], ["--endpoint", endpoint]] {
        let said = Said::by(&mut doctor(&dir, &place))?;
        assert_eq!((said.code, said.verdicts("ok").len()), (Some(0), said.checks.len()));
        said.expect("disk", "ok", "in use");
    }
    up.kill()?;
    let said = Said::by(&mut doctor(&dir, &["--state-dir", &state]))?;
    assert_eq!((said.code, said.verdicts("FAIL")), (Some(1), vec!["service"]));
    said.expect("service", "FAIL", "no service runs on");
    said.expect("service", "FAIL", "gristmill up");
    said.expect("coordinator", "skip", "there is no service");
    Ok(())
}

#[test]
fn closed_ports_and_missing_settings_are_named() -> Result<()> {
    let dir = TestDir::new(GRISTMILL)?;
    let nobody = closed_port();
    let said = Said::by(&mut on_aws(
        &dir,
        &[
            ("AWS_ENDPOINT_URL", &nobody),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("GRISTMILL_BUCKET", "chunks"),
            ("GRISTMILL_COORDINATOR_URL", &nobody),
        ],
    ))?;
    assert_eq!((said.code, said.verdicts("FAIL")), (Some(1), vec!["bucket", "coordinator"]));
    said.expect("bucket", "FAIL", &nobody);
    said.expect("coordinator", "FAIL", &nobody);
    said.expect("table", "skip", "only the coordinator reports it");
    said.expect("platform", "skip", "no service answers");

    let keys = [("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")];
    let overridden = [keys.as_slice(), &[("AWS_ENDPOINT_URL", nobody.as_str())]].concat();
    let said = Said::by(&mut on_aws(&dir, &overridden))?;
    said.expect("settings", "FAIL", "GRISTMILL_BUCKET");
    said.expect("settings", "FAIL", "GRISTMILL_COORDINATOR_URL");
    said.expect("bucket", "skip", "settings are missing");

    for usage in [vec![], vec!["--endpoint", "nowhere"], vec!["--workers", "many"]] {
        assert_eq!(doctor(&dir, &usage).output()?.status.code(), Some(2), "{usage:?}");
    }
    Ok(())
}

#[test]
fn a_silent_service_does_not_hold_doctor_up() -> Result<()> {
    let dir = TestDir::new(GRISTMILL)?;
    // The kernel accepts connections, but nobody answers.
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let silent = format!("http://{}", listener.local_addr()?);
    let said = Said::by(&mut on_aws(
        &dir,
        &[
            ("AWS_ENDPOINT_URL", &silent),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("GRISTMILL_BUCKET", "chunks"),
            ("GRISTMILL_COORDINATOR_URL", &silent),
        ],
    ))?;
    said.expect("bucket", "FAIL", "no answer in time");
    said.expect("coordinator", "FAIL", "no answer within");
    Ok(())
}
