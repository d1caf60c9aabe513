//! The top level of the repository, how Rust files begin, and how long they get.

use crate::{
    assert_none,
    project::{files, rust_files},
};
use std::collections::BTreeSet;

/// Everything that may lie at the top; what a directory holds is its own affair.
pub const TOP_LEVEL: &[&str] = &[
    ".ci",
    ".github",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "benches",
    "cli",
    "clippy.toml",
    "deny.toml",
    "docs",
    "examples",
    "fetcher",
    "functions",
    "fuzz",
    "infra",
    "local",
    "python",
    "rustfmt.toml",
    "scripts",
    "shared",
    "sim",
    "template.yaml",
    "tests",
];

/// A longer file is several files.
const FILE_LINES_MAX: usize = 700;

#[test]
fn nothing_strays_at_the_top() {
    let present: BTreeSet<String> =
        files().iter().filter_map(|path| Some(path.split('/').next()?.to_owned())).collect();
    let stray = present.iter().filter(|name| !TOP_LEVEL.contains(&name.as_str()));
    assert_none(
        stray
            .map(|name| {
                format!("{name}: not a place at the top level; put it in one of the folders")
            })
            .collect(),
    );
}

#[test]
fn rust_files_say_what_they_are_and_stay_short() {
    let mut violations = Vec::new();
    for (path, text) in rust_files() {
        let first = text.lines().find(|line| !line.is_empty() && !line.starts_with("#!["));
        if !first.is_some_and(|line| line.starts_with("//!")) {
            violations.push(format!("{path}:1: open it with a `//!` paragraph: what is it for?"));
        }
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            violations.push(format!(
                "{path}:{lines}: longer than {FILE_LINES_MAX} lines; divide it by what it does"
            ));
        }
    }
    assert_none(violations);
}
