//! The worked examples of CONTRIBUTING.md: each applies to the project as it is, and touches no more
//! files than that kind of change may. `scripts/check-contributing` also compiles and runs them.

use crate::{
    assert_none,
    project::{read, root},
};
use std::{
    io::Write,
    process::{Command, Stdio},
};

/// Kinds of additions with a worked example, the files that each may touch, and the pages of the manual
/// that it may touch besides.
const FILES_MAX: &[(&str, usize, usize)] = &[
    // Its row in docs/operating.md.
    ("a coordinator call", 2, 1),
    ("a source", 2, 0),
    ("a command", 2, 0),
    // Its section in docs/operators.md, of which only the table is generated.
    ("an operator", 2, 1),
    // Its row in the table of docs/jobs.md.
    ("a job option", 2, 1),
    ("a scaling policy", 2, 0),
    ("a field to the training report", 3, 0),
];

/// Pages that tests write.
const GENERATED: &[&str] = &["docs/commands.md"];

/// The text below the heading `### Add {what}`.
fn section(text: &str, what: &str) -> Option<String> {
    let heading = format!("### Add {what}\n");
    let (_, rest) = text.split_once(&heading)?;
    let lines = rest.split_inclusive('\n').take_while(|line| !line.starts_with("##"));
    Some(lines.collect())
}

/// The blocks of a language in a section, one after the other.
fn blocks(section: &str, language: &str) -> String {
    let opening = format!("```{language}\n");
    let blocks = section.split(&opening).skip(1);
    blocks.filter_map(|block| block.split_once("```\n")).map(|(block, _)| block).collect()
}

/// Git's message about a patch that does not apply.
fn refusal(patch: &str) -> Option<String> {
    let git = Command::new("git")
        .args(["apply", "--check", "--recount", "-"])
        .current_dir(root())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut git = git.expect("git is there");
    git.stdin.take().expect("it is piped").write_all(patch.as_bytes()).expect("git reads it");
    let output = git.wait_with_output().expect("git ends");
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn worked_examples_apply_and_touch_few_files() {
    let text = read("CONTRIBUTING.md");
    let mut violations = Vec::new();
    for (what, files_max, pages_max) in FILES_MAX {
        let Some(section) = section(&text, what) else {
            violations.push(format!("CONTRIBUTING.md: has no section `### Add {what}`"));
            continue;
        };
        let patch = blocks(&section, "diff");
        let files = patch.lines().filter_map(|line| line.strip_prefix("+++ b/"));
        let files = files.filter(|file| !GENERATED.contains(file));
        let (pages, files): (Vec<&str>, Vec<&str>) =
            files.partition(|file| file.starts_with("docs/"));
        let (pages, files) = (pages.len(), files.len());
        println!(
            "add {what}: {files} files, at most {files_max}; {pages} pages, at most {pages_max}"
        );
        if files == 0 || blocks(&section, "sh").is_empty() {
            violations
                .push(format!("CONTRIBUTING.md: `Add {what}` has no example with its checks"));
        }
        if files > *files_max || pages > *pages_max {
            violations.push(format!(
                "CONTRIBUTING.md: `Add {what}` touches {files} files and {pages} pages, at most {files_max} and \
                 {pages_max}; one place should follow from another"
            ));
        }
        if let Some(refusal) = refusal(&patch).filter(|_| files > 0) {
            violations.push(format!("CONTRIBUTING.md: `Add {what}` does not apply: {refusal}"));
        }
    }
    assert_none(violations);
}
