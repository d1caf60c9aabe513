//! The page of the manual with every command: what the programs' `--help` says, held to it.

use std::{fs, path::Path, process::Command};

const PAGE: &str = "docs/commands.md";
/// Set, the page is written instead of compared.
const WRITE: &str = "GRISTMILL_WRITE_GOLDEN";

/// Compares the part of `docs/commands.md` about the program `name` with the `--help` of `program` and of
/// all its commands.
///
/// # Panics
///
/// If they differ, or the program cannot be run.
pub fn assert_documented(name: &str, program: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(PAGE);
    let text = fs::read_to_string(&page).unwrap_or_else(|error| panic!("{PAGE}: {error}"));
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->\n"));
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("{PAGE} lacks {begin}"));
    let (present, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{PAGE} lacks {end}"));
    let mut generated = String::new();
    document((program, name, &text), &[], &mut generated);
    if std::env::var_os(WRITE).is_some() {
        let text = format!("{before}{begin}{generated}{end}{after}");
        fs::write(&page, text).unwrap_or_else(|error| panic!("{PAGE}: {error}"));
        return;
    }
    let differs = present.lines().zip(generated.lines()).find(|(page, help)| page != help);
    assert!(
        present == generated,
        "{PAGE} does not have what `{name} --help` says; run `just commands`. First difference: {differs:?}"
    );
}

/// Appends the help of a command, then of the commands below it, but those that have the section of a program in
/// `text`.
fn document(named: (&str, &str, &str), path: &[String], page: &mut String) {
    let (program, name, text) = named;
    let help = Command::new(program).args(path).arg("--help").env_remove("CLICOLOR_FORCE").output();
    let help = help.unwrap_or_else(|error| panic!("{program} {path:?}: {error}"));
    assert!(help.status.success(), "{program} {path:?} --help: {}", help.status);
    let help = String::from_utf8(help.stdout).expect("help is text");
    let command = [&[name.to_owned()], path].concat().join(" ");
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    page.push_str(&format!("\n## `{command}`\n\n```text\n{}\n```\n", lines.join("\n")));
    let below = lines.iter().skip_while(|line| **line != "Commands:").skip(1);
    for line in below.take_while(|line| !line.is_empty()) {
        // Continuations of a description are indented further.
        let Some(line) = line.strip_prefix("  ").filter(|line| !line.starts_with(' ')) else {
            continue;
        };
        let below = line.split(' ').next().unwrap_or_default();
        if below != "help" && !text.contains(&format!("<!-- {name}-{below} -->")) {
            document(named, &[path, &[below.to_owned()]].concat(), page);
        }
    }
    if path.is_empty() {
        page.push('\n');
    }
}
