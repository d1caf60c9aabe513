//! The body of a GET: large reads of a file directly into the buffers that the socket is written from.
//!
//! Data in the page cache is read on the current thread; only reads from disk use a blocking thread. Buffers are
//! pooled, which saves time and memory for fresh pages.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::Stream;
use s3s::StdError;
use s3s::stream::{ByteStream, RemainingLength};
use tokio::task::JoinHandle;

use super::mounts::Stamp;
use super::stats::{Content, Counters};

/// Large enough to amortise calls, small enough to stay in a core's cache between read and write.
const PIECE_BYTES: usize = 512 * 1024;
/// Buffers kept idle: 16 MiB.
const KEPT_BUFFERS: usize = 32;
/// Below this size a separate buffer is cheaper than a pooled one.
const SMALL_BYTES: u64 = 16 * 1024;

/// Idle buffers of [`PIECE_BYTES`].
#[derive(Debug, Default)]
pub(super) struct BufferPool {
    free: Mutex<Vec<Box<[u8]>>>,
}

impl BufferPool {
    fn take(self: &Arc<Self>, requested: u64) -> Piece {
        if requested <= SMALL_BYTES {
            let buffer = vec![0; requested as usize].into_boxed_slice();
            return Piece { buffer, filled: 0, pool: None };
        }
        let kept = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let buffer = kept.unwrap_or_else(|| vec![0; PIECE_BYTES].into_boxed_slice());
        Piece { buffer, filled: 0, pool: Some(Arc::clone(self)) }
    }
}

/// A buffer in use; returns to its pool when its last reader drops it.
struct Piece {
    buffer: Box<[u8]>,
    filled: usize,
    pool: Option<Arc<BufferPool>>,
}

impl Piece {
    fn space(&mut self, requested: u64) -> &mut [u8] {
        let length = usize::try_from(requested).unwrap_or(usize::MAX).min(self.buffer.len());
        &mut self.buffer[..length]
    }

    fn into_bytes(mut self, filled: usize) -> Bytes {
        self.filled = filled;
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let Some(pool) = &self.pool else { return };
        let mut free = pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT_BUFFERS {
            free.push(std::mem::take(&mut self.buffer));
        }
    }
}

/// A range of a file as a response body.
pub(super) struct Download {
    file: Arc<File>,
    range: std::ops::Range<u64>,
    /// State of a mounted file when it was opened; it must be the same at the end.
    stamp: Option<Stamp>,
    /// Data read before the first poll.
    first: Option<Bytes>,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
    content: Content,
    pool: Arc<BufferPool>,
    counters: Arc<Counters>,
}

impl Download {
    /// Opens the range and reads its first piece. Blocks.
    pub(super) fn start(
        file: File,
        range: std::ops::Range<u64>,
        stamp: Option<Stamp>,
        content: Content,
        pool: Arc<BufferPool>,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let requested = range.end - range.start;
        if requested > PIECE_BYTES as u64 {
            read_ahead(&file);
        }
        let first = if range.is_empty() {
            None
        } else {
            Some(read_blocking(&file, pool.take(requested), range.clone())?)
        };
        let file = Arc::new(file);
        Ok(Self { file, range, stamp, first, reading: None, content, pool, counters })
    }

    fn yielded(&mut self, bytes: Bytes) -> io::Result<Bytes> {
        self.range.start += bytes.len() as u64;
        if self.range.is_empty()
            && let Some(stamp) = &self.stamp
            && Stamp::of(&self.file.metadata()?) != *stamp
        {
            // The last piece is withheld, so that the client cannot mistake a mixture for the file.
            return Err(io::Error::other("the file changed while it was read"));
        }
        self.counters.sent(self.content, bytes.len());
        Ok(bytes)
    }
}

impl Stream for Download {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(bytes) = this.first.take() {
            return Poll::Ready(Some(this.yielded(bytes).map_err(Into::into)));
        }
        if this.range.is_empty() {
            return Poll::Ready(None);
        }
        if this.reading.is_none() {
            let mut piece = this.pool.take(this.range.end - this.range.start);
            match read_cached(&this.file, &mut piece, &this.range) {
                0 => {
                    let (file, range) = (Arc::clone(&this.file), this.range.clone());
                    let read = move || read_blocking(&file, piece, range);
                    this.reading = Some(tokio::task::spawn_blocking(read));
                }
                filled => {
                    let bytes = this.yielded(piece.into_bytes(filled));
                    return Poll::Ready(Some(bytes.map_err(Into::into)));
                }
            }
        }
        let Some(reading) = &mut this.reading else { return Poll::Ready(None) };
        let read = ready!(Pin::new(reading).poll(cx));
        this.reading = None;
        let bytes = read.map_err(io::Error::other).flatten().and_then(|b| this.yielded(b));
        Poll::Ready(Some(bytes.map_err(Into::into)))
    }
}

impl ByteStream for Download {
    fn remaining_length(&self) -> RemainingLength {
        let left = self.range.end - self.range.start;
        usize::try_from(left)
            .map_or_else(|_| RemainingLength::unknown(), RemainingLength::new_exact)
    }
}

/// Advises the kernel to read ahead more.
#[cfg(target_os = "linux")]
fn read_ahead(file: &File) {
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Sequential);
}

#[cfg(not(target_os = "linux"))]
fn read_ahead(_: &File) {}

/// Reads from the page cache; 0 if nothing is cached, or the system cannot tell.
#[cfg(target_os = "linux")]
fn read_cached(file: &File, piece: &mut Piece, range: &std::ops::Range<u64>) -> usize {
    let space = piece.space(range.end - range.start);
    let mut slices = [io::IoSliceMut::new(space)];
    let flags = rustix::io::ReadWriteFlags::NOWAIT;
    rustix::io::preadv2(file, &mut slices, range.start, flags).unwrap_or(0)
}

#[cfg(not(target_os = "linux"))]
fn read_cached(_: &File, _: &mut Piece, _: &std::ops::Range<u64>) -> usize {
    0
}

fn read_blocking(file: &File, mut piece: Piece, range: std::ops::Range<u64>) -> io::Result<Bytes> {
    let space = piece.space(range.end - range.start);
    let filled = space.len();
    file.read_exact_at(space, range.start)?;
    Ok(piece.into_bytes(filled))
}
