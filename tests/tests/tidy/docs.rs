//! The documents and the examples: the map is complete, every reference resolves, examples parse.

use crate::{
    assert_none,
    project::{Member, files, members, read, root},
};
use std::fs;

/// Paths outside the repository, which its readers do not have.
const ELSEWHERE: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("shared", "/design"),
    concat!("shared", "/papers"),
    concat!(".lib", "rary/"),
];

#[test]
fn the_map_names_every_crate() {
    let map = read("ARCHITECTURE.md");
    let missing = |member: &Member| !map.contains(&format!("`{}`", member.folder));
    let unnamed = members().into_iter().filter(missing);
    assert_none(
        unnamed
            .map(|member| {
                format!("ARCHITECTURE.md: `{}` is not on the map; add its row", member.folder)
            })
            .collect(),
    );
}

#[test]
fn the_project_stands_alone() {
    let mut violations = Vec::new();
    for path in files() {
        // Golden files and the like are not text.
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        for (number, line) in (1..).zip(text.lines()) {
            for elsewhere in ELSEWHERE.iter().filter(|place| line.contains(**place)) {
                violations.push(format!(
                    "{path}:{number}: names `{elsewhere}`, which readers do not have; say it here"
                ));
            }
        }
    }
    assert_none(violations);
}

#[test]
fn example_pipelines_parse() {
    let examples = files().into_iter().filter(|path| path.starts_with("examples/"));
    // Operators of users are known to their own program, whose test this is.
    let ours = examples.filter(|path| !path.starts_with("examples/user-operator/"));
    let pipelines: Vec<String> = ours.filter(|path| path.ends_with(".yaml")).collect();
    let wrong = |path: &String| {
        let error = gristmill_operators::parse(&read(path)).err()?;
        Some(format!("{path}: {error}"))
    };
    assert_none(pipelines.iter().filter_map(wrong).collect());
}
