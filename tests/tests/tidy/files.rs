//! The top level of the repository, how Rust files begin, and how long files and functions get.

use crate::{
    assert_none,
    project::{files, rust_files},
};
use std::collections::BTreeSet;

/// Names allowed at the top level.
pub const TOP_LEVEL: &[&str] = &[
    ".ci",
    ".config",
    ".github",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "benches",
    "book.toml",
    "cli",
    "clippy.toml",
    "deny.toml",
    "docs",
    "examples",
    "fetcher",
    "functions",
    "fuzz",
    "infra",
    "justfile",
    "local",
    "python",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "scripts",
    "shared",
    "sim",
    "template.yaml",
    "tests",
];

/// Lines of a file before its tests. A longer file is several files.
const FILE_LINES_MAX: usize = 900;

/// Lines of a file that holds only tests.
const TEST_LINES_MAX: usize = 900;

/// Lines of a function, from its signature to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;

/// Files that are still longer than [`FILE_LINES_MAX`]. Remove rows, add none; a file that moves takes
/// its row along.
const LONG_FILES: &[&str] = &[];

/// Functions, as `file function`, that are still longer than [`FUNCTION_LINES_MAX`]. Remove rows; add none.
const LONG_FUNCTIONS: &[&str] = &[
    "shared/operators/src/number/cast.rs every_pair_of_types_saturates",
    "shared/operators/src/kernels/tests/golden.rs operator",
    "shared/executor/src/program.rs compile_with",
    "shared/model/src/splits/lease.rs claim",
    "shared/pipeline/src/pipeline.rs check",
];

/// Whether a file holds only tests.
pub fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.ends_with("_tests.rs") || path.contains("/tests/")
}

/// Lines of a Rust file before its tests.
pub fn lines_before_tests(text: &str) -> usize {
    text.lines().take_while(|line| line.trim_start() != "#[cfg(test)]").count()
}

/// Name and length of each function in a formatted file, where `}` stands in the column of `fn`.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut functions = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let signature = line.trim_start();
        let Some((qualifiers, rest)) = signature.split_once("fn ") else { continue };
        // Not in a comment or a string.
        let is_qualifier = |c: char| c.is_ascii_lowercase() || " ()".contains(c);
        let Some((name, _)) = rest.split_once(['(', '<']) else { continue };
        if !qualifiers.chars().all(is_qualifier) || line.ends_with([';', '}']) {
            continue;
        }
        // A declaration of a trait over several lines has no body.
        let opens = lines[start..].iter().find(|line| line.ends_with(['{', ';']));
        if opens.is_none_or(|line| line.ends_with(';')) {
            continue;
        }
        let indent = &line[..line.len() - signature.len()];
        let ends = |line: &&str| line.strip_prefix(indent) == Some("}");
        let length = lines[start..].iter().position(ends).map_or(1, |end| end + 1);
        functions.push((name, length));
    }
    functions
}

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
        let (lines, limit) = if is_test(&path) {
            (text.lines().count(), TEST_LINES_MAX)
        } else {
            (lines_before_tests(&text), FILE_LINES_MAX)
        };
        let known = LONG_FILES.contains(&path.as_str());
        if lines > limit && !known {
            violations.push(format!(
                "{path}:{lines}: longer than {limit} lines; divide it by what a reader looks for"
            ));
        } else if lines <= limit && known {
            violations.push(format!("{path}: short enough: remove its row in files.rs"));
        }
        let tests = text.lines().count() - lines_before_tests(&text);
        if !is_test(&path) && tests > TEST_LINES_MAX {
            violations.push(format!("{path}: move its tests to a file `tests.rs`"));
        }
    }
    assert_none(violations);
}

#[test]
fn functions_stay_short() {
    let mut violations = Vec::new();
    for (path, text) in rust_files() {
        for (name, lines) in functions(&text) {
            let known = LONG_FUNCTIONS.contains(&format!("{path} {name}").as_str());
            if lines > FUNCTION_LINES_MAX && !known {
                violations.push(format!(
                    "{path}: `{name}` has {lines} lines, more than {FUNCTION_LINES_MAX}; divide it"
                ));
            }
        }
    }
    assert_none(violations);
}

#[test]
fn lengths_are_counted() {
    let text = "//! A file.\nfn one() {\n    two();\n}\n\npub(crate) async fn two() {}\n\n#[cfg(test)]\nmod tests;\n";
    assert_eq!(lines_before_tests(text), 7);
    assert_eq!(functions(text), [("one", 3)]);
}
