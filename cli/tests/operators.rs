//! `gristmill operators`: names, declarations and parameters, for people and for tools.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use serde_json::Value;
use std::process::Command;

fn operators(more: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gristmill"));
    let output = command.arg("operators").args(more).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn operators_and_sources_are_listed_with_their_parameters() {
    let listed: Value = serde_json::from_str(&operators(&["--json"])).unwrap();
    let sources = listed["sources"].as_array().unwrap();
    let csv = sources.iter().find(|source| source["name"] == "csv").unwrap();
    assert_eq!(csv["aliases"][0], "tsv");
    assert_eq!(csv["parameters"][0]["name"], "delimiter");
    let listed = listed["operators"].as_array().unwrap();
    let resize = listed.iter().find(|operator| operator["name"] == "resize").unwrap();
    assert_eq!(resize["effect"], "resample");
    assert_eq!(resize["parameters"][0]["name"], "size");
    assert_eq!(resize["parameters"][0]["default"], "required");
    assert!(
        operators(&[]).contains("rotate\n  degrees: a list: a number from -360 to 360, required")
    );
    assert!(operators(&["--markdown"]).contains("### `flip`\n\n| parameter |"));
    for operator in listed {
        assert!(operators(&[]).contains(operator["name"].as_str().unwrap()));
    }
}
