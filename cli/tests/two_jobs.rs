//! Several jobs through one service, one of them autoscaled: each is exact, and none affects the
//! report of another.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::{Background, TestDir, read_numbers};
use serde_json::Value;
use std::{
    fs,
    process::{Child, Stdio},
    thread,
    time::Duration,
};

struct Service {
    dir: TestDir,
    endpoint: String,
    state: String,
    _up: Background,
}

impl Service {
    fn start() -> Result<Self> {
        let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
        let state = dir.path("state").display().to_string();
        let mut up = dir.gristmill(&["up", "--json", "--state-dir", &state]);
        let mut up = Background::start(&mut up)?;
        let ready: Value = serde_json::from_str(&up.line()?)?;
        let endpoint = ready["endpoint"].as_str().unwrap().to_owned();
        Ok(Self { dir, endpoint, state, _up: up })
    }

    /// A job over the numbers `first..first + records`, in files of their own.
    fn run(&self, name: &str, (first, records): (i64, i64), more: &[&str]) -> Result<Child> {
        let data = self.dir.path(&format!("{name}-data"));
        fs::create_dir_all(&data)?;
        let numbers: Vec<i64> = (first..first + records).collect();
        for (i, part) in numbers.chunks(97).enumerate() {
            let lines: String = part.iter().map(|n| format!("{{\"id\": {n}}}\n")).collect();
            fs::write(data.join(format!("part-{i}.jsonl")), lines)?;
        }
        let pipeline = self.dir.path(&format!("{name}.yaml"));
        let source = "source: { jsonl: x, features: { id: { dtype: i64 } } }";
        fs::write(
            &pipeline,
            format!("{source}\nops: [sleep: {{ ms: 20 }}, batch: {{ size: 4 }}]\n"),
        )?;
        let mut command = self.dir.gristmill(&["run", "--json", "--endpoint", &self.endpoint]);
        command.arg(&pipeline).arg("--data").arg(&data).args(["--split-batches", "2"]);
        command.arg("--sink").arg(self.dir.path(name)).args(more);
        Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }

    /// The status of a job, once the service knows it.
    fn status(&self, name: &str) -> Result<Option<Value>> {
        let asked = ["status", name, "--json", "--state-dir", &self.state];
        let said = self.dir.gristmill(&asked).stdin(Stdio::null()).output()?;
        Ok(said.status.success().then(|| serde_json::from_slice(&said.stdout)).transpose()?)
    }

    /// Waits for the end of a job; returns its report, and the numbers of each epoch in order.
    fn finish(&self, name: &str, job: Child) -> Result<(Value, Vec<Vec<i64>>)> {
        let output = job.wait_with_output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {errors}");
        let report: Value = serde_json::from_slice(&output.stdout)?;
        let lost_and_twice = (report["lost"].as_u64(), report["duplicates"].as_u64());
        assert_eq!(lost_and_twice, (Some(0), Some(0)), "{name}: {report}");
        let epochs = read_numbers(&self.dir.path(name), "id")?.into_values();
        let sorted = |mut numbers: Vec<i64>| {
            numbers.sort_unstable();
            numbers
        };
        Ok((report, epochs.map(sorted).collect()))
    }
}

#[test]
fn two_jobs_at_a_time_are_each_exact_and_reported_separately() -> Result<()> {
    let service = Service::start()?;
    let more = ["--job", "first", "--epochs", "2", "--workers", "2", "--step-time", "0ms"];
    let first = service.run("first", (0, 500), &more)?;
    let more = ["--job", "second", "--epochs", "3", "--workers", "1", "--step-time", "0ms"];
    let mut second = service.run("second", (10_000, 210), &more)?;
    let mut both = 0;
    while second.try_wait()?.is_none() {
        if let (Some(a), Some(b)) = (service.status("first")?, service.status("second")?) {
            let of = |job: &Value| {
                let n = |value: &Value| value.as_u64().unwrap_or_default();
                (n(&job["epochs"]), n(&job["files"]), n(&job["workers"]["desired"]))
            };
            assert_eq!((of(&a), of(&b)), ((2, 6, 2), (3, 3, 1)), "{a} {b}");
            both += 1;
        }
        thread::sleep(Duration::from_millis(100));
    }
    let (report, epochs) = service.finish("first", first)?;
    assert_eq!(epochs, vec![(0..500).collect::<Vec<i64>>(); 2]);
    assert_eq!(
        (report["job"].as_str(), report["elements_delivered"].as_u64()),
        (Some("first"), Some(1000))
    );
    let (report, epochs) = service.finish("second", second)?;
    assert_eq!(epochs, vec![(10_000..10_210).collect::<Vec<i64>>(); 3]);
    assert_eq!(
        (report["job"].as_str(), report["elements_delivered"].as_u64()),
        (Some("second"), Some(630))
    );
    assert!(both > 0, "the jobs did not run at one time");
    for name in ["first", "second"] {
        assert_eq!(service.status(name)?.unwrap()["state"], "done", "{name}");
    }
    Ok(())
}

#[test]
fn a_job_that_counts_its_workers_itself_is_exact_and_says_why() -> Result<()> {
    let service = Service::start()?;
    // Eight workers would keep up with this trainer: it reports every hundred batches.
    let more = ["--epochs", "3", "--workers", "auto", "--max-workers", "6", "--step-time", "10ms"];
    let job = service.run("auto", (0, 800), &[&["--job", "auto"], more.as_slice()].concat())?;
    let (report, epochs) = service.finish("auto", job)?;
    assert_eq!(epochs, vec![(0..800).collect::<Vec<i64>>(); 3]);
    let decisions = report["scaling"].as_array().unwrap();
    let workers: Vec<u64> = decisions.iter().filter_map(|d| d["workers"].as_u64()).collect();
    assert!(workers.len() >= 2, "no decision after the first: {report}");
    assert!(workers.iter().all(|count| (1..=6).contains(count)), "{workers:?}");
    let reasons = decisions.iter().filter_map(|d| d["reason"].as_str());
    assert!(reasons.clone().count() == workers.len() && reasons.clone().all(|r| !r.is_empty()));
    Ok(())
}
