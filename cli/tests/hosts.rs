//! Ranks over fetchers in processes of their own: the batches of one rank, whichever process dies.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::{TestDir, read_numbers, run_json};
use serde_json::{Value, json};
use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// How long a process may take to begin or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A run of two epochs of 125 batches with `args`; every batch that a rank got is written below `sink`.
fn command(dir: &TestDir, sink: &str, args: &[&str]) -> Command {
    let mut run = dir.gristmill(&["run", "--json", "--epochs", "2", "--split-batches", "1"]);
    run.arg(dir.path("p.yaml")).arg("--sink").arg(dir.path(sink)).args(args);
    if !args.contains(&"--workers") {
        run.args(["--workers", "2"]);
    }
    if !args.contains(&"--step-time") {
        run.args(["--step-time", "5ms"]);
    }
    run
}

/// The report of such a run, which has each of 1,000 numbers once an epoch.
fn train(dir: &TestDir, sink: &str, args: &[&str]) -> Result<Value> {
    let report = run_json(&mut command(dir, sink, args))?;
    assert_eq!((&report["lost"], &report["duplicates"]), (&0.into(), &0.into()), "{report}");
    for (epoch, mut numbers) in read_numbers(&dir.path(sink), "id")? {
        numbers.sort_unstable();
        assert_eq!(numbers, (0..1000).collect::<Vec<_>>(), "epoch {epoch} of {sink}");
    }
    Ok(report)
}

#[test]
fn hosts_train_on_the_batches_of_one_rank() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    dir.write_numbers()?;
    let one = train(&dir, "one", &[])?;
    assert!(one.get("hosts").is_none(), "{one}");
    let report = train(&dir, "hosts", &["--ranks", "4", "--hosts", "2"])?;
    assert_eq!(report["batches_blake3"], one["batches_blake3"]);
    assert_eq!((&report["steps"], &report["hosts"]), (&json!([64, 64, 64, 64]), &2.into()));
    // Two hosts read no more than the objects have, and one read of the index for each.
    let ratio = report["fetched_ratio"].as_f64().unwrap();
    assert!(ratio <= 1.1, "{report}");
    assert!(report["chunk_bytes"].as_u64().unwrap() > 0, "{report}");
    // 125 batches are 31 steps of four ranks, 20 steps of which end the first run.
    let resized = train(&dir, "resized", &["--ranks", "4", "--hosts", "2", "--resize", "6@20"])?;
    assert_eq!(resized["batches_blake3"], one["batches_blake3"]);
    assert_eq!(resized["steps"], json!([49, 49, 49, 49, 29, 29]));
    Ok(())
}

#[test]
fn hosts_of_killed_processes_train_on_the_same_batches() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    dir.write_numbers()?;
    // Workers must work for some seconds, because one that works alone is killed every three seconds or so.
    let slow = "ops: [sleep: { ms: 3 }, batch";
    let pipeline = fs::read_to_string(dir.path("p.yaml"))?;
    fs::write(dir.path("p.yaml"), pipeline.replace("ops: [batch", slow))?;
    let one = train(&dir, "one", &[])?;
    for chaos in ["kill-fetchers", "kill-workers", "kill-coordinator"] {
        let args = ["--ranks", "4", "--hosts", "2", "--chaos", chaos, "--step-time", "30ms"];
        let report = train(&dir, chaos, &args)?;
        assert_eq!(report["batches_blake3"], one["batches_blake3"], "{chaos}");
        assert_eq!(report["steps"], json!([64, 64, 64, 64]), "{chaos}");
        assert!(report["kills"].as_u64().unwrap() > 0, "{chaos}: {report}");
    }
    Ok(())
}

#[test]
fn replicas_on_several_hosts_train_on_the_same_bytes_and_resume_in_other_numbers() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    dir.write_numbers()?;
    let one = train(&dir, "one", &[])?;
    let args = ["--ranks", "8", "--hosts", "2", "--replicas", "2", "--resize", "8/4@20"];
    let report = train(&dir, "neighbours", &args)?;
    assert_eq!(report["batches_blake3"], one["batches_blake3"]);
    // 80 batches in steps of four, 45 in steps of two, and the next epoch in 63 of two.
    assert_eq!(report["steps"], json!(vec![106; 8]), "{report}");
    let ratio = report["fetched_ratio"].as_f64().unwrap();
    assert!(ratio <= 1.1, "the bytes of a batch are read once for its replicas: {report}");
    // Each host has a replica of every data rank, and reads all bytes once.
    let args = ["--ranks", "8", "--hosts", "2", "--replicas", "2x1"];
    let report = train(&dir, "apart", &args)?;
    assert_eq!(report["batches_blake3"], one["batches_blake3"]);
    let ratio = report["fetched_ratio"].as_f64().unwrap();
    assert!((1.9..=2.2).contains(&ratio), "{report}");
    Ok(())
}

#[test]
fn replicas_whose_fetchers_are_killed_train_on_the_same_batches() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    dir.write_numbers()?;
    let one = train(&dir, "one", &[])?;
    let args = ["--ranks", "8", "--hosts", "2", "--replicas", "2", "--resize", "8/2x2@30"];
    let chaos = ["--chaos", "kill-fetchers", "--step-time", "30ms"];
    let report = train(&dir, "killed", &[&args[..], &chaos[..]].concat())?;
    assert_eq!(report["batches_blake3"], one["batches_blake3"]);
    assert!(report["kills"].as_u64().unwrap() > 0, "{report}");
    Ok(())
}

/// The seconds of an object of stalls that have a cause.
fn explained(stalls: &Value) -> f64 {
    let parts = stalls["parts"].as_object().unwrap().iter();
    parts.filter(|(cause, _)| *cause != "other").map(|(_, seconds)| seconds.as_f64().unwrap()).sum()
}

#[test]
fn hosts_with_workers_of_their_own_say_what_their_ranks_waited_for() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    dir.write_numbers()?;
    let one = train(&dir, "one", &[])?;
    let page = dir.path("page.html").display().to_string();
    let args = ["--ranks", "4", "--hosts", "2", "--workers", "0", "--local-workers", "2"];
    let report = train(&dir, "hosts", &[&args[..], &["--report", &page]].concat())?;
    assert_eq!(report["batches_blake3"], one["batches_blake3"]);
    assert!(fs::read_to_string(&page)?.contains("</html>"));
    for epoch in report["epochs"].as_array().unwrap() {
        // Numbers take less than a millisecond to compute.
        let time = epoch["worker_seconds"].as_object().unwrap().values();
        assert!(time.map(|seconds| seconds.as_f64().unwrap()).sum::<f64>() > 0.0, "{epoch}");
        assert!(epoch["stored_bytes"].as_u64().unwrap() > 0, "{epoch}");
    }
    // Each host waits for the first splits at least.
    let ranks = report["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 4, "{report}");
    for (number, rank) in ranks.iter().enumerate() {
        assert_eq!((&rank["rank"], &rank["steps"]), (&number.into(), &64.into()));
        assert!(explained(&rank["stalls"]) > 0.0, "{rank}");
        assert_eq!(rank["stalls"], ranks[number / 2 * 2]["stalls"], "the ranks of a host");
    }
    let epochs = report["epochs"].as_array().unwrap().iter();
    let waited: f64 = epochs.map(|epoch| explained(&epoch["stalls"])).sum();
    let longest = ranks.iter().map(|rank| explained(&rank["stalls"])).fold(0.0, f64::max);
    assert!(waited >= longest - 0.01, "{report}");
    Ok(())
}

/// Processes whose command line has `word` in it.
fn processes_of(word: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let of_word = |path: PathBuf| {
        let line = fs::read(path.join("cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains(word).then_some(())?;
        path.file_name()?.to_str()?.parse().ok()
    };
    entries.filter_map(|entry| of_word(entry.path())).collect()
}

fn wait_for(what: &str, is_true: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_true() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_interrupted_run_leaves_no_fetcher_and_no_file() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    dir.write_numbers()?;
    let temporary = dir.path("tmp");
    fs::create_dir(&temporary)?;
    let args = ["--ranks", "2", "--hosts", "2", "--step-time", "200ms", "--job", "left-behind"];
    let mut run = command(&dir, "sink", &args);
    run.env("TMPDIR", &temporary).stdout(Stdio::null()).stderr(Stdio::null());
    let mut run = run.spawn()?;
    // Two fetchers, and a batch that came from one.
    wait_for("no batch", || fs::read_dir(dir.path("sink")).is_ok_and(|sink| sink.count() > 0));
    let job = "--job=left-behind\0--patience";
    assert_eq!(processes_of(job).len(), 2);
    let interrupted = Command::new("kill").args(["-INT", &run.id().to_string()]).status()?;
    assert!(interrupted.success());
    assert_eq!(run.wait()?.code(), Some(130));
    wait_for("a fetcher is left", || processes_of(job).is_empty());
    let left: Vec<_> = fs::read_dir(&temporary)?.map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

#[test]
fn hosts_that_cannot_be_are_usage_errors() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill"))?;
    dir.write_numbers()?;
    for (args, why) in [
        (&["--hosts", "2"][..], "at least as many ranks"),
        (&["--ranks", "3", "--hosts", "2"], "divide the ranks evenly"),
        (&["--ranks", "4", "--hosts", "2", "--resize", "3@5"], "divide the ranks evenly"),
        (&["--ranks", "4", "--chaos", "kill-fetchers"], "give --hosts"),
        (&["--ranks", "4", "--replicas", "3"], "4 ranks are no multiple of 3 replicas"),
        (&["--ranks", "4", "--replicas", "2", "--resize", "3@5"], "3 ranks are no multiple"),
        (&["--replicas", "2"], "1 ranks are no multiple of 2 replicas"),
    ] {
        let output = command(&dir, "sink", args).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(why), "{args:?}: {errors}");
    }
    Ok(())
}
