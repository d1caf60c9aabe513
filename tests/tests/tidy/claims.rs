//! Claims of documents about the rest of the repository: files, scripts, schedules, parameters, alarms,
//! coordinator calls, metrics and variables that they name exist, with the values they give. Commands
//! and flags are checked beside the programs, in `cli/tests/docs.rs` and `fetcher/tests/docs.rs`.

use crate::{
    assert_none,
    book::{documents, events},
    project::{files, read, root},
};
use pulldown_cmark::{CodeBlockKind, Event, Tag};
use std::collections::{BTreeMap, BTreeSet};

/// A change that is recorded there may have been undone since.
pub const HISTORY: &str = "CHANGELOG.md";

/// Text in backticks, and blocks of code, of a document, with the line in which each begins.
pub fn code(text: &str) -> Vec<(usize, String)> {
    let mut code = Vec::new();
    let mut block = false;
    for (line, event) in events(text) {
        match event {
            // A patch names files that it adds.
            Event::Start(Tag::CodeBlock(kind)) => {
                block = !matches!(kind, CodeBlockKind::Fenced(language) if &*language == "diff");
            }
            Event::End(_) => block = false,
            Event::Code(text) => code.push((line, text.into_string())),
            Event::Text(text) if block => code.push((line, text.into_string())),
            _ => {}
        }
    }
    code
}

/// Cells of the rows of a Markdown table that begins with `header`, with their lines.
fn table(path: &str, header: &str) -> Vec<(usize, Vec<String>)> {
    let text = read(path);
    let rows = (1..).zip(text.lines()).skip_while(|(_, line)| !line.starts_with(header)).skip(2);
    let rows = rows.take_while(|(_, line)| line.starts_with('|'));
    let cells = |line: &str| {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    let rows: Vec<(usize, Vec<String>)> =
        rows.map(|(number, line)| (number, cells(line))).collect();
    assert!(!rows.is_empty(), "{path}: there is no table that begins with `{header}`");
    rows
}

/// Names in backticks within a cell of a table.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn files_and_scripts_named_in_documents_exist() {
    const PLACES: &[&str] = &[
        ".ci/",
        ".github/",
        "cli/",
        "docs/",
        "examples/",
        "fetcher/",
        "functions/",
        "fuzz/",
        "infra/",
        "local/",
        "scripts/",
        "shared/",
        "sim/",
        "tests/",
    ];
    let documents = documents().into_iter().filter(|path| path != HISTORY);
    let mut texts: Vec<(String, Vec<(usize, String)>)> =
        documents.map(|path| (path.clone(), code(&read(&path)))).collect();
    let lists = ["justfile", ".ci/run"].into_iter().map(str::to_owned);
    let workflows = files().into_iter().filter(|path| path.starts_with(".github/"));
    for path in lists.chain(workflows) {
        texts.push((path.clone(), vec![(1, read(&path))]));
    }
    let mut violations = Vec::new();
    for (path, code) in texts {
        for (line, code) in code {
            let words = code.split(|c: char| c.is_whitespace() || "'\"(),;:=".contains(c));
            let words = words.map(|word| word.trim_start_matches("./").trim_end_matches('.'));
            for word in words.filter(|word| PLACES.iter().any(|place| word.starts_with(place))) {
                let pattern = word.contains(['*', '{', '<', '$', '%'])
                    || ["..", "NAME"].iter().any(|part| word.contains(part));
                if !pattern && !root().join(word).exists() {
                    violations.push(format!("{path}:{line}: `{word}` does not exist"));
                }
            }
        }
    }
    assert_none(violations);
}

#[test]
fn schedules_named_in_documents_are_those_of_the_stack() {
    let template = read("template.yaml");
    let rates = template.split("rate(").skip(1).filter_map(|rest| rest.split_once(')'));
    let rates: BTreeSet<&str> = rates.map(|(rate, _)| rate).collect();
    assert!(!rates.is_empty(), "template.yaml has no rate(..)");
    let mut violations = Vec::new();
    for path in documents() {
        let text = read(&path).to_lowercase();
        for (at, found) in text.match_indices("every ") {
            let mut words = text[at + found.len()..].split_whitespace();
            let (Some(count), Some(unit)) = (words.next(), words.next()) else { continue };
            let unit = unit.trim_end_matches(|c: char| !c.is_alphabetic());
            let rate = format!("{count} {unit}");
            if ["minutes", "hours", "days"].contains(&unit) && !rates.contains(rate.as_str()) {
                let line = text[..at].matches('\n').count() + 1;
                violations.push(format!(
                    "{path}:{line}: `every {rate}`; the schedules of template.yaml are {rates:?}"
                ));
            }
        }
    }
    assert_none(violations);
}

/// Parameters of the stack and their defaults.
fn parameters() -> BTreeMap<String, String> {
    let template = read("template.yaml");
    let section = template.lines().skip_while(|line| *line != "Parameters:").skip(1);
    let mut parameters = BTreeMap::new();
    let mut name = "";
    for line in section.take_while(|line| line.is_empty() || line.starts_with(' ')) {
        match line.strip_prefix("  ") {
            Some(key) if !key.starts_with(' ') => name = key.trim_end_matches(':'),
            _ => {}
        }
        if let Some(default) = line.trim_start().strip_prefix("Default:") {
            parameters.insert(name.to_owned(), default.trim().trim_matches('"').to_owned());
        }
    }
    parameters
}

#[test]
fn parameters_of_the_stack_are_documented_with_their_defaults() {
    let page = "docs/deploying.md";
    let mut missing = parameters();
    let mut violations = Vec::new();
    for (line, cells) in table(page, "| parameter |") {
        for name in names(&cells[0]) {
            let Some(default) = missing.remove(name) else {
                violations.push(format!("{page}:{line}: template.yaml has no parameter `{name}`"));
                continue;
            };
            let default = if default.is_empty() { "none" } else { &default };
            if cells[1] != default {
                violations.push(format!("{page}:{line}: the default of `{name}` is {default}"));
            }
        }
    }
    violations.extend(missing.keys().map(|name| format!("{page}: document `{name}`")));
    assert_none(violations);
}

#[test]
fn alarms_of_the_stack_are_documented() {
    let template = read("template.yaml");
    let lines: Vec<&str> = template.lines().collect();
    let alarms = lines.windows(2).filter(|pair| pair[1].ends_with("AWS::CloudWatch::Alarm"));
    let alarms: BTreeSet<String> =
        alarms.map(|pair| pair[0].trim().trim_end_matches(':').to_owned()).collect();
    let rows = table("docs/operating.md", "| alarm |");
    let documented: BTreeSet<String> =
        rows.iter().flat_map(|(_, cells)| names(&cells[0])).map(str::to_owned).collect();
    assert_eq!(documented, alarms, "docs/operating.md, and the alarms of template.yaml");
}

#[test]
fn coordinator_calls_are_documented() {
    let sources = files().into_iter().filter(|path| path.starts_with("shared/model/src/wire"));
    let sources: Vec<String> = sources.map(|source| read(&source)).collect();
    let literals = |named: fn(&str) -> bool| {
        let lines = sources.iter().flat_map(|source| source.lines().map(str::trim));
        let found = lines.filter(|line| named(line)).filter_map(|line| line.split('"').nth(1));
        found.map(str::to_owned).collect::<BTreeSet<String>>()
    };
    let calls = literals(|line| line.starts_with(char::is_uppercase) && line.contains("] \""));
    assert!(
        calls.contains("claim"),
        "shared/model/src/wire lists no call as `Name[job] \"name\" Reply`"
    );
    let rows = table("docs/operating.md", "| coordinator call |");
    let documented: BTreeSet<String> =
        rows.iter().flat_map(|(_, cells)| names(&cells[0])).map(str::to_owned).collect();
    assert_eq!(documented, calls, "docs/operating.md, and the calls of shared/model/src/wire");
}

#[test]
fn metrics_and_variables_named_in_documents_are_in_the_code() {
    let sources = files().into_iter().filter(|path| {
        let ours = [".rs", ".py", ".sh", ".yaml", ".ts"].iter().any(|end| path.ends_with(end))
            || path.starts_with("scripts/");
        ours && !path.starts_with("tests/tests/tidy")
    });
    let sources: Vec<String> =
        sources.filter_map(|path| std::fs::read_to_string(root().join(path)).ok()).collect();
    let in_code = |text: &str| sources.iter().any(|source| source.contains(text));
    let mut violations = Vec::new();
    let page = "docs/operating.md";
    for (line, cells) in table(page, "| function | metrics") {
        for name in names(&cells[1]).filter(|name| !in_code(&format!("\"{name}\""))) {
            violations.push(format!("{page}:{line}: no function has a metric `{name}`"));
        }
    }
    for path in documents() {
        for (line, code) in code(&read(&path)) {
            let words =
                code.split(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_');
            let named = words.filter(|word| word.starts_with("GRISTMILL_") && word.len() > 11);
            for name in named.filter(|name| !in_code(name)) {
                violations.push(format!("{path}:{line}: nothing reads the variable `{name}`"));
            }
        }
    }
    assert_none(violations);
}

#[test]
fn whole_pipelines_in_documents_parse() {
    let mut violations = Vec::new();
    for path in documents() {
        let text = read(&path);
        let mut yaml = false;
        for (line, event) in events(&text) {
            match event {
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                    yaml = &*language == "yaml";
                }
                Event::End(_) => yaml = false,
                Event::Text(block)
                    if yaml && block.contains("source:") && block.contains("ops:") =>
                {
                    if let Err(error) = gristmill_operators::parse(&block) {
                        violations.push(format!("{path}:{line}: {error}"));
                    }
                }
                _ => {}
            }
        }
    }
    assert_none(violations);
}
