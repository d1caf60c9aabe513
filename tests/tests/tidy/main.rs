//! Rules of the project that no compiler checks. Each failure names a file and line, the rule and
//! the remedy.

mod book;
mod claims;
mod commands;
mod contributing;
mod dependencies;
mod docs;
mod files;
mod names;
mod project;
mod words;

#[track_caller]
fn assert_none(violations: Vec<String>) {
    assert!(violations.is_empty(), "\n  {}\n", violations.join("\n  "));
}
