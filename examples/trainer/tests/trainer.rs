//! The example trains on every record of both epochs once, with its own service.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use gristmill_tests::TestDir;
use std::path::Path;

#[test]
fn it_trains_two_epochs() {
    let trainer = Path::new(env!("CARGO_BIN_EXE_gristmill-trainer"));
    let gristmill = trainer.with_file_name("gristmill");
    assert!(gristmill.exists(), "build it first: cargo build --workspace");
    let dir = TestDir::new(gristmill.to_str().unwrap()).unwrap();
    let mut command = dir.program(trainer, &["--gristmill"]);
    command.arg(&gristmill).arg("--state-dir").arg(dir.path("state"));
    let output = command.arg("--checkpoint").arg(dir.path("model")).output().unwrap();
    let (said, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    assert!(said.contains("epoch 1: 32 batches"), "{said}");
    assert!(said.ends_with("trained on 2000 rows in 64 steps\n"), "{said}");
    let saved = std::fs::read_to_string(dir.path("model")).unwrap();
    assert!(saved.contains("\"job\":\"example\""), "{saved}");
}
