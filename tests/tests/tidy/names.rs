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
/// Words that were once parts of names here, and the word of the glossary in ARCHITECTURE.md that says the same.
const REPLACED_PARTS: &[(&str, &str)] = &[
    ("course", "ranges"),
    ("frontier", "window hints"),
    ("leg", "partition"),
    ("lot", "nonce, or number"),
    ("ramp", "growth"),
    ("seat", "rank"),
    ("shelf", "prefix"),
    ("stretch", "range"),
    ("tally", "totals"),
];

/// First parts of a function's name that name neither what it does nor what a test shows.
const FUNCTION_OPENINGS: &[&str] =
    &["nobody", "of", "that", "those", "what", "where", "who", "whose"];

/// A crate of others.
const FOREIGN: &str = "parking_lot";

/// The parts of a name, in lower case: of `FooBar`, `foo_bar` and `FOO_BAR` alike.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && before.is_lowercase()) {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut().filter(|_| c != '_') {
            part.push(c.to_ascii_lowercase());
        }
        before = c;
    }
    parts.into_iter().filter(|part| !part.is_empty()).collect()
}

/// The names that occur in a line of code, outside its strings and the comment behind it.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let unquoted = line.split('"').step_by(2);
    let code = unquoted.map(|text| text.split("//").next().unwrap_or(text));
    let words = code.flat_map(|text| text.split(|c: char| !c.is_alphanumeric() && c != '_'));
    words.filter(|word| word.starts_with(|c: char| c.is_alphabetic()) && *word != FOREIGN)
}

fn function_name(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("fn ")?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some(&rest[..end])
}

#[test]
fn names_hold_the_words_of_the_glossary() {
    let mut violations = Vec::new();
    for (path, text) in rust_files() {
        let lines = (1..).zip(text.lines());
        for (number, line) in lines.filter(|(_, line)| !line.trim_start().starts_with("//")) {
            for name in names(line) {
                let parts = parts(name);
                let replaced =
                    REPLACED_PARTS.iter().find(|(word, _)| parts.iter().any(|p| p == word));
                violations.extend(replaced.map(|(word, better)| {
                    format!("{path}:{number}: `{name}` has `{word}`: the word here is {better}")
                }));
            }
            let name = function_name(line).filter(|_| line.trim_start().ends_with(['{', '(', ',']));
            let opening = name.map(parts).and_then(|parts| parts.into_iter().next());
            if opening.is_some_and(|opening| FUNCTION_OPENINGS.contains(&opening.as_str())) {
                violations.push(format!(
                    "{path}:{number}: `{}` begins with no subject and no verb",
                    name.unwrap_or_default()
                ));
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
    assert_eq!(parts("LotSize"), ["lot", "size"]);
    assert_eq!(parts("parking_lot"), ["parking", "lot"]);
    assert_eq!(names("let leg = \"b c\"; // d").collect::<Vec<_>>(), ["let", "leg"]);
    assert_eq!(function_name("    pub fn of_one() {"), Some("of_one"));
}
