//! The record that `cargo test -p gristmill-tests --test tidy -- --nocapture` prints: who imports
//! whom, and how large each crate is.

use crate::{
    files::{is_test, lines_before_tests},
    project::{members, rust_files},
};
use std::collections::BTreeMap;

/// Longest files that are printed.
const LONGEST: usize = 10;

/// Sizes of one crate's Rust files.
#[derive(Default)]
struct Sizes {
    files: usize,
    lines: usize,
    test_lines: usize,
    public_items: usize,
}

/// Whether a line declares an item that other crates can see.
fn is_public(line: &str) -> bool {
    const ITEMS: &[&str] = &[
        "pub fn ",
        "pub async fn ",
        "pub const ",
        "pub struct ",
        "pub enum ",
        "pub trait ",
        "pub type ",
        "pub static ",
        "pub unsafe fn ",
        "pub mod ",
        "pub use ",
    ];
    let line = line.trim_start();
    ITEMS.iter().any(|item| line.starts_with(item))
}

/// Imports of each crate among the project's own, `gristmill-` left out.
fn print_dependencies() {
    println!("\ndependencies:");
    for member in members() {
        let mut imported: Vec<String> = member
            .dependencies("dependencies")
            .iter()
            .filter_map(|(name, _)| Some(name.strip_prefix("gristmill-")?.to_owned()))
            .collect();
        imported.sort();
        println!("  {:<14} <- {}", member.name, imported.join(" "));
    }
}

#[test]
fn record() {
    print_dependencies();
    let members = members();
    let mut sizes: BTreeMap<&str, Sizes> = BTreeMap::new();
    let mut longest: Vec<(usize, String)> = Vec::new();
    let mut sources: Vec<usize> = Vec::new();
    for (path, text) in rust_files() {
        let member = members.iter().find(|member| path.starts_with(&format!("{}/", member.folder)));
        let sizes = sizes.entry(member.map_or("", |member| &member.name)).or_default();
        let lines = text.lines().count();
        let source = if is_test(&path) { 0 } else { lines_before_tests(&text) };
        sizes.files += 1;
        sizes.lines += source;
        sizes.test_lines += lines - source;
        sizes.public_items += text.lines().take(source).filter(|line| is_public(line)).count();
        if source > 0 {
            sources.push(source);
            longest.push((source, path));
        }
    }
    println!("\n{:<14} {:>6} {:>7} {:>7} {:>7}", "crate", "files", "lines", "tests", "public");
    let mut total = Sizes::default();
    for (name, crate_sizes) in &sizes {
        let Sizes { files, lines, test_lines, public_items } = crate_sizes;
        println!("{name:<14} {files:>6} {lines:>7} {test_lines:>7} {public_items:>7}");
        total.files += files;
        total.lines += lines;
        total.test_lines += test_lines;
        total.public_items += public_items;
    }
    let Sizes { files, lines, test_lines, public_items } = total;
    println!("{:<14} {files:>6} {lines:>7} {test_lines:>7} {public_items:>7}", "all");
    sources.sort_unstable();
    let at = |percent: usize| sources[(sources.len() - 1) * percent / 100];
    println!("\nlines of a file before its tests: p50 {}, p90 {}, max {}", at(50), at(90), at(100));
    longest.sort_unstable_by(|a, b| b.cmp(a));
    for (lines, path) in longest.into_iter().take(LONGEST) {
        println!("  {lines:>4} {path}");
    }
}
