//! The HTTP client: range reads over as many requests as it takes.

mod public_resolver;

#[cfg(test)]
mod tests;

use crate::AllowedServers;
use bytes::{Bytes, BytesMut};
use gristmill_ports::{
    BufferPool, MAX_GET_BYTES, ObjectError, ObjectInfo, ObjectPath, ReadTimeout,
};
use public_resolver::PublicResolver;
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{
        ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG,
        HeaderName, HeaderValue, LAST_MODIFIED, RANGE, RETRY_AFTER,
    },
    redirect::Policy,
};
use std::{
    collections::BTreeMap,
    error::Error,
    ops::Range,
    sync::{Arc, OnceLock},
    time::Duration,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_REDIRECTS: usize = 10;
const AUTHORIZATION_VARIABLE: &str = "GRISTMILL_WEB_AUTHORIZATION";

/// Files of web servers.
#[derive(Debug)]
pub struct WebObjects {
    /// Created on first use: reading this machine's certificates takes time.
    client: OnceLock<Result<Client, String>>,
    pub(crate) reach: AllowedServers,
    pub(crate) buffers: BufferPool,
    pub(crate) read_timeout: ReadTimeout,
    /// Authorization header by server.
    authorization: BTreeMap<String, HeaderValue>,
}

impl WebObjects {
    /// Reads from servers within `reach`. `authorization` has a line `HOST VALUE` for each server that
    /// requires credentials, such as `data.example.com Bearer 1234`; they are sent to no other
    /// server. The error has the number of the malformed line, not its content.
    pub fn new(reach: AllowedServers, authorization: &str) -> Result<Self, String> {
        let authorization = parse_authorization(authorization)?;
        Ok(Self {
            client: OnceLock::new(),
            reach,
            buffers: BufferPool::default(),
            read_timeout: ReadTimeout::default(),
            authorization,
        })
    }

    /// Reads credentials from the environment variable `GRISTMILL_WEB_AUTHORIZATION`.
    pub(crate) fn from_env(reach: AllowedServers) -> Result<Self, String> {
        Self::new(reach, &std::env::var(AUTHORIZATION_VARIABLE).unwrap_or_default())
    }

    pub(crate) fn client(&self) -> Result<&Client, ObjectError> {
        let made =
            self.client.get_or_init(|| client(self.reach).map_err(|error| error.to_string()));
        let failed = |why| ObjectError::Rejected(format!("no client for web servers: {why}"));
        made.as_ref().map_err(failed)
    }
}

fn client(reach: AllowedServers) -> reqwest::Result<Client> {
    let redirects = Policy::custom(move |attempt| {
        let secure = |url: &reqwest::Url| url.scheme() == "https";
        let downgraded = attempt.previous().last().is_some_and(secure) && !secure(attempt.url());
        if attempt.previous().len() > MAX_REDIRECTS {
            attempt.error("too many redirects")
        } else if downgraded {
            attempt.error("redirected from https to http")
        } else if let Err(why) = reach.check(attempt.url()) {
            attempt.error(why)
        } else {
            attempt.follow()
        }
    });
    let builder = Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(redirects)
        .referer(false)
        .user_agent(concat!("gristmill/", env!("CARGO_PKG_VERSION")));
    match reach {
        // A proxy would resolve names itself, past the check.
        AllowedServers::Public => builder.no_proxy().dns_resolver(Arc::new(PublicResolver)),
        AllowedServers::Any => builder,
    }
    .build()
}

fn parse_authorization(text: &str) -> Result<BTreeMap<String, HeaderValue>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let pairs = (1..).zip(lines).map(|(number, line)| {
        let wrong = || format!("{AUTHORIZATION_VARIABLE}: line {number} is not `HOST VALUE`");
        let (host, value) = line.split_once(char::is_whitespace).ok_or_else(wrong)?;
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| wrong())?;
        value.set_sensitive(true);
        Ok((host.to_ascii_lowercase(), value))
    });
    pairs.collect()
}

/// The address of an object.
fn url(path: &ObjectPath) -> Result<Url, String> {
    let text = format!("{}/{}", path.bucket, path.key);
    Url::parse(&text).map_err(|error| format!("{path} is not a valid address: {error}"))
}

/// Why `origin` cannot be a server's.
pub(crate) fn refusal(origin: &str) -> Option<String> {
    let why = Url::parse(origin).err()?;
    Some(format!("{origin} is not a valid address: {why}"))
}

/// Marks an error as a web server's.
pub(crate) fn server_error(error: ObjectError) -> ObjectError {
    let named = |why| format!("web server: {why}");
    match error {
        ObjectError::Unavailable(why) => ObjectError::Unavailable(named(why)),
        ObjectError::Full(why) => ObjectError::Full(named(why)),
        ObjectError::Denied(why) => ObjectError::Denied(named(why)),
        ObjectError::Rejected(why) => ObjectError::Rejected(named(why)),
        of_object @ (ObjectError::NotFound(_) | ObjectError::Changed(_)) => of_object,
    }
}

/// Failed requests in a row before a read gives up.
const TRIES: u32 = 5;
/// Silences of a server, in a row or not, before a read gives up: its error then explains the wait.
const SILENCES: u32 = 3;
const SILENCE: &str = "the server does not answer in time";
const FIRST_REST: Duration = Duration::from_millis(100);
/// Limit for all requests of one read.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// A read in progress.
struct Reading<'a> {
    path: &'a ObjectPath,
    range: Range<u64>,
    /// Required version.
    tag: Option<&'a str>,
    buffer: BytesMut,
}

/// A request that returned less than was asked for. `rest`: how long the server asks to wait.
#[derive(Debug)]
struct Broken {
    why: String,
    rest: Option<Duration>,
}

/// Failures of one read.
#[derive(Default)]
struct Failures {
    in_a_row: u32,
    silences: u32,
}

impl Failures {
    /// Counts a failure, and rests until the next try. Fails if the read of `path` has failed too
    /// often.
    async fn rest(&mut self, path: &ObjectPath, broken: Broken) -> Result<(), ObjectError> {
        self.in_a_row += 1;
        self.silences += u32::from(broken.why == SILENCE);
        if self.in_a_row >= TRIES || self.silences >= SILENCES {
            return Err(ObjectError::Unavailable(format!("{path}: {}", broken.why)));
        }
        let doubled = FIRST_REST * 2_u32.pow(self.in_a_row - 1);
        tokio::time::sleep(broken.rest.unwrap_or(doubled)).await;
        Ok(())
    }
}

impl WebObjects {
    /// Length and version of the file at `path`; none if there is no such file.
    pub(crate) async fn look(&self, path: &ObjectPath) -> Result<Option<ObjectInfo>, ObjectError> {
        let mut failures = Failures::default();
        loop {
            let answer = match self.ask(path, &(0..1)).await {
                Ok(response) => RangeResponse::from_response(&response, path),
                Err(error) => Err(error),
            };
            let broken = match answer {
                Ok(
                    RangeResponse::Part { total, tag, .. } | RangeResponse::Behind { total, tag },
                ) => {
                    let found = ObjectInfo { key: path.key.clone(), size: total, etag: tag };
                    return Ok(Some(found));
                }
                Ok(RangeResponse::Later(broken)) => broken,
                Err(ObjectError::Unavailable(why)) => Broken { why, rest: None },
                Err(ObjectError::NotFound(_)) => return Ok(None),
                Err(error) => return Err(error),
            };
            failures.rest(path, broken).await?;
        }
    }

    /// Bytes `range` of the file at `path`, in the version `tag` if one is given.
    pub(crate) async fn read(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        tag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        let bytes = range.end.checked_sub(range.start).filter(|bytes| *bytes <= MAX_GET_BYTES);
        let Some(bytes) = bytes.and_then(|bytes| usize::try_from(bytes).ok()) else {
            let Range { start, end } = range;
            let why =
                format!("{path}: {start}..{end} is not a range of at most {MAX_GET_BYTES} bytes");
            return Err(ObjectError::Rejected(why));
        };
        if bytes == 0 {
            return Ok(Bytes::new());
        }
        let reading = Reading { path, range, tag, buffer: self.buffers.take(bytes) };
        let read = tokio::time::timeout(READ_TIMEOUT, self.read_all(reading)).await;
        let late = |_| {
            ObjectError::Unavailable(format!(
                "{path}: not read within {} s",
                READ_TIMEOUT.as_secs()
            ))
        };
        read.map_err(late)?
    }

    async fn read_all(&self, mut reading: Reading<'_>) -> Result<Bytes, ObjectError> {
        let mut failures = Failures::default();
        loop {
            let before = reading.buffer.len();
            let Some(broken) = self.read_some(&mut reading).await? else {
                return Ok(self.buffers.lend(reading.buffer));
            };
            // Connections that break off occasionally are no reason to give up.
            if reading.buffer.len() > before {
                failures.in_a_row = 0;
            }
            failures.rest(reading.path, broken).await?;
        }
    }

    /// Continues a read. `None` if it is complete.
    async fn read_some(&self, reading: &mut Reading<'_>) -> Result<Option<Broken>, ObjectError> {
        let Reading { path, range, tag, buffer } = reading;
        let requested = range.start + buffer.len() as u64..range.end;
        let broken = |why: String| Ok(Some(Broken { why, rest: None }));
        let mut response = match self.ask(path, &requested).await {
            Ok(response) => response,
            Err(ObjectError::Unavailable(why)) => return broken(why),
            Err(error) => return Err(error),
        };
        match RangeResponse::from_response(&response, path)? {
            RangeResponse::Later(broken) => return Ok(Some(broken)),
            RangeResponse::Part { tag: found, .. } | RangeResponse::Behind { tag: found, .. }
                if tag.is_some_and(|tag| tag != found) =>
            {
                return Err(ObjectError::Changed(path.clone()));
            }
            RangeResponse::Behind { total, .. } => {
                let why = format!("{path}: bytes {requested:?} of a file of {total} bytes");
                return Err(ObjectError::Rejected(why));
            }
            RangeResponse::Part { range: sent, .. }
                if sent.start != requested.start || sent.end > requested.end =>
            {
                let why = format!("{path}: the server sends bytes {sent:?} for {requested:?}");
                return Err(ObjectError::Rejected(why));
            }
            RangeResponse::Part { .. } => {}
        }
        loop {
            let Some(chunk) = self.read_timeout.wait_for_more(response.chunk()).await else {
                return broken(SILENCE.to_owned());
            };
            match chunk {
                Ok(Some(chunk)) => {
                    let room = (range.end - range.start) as usize - buffer.len();
                    if chunk.len() > room {
                        let why = format!("{path}: the server sends more than was asked for");
                        return Err(ObjectError::Rejected(why));
                    }
                    buffer.extend_from_slice(&chunk);
                }
                Ok(None) if buffer.len() as u64 == range.end - range.start => return Ok(None),
                Ok(None) => return broken("the connection ended early".to_owned()),
                Err(error) => return broken(in_words(&error)),
            }
        }
    }

    /// Sends one request.
    async fn ask(&self, path: &ObjectPath, range: &Range<u64>) -> Result<Response, ObjectError> {
        let url = url(path).map_err(ObjectError::Rejected)?;
        let refused = |why: String| ObjectError::Denied(format!("{path}: {why}"));
        self.reach.check(&url).map_err(refused)?;
        let mut request = self.client()?.get(url.clone());
        request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end - 1));
        // A range of a compressed response is no range of the file.
        request = request.header(ACCEPT_ENCODING, "identity");
        if let Some(authorization) = self.authorization.get(url.host_str().unwrap_or_default()) {
            request = request.header(AUTHORIZATION, authorization);
        }
        let Some(sent) = self.read_timeout.wait(request.send()).await else {
            return Err(ObjectError::Unavailable(SILENCE.to_owned()));
        };
        sent.map_err(|error| {
            if error.is_redirect() {
                refused(in_words(&error))
            } else {
                ObjectError::Unavailable(in_words(&error))
            }
        })
    }
}

/// An error and its causes, without the address, whose query may be a secret.
fn in_words(error: &reqwest::Error) -> String {
    let mut causes = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        causes.push(error.to_string());
        cause = error.source();
    }
    match causes.pop() {
        Some(last) => last,
        None if error.is_timeout() => SILENCE.to_owned(),
        None => "the request failed".to_owned(),
    }
}

/// Longest accepted `Retry-After`.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// A response to a range request.
#[derive(Debug)]
enum RangeResponse {
    /// Bytes `range` of a file of `total` bytes, in version `tag`.
    Part { range: Range<u64>, total: u64, tag: String },
    /// The range begins after the end of a file of `total` bytes.
    Behind { total: u64, tag: String },
    /// Try again.
    Later(Broken),
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
    fn from_response(response: &Response, path: &ObjectPath) -> Result<Self, ObjectError> {
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
        Self::Later(Broken { why: format!("the server answers {}", response.status()), rest })
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
mod answer_tests {
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
