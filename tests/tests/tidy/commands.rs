//! Commands that documents name: they, their flags and their defaults are those of `docs/commands.md`,
//! which tests beside the programs compare with `--help`. Scripts know the flags they are given.

use crate::{
    assert_none,
    book::documents,
    claims::{HISTORY, code},
    project::{files, read, root},
};
use std::{collections::BTreeMap, fs};

const PAGE: &str = "docs/commands.md";
/// Flags of every command.
const COMMON: [&str; 2] = ["--help", "--version"];

/// Flags of a command, with their defaults.
type Flags = BTreeMap<String, Option<String>>;

/// The flags of each command, such as `gristmill cache ls`.
fn commands() -> BTreeMap<String, Flags> {
    let page = read(PAGE);
    let mut commands = BTreeMap::new();
    for section in page.split("\n## `").skip(1) {
        let (command, help) = section.split_once('`').expect("a heading names a command");
        let mut flags = Flags::new();
        let mut flag = None;
        for line in help.lines().map(str::trim_start) {
            let long =
                line.strip_prefix("-").and_then(|rest| rest.find("--").map(|at| &rest[at..]));
            let long =
                if line.starts_with("--") { Some(line) } else { long.filter(|_| line.len() < 40) };
            if let Some(long) = long {
                flag = word(long, &[' ', '=', '<']);
                flags.extend(flag.clone().map(|flag| (flag, None)));
            }
            if let (Some(flag), Some((_, default))) = (&flag, line.split_once("[default: ")) {
                let default = default.split(']').next().unwrap_or_default();
                flags.insert(flag.clone(), Some(default.to_owned()));
            }
        }
        // A program may be a command of another.
        if let Some((program, below)) = command.split_once('-') {
            commands.insert(format!("{program} {below}"), flags.clone());
        }
        commands.insert(command.to_owned(), flags);
    }
    assert!(commands.len() > 10, "{PAGE} has too few commands: run `just commands`");
    commands
}

fn word(text: &str, ends: &[char]) -> Option<String> {
    let word = text.split(ends).next()?;
    (!word.is_empty()).then(|| word.to_owned())
}

/// A command line as written in a document, without comments, and split at what a shell splits at.
/// `cargo run -- demo` is `gristmill demo`.
fn command_lines(code: &str) -> Vec<Vec<String>> {
    let joined = code.replace("\\\n", " ");
    let lines = joined.lines().map(|line| line.split(" #").next().unwrap_or_default());
    let parts = lines.flat_map(|line| line.split(['|', ';', '&', '(', ')']));
    let words = |part: &str| {
        let words = part.split_whitespace().map(|word| word.trim_matches('\'').to_owned());
        let words: Vec<String> = words.collect();
        let program = words.iter().position(|word| word == "--").filter(|_| {
            words.starts_with(&["cargo".to_owned(), "run".to_owned()])
                && !words.iter().any(|word| ["-p", "--package"].contains(&&**word))
        });
        match program {
            Some(at) => [&["gristmill".to_owned()], &words[at + 1..]].concat(),
            None => words,
        }
    };
    parts.map(words).filter(|words| !words.is_empty()).collect()
}

/// Flags among the words of a command line.
fn flags(words: &[String]) -> impl Iterator<Item = String> {
    let flags = words.iter().filter(|word| word.starts_with("--") && word.len() > 2);
    flags.filter_map(|flag| word(flag, &['=', ',', '.', '/', '`']))
}

/// A mistake in a command line that begins with one of our programs.
fn mistake(words: &[String], commands: &BTreeMap<String, Flags>) -> Option<String> {
    let mut command = words.first()?.clone();
    commands.get(&command)?;
    let mut rest = &words[1..];
    while let Some(below) =
        rest.first().filter(|word| commands.contains_key(&format!("{command} {word}")))
    {
        command = format!("{command} {below}");
        rest = &rest[1..];
    }
    let plain = |word: &String| word.chars().all(|c| c.is_ascii_lowercase()) && !word.is_empty();
    let has_commands = commands.keys().any(|name| name.starts_with(&format!("{command} ")));
    if let Some(unknown) = rest.first().filter(|word| has_commands && plain(word)) {
        return Some(format!("`{command}` has no command `{unknown}`"));
    }
    let known = &commands[&command];
    let mut unknown =
        flags(rest).filter(|flag| !known.contains_key(flag) && !COMMON.contains(&&**flag));
    unknown.next().map(|flag| format!("`{command}` has no flag `{flag}`"))
}

#[test]
fn commands_named_in_documents_exist_with_their_flags() {
    let commands = commands();
    let mut violations = Vec::new();
    // The examples of CONTRIBUTING.md add commands.
    let exempt = [HISTORY, PAGE, "CONTRIBUTING.md"];
    for path in documents().into_iter().filter(|path| !exempt.contains(&&**path)) {
        for (line, code) in code(&read(&path)) {
            for words in command_lines(&code) {
                let mistake = mistake(&words, &commands);
                violations.extend(mistake.map(|mistake| format!("{path}:{line}: {mistake}")));
            }
        }
    }
    assert_none(violations);
}

/// All text in which a script could read a flag: itself, what it sources, and the program that it runs.
fn sources(script: &str) -> String {
    let name = script.rsplit('/').next().unwrap_or_default();
    let related = files().into_iter().filter(|path| {
        path == script
            || path.starts_with("scripts/lib/")
            || path.ends_with(&format!("/{name}.rs"))
            || path.starts_with(&format!("sim/{}/src", name.trim_start_matches("simulate-")))
    });
    related.filter_map(|path| fs::read_to_string(root().join(path)).ok()).collect()
}

#[test]
fn scripts_named_in_documents_know_the_flags_they_are_given() {
    let mut violations = Vec::new();
    for path in documents().into_iter().filter(|path| path != HISTORY) {
        for (line, code) in code(&read(&path)) {
            for words in
                command_lines(&code).iter().filter(|words| words[0].starts_with("scripts/"))
            {
                let text = sources(&words[0]);
                let known = |flag: &str| {
                    let field = format!("{}:", flag.trim_start_matches('-').replace('-', "_"));
                    text.contains(flag) || text.contains(&field)
                };
                for flag in flags(words).filter(|flag| !known(flag)) {
                    violations.push(format!("{path}:{line}: {} has no flag `{flag}`", words[0]));
                }
            }
        }
    }
    assert_none(violations);
}

#[test]
fn defaults_named_in_documents_are_those_of_the_programs() {
    let commands = commands();
    let mut violations = Vec::new();
    for path in documents() {
        for (number, line) in (1..).zip(read(&path).lines()) {
            for (at, found) in line.match_indices("` (default `") {
                let flag = line[..at].rsplit('`').next().unwrap_or_default();
                let flag = word(flag, &[' ']).unwrap_or_default();
                let default = line[at + found.len()..].split('`').next().unwrap_or_default();
                let has = |flags: &Flags| {
                    flags.get(&flag).is_some_and(|it| it.as_deref() == Some(default))
                };
                if !commands.values().any(has) {
                    violations
                        .push(format!("{path}:{number}: no `{flag}` has the default `{default}`"));
                }
            }
        }
    }
    assert_none(violations);
}
