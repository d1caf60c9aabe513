//! Reads objects. Each byte is copied once, from the connection into the returned buffer. A large range is
//! read in several concurrent pieces, each directly into its place; a read that breaks off resumes where
//! it stopped.

use super::{ACCESS_DENIED, S3Objects, failed, refuses_keys};
use crate::sdk::{
    aws::{DATA_OPERATION_TIMEOUT, timeouts},
    fault,
};
use aws_sdk_s3::{
    Client,
    config::Config,
    error::{ProvideErrorMetadata, SdkError},
};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use gristmill_ports::{MAX_GET_BYTES, ObjectError, ObjectPath};
use std::{
    error::Error,
    ops::{ControlFlow, Range},
    time::Duration,
};

/// Longer ranges are read in pieces. A GET costs as much as 17 ms of compute, so pieces must not be
/// small.
const SPLIT_BYTES: u64 = 16 << 20;
const PIECE_BYTES: u64 = 8 << 20;
const PIECES_AT_ONCE: usize = 4;
/// Tries to read the rest of a piece, after refusals that pass and connections that broke.
const READ_TRIES: u32 = 6;
/// Silences of the store before a read gives up: its error then explains the wait.
const SILENCES: u32 = 3;
/// Rate below which a read is given up, although the store is never silent.
const SLOWEST_BYTES_PER_S: u64 = 64 << 10;
const OPERATION: &str = "GetObject";
const READ_BACKOFF: Duration = Duration::from_millis(40);
const SLOW_DOWN: &str = "SlowDown";

/// An obstacle that another try may overcome.
enum Setback {
    Silence,
    /// Too much is asked of the prefix: 503.
    Crowded(String),
    Passing(String),
    KeysRefused(String),
}

impl Setback {
    fn into_error(self, path: &ObjectPath) -> ObjectError {
        match self {
            Self::KeysRefused(why) => ObjectError::Rejected(why),
            Self::Crowded(why) => ObjectError::Unavailable(why),
            Self::Passing(why) if why.starts_with(OPERATION) => ObjectError::Unavailable(why),
            Self::Passing(why) => ObjectError::Unavailable(format!("{OPERATION} on {path}: {why}")),
            Self::Silence => {
                Self::Passing("the store does not answer in time".to_owned()).into_error(path)
            }
        }
    }
}

/// A range of one object, read into `buffer`.
struct Piece<'a> {
    path: &'a ObjectPath,
    /// Start within the object; 0 while the length is unknown.
    start: u64,
    /// Exclusive end; `None` until the object's length is known.
    end: Option<u64>,
    etag: Option<String>,
    buffer: BytesMut,
}

impl Piece<'_> {
    fn remaining(&self) -> Option<u64> {
        Some(self.end?.saturating_sub(self.start + self.buffer.len() as u64))
    }

    fn rejected(&self, what: impl std::fmt::Display) -> ObjectError {
        ObjectError::Rejected(format!("{OPERATION} on {}: {what}", self.path))
    }

    /// How a request that failed may go on.
    fn setback<E>(&self, error: &SdkError<E, HttpResponse>) -> Result<Setback, ObjectError>
    where
        E: Error + ProvideErrorMetadata + 'static,
    {
        if error.raw_response().is_some_and(|response| response.status().as_u16() == 416) {
            return Err(self.rejected(format!("ends before byte {}", self.start)));
        }
        match failed(OPERATION, self.path, error) {
            ObjectError::Unavailable(why) if error.code() == Some(SLOW_DOWN) => {
                Ok(Setback::Crowded(why))
            }
            ObjectError::Unavailable(why) => Ok(Setback::Passing(why)),
            ObjectError::Rejected(why) if refuses_keys(error) => Ok(Setback::KeysRefused(why)),
            error => Err(error),
        }
    }
}

fn passing(why: impl Into<String>) -> ControlFlow<(), Setback> {
    ControlFlow::Continue(Setback::Passing(why.into()))
}

impl S3Objects {
    pub(super) async fn read_whole(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        let piece = Piece { path, start: 0, end: None, etag: None, buffer: BytesMut::new() };
        let piece = within_deadline(path, MAX_GET_BYTES, self.read(piece)).await?;
        Ok(piece.buffer.freeze())
    }

    pub(super) async fn read_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        let bytes = range.end.checked_sub(range.start).filter(|bytes| *bytes <= MAX_GET_BYTES);
        let Some(bytes) = bytes else {
            let Range { start, end } = range;
            return Err(ObjectError::Rejected(format!(
                "{OPERATION} on {path}: {start}..{end} is not a range of at most {MAX_GET_BYTES} bytes"
            )));
        };
        if bytes == 0 {
            return Ok(Bytes::new());
        }
        let buffer = self.buffers.take(usize::try_from(bytes).unwrap_or(usize::MAX));
        let pieces = pieces(path, range, etag, buffer);
        let reads: Vec<_> = pieces.into_iter().map(|piece| self.read(piece)).collect();
        let read = stream::iter(reads).buffered(PIECES_AT_ONCE).try_collect::<Vec<_>>();
        Ok(self.buffers.lend(join(path, within_deadline(path, bytes, read).await?)?))
    }

    /// Fills a piece from its current position, over as many requests as it takes.
    async fn read<'a>(&self, mut piece: Piece<'a>) -> Result<Piece<'a>, ObjectError> {
        let (mut last, mut silences) = (Setback::Silence, 0);
        for attempt in 0..READ_TRIES {
            if attempt > 0 {
                tokio::time::sleep(READ_BACKOFF * 2_u32.pow(attempt - 1)).await;
            }
            let reading = self.paces.begin(piece.path).await;
            match self.read_on(&mut piece).await? {
                ControlFlow::Break(()) => return Ok(piece),
                ControlFlow::Continue(setback) => last = setback,
            }
            if matches!(last, Setback::Crowded(_)) {
                reading.refused();
            }
            silences += u32::from(matches!(last, Setback::Silence));
            if silences == SILENCES {
                break;
            }
        }
        Err(last.into_error(piece.path))
    }

    /// Sends one request for the rest of a piece; continues with the reason if it broke off.
    async fn read_on(
        &self,
        piece: &mut Piece<'_>,
    ) -> Result<ControlFlow<(), Setback>, ObjectError> {
        let ObjectPath { bucket, key } = piece.path;
        let start = piece.start + piece.buffer.len() as u64;
        if piece.end.is_some_and(|end| start >= end) {
            return Ok(ControlFlow::Break(()));
        }
        let get = |client: Client| {
            let range = piece.end.map(|end| format!("bytes={start}-{}", end - 1));
            let request = client.get_object().bucket(bucket).key(key).set_range(range);
            let timeouts = timeouts(DATA_OPERATION_TIMEOUT, DATA_OPERATION_TIMEOUT);
            let request = request.set_if_match(piece.etag.clone()).customize();
            request.config_override(Config::builder().timeout_config(timeouts)).send()
        };
        let Some(sent) = self.read_timeout.wait(self.ask(bucket, get)).await else {
            return Ok(ControlFlow::Continue(Setback::Silence));
        };
        let mut answer = match sent {
            Ok(answer) => answer,
            Err(error) => match piece.setback(&error) {
                Err(ObjectError::Denied(why)) if error.code() == Some(ACCESS_DENIED) => {
                    return Err(self.explain_denial(piece.path, why).await);
                }
                setback => return setback.map(ControlFlow::Continue),
            },
        };
        let length = answer.content_length.and_then(|length| u64::try_from(length).ok());
        let Some(length) = length else {
            return Err(piece.rejected("the answer does not say how long it is"));
        };
        match piece.remaining() {
            Some(remaining) if length < remaining => {
                let end = piece.end.unwrap_or_default();
                return Err(piece.rejected(format!("ends before byte {end}")));
            }
            Some(remaining) if length > remaining => {
                let what = format!("asked for {remaining} bytes, the answer has {length}");
                return Err(piece.rejected(what));
            }
            Some(_) => {}
            None if length > MAX_GET_BYTES => {
                let what = format!("has {length} bytes, one get returns at most {MAX_GET_BYTES}");
                return Err(piece.rejected(what));
            }
            None => {
                piece.end = Some(length);
                piece.buffer.reserve(usize::try_from(length).unwrap_or(usize::MAX));
            }
        }
        piece.etag = piece.etag.take().or(answer.e_tag.take());
        let goal = piece.buffer.len() as u64 + length;
        loop {
            let Some(frame) = self.read_timeout.wait_for_more(answer.body.try_next()).await else {
                return Ok(ControlFlow::Continue(Setback::Silence));
            };
            match frame {
                Ok(Some(frame)) if piece.buffer.len() as u64 + frame.len() as u64 > goal => {
                    return Err(piece.rejected("the answer is longer than it says"));
                }
                Ok(Some(frame)) => piece.buffer.extend_from_slice(&frame),
                Ok(None) if piece.buffer.len() as u64 == goal => return Ok(ControlFlow::Break(())),
                Ok(None) => return Ok(passing("the answer is cut short")),
                Err(error) => return Ok(passing(fault::reason(&error))),
            }
        }
    }
}

/// Divides a range into pieces with adjacent buffers from `rest`, which has room for all of it.
fn pieces<'a>(
    path: &'a ObjectPath,
    range: Range<u64>,
    etag: Option<&str>,
    mut rest: BytesMut,
) -> Vec<Piece<'a>> {
    let bytes = range.end - range.start;
    let piece_bytes = if bytes > SPLIT_BYTES { PIECE_BYTES } else { bytes };
    let mut pieces = Vec::new();
    let mut start = range.start;
    while start < range.end {
        let end = range.end.min(start + piece_bytes);
        // Spare capacity stays with the last piece; otherwise the buffer would return to its pool smaller.
        let after = if end == range.end {
            BytesMut::new()
        } else {
            rest.split_off(usize::try_from(end - start).unwrap_or(usize::MAX))
        };
        let buffer = std::mem::replace(&mut rest, after);
        let etag = etag.map(str::to_owned);
        pieces.push(Piece { path, start, end: Some(end), etag, buffer });
        start = end;
    }
    pieces
}

/// Joins adjacent pieces without a copy; they must be of the same version of the object.
fn join(path: &ObjectPath, pieces: Vec<Piece<'_>>) -> Result<BytesMut, ObjectError> {
    let mut pieces = pieces.into_iter();
    let Some(first) = pieces.next() else { return Ok(BytesMut::new()) };
    let mut whole = first.buffer;
    for piece in pieces {
        if piece.etag != first.etag {
            return Err(ObjectError::Changed(path.clone()));
        }
        whole.unsplit(piece.buffer);
    }
    Ok(whole)
}

/// A link that is slow and never silent has the time that its bytes take.
fn deadline_of(bytes: u64) -> Duration {
    DATA_OPERATION_TIMEOUT + Duration::from_secs(bytes / SLOWEST_BYTES_PER_S)
}

/// Limits the time for `bytes` of body: the SDK's timeouts end with the headers of a response.
async fn within_deadline<T>(
    path: &ObjectPath,
    bytes: u64,
    read: impl Future<Output = Result<T, ObjectError>>,
) -> Result<T, ObjectError> {
    let deadline = deadline_of(bytes);
    match tokio::time::timeout(deadline, read).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let seconds = deadline.as_secs();
            let text = format!("{OPERATION} on {path}: not done within {seconds} s");
            Err(ObjectError::Unavailable(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_without_a_copy() {
        let path = ObjectPath::new("b", "k");
        let bytes = (20 << 20) + 5;
        let buffer = BytesMut::with_capacity(bytes as usize + 9);
        let capacity = buffer.capacity();
        let mut pieces = pieces(&path, 3..3 + bytes, None, buffer);
        assert_eq!(
            pieces.iter().map(|piece| piece.start).collect::<Vec<_>>(),
            [3, 3 + PIECE_BYTES, 3 + 2 * PIECE_BYTES]
        );
        let address = pieces[0].buffer.as_ptr();
        for (i, piece) in pieces.iter_mut().enumerate() {
            let length = usize::try_from(piece.end.unwrap() - piece.start).unwrap();
            assert!(piece.buffer.capacity() >= length);
            piece.buffer.resize(length, i as u8);
        }
        let whole = join(&path, pieces).unwrap();
        assert_eq!(whole.len() as u64, bytes);
        assert_eq!(whole.as_ptr(), address, "the pieces were neighbours");
        assert_eq!((whole[0], whole[whole.len() - 1]), (0, 2));
        assert_eq!(whole.capacity(), capacity, "all of the buffer comes back");
    }

    #[test]
    fn a_slow_link_has_the_time_that_its_bytes_take() {
        assert_eq!(deadline_of(0).as_secs(), 120);
        // At 64 KiB/s.
        assert_eq!(deadline_of(64 << 20).as_secs(), 120 + 1_024);
    }

    #[test]
    fn pieces_of_two_versions_are_a_change() {
        let path = ObjectPath::new("b", "k");
        let buffer = BytesMut::with_capacity(SPLIT_BYTES as usize + 1);
        let mut pieces = pieces(&path, 0..SPLIT_BYTES + 1, None, buffer);
        pieces[0].etag = Some("a".to_owned());
        pieces[1].etag = Some("b".to_owned());
        assert!(matches!(join(&path, pieces), Err(ObjectError::Changed(_))));
    }
}
