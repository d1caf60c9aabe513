//! Conditional requests: pure decisions over an object's metadata.

use std::time::{SystemTime, UNIX_EPOCH};

use s3s::dto::{ETag, ETagCondition, PutObjectInput, Range, Timestamp};
use s3s::{S3Result, s3_error};

use super::record::Info;

/// Conditions of a read.
#[derive(Debug, Default)]
pub(super) struct ReadConditions {
    pub if_match: Option<ETagCondition>,
    pub if_none_match: Option<ETagCondition>,
    pub if_modified_since: Option<Timestamp>,
    pub if_unmodified_since: Option<Timestamp>,
}

/// Result of the conditions of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Proceed,
    NotModified,
    Failed,
}

impl ReadConditions {
    /// Evaluates in the order of RFC 9110, 13.2.2: a condition on the tag overrules one on the date.
    pub(super) fn judge(&self, info: &Info) -> Verdict {
        let modified = timestamp(info.modified);
        let met = match (&self.if_match, &self.if_unmodified_since) {
            (Some(condition), _) => holds(condition, &info.record.etag),
            (None, Some(limit)) => modified <= *limit,
            (None, None) => true,
        };
        if !met {
            return Verdict::Failed;
        }
        let changed = match (&self.if_none_match, &self.if_modified_since) {
            (Some(condition), _) => !holds(condition, &info.record.etag),
            (None, Some(since)) => modified > *since,
            (None, None) => true,
        };
        if changed { Verdict::Proceed } else { Verdict::NotModified }
    }
}

/// Whether a condition holds for an existing object.
pub(super) fn holds(condition: &ETagCondition, etag: &str) -> bool {
    match condition {
        ETagCondition::Any => true,
        ETagCondition::ETag(ETag::Strong(wanted)) => wanted == etag,
        ETagCondition::ETag(ETag::Weak(_)) => false,
    }
}

/// Condition for publishing a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PutCondition {
    Always,
    /// There must be no object.
    Absent,
    /// The existing object must match.
    Matches(ETagCondition),
}

impl PutCondition {
    /// # Errors
    /// `NotImplemented` for combinations that S3 does not support: `If-None-Match` with a tag, or both conditions.
    pub(super) fn of(input: &PutObjectInput) -> S3Result<Self> {
        match (&input.if_none_match, &input.if_match) {
            (None, None) => Ok(Self::Always),
            (Some(ETagCondition::Any), None) => Ok(Self::Absent),
            (None, Some(condition)) => Ok(Self::Matches(condition.clone())),
            _ => Err(s3_error!(
                NotImplemented,
                "a put takes If-None-Match: * or If-Match, and not both"
            )),
        }
    }

    /// Checks the condition against the existing object.
    ///
    /// # Errors
    /// `PreconditionFailed`, or `NoSuchKey` if there is nothing to match.
    pub(super) fn check(&self, existing: Option<&Info>) -> S3Result<()> {
        match (self, existing) {
            (Self::Always, _) | (Self::Absent, None) => Ok(()),
            (Self::Absent, Some(_)) => {
                Err(s3_error!(PreconditionFailed, "the key already has an object"))
            }
            (Self::Matches(_), None) => {
                Err(s3_error!(NoSuchKey, "there is no object for If-Match to match"))
            }
            (Self::Matches(condition), Some(info)) => {
                if holds(condition, &info.record.etag) {
                    Ok(())
                } else {
                    Err(s3_error!(PreconditionFailed, "the object is another one now"))
                }
            }
        }
    }
}

/// The requested bytes of an object of `object_bytes`, and whether they are a part of it.
///
/// # Errors
/// `InvalidRange`.
pub(super) fn resolve_range(
    range: Option<&Range>,
    object_bytes: u64,
) -> S3Result<(std::ops::Range<u64>, bool)> {
    match range {
        None => Ok((0..object_bytes, false)),
        // A suffix of an empty object is empty, and an empty range cannot be expressed.
        Some(Range::Suffix { .. }) if object_bytes == 0 => {
            Err(s3_error!(InvalidRange, "the object is empty"))
        }
        Some(range) => match range.check(object_bytes) {
            Ok(range) => Ok((range, true)),
            Err(_) => Err(s3_error!(InvalidRange, "the object has {object_bytes} bytes")),
        },
    }
}

/// Rounded to whole seconds, the precision of HTTP dates. A date that HTTP cannot express becomes 1970.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    /// The end of the year 9999.
    const LAST: u64 = 253_402_300_799;
    let since = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let seconds = if since <= LAST { since } else { 0 };
    Timestamp::from(UNIX_EPOCH + std::time::Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::record::Record;
    use std::time::Duration;

    fn info() -> Info {
        Info {
            record: Record { etag: "a".into(), object_bytes: 10, ..Record::default() },
            // With half a second: dates are compared in whole seconds.
            modified: UNIX_EPOCH + Duration::from_millis(100_500),
        }
    }

    fn tag(text: &str) -> Option<ETagCondition> {
        Some(ETagCondition::ETag(ETag::Strong(text.into())))
    }

    fn at(seconds: u64) -> Option<Timestamp> {
        Some(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)))
    }

    #[test]
    fn conditions_of_a_read() {
        use Verdict::{Failed, NotModified, Proceed};
        let none = ReadConditions::default;
        let cases = [
            (none(), Proceed),
            (ReadConditions { if_match: tag("a"), ..none() }, Proceed),
            (ReadConditions { if_match: tag("b"), ..none() }, Failed),
            (ReadConditions { if_match: Some(ETagCondition::Any), ..none() }, Proceed),
            (ReadConditions { if_none_match: tag("a"), ..none() }, NotModified),
            (ReadConditions { if_none_match: tag("b"), ..none() }, Proceed),
            (ReadConditions { if_modified_since: at(100), ..none() }, NotModified),
            (ReadConditions { if_modified_since: at(99), ..none() }, Proceed),
            (ReadConditions { if_unmodified_since: at(100), ..none() }, Proceed),
            (ReadConditions { if_unmodified_since: at(99), ..none() }, Failed),
            (ReadConditions { if_match: tag("a"), if_unmodified_since: at(99), ..none() }, Proceed),
            (
                ReadConditions { if_none_match: tag("b"), if_modified_since: at(100), ..none() },
                Proceed,
            ),
        ];
        for (conditions, verdict) in cases {
            assert_eq!(conditions.judge(&info()), verdict, "{conditions:?}");
        }
    }

    #[test]
    fn conditions_of_a_put() {
        let info = info();
        let matches = |text| PutCondition::Matches(tag(text).unwrap());
        assert!(PutCondition::Always.check(Some(&info)).is_ok());
        assert!(PutCondition::Absent.check(None).is_ok());
        assert!(PutCondition::Absent.check(Some(&info)).is_err());
        assert!(matches("a").check(Some(&info)).is_ok());
        assert!(matches("b").check(Some(&info)).is_err());
        assert!(matches("a").check(None).is_err());
    }

    #[test]
    fn a_date_out_of_range_does_not_panic() {
        for time in [UNIX_EPOCH - Duration::from_secs(1), UNIX_EPOCH + Duration::from_secs(1 << 60)]
        {
            assert_eq!(timestamp(time), timestamp(UNIX_EPOCH));
        }
    }

    #[test]
    fn ranges() {
        let int = |first, last| Range::Int { first, last };
        assert_eq!(resolve_range(None, 0).unwrap(), (0..0, false));
        assert_eq!(resolve_range(Some(&int(2, Some(4))), 10).unwrap(), (2..5, true));
        assert_eq!(resolve_range(Some(&int(2, Some(99))), 10).unwrap(), (2..10, true));
        assert_eq!(resolve_range(Some(&int(2, None)), 10).unwrap(), (2..10, true));
        assert_eq!(resolve_range(Some(&Range::Suffix { length: 3 }), 10).unwrap(), (7..10, true));
        assert_eq!(resolve_range(Some(&Range::Suffix { length: 30 }), 10).unwrap(), (0..10, true));
        assert!(resolve_range(Some(&int(10, None)), 10).is_err());
        assert!(resolve_range(Some(&Range::Suffix { length: 0 }), 10).is_err());
        assert!(resolve_range(Some(&Range::Suffix { length: 1 }), 0).is_err());
    }
}
