//! The manual names the commands, flags and options of `gristmill` as they are.

use gristmill_model::wire::{OPTIONS, OptionMeaning};
use std::{collections::BTreeSet, process::Command};

const GRISTMILL: &str = env!("CARGO_BIN_EXE_gristmill");

/// Flags that name a job and its service, or that every program has.
const NO_OPTIONS: [&str; 7] =
    ["job", "backend", "endpoint", "state-dir", "help", "version", "attended"];

#[test]
fn the_manual_has_every_command() {
    gristmill_tests::assert_documented("gristmill", GRISTMILL);
}

/// The party that decides an option, as the table of docs/jobs.md puts it.
fn decider(meaning: OptionMeaning) -> &'static str {
    match meaning {
        OptionMeaning::OfJob(_) => "the job",
        OptionMeaning::OfJoiner(..) => "the joiner",
        OptionMeaning::OfRun => "the run",
        OptionMeaning::OfReader => "the reader",
    }
}

/// The flags in the first column of a row.
fn flags(text: &str) -> impl Iterator<Item = &str> {
    let marks = |part: &&str| part.starts_with("--");
    text.split('`').filter(marks).map(|flag| flag.trim_start_matches("--"))
}

#[test]
fn the_table_of_options_is_the_one_that_jobs_are_joined_by() {
    let manual = include_str!("../../docs/jobs.md");
    let rows = manual.lines().filter_map(|line| {
        let cells: Vec<_> = line.split(" | ").map(|cell| cell.trim_matches(['|', ' '])).collect();
        (cells.len() == 3 && cells[0].starts_with("`--")).then(|| (cells[0], cells[1]))
    });
    let documented: BTreeSet<_> =
        rows.flat_map(|(options, of)| flags(options).map(move |flag| (flag, of))).collect();
    let built: BTreeSet<_> =
        OPTIONS.iter().map(|(name, meaning)| (*name, decider(*meaning))).collect();
    assert_eq!(documented, built);
}

#[test]
fn each_flag_of_a_trainer_has_a_meaning_for_a_job_that_exists() {
    let known: BTreeSet<_> = OPTIONS.iter().map(|(name, _)| *name).chain(NO_OPTIONS).collect();
    for command in ["run", "fetcher"] {
        let help = Command::new(GRISTMILL).args([command, "--help"]).output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        let lines = help.lines().filter_map(|line| line.trim_start().split_once("--"));
        let defined = lines.filter(|(before, _)| before.len() <= 4 && !before.contains('`'));
        let named = defined.map(|(_, flag)| flag.split([' ', '=']).next().unwrap_or_default());
        let unknown: Vec<_> = named.filter(|flag| !known.contains(flag)).collect();
        assert!(unknown.is_empty(), "{command}: {unknown:?}");
    }
}
