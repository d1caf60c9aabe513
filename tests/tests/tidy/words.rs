//! Plain English: a comment begins with a noun or a verb, and some words are refused everywhere.

use crate::{
    assert_none,
    project::{files, read},
};

/// First words of a comment that announce a relative clause in place of a subject.
const OPENINGS: &[&str] =
    &["Of", "That which", "What", "Whatever", "Where", "Whichever", "Who", "Whoever", "Whose"];

/// Refused in code, comments, messages and documents, also as a part of a name, and a better word.
const REFUSED: &[(&str, &str)] = &[
    ("books", "scaler state, or a ledger"),
    ("felt", "measured"),
    ("heard", "received"),
    ("put aside", "captured"),
    ("strike off", "remove"),
    ("strikes off", "removes"),
    ("struck off", "removed"),
    ("told", "reported"),
    ("whatever", "any"),
    ("whoever", "name the caller"),
];

/// This file lists the words; golden files hold what programs printed, as the page of commands does.
const EXEMPT: &[&str] =
    &["tests/tests/tidy/words.rs", "docs/commands.md", "/golden/", "/corpus/", "package-lock.json"];

struct Finding {
    path: String,
    line: usize,
    reason: String,
}

/// How a language marks comments.
#[derive(Clone, Copy)]
enum Language {
    Slashes,
    Hash,
    Prose,
}

fn language(path: &str) -> Option<Language> {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("rs" | "ts" | "mjs" | "js") => Some(Language::Slashes),
        Some("md") => Some(Language::Prose),
        Some("py" | "sh" | "toml" | "yaml" | "yml") => Some(Language::Hash),
        None if path.starts_with("scripts/") || path == ".ci/run" || path == "justfile" => {
            Some(Language::Hash)
        }
        _ => None,
    }
}

/// The text of the comment in a line, from its first word.
fn comment(line: &str, language: Language) -> Option<&str> {
    let line = line.trim_start();
    let text = match language {
        Language::Prose => line,
        // A marker within a string is followed by no space, as in a URL.
        Language::Slashes => match line.strip_prefix("//") {
            Some(text) => text.trim_start_matches(['/', '!']),
            None => line.split_once(" // ")?.1,
        },
        Language::Hash => match line.strip_prefix('#') {
            Some(text) => text.trim_start_matches('#'),
            None => line.split_once(" # ")?.1,
        },
    };
    Some(text.trim_start())
}

/// Whether `text` begins with the words `opening`.
fn opens_with(text: &str, opening: &str) -> bool {
    text.strip_prefix(opening).is_some_and(|rest| rest.starts_with([' ', ',']))
}

/// Whether `line`, in lower case, has `word` between characters that are no letters.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        ![before, after].into_iter().flatten().any(char::is_alphabetic)
    })
}

fn findings() -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in files() {
        let Some(language) = language(&path) else { continue };
        if EXEMPT.iter().any(|exempt| path.contains(exempt)) {
            continue;
        }
        for (number, line) in (1..).zip(read(&path).lines()) {
            let mut found = |reason: String| {
                findings.push(Finding { path: path.clone(), line: number, reason });
            };
            let text = comment(line, language).unwrap_or("");
            if let Some(opening) = OPENINGS.iter().find(|opening| opens_with(text, opening)) {
                found(format!("begins with `{opening}`; begin with the subject or a verb"));
            }
            let lower = line.to_lowercase();
            for (word, better) in REFUSED.iter().filter(|(word, _)| has_word(&lower, word)) {
                found(format!("`{word}`: {better}"));
            }
        }
    }
    findings
}

#[test]
fn comments_are_plain_english() {
    let found = findings().into_iter();
    assert_none(
        found.map(|Finding { path, line, reason }| format!("{path}:{line}: {reason}")).collect(),
    );
}

#[test]
fn openings_and_words_are_found() {
    let opens = |line| {
        let text = comment(line, Language::Slashes).unwrap_or("");
        OPENINGS.iter().any(|opening| opens_with(text, opening))
    };
    assert!(opens("    /// What a split holds."));
    assert!(opens("let x = 1; // Of the last epoch"));
    assert!(!opens("/// Offset of the split."));
    assert!(!opens("let url = \"http://What it is\";"));
    assert!(has_word("is_told: bool", "told") && has_word("told", "told"));
    assert!(!has_word("untold stories, notebooks", "told"));
    assert!(!has_word("notebooks", "books"));
}
