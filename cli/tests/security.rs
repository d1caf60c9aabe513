//! A local service shows nothing to other users of the machine.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::{Background, FrameReader, TestDir, files_below};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

const PIPELINE: &str = "
source: { tfrecord: ., features: { image: { key: image/encoded, dtype: bytes } } }
ops: [decode, resize: { size: 8 }, sleep: { ms: 2 }, batch: { size: 4 }]
";

fn assert_silent(what: &str, said: &[u8], secret: &str) {
    let found = said.windows(secret.len()).any(|window| window == secret.as_bytes());
    assert!(!found, "{what} tells the token");
}

/// No output of a service and its programs has the token, even with logs at `trace`.
#[test]
fn no_key_is_ever_said() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    fs::write(dir.path("p.yaml"), PIPELINE)?;
    let state = dir.path("state");
    let mut up = dir.gristmill(&["up", "--json", "--state-dir"]);
    up.arg(&state).env("RUST_LOG", "trace").stderr(fs::File::create(dir.path("up.stderr"))?);
    let mut up = Background::start(&mut up)?;
    let ready = up.line()?;
    let file: Value = serde_json::from_slice(&fs::read(state.join("endpoint.json"))?)?;
    let secret = file["token"].as_str().unwrap();
    assert!(secret.len() >= 20, "{}", secret.len());
    assert_silent("the ready line", ready.as_bytes(), secret);
    let endpoint = file["endpoint"].as_str().unwrap();
    let run = |args: &[&str]| -> Result<Output> {
        let mut command = dir.gristmill(args);
        Ok(command.env("RUST_LOG", "trace").stdin(Stdio::null()).output()?)
    };
    let service = ["--endpoint", endpoint];
    let trained = run(&[
        &["demo", "--images", "24", "--epochs", "1", "--step-time", "0ms", "--json", "--job", "j"]
            [..],
        &["--pipeline", dir.path("p.yaml").to_str().unwrap(), "--split-batches", "1"],
        &service,
    ]
    .concat())?;
    assert_eq!(trained.status.code(), Some(0), "{}", String::from_utf8_lossy(&trained.stderr));
    for (what, args) in [
        ("status", [&["status", "j"][..], &service].concat()),
        ("stop", [&["stop", "j"][..], &service].concat()),
        ("doctor", [&["doctor"][..], &service].concat()),
        ("a failure", [&["run", "/missing.yaml"][..], &service].concat()),
    ] {
        let said = run(&args)?;
        assert_silent(what, &[said.stdout, said.stderr].concat(), secret);
    }
    assert_silent("demo", &[trained.stdout, trained.stderr].concat(), secret);
    assert_eq!(up.interrupt()?, Some(0));
    assert_silent("up", &fs::read(dir.path("up.stderr"))?, secret);
    let logs = files_below(&state.join("logs"))?;
    assert!(logs.iter().any(|log| fs::metadata(log).unwrap().len() > 1000), "{logs:?}");
    for log in logs {
        assert_silent(&log.display().to_string(), &fs::read(&log)?, secret);
    }
    Ok(())
}

/// Ports on which a process listens outside loopback.
fn open_to_others(pid: u32) -> Result<Vec<String>> {
    let mut mine = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let link = fs::read_link(entry?.path()).unwrap_or_default();
        mine.insert(link.display().to_string());
    }
    let mut open = Vec::new();
    for table in ["tcp", "tcp6"] {
        for line in fs::read_to_string(format!("/proc/net/{table}"))?.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let listens = fields[3] == "0A" && mine.contains(&format!("socket:[{}]", fields[9]));
            if listens && !fields[1].starts_with("0100007F:") {
                open.push(fields[1].to_owned());
            }
        }
    }
    Ok(open)
}

#[test]
fn sockets_accept_their_owner_alone() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    fs::write(dir.path("p.yaml"), PIPELINE)?;
    let state = dir.path("state").display().to_string();
    let mut up = Background::start(&mut dir.gristmill(&["up", "--json", "--state-dir", &state]))?;
    up.line()?;
    assert_eq!(open_to_others(up.pid())?, Vec::<String>::new());
    let others = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o077;
    for file in files_below(Path::new(&state))? {
        let name = file.display().to_string();
        let is_key = name.ends_with(".json");
        assert!(!is_key || others(&file) == 0, "{name} can be read by others");
    }
    assert_eq!(others(Path::new(&state)), 0, "the state directory is its owner's");

    fs::write(dir.path("data"), [])?;
    let socket = dir.path("j.sock");
    let mut command = dir.fetcher(&["--state-dir", &state, "--job", "j"]);
    command.arg("--pipeline").arg(dir.path("p.yaml")).arg("--data").arg(dir.path("data"));
    let mut fetcher = Background::start(command.arg("--socket").arg(&socket))?;
    FrameReader::connect(&socket, Duration::from_secs(30))?;
    assert_eq!(others(&socket), 0, "the socket is its owner's");
    assert_eq!(open_to_others(fetcher.pid())?, Vec::<String>::new());
    fetcher.kill()?;
    assert_eq!(up.interrupt()?, Some(0));
    Ok(())
}
