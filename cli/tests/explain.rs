//! `gristmill explain` on the pipelines of the Pecan paper.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use serde_json::Value;
use std::process::Command;

/// The JSON that `explain` prints of an example in the order of the paper, in which `from` is replaced by `to`.
fn explain(example: &str, from: &str, to: &str) -> Value {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
    let text = std::fs::read_to_string(format!("{root}/{example}.yaml")).unwrap();
    assert!(text.contains(from));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipeline.yaml");
    std::fs::write(&path, format!("auto_order: pecan\n{}", text.replace(from, to))).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gristmill"));
    let output = command.arg("explain").arg(&path).arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn order(explained: &Value) -> Vec<String> {
    let ops = explained["after"].as_array().unwrap();
    ops.iter().map(|op| op["op"].as_str().unwrap().to_owned()).collect()
}

fn before(order: &[String], first: &str, second: &str) -> bool {
    let place = |name: &str| order.iter().position(|op| op == name).unwrap();
    place(first) < place(second)
}

#[test]
fn resnet50_is_resized_before_it_is_augmented() {
    let explained = explain("pecan-resnet50", "", "");
    let order = order(&explained);
    for op in ["flip", "rotate", "shear"] {
        assert!(before(&order, "resize", op), "{order:?}");
    }
    assert!(before(&order, "decode", "resize"));
    assert_eq!(explained["passes"][0]["pass"], "auto_order");
    assert_eq!(explained["passes"][0]["change"], "moved");
    assert_eq!(explained["passes"][0]["changes_results"], true);
}

#[test]
fn retinanet_is_mirrored_before_it_is_normalised() {
    let order = order(&explain("pecan-retinanet", "", ""));
    assert!(before(&order, "flip", "normalise") && before(&order, "normalise", "cast"));
}

#[test]
fn simclr_is_not_made_gray_before_its_colours_are_jittered() {
    let explained = explain("pecan-simclr", "", "");
    assert!(before(&order(&explained), "color_jitter", "grayscale"));
    let passes = explained["passes"].as_array().unwrap();
    let refused = passes.iter().find(|note| note["change"] == "refused").unwrap();
    assert_eq!((&refused["op"], &refused["across"]), (&"grayscale".into(), &"color_jitter".into()));
    assert!(refused["reason"].as_str().unwrap().contains("assume_commutes"));
}

#[test]
fn gray_images_jitter_if_the_pipeline_vouches_for_them() {
    let vouched = "grayscale: { channels: 1, assume_commutes: true }";
    let order = order(&explain("pecan-simclr", "grayscale: { channels: 1 }", vouched));
    assert!(before(&order, "grayscale", "flip") && before(&order, "grayscale", "color_jitter"));
    assert!(before(&order, "duplicate", "grayscale"), "{order:?}");
}

#[test]
fn a_pipeline_that_is_wrong_is_one_line_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipeline.yaml");
    std::fs::write(
        &path,
        "source: { tfrecord: x, features: { a: { dtype: i64 } } }\nops: [resze]\n",
    )
    .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gristmill"));
    let output = command.arg("explain").arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("line 2") && error.contains("resize"), "{error}");
    assert_eq!(error.lines().count(), 1);
}
