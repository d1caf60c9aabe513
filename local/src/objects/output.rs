//! Object headers, common to responses of different types.

use s3s::dto::{ChecksumMode, ETag, GetObjectOutput, HeadObjectOutput};

use super::conditions::timestamp;
use super::record::Info;

/// S3's default content type.
const DEFAULT_CONTENT_TYPE: &str = "binary/octet-stream";

/// Sets the checksums of a response. The types have the same fields but no common trait.
macro_rules! with_checksums {
    ($output:ident, $record:expr) => {
        for (algorithm, sum) in &$record.checksums {
            let sum = Some(sum.clone());
            match algorithm {
                $crate::objects::checksums::Algorithm::Crc32 => $output.checksum_crc32 = sum,
                $crate::objects::checksums::Algorithm::Crc32c => $output.checksum_crc32c = sum,
                $crate::objects::checksums::Algorithm::Crc64Nvme => {
                    $output.checksum_crc64nvme = sum;
                }
                $crate::objects::checksums::Algorithm::Sha1 => $output.checksum_sha1 = sum,
                $crate::objects::checksums::Algorithm::Sha256 => $output.checksum_sha256 = sum,
            }
            $output.checksum_type =
                Some(s3s::dto::ChecksumType::from_static(s3s::dto::ChecksumType::FULL_OBJECT));
        }
    };
}
pub(super) use with_checksums;

/// Sets the fields of a response that describe an object.
macro_rules! described {
    ($output:ident, $info:ident) => {
        let record = &$info.record;
        $output.accept_ranges = Some("bytes".to_owned());
        $output.cache_control = record.cache_control.clone();
        $output.content_disposition = record.content_disposition.clone();
        $output.content_encoding = record.content_encoding.clone();
        $output.content_language = record.content_language.clone();
        let content_type = record.content_type.as_deref().unwrap_or(DEFAULT_CONTENT_TYPE);
        $output.content_type = Some(content_type.to_owned());
        $output.e_tag = Some(ETag::Strong(record.etag.clone()));
        $output.last_modified = Some(timestamp($info.modified));
        $output.metadata = Some(record.metadata.clone());
    };
}

/// A part of an object, or the whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Portion {
    pub range: std::ops::Range<u64>,
    pub is_partial: bool,
}

impl Portion {
    fn length(&self) -> Option<i64> {
        i64::try_from(self.range.end - self.range.start).ok()
    }

    fn content_range(&self, object_bytes: u64) -> Option<String> {
        let last = self.range.end.checked_sub(1).filter(|_| self.is_partial)?;
        Some(format!("bytes {}-{last}/{object_bytes}", self.range.start))
    }
}

pub(super) fn get_output(
    info: &Info,
    portion: &Portion,
    mode: Option<&ChecksumMode>,
) -> GetObjectOutput {
    let mut output = GetObjectOutput::default();
    described!(output, info);
    output.content_length = portion.length();
    output.content_range = portion.content_range(info.record.object_bytes);
    if is_asked(mode) && !portion.is_partial {
        with_checksums!(output, info.record);
    }
    output
}

pub(super) fn head_output(
    info: &Info,
    portion: &Portion,
    mode: Option<&ChecksumMode>,
) -> HeadObjectOutput {
    let mut output = HeadObjectOutput::default();
    described!(output, info);
    output.content_length = portion.length();
    output.content_range = portion.content_range(info.record.object_bytes);
    if is_asked(mode) && !portion.is_partial {
        with_checksums!(output, info.record);
    }
    output
}

fn is_asked(mode: Option<&ChecksumMode>) -> bool {
    mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED)
}
