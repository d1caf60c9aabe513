//! The program's edge: mistakes are one line.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::process::Command;

#[test]
fn a_service_that_is_not_there_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_gristmill-fetcher"))
        .args(["--job", "j", "--endpoint", "http://127.0.0.1:1"])
        .env("HOME", "/nonexistent")
        .env_remove("XDG_STATE_HOME")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("http://127.0.0.1:1") && errors.contains("gristmill up"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn a_standard_error_that_cannot_be_written_to_changes_no_exit_code() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_gristmill-fetcher"))
        .args(["--job", "j", "--endpoint", "http://127.0.0.1:1"])
        .env("HOME", "/nonexistent")
        .stderr(full)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(2));
}
