//! Ranks that take the same batches.
//!
//! A model that is spread over several processes, by tensor, pipeline or context parallelism, needs one batch in all of
//! them. Such ranks are replicas of one data rank: each is a rank of its own, which connects, acknowledges and saves, and
//! all of them are given the same bytes.

use serde::{Deserialize, Serialize};
use std::{fmt, num::NonZeroU32, str::FromStr};

/// How the ranks that take the same batches lie among all ranks of a run.
///
/// The ranks are counted as launchers and `torch.distributed` count them, through a mesh whose last dimension goes
/// fastest. One of its dimensions is that of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RankReplicas {
    /// Ranks in the dimensions before that of the data, multiplied.
    pub outer: NonZeroU32,
    /// Ranks in the dimensions after that of the data, multiplied: so many neighbours take the same batches.
    pub inner: NonZeroU32,
}

impl Default for RankReplicas {
    fn default() -> Self {
        Self { outer: NonZeroU32::MIN, inner: NonZeroU32::MIN }
    }
}

impl RankReplicas {
    /// Whether each rank takes batches of its own.
    pub fn is_one(&self) -> bool {
        *self == Self::default()
    }

    /// Ranks that take one batch.
    pub fn count(self) -> u64 {
        u64::from(self.outer.get()) * u64::from(self.inner.get())
    }

    /// Data ranks of `ranks` ranks; none if they cannot be divided so.
    pub fn data_ranks(self, ranks: NonZeroU32) -> Option<u32> {
        let ranks = u64::from(ranks.get());
        let is_whole = ranks.is_multiple_of(self.count());
        u32::try_from(ranks / self.count()).ok().filter(|_| is_whole)
    }

    /// Why `ranks` ranks cannot be divided so, one line; none if they can.
    pub fn refusal(self, ranks: NonZeroU32) -> Option<String> {
        self.data_ranks(ranks).is_none().then(|| {
            format!(
                "{ranks} ranks are no multiple of {} replicas: count all processes of the run as ranks, and give as \
                 replicas those that take the same batch",
                self.count()
            )
        })
    }
}

impl fmt::Display for RankReplicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.outer.get() {
            1 => write!(f, "{}", self.inner),
            outer => write!(f, "{outer}x{}", self.inner),
        }
    }
}

impl From<RankReplicas> for String {
    fn from(replicas: RankReplicas) -> Self {
        replicas.to_string()
    }
}

impl TryFrom<String> for RankReplicas {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for RankReplicas {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (outer, inner) = text.split_once('x').unwrap_or(("1", text));
        let parsed = outer.parse().ok().zip(inner.parse().ok());
        parsed.map(|(outer, inner)| Self { outer, inner }).ok_or_else(|| {
            format!(
                "{text:?} are no replicas: give their number, such as 2, or the sizes of the mesh before and after \
                 its data dimension, such as 2x4"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replicas(text: &str) -> RankReplicas {
        text.parse().unwrap()
    }

    #[test]
    fn replicas_are_read_as_they_are_written() {
        for text in ["1", "2", "2x1", "2x4"] {
            assert_eq!(replicas(text).to_string(), text);
        }
        assert_eq!((replicas("1x4"), replicas("2x4").count()), (replicas("4"), 8));
        assert!(replicas("1").is_one() && !replicas("2x1").is_one());
        for text in ["", "0", "2x0", "x2", "2x", "2x2x2", "-1", "two"] {
            let refused = text.parse::<RankReplicas>().unwrap_err();
            assert!(refused.contains("are no replicas: give their number"), "{refused}");
        }
    }

    #[test]
    fn all_ranks_are_divided_evenly() {
        let count = |count| NonZeroU32::new(count).unwrap();
        assert_eq!(replicas("2x2").data_ranks(count(12)), Some(3));
        assert_eq!(replicas("2x2").data_ranks(count(10)), None);
        let most = u32::MAX.to_string();
        assert_eq!(replicas(&format!("{most}x{most}")).data_ranks(count(4)), None);
        assert_eq!(replicas("2").refusal(count(4)), None);
        let why = replicas("3").refusal(count(8)).unwrap();
        assert!(why.starts_with("8 ranks are no multiple of 3 replicas"), "{why}");
    }
}
