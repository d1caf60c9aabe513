//! Source records: how one is named, and what becomes of a bad one.

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

/// What a job does with a record that cannot be read or decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ErrorPolicy {
    /// The job fails and names the record.
    #[default]
    Fail,
    /// The record is left out, counted and listed.
    Skip,
    /// As skip, and the raw record is copied aside.
    Quarantine,
}

impl FromStr for ErrorPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "fail" => Ok(Self::Fail),
            "skip" => Ok(Self::Skip),
            "quarantine" => Ok(Self::Quarantine),
            _ => Err(format!("{text:?} is not an error policy: use fail, skip or quarantine")),
        }
    }
}

impl fmt::Display for ErrorPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fail => "fail",
            Self::Skip => "skip",
            Self::Quarantine => "quarantine",
        })
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
