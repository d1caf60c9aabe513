//! Ranks over fetchers in processes of their own: the batches of one rank, whichever process dies.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use anyhow::Result;
use gristmill_tests::TestDir;
use std::process::Command;

/// A run of two epochs of 125 batches with `args`; every batch that a rank got is written below `sink`.
fn command(dir: &TestDir, sink: &str, args: &[&str]) -> Command {
    let mut run = dir.gristmill(&["run", "--json", "--epochs", "2", "--workers", "2"]);
    run.arg(dir.path("p.yaml")).arg("--sink").arg(dir.path(sink)).args(args);
    if !args.contains(&"--step-time") {
        run.args(["--step-time", "5ms"]);
    }
    run
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
        (&["--ranks", "2", "--hosts", "2", "--local-workers", "1"], "use --workers"),
    ] {
        let output = command(&dir, "sink", args).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(why), "{args:?}: {errors}");
    }
    Ok(())
}
