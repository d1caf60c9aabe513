//! Caching mode of an epoch.

use std::fmt;

/// Caching mode of an epoch. `point` counts the pipeline's `autocache` points from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimelineMode {
    /// Computed and measured.
    Profile,
    #[default]
    Compute,
    /// Computed, with the output at the point stored.
    Put { point: u32 },
    /// Read from the cache at the point.
    Get { point: u32 },
}

impl TimelineMode {
    /// The first word, which selects the colour: "profile", "compute", "put" or "get".
    pub(crate) fn word(&self) -> &'static str {
        match self {
            TimelineMode::Profile => "profile",
            TimelineMode::Compute => "compute",
            TimelineMode::Put { .. } => "put",
            TimelineMode::Get { .. } => "get",
        }
    }
}

impl fmt::Display for TimelineMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TimelineMode::Profile | TimelineMode::Compute => f.write_str(self.word()),
            TimelineMode::Put { point } | TimelineMode::Get { point } => {
                write!(f, "{} at point {point}", self.word())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_written_in_words() {
        let modes = [
            (TimelineMode::Profile, "profile"),
            (TimelineMode::Compute, "compute"),
            (TimelineMode::Put { point: 0 }, "put at point 0"),
            (TimelineMode::Get { point: 12 }, "get at point 12"),
        ];
        for (mode, words) in modes {
            assert_eq!(mode.to_string(), words);
        }
    }
}
