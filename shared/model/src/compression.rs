//! Compression of a job's objects.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Whether workers compress what they store. Trainers get the same bytes either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    None,
    /// Every frame is compressed with zstd, unless it does not get smaller.
    Zstd,
    /// Workers compress if they wait for their network rather than for their processor.
    #[default]
    Auto,
}

impl Compression {
    /// All choices, by name.
    pub const CHOICES: [(&str, Self); 3] =
        [("none", Self::None), ("zstd", Self::Zstd), ("auto", Self::Auto)];
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::CHOICES.into_iter().find(|(name, _)| *name == text);
        let unknown = || format!("{text:?} is not a compression: use none, zstd or auto");
        found.map(|(_, compression)| compression).ok_or_else(unknown)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Zstd => "zstd",
            Self::Auto => "auto",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for (name, compression) in Compression::CHOICES {
            assert_eq!(compression.to_string(), name);
            assert_eq!(name.parse(), Ok(compression));
        }
        assert!("gzip".parse::<Compression>().unwrap_err().contains("none, zstd or auto"));
    }
}
