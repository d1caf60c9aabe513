//! Range reads, over as many requests as it takes.

use super::{WebObjects, answer::RangeResponse, url};
use bytes::{Bytes, BytesMut};
use gristmill_ports::{MAX_GET_BYTES, ObjectError, ObjectInfo, ObjectPath};
use reqwest::{
    Response,
    header::{ACCEPT_ENCODING, AUTHORIZATION, RANGE},
};
use std::{error::Error, ops::Range, time::Duration};

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

/// A request that returned less than was asked for.
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
    /// Counts a failure, and rests until the next try.
    ///
    /// # Errors
    /// The read of `path` has failed too often.
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
                Ok(RangeResponse::Later { why, rest }) => Broken { why, rest },
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
            RangeResponse::Later { why, rest } => return Ok(Some(Broken { why, rest })),
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
            let Some(chunk) = self.patience.wait_for_more(response.chunk()).await else {
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
        if let Some(authorization) = self.authorization(url.host_str().unwrap_or_default()) {
            request = request.header(AUTHORIZATION, authorization);
        }
        let Some(sent) = self.patience.wait(request.send()).await else {
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
