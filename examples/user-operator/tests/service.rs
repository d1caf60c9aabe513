//! An operator of a user through the whole system: read, registered, run by workers of another process.

use anyhow::Result;
use gristmill_tests::{TestDir, run_json};
use std::path::Path;

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
