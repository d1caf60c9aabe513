//! Source records: their keys, and policies for bad ones.

use crate::words::words;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Names one source record of a dataset: `file index << 32 | record index`, both zero-based, files
/// in the dataset's listing order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RecordKey {
    pub file: u32,
    pub record: u32,
}

impl RecordKey {
    /// The key as delivered in the `__key__` tensor (u64).
    pub const fn packed(self) -> u64 {
        (self.file as u64) << 32 | self.record as u64
    }

    /// The inverse of [`RecordKey::packed`].
    pub const fn unpack(packed: u64) -> Self {
        Self { file: (packed >> 32) as u32, record: packed as u32 }
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file {} record {}", self.file, self.record)
    }
}

/// Policy for a record that cannot be read or decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ErrorPolicy {
    /// The job fails and names the record.
    #[default]
    Fail,
    /// The record is left out, counted and listed.
    Skip,
    /// As skip; the raw record is also copied to the quarantine.
    Quarantine,
}

words!(ErrorPolicy, "an error policy", Fail = "fail", Skip = "skip", Quarantine = "quarantine");

/// Most records of an epoch that the `skip` and `quarantine` policies leave out before the job fails after
/// all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SkipLimit {
    Records(u64),
    /// Share of an epoch's records, in millionths.
    Share(u32),
}

const MILLION: u64 = 1_000_000;

impl SkipLimit {
    /// Records that an epoch of `records` may leave out. A share allows at least one: one bad
    /// record of twenty exceeds a percent, but does not show that all are bad.
    pub fn allowed(self, records: u64) -> u64 {
        match self {
            Self::Records(most) => most,
            Self::Share(0) => 0,
            Self::Share(millionths) => {
                let share = u128::from(records) * u128::from(millionths) / u128::from(MILLION);
                u64::try_from(share).unwrap_or(u64::MAX).max(1)
            }
        }
    }
}

/// One percent.
impl Default for SkipLimit {
    fn default() -> Self {
        Self::Share(10_000)
    }
}

impl FromStr for SkipLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "{text:?} is not a limit: give a number of records, or a share such as 1% or 0.1%"
            )
        };
        let Some(percent) = text.strip_suffix('%') else {
            return text.parse().map(Self::Records).map_err(|_| bad());
        };
        let percent: f64 = percent.trim().parse().map_err(|_| bad())?;
        if (0.0..=100.0).contains(&percent) {
            Ok(Self::Share((percent * 10_000.0).round() as u32))
        } else {
            Err(bad())
        }
    }
}

impl fmt::Display for SkipLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Records(records) => write!(f, "{records}"),
            Self::Share(millionths) => write!(f, "{}%", f64::from(millionths) / 10_000.0),
        }
    }
}

impl TryFrom<String> for SkipLimit {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<SkipLimit> for String {
    fn from(limit: SkipLimit) -> Self {
        limit.to_string()
    }
}

/// One record left out of an epoch, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedRecord {
    pub key: RecordKey,
    /// The operator (or source) that refused it, as the pipeline file names it.
    pub op: String,
    /// One line: what is wrong with the record.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_allows_one_record_at_least_and_a_count_itself() {
        let allowed = |text: &str, records| text.parse::<SkipLimit>().unwrap().allowed(records);
        assert_eq!([20, 400, 1_000_000].map(|records| allowed("1%", records)), [1, 4, 10_000]);
        assert_eq!((allowed("0%", 400), allowed("100%", 400)), (0, 400));
        assert_eq!((allowed("0", 400), allowed("7", 3)), (0, 7));
        assert_eq!(allowed("0.1%", 10_000), 10);
        for text in ["1%", "0.1%", "100%", "0", "12"] {
            assert_eq!(text.parse::<SkipLimit>().unwrap().to_string(), text);
        }
        for text in ["", "%", "-1", "101%", "nan%", "1.5", "many"] {
            assert!(text.parse::<SkipLimit>().is_err(), "{text}");
        }
        assert_eq!(SkipLimit::default().to_string(), "1%");
    }

    #[test]
    fn keys_round_trip() {
        let key = RecordKey { file: 7, record: u32::MAX };
        assert_eq!(RecordKey::unpack(key.packed()), key);
        assert_eq!(key.packed(), 7 << 32 | 0xffff_ffff);
    }

    #[test]
    fn policies_round_trip_as_text() {
        for policy in [ErrorPolicy::Fail, ErrorPolicy::Skip, ErrorPolicy::Quarantine] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("Skip".parse::<ErrorPolicy>().is_err());
    }
}
