//! Tests a user operator in the whole system: parsed, registered, and run by workers of another process.

use anyhow::Result;
use gristmill_tests::{Background, TestDir, run_json};
use std::{fs, path::Path, process::Output};

#[test]
fn workers_run_what_their_program_was_built_with() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill-cutout"))?;
    let pipeline = Path::new(env!("CARGO_MANIFEST_DIR")).join("cutout.yaml");
    let run = |workers: &[&str]| {
        let mut command = dir.gristmill(&["demo", "--images", "48", "--epochs", "2"]);
        command
            .arg("--pipeline")
            .arg(&pipeline)
            .args(["--step-time", "0ms", "--json"])
            .args(workers);
        run_json(&mut command)
    };
    let (remote, local) = (run(&[])?, run(&["--workers", "0", "--local-workers", "1"])?);
    assert_eq!(remote["elements_delivered"], 96);
    assert_eq!(remote["batches_blake3"], local["batches_blake3"]);
    Ok(())
}

#[test]
fn a_fetcher_starts_jobs_with_what_it_was_built_with() -> Result<()> {
    let dir = TestDir::new(env!("CARGO_BIN_EXE_gristmill-cutout"))?;
    let line = format!("{{\"image\": {:?}}}\n", [1.0_f32; 6 * 6]);
    fs::write(dir.path("images.jsonl"), line.repeat(20))?;
    let pipeline = dir.path("cutout.yaml");
    let text = "source: { jsonl: images.jsonl, features: { image: { dtype: f32, shape: [6, 6, 1] } } }\n\
                ops:\n  - user_operator.cutout: { size: 2 }\n  - batch: { size: 8 }\n";
    fs::write(&pipeline, text)?;
    let state = dir.path("state");
    let mut up = dir.gristmill(&["up", "--json", "--state-dir"]);
    let mut up = Background::start(up.arg(&state))?;
    up.line()?;
    let run = |program: &Path, more: &[&str]| -> Result<Output> {
        let mut fetcher = dir.program(program, &["--socket", "-", "--state-dir"]);
        Ok(fetcher
            .arg(&state)
            .arg("--pipeline")
            .arg(&pipeline)
            .args(["--epochs", "1"])
            .args(more)
            .output()?)
    };
    let with_it = Path::new(env!("CARGO_BIN_EXE_gristmill-cutout-fetcher"));
    for job in
        [["--job", "remote", "--local-workers", "0"], ["--job", "local", "--local-workers", "1"]]
    {
        let Output { status, stdout, stderr } = run(with_it, &job)?;
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        let stdout = String::from_utf8_lossy(&stdout);
        assert!(stdout.contains("{\"batches\":3,\"closed\":"), "{stdout}");
    }
    let without = run(&with_it.with_file_name("gristmill-fetcher"), &["--job", "none"])?;
    let errors = String::from_utf8_lossy(&without.stderr);
    assert_eq!(without.status.code(), Some(2), "{errors}");
    assert!(errors.contains("op `user_operator.cutout` is not known"), "{errors}");
    Ok(())
}
