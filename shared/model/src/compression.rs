//! Compression of a job's objects.

use crate::words::words;
use serde::{Deserialize, Serialize};

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

words!(Compression, "a compression", None = "none", Zstd = "zstd", Auto = "auto");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for (name, compression) in Compression::CHOICES {
            assert_eq!(compression.to_string(), name);
            assert_eq!(name.parse(), Ok(compression));
        }
        assert!("gzip".parse::<Compression>().unwrap_err().contains("none, zstd, auto"));
    }
}
