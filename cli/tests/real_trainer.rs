//! A Python trainer with `gristmill-fetcher`: the fetcher's report has the same facts as that of
//! `gristmill run` for the same job.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::{Context, Result, ensure};
use gristmill_tests::{Background, TestDir, ensure_python, run_json};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Records; every twentieth is not a number.
const RECORDS: usize = 200;
const PIPELINE: &str = "\
name: numbers
source: { jsonl: numbers.jsonl, features: { v: { dtype: i64 } } }
ops:
  - sleep: { ms: 1 }
  - batch: { size: 8 }
";
/// The job, for either trainer.
const JOB: [&str; 8] =
    ["--epochs", "2", "--seed", "3", "--split-batches", "2", "--max-skipped", "20%"];

fn numbers() -> String {
    let line = |i: usize| match i % 20 {
        7 => "{\"v\": \"seven\"}\n".to_owned(),
        _ => format!("{{\"v\": {i}}}\n"),
    };
    (0..RECORDS).map(line).collect()
}

/// The path of every key in an object, elements of lists being one.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                keys(value, &path, found);
                found.insert(path);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| keys(value, path, found)),
        _ => {}
    }
}

/// The facts that two reports of one job share: all but times and counts of requests.
fn facts(report: &Value) -> Value {
    let mut facts = serde_json::Map::new();
    for name in [
        "seed",
        "began",
        "elements_expected",
        "elements_delivered",
        "skipped",
        "skipped_records",
        "quarantine",
        "files_left_out",
        "duplicates",
        "repeated_batches",
        "lost",
        "splits",
        "kills",
        "batches_blake3",
        "empty",
    ] {
        facts.insert(name.to_owned(), report[name].clone());
    }
    let epochs = report["epochs"].as_array().unwrap().iter().map(|epoch| {
        let of = ["epoch", "mode", "reason", "elements", "batches"];
        of.map(|name| epoch[name].clone()).to_vec()
    });
    facts.insert("epochs".to_owned(), epochs.collect::<Vec<_>>().into());
    facts.into()
}

/// Runs `examples/train.py` on `socket` to its end.
fn train(socket: &Path, checkpoint: &Path) -> Result<Value> {
    let until = Instant::now() + Duration::from_secs(60);
    while !socket.exists() {
        ensure!(Instant::now() < until, "the fetcher serves no socket");
        std::thread::sleep(Duration::from_millis(20));
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/train.py");
    let mut command = Command::new("python3");
    command.arg(script).arg("--socket").arg(socket).arg("--checkpoint").arg(checkpoint);
    run_json(command.args(["--step-time", "1ms", "--json"]))
}

#[test]
fn a_fetcher_reports_of_a_real_trainer_what_a_run_reports() -> Result<()> {
    ensure_python()?;
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    fs::write(dir.path("numbers.jsonl"), numbers())?;
    fs::write(dir.path("p.yaml"), PIPELINE)?;
    let state = dir.path("state").display().to_string();
    let mut up = Background::start(&mut dir.gristmill(&["up", "--json", "--state-dir", &state]))?;
    let ready: Value = serde_json::from_str(&up.line()?)?;
    let endpoint = ready["endpoint"].as_str().context("an endpoint")?;

    let mut run = dir.gristmill(&["run", "--endpoint", endpoint, "--job", "synthetic", "--json"]);
    run.arg(dir.path("p.yaml")).args(JOB).args(["--on-error", "skip", "--step-time", "1ms"]);
    let of_run = run_json(run.arg("--report").arg(dir.path("run.html")))?;

    let (socket, checkpoint) = (dir.path("j.sock"), dir.path("model.json"));
    let mut fetcher =
        dir.fetcher(&["--endpoint", endpoint, "--job", "real", "--on-error", "skip", "--json"]);
    fetcher.arg("--pipeline").arg(dir.path("p.yaml")).args(JOB);
    fetcher.arg("--socket").arg(&socket).arg("--report").arg(dir.path("fetcher.html"));
    let fetcher = fetcher.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let fetcher = fetcher.spawn()?;
    let trained = train(&socket, &checkpoint)?;
    let output = fetcher.wait_with_output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "gristmill-fetcher ended with {}: {errors}", output.status);
    let text = String::from_utf8(output.stdout)?;
    let of_fetcher: Value = serde_json::from_str(text.lines().last().context("no report")?)?;

    assert_eq!(facts(&of_fetcher), facts(&of_run));
    assert_eq!(of_fetcher["elements_delivered"], trained["elements"]);
    assert_eq!(of_fetcher["lost"], 0);
    assert_eq!(of_fetcher["skipped_records"].as_array().unwrap().len(), RECORDS / 20);
    let fields = |report: &Value| {
        let mut found = BTreeSet::new();
        keys(report, "", &mut found);
        // Requests, scaling decisions and causes of stalls depend on timing.
        const BY_TIMING: [&str; 4] =
            [".requests.", ".scaling.", ".epochs.stalls.parts.", ".ranks.stalls.parts."];
        found.retain(|path| BY_TIMING.iter().all(|prefix| !path.starts_with(prefix)));
        found
    };
    assert_eq!(fields(&of_fetcher), fields(&of_run));
    assert!(errors.contains("first batch") && errors.contains("left out:"), "{errors}");
    for page in ["run.html", "fetcher.html"] {
        let page = fs::read_to_string(dir.path(page))?;
        assert!(page.contains("numbers") && page.contains("</html>"));
    }
    Ok(())
}
