//! Names that one can search for: of public types, tests and parameters.

use crate::{assert_none, files::is_test, project::rust_files};
use std::collections::BTreeMap;

/// Types that exist twice, one for each state of a feature, of which a program has one.
const TWINS: &[&str] = &["Aws", "DeploymentProbes", "HttpCoordinator", "S3Objects", "WebObjects"];

/// Most public types whose name is one word, in percent: words of the field, operators and formats.
const ONE_WORD_PERCENT: usize = 10;

/// The code of a file before its tests, without comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(text.lines());
    let code = lines.take_while(|(_, line)| line.trim_start() != "#[cfg(test)]");
    code.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// The name of the type that a line declares for other modules.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = match rest.strip_prefix('(') {
        Some(scoped) => scoped.split_once(')')?.1,
        None => rest,
    };
    let (kind, rest) = rest.trim_start().split_once(' ')?;
    let is_type = ["struct", "enum", "trait", "type", "union"].contains(&kind);
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    is_type.then(|| &rest[..end]).filter(|name| !name.is_empty())
}

/// Words of a name in camel case.
fn words(name: &str) -> usize {
    let starts = name.char_indices().filter(|(at, c)| {
        let before = name[..*at].chars().next_back();
        c.is_uppercase() && before.is_none_or(|before| !before.is_uppercase())
    });
    starts.count()
}

/// Places of the declarations of each public type, by its name.
fn public_types() -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in rust_files().into_iter().filter(|(path, _)| !is_test(path)) {
        for (number, line) in code(&text) {
            if let Some(name) = public_type(line) {
                found.entry(name.to_owned()).or_default().push(format!("{path}:{number}"));
            }
        }
    }
    found
}

#[test]
fn no_two_public_types_share_a_name() {
    let shared = public_types()
        .into_iter()
        .filter(|(name, places)| places.len() > 1 && !TWINS.contains(&name.as_str()));
    assert_none(
        shared
            .map(|(name, places)| {
                format!(
                    "{}: `{name}` is declared again: name each by what it is",
                    places.join(", ")
                )
            })
            .collect(),
    );
}

#[test]
fn most_public_types_have_two_words() {
    let types = public_types();
    let one: Vec<&str> = types.keys().map(String::as_str).filter(|name| words(name) < 2).collect();
    println!("{} of {} public types have one word: {one:?}", one.len(), types.len());
    assert!(
        one.len() * 100 <= types.len() * ONE_WORD_PERCENT,
        "{} of {} public types have one word: {one:?}",
        one.len(),
        types.len()
    );
}

#[test]
fn a_bool_is_tested_by_if() {
    let mut violations = Vec::new();
    for (path, text) in rust_files().into_iter().filter(|(path, _)| !is_test(path)) {
        for (number, line) in code(&text) {
            let arm = line.trim_start();
            if arm.starts_with("true =>") || arm.starts_with("false =>") {
                violations.push(format!("{path}:{number}: `if` in place of a match on a bool"));
            }
        }
    }
    assert_none(violations);
}

#[test]
fn declarations_are_found_and_words_counted() {
    assert_eq!(public_type("    pub(crate) struct RecordBlock {"), Some("RecordBlock"));
    assert_eq!(public_type("pub enum Effect<T> {"), Some("Effect"));
    assert_eq!(public_type("pub fn struct_of() {"), None);
    assert_eq!(public_type("struct Private;"), None);
    assert_eq!(["Crop", "JobName", "DType", "S3Objects", "CsvReader"].map(words), [1, 2, 1, 2, 2]);
}
