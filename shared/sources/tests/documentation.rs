//! The page of sources has the tables that the definitions of the formats make.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{fs, path::Path};

#[test]
fn the_page_of_sources_has_every_format_and_parameter() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sources.md");
    let generated = gristmill_sources::with_tables(&fs::read_to_string(&path).unwrap()).unwrap();
    if std::env::var_os("GRISTMILL_WRITE_DOCS").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let page = fs::read_to_string(&path).unwrap();
    let differ = page.lines().zip(generated.lines()).find(|(one, other)| one != other);
    assert_eq!(differ, None, "run this test with GRISTMILL_WRITE_DOCS=1");
    assert_eq!(page.len(), generated.len());
}

#[test]
fn a_table_that_is_missing_or_old_is_written() {
    let page =
        "A\n\n| `source` | records | keys of its features |\n| outdated |\n\nB\n\n## Paths\n\nC\n";
    let written = gristmill_sources::with_tables(page).unwrap();
    assert!(written.starts_with("A\n\n| `source` |") && !written.contains("outdated"));
    assert!(written.contains("| `csv: PATH`, `tsv: PATH` |"));
    let parameters = written.find("| beside `csv` |").unwrap();
    assert!(written.find("\nB\n").unwrap() < parameters);
    assert!(parameters < written.find("## Paths").unwrap());
    assert_eq!(gristmill_sources::with_tables(&written).unwrap(), written);
    assert!(gristmill_sources::with_tables("").is_err());
}
