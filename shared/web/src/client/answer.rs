//! Responses of web servers, classified.

use gristmill_ports::{ObjectError, ObjectPath};
use reqwest::{
    Response, StatusCode,
    header::{
        CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName, LAST_MODIFIED,
        RETRY_AFTER,
    },
};
use std::{ops::Range, time::Duration};

/// Longest accepted `Retry-After`.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// A response to a range request.
#[derive(Debug)]
pub(crate) enum RangeResponse {
    /// Bytes `range` of a file of `total` bytes, in version `tag`.
    Part { range: Range<u64>, total: u64, tag: String },
    /// The range begins after the end of a file of `total` bytes.
    Behind { total: u64, tag: String },
    /// Try again, after `rest` if the server asked for one.
    Later { why: String, rest: Option<Duration> },
}

fn header(response: &Response, name: HeaderName) -> Option<&str> {
    response.headers().get(name)?.to_str().ok()
}

/// Name of a file's version. `None` if the server sends nothing that changes with the content.
fn tag(response: &Response, total: u64) -> Option<String> {
    let strong = header(response, ETAG).filter(|tag| !tag.starts_with("W/"));
    let version = strong.or_else(|| header(response, LAST_MODIFIED))?;
    Some(format!("{total} {version}"))
}

impl RangeResponse {
    /// Classifies the head of `response` to a range request for `path`.
    pub fn from_response(response: &Response, path: &ObjectPath) -> Result<Self, ObjectError> {
        let status = response.status();
        let rejected = |why: String| Err(ObjectError::Rejected(format!("{path}: {why}")));
        let tagged = |total| {
            let why = "the server gives it neither an ETag nor a date of its last change, so that a change would go unnoticed";
            tag(response, total).ok_or_else(|| ObjectError::Rejected(format!("{path}: {why}")))
        };
        match status {
            StatusCode::PARTIAL_CONTENT => {
                if let Some(encoding) = header(response, CONTENT_ENCODING) {
                    return rejected(format!("the server sends it as {encoding}, which does not allow range reads"));
                }
                match header(response, CONTENT_RANGE).and_then(parse_content_range) {
                    Some((Some(range), total)) => Ok(Self::Part { range, total, tag: tagged(total)? }),
                    _ => rejected("the server does not say which bytes it sends".to_owned()),
                }
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                match header(response, CONTENT_RANGE).and_then(parse_content_range) {
                    Some((None, total)) => Ok(Self::Behind { total, tag: tag(response, total).unwrap_or_default() }),
                    _ => rejected("the server does not send ranges of it".to_owned()),
                }
            }
            StatusCode::OK if header(response, CONTENT_LENGTH) == Some("0") => {
                Ok(Self::Behind { total: 0, tag: tagged(0)? })
            }
            StatusCode::OK => rejected(
                "the server sends the whole file where a range is asked for: copy the data to one that knows ranges, \
                 to S3, or to this machine"
                    .to_owned(),
            ),
            StatusCode::PRECONDITION_FAILED => Err(ObjectError::Changed(path.clone())),
            StatusCode::NOT_FOUND | StatusCode::GONE => Err(ObjectError::NotFound(path.clone())),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(ObjectError::Denied(format!(
                "{path}: the server answers {status}; GRISTMILL_WEB_AUTHORIZATION gives it credentials"
            ))),
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Ok(Self::later(response)),
            status if status.is_server_error() => Ok(Self::later(response)),
            status => rejected(format!("the server answers {status}")),
        }
    }

    fn later(response: &Response) -> Self {
        let rest = header(response, RETRY_AFTER).and_then(|seconds| seconds.parse().ok());
        let rest = rest.map(|seconds| Duration::from_secs(seconds).min(LONGEST_REST));
        Self::Later { why: format!("the server answers {}", response.status()), rest }
    }
}

/// Range, if any, and total length: `bytes 0-9/100`, `bytes */100`.
fn parse_content_range(text: &str) -> Option<(Option<Range<u64>>, u64)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let total = total.trim().parse().ok()?;
    if range.trim() == "*" {
        return Some((None, total));
    }
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last && last < total).then(|| (Some(first..last + 1), total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_or_refused() {
        assert_eq!(parse_content_range("bytes 0-9/100"), Some((Some(0..10), 100)));
        assert_eq!(parse_content_range("bytes */100"), Some((None, 100)));
        for bad in [
            "bytes 9-0/100",
            "bytes 0-100/100",
            "bytes 0-9/*",
            "0-9/100",
            "bytes 0-9",
            "bytes a-b/c",
        ] {
            assert_eq!(parse_content_range(bad), None, "{bad}");
        }
    }
}
