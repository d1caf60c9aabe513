//! Choices of a job: how often a trainer gets each record of an epoch (tf.data service, section 3.4), how splits are
//! assigned, and whether objects are compressed.

use crate::words::words;
use serde::{Deserialize, Serialize};

/// Delivery guarantee for a trainer that restarts.
///
/// Deaths of workers and functions never lose or duplicate a record. The modes differ in when a
/// batch counts as consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Visitation {
    /// Begins at its checkpoint. Batches after that come again, byte for byte.
    #[default]
    ExactlyOnce,
    /// A batch counts as consumed before it is handed over: none is ever handed over twice, and those
    /// in flight are lost.
    AtMostOnce,
    /// A batch counts as consumed some time after it was handed over: the last ones may come again,
    /// and what a trainer did not use is not missed.
    ZeroOnceOrMore,
}

/// Assignment of splits to workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharding {
    /// An epoch is the dataset: splits go to the next worker that claims.
    #[default]
    Dynamic,
    /// An epoch is the dataset once for each worker the job was registered with, each time in
    /// another order; `__copy__` distinguishes the visits of a record.
    Off,
}

impl Sharding {
    /// Whether an epoch is the dataset once.
    pub fn is_dynamic(self) -> bool {
        self == Self::Dynamic
    }
}

words!(
    Visitation,
    "a visitation",
    ExactlyOnce = "exactly-once",
    AtMostOnce = "at-most-once",
    ZeroOnceOrMore = "zero-once-or-more"
);
words!(Sharding, "a sharding", Dynamic = "dynamic", Off = "off");

/// How a worker leaves that is not wanted any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerRemoval {
    /// After the split at hand.
    #[default]
    Split,
    /// At once: another worker does the split at hand again.
    Now,
}

impl WorkerRemoval {
    /// Whether the split at hand is finished.
    pub fn finishes_split(&self) -> bool {
        *self == Self::Split
    }
}

words!(WorkerRemoval, "a removal", Split = "split", Now = "now");

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
