//! Caching mode of an epoch.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Caching mode of an epoch. A string in JSON, as [`fmt::Display`] writes it; unknown modes of another
/// version are preserved. `point` counts the pipeline's `autocache` points from 0.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Mode {
    /// Computed and measured.
    Profile,
    #[default]
    Compute,
    /// Computed, with the output at the point stored.
    Put {
        point: u32,
    },
    /// Read from the cache at the point.
    Get {
        point: u32,
    },
    Other(String),
}

impl Mode {
    /// The first word, which selects the colour: "profile", "compute", "put", "get", or "other".
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Mode::Profile => "profile",
            Mode::Compute => "compute",
            Mode::Put { .. } => "put",
            Mode::Get { .. } => "get",
            Mode::Other(_) => "other",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Profile | Mode::Compute => f.write_str(self.word()),
            Mode::Put { point } | Mode::Get { point } => {
                write!(f, "{} at point {point}", self.word())
            }
            Mode::Other(words) => f.write_str(words),
        }
    }
}

impl From<String> for Mode {
    fn from(words: String) -> Mode {
        let point = |of: &str| words.strip_prefix(of)?.strip_prefix(" at point ")?.parse().ok();
        match words.as_str() {
            "profile" => Mode::Profile,
            "compute" => Mode::Compute,
            _ => match (point("put"), point("get")) {
                (Some(point), _) => Mode::Put { point },
                (_, Some(point)) => Mode::Get { point },
                _ => Mode::Other(words),
            },
        }
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> String {
        mode.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_written_in_words_and_read_back() {
        let modes = [
            (Mode::Profile, "profile"),
            (Mode::Compute, "compute"),
            (Mode::Put { point: 0 }, "put at point 0"),
            (Mode::Get { point: 12 }, "get at point 12"),
            (Mode::Other("put at point -1".to_owned()), "put at point -1"),
            (Mode::Other("put".to_owned()), "put"),
            (Mode::Other(String::new()), ""),
        ];
        for (mode, words) in modes {
            assert_eq!(mode.to_string(), words);
            assert_eq!(Mode::from(words.to_owned()), mode);
        }
    }
}
