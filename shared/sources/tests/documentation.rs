//! The page of sources has the tables that the definitions of the formats make.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{fs, path::Path};

#[test]
fn the_page_of_sources_has_every_format_and_parameter() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sources.md");
    let page = fs::read_to_string(page).unwrap();
    for table in gristmill_sources::markdown().split("\n\n") {
        assert!(
            page.contains(table.trim_end()),
            "docs/sources.md must have this table, as it is:\n\n{table}"
        );
    }
}
