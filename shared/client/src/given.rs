//! Which options of a command line were given, and did not take their defaults.

use clap::{ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};
use gristmill_model::wire::GivenOptions;
use std::collections::BTreeSet;

/// The names of the options that were given, such as `split-batches`; by default all, as of a program that fills in the
/// options itself. It has no options of its own: flatten it before those, which are taken out as they
/// are read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GivenOptionNames(Option<BTreeSet<String>>);

impl GivenOptionNames {
    /// The options as a registration has them.
    pub fn options(&self) -> GivenOptions {
        self.0.clone().map_or(GivenOptions::ALL, GivenOptions::only)
    }

    /// Whether a command line names the option.
    pub fn names(&self, option: &str) -> bool {
        self.0.as_ref().is_some_and(|names| names.contains(option))
    }
}

impl FromArgMatches for GivenOptionNames {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |id: &&clap::Id| {
            // A group has the name of its type.
            let is_option = !id.as_str().starts_with(char::is_uppercase);
            let source = matches.value_source(id.as_str());
            is_option && source.is_some_and(|source| source != ValueSource::DefaultValue)
        };
        let given = matches.ids().filter(is_given);
        Ok(Self(Some(given.map(|id| id.as_str().replace('_', "-")).collect())))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for GivenOptionNames {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        given: GivenOptionNames,
        #[arg(long, default_value_t = 3)]
        epochs: u32,
        #[arg(long)]
        split_batches: Option<u32>,
    }

    #[test]
    fn an_option_is_given_also_with_its_default() {
        let given = |line: &[&str]| -> Vec<String> {
            let line = Line::parse_from(["run"].iter().chain(line));
            assert_eq!((line.epochs, line.split_batches.unwrap_or(2)), (3, 2));
            line.given.0.unwrap().into_iter().collect()
        };
        assert!(given(&[]).is_empty());
        assert_eq!(given(&["--epochs", "3"]), ["epochs"]);
        assert_eq!(given(&["--split-batches", "2"]), ["split-batches"]);
    }
}
