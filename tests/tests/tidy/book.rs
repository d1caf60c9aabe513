//! The manual as a book: every page is listed, opens with what it answers, and links to places that exist.

use crate::{
    assert_none,
    project::{files, read, root},
};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::BTreeMap;

/// A README that is longer is a manual.
const README_WORDS_MAX: usize = 800;
const SUMMARY: &str = "docs/SUMMARY.md";
const INDEX: &str = "docs/README.md";
/// Opens every page of the manual.
const ANSWERS: &str = "This page answers:";

/// The documents that people read, of the project and of the manual.
pub fn documents() -> Vec<String> {
    let is_document = |path: &String| {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        path.ends_with(".md") && ["", "docs", "shared/chunk"].contains(&folder)
    };
    files().into_iter().filter(is_document).collect()
}

fn pages() -> Vec<String> {
    let pages = documents().into_iter().filter(|path| path.starts_with("docs/"));
    pages.filter(|path| path != SUMMARY).collect()
}

/// Events of a document's Markdown, with the line in which each begins.
pub fn events(text: &str) -> Vec<(usize, Event<'_>)> {
    let parser = Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter();
    parser.map(|(event, range)| (text[..range.start].matches('\n').count() + 1, event)).collect()
}

/// Targets of the links in a document, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let links = events(text).into_iter().filter_map(|(line, event)| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            Some((line, dest_url.into_string()))
        }
        _ => None,
    });
    links.collect()
}

/// The anchors that forges and mdBook give the headings of a document.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors = Vec::new();
    let mut heading: Option<String> = None;
    for (_, event) in events(text) {
        match (event, &mut heading) {
            (Event::Start(Tag::Heading { .. }), _) => heading = Some(String::new()),
            (Event::Text(text) | Event::Code(text), Some(heading)) => heading.push_str(&text),
            (Event::End(TagEnd::Heading(_)), Some(text)) => {
                anchors.push(anchor(text));
                heading = None;
            }
            _ => {}
        }
    }
    anchors
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// `target` as seen from the folder of `document`, with `.` and `..` resolved.
fn resolved(document: &str, target: &str) -> String {
    let folder = document.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn links_between_documents_lead_somewhere() {
    let texts: BTreeMap<String, String> =
        documents().into_iter().map(|path| (path.clone(), read(&path))).collect();
    let mut violations = Vec::new();
    for (path, text) in &texts {
        for (line, link) in links(text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (target, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let file = if target.is_empty() { path.clone() } else { resolved(path, target) };
            if !root().join(&file).exists() {
                violations.push(format!("{path}:{line}: `{link}` leads to no file: {file}"));
            } else if let Some(text) = texts.get(&file)
                && !fragment.is_empty()
                && !anchors(text).iter().any(|anchor| anchor == fragment)
            {
                violations.push(format!("{path}:{line}: {file} has no heading `#{fragment}`"));
            }
        }
    }
    assert_none(violations);
}

#[test]
fn every_page_is_in_the_book_and_its_index() {
    let mut violations = Vec::new();
    for list in [SUMMARY, INDEX] {
        let listed: Vec<String> =
            links(&read(list)).iter().map(|(_, link)| resolved(list, link)).collect();
        for page in pages().iter().filter(|page| *page != INDEX && !listed.contains(page)) {
            violations.push(format!("{list}: does not list {page}; add a line for it"));
        }
    }
    assert_none(violations);
}

#[test]
fn every_page_opens_with_what_it_answers() {
    let mut violations = Vec::new();
    for page in pages() {
        let text = read(&page);
        let mut lines = text.lines().filter(|line| !line.is_empty());
        let title = lines.next().is_some_and(|line| line.starts_with("# "));
        if !title || !lines.next().is_some_and(|line| line.starts_with(ANSWERS)) {
            violations.push(format!("{page}:1: open it with a `# Title` and `{ANSWERS} ...`"));
        }
    }
    assert_none(violations);
}

#[test]
fn the_readme_is_short() {
    let words = read("README.md").split_whitespace().count();
    println!("README.md: {words} of {README_WORDS_MAX} words");
    assert!(
        words <= README_WORDS_MAX,
        "README.md: {words} words, at most {README_WORDS_MAX}; move the rest to a page of docs/"
    );
}
