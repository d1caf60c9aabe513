//! A pool of large buffers. Memory stays bounded by the buffers in use at once, and the kernel need
//! not clear pages for each object or batch.

mod kept;

use bytes::{Buf as _, Bytes, BytesMut};
pub use kept::{BufferPages, keep_buffer, let_go_buffer, unused_buffers};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Smaller buffers are left to the allocator.
const MIN_BYTES: usize = 1 << 20;
/// Capacities are multiples of this, so that contents of similar sizes share buffers. Pages that are
/// never written take no memory.
const GRAIN_BYTES: usize = 4 << 20;
/// Buffers begin at multiples of this and share no page with other memory: a device registers whole pages. The largest page
/// of Linux on aarch64; x86-64 has pages of 4 KiB.
const PAGE_BYTES: usize = 64 << 10;

/// Idle buffers, shared by all clones. Holds no more than were in use at once.
#[derive(Debug, Clone, Default)]
pub struct BufferPool {
    idle: Arc<IdleBuffers>,
}

#[derive(Debug, Default)]
struct IdleBuffers(Mutex<Vec<BytesMut>>);

impl IdleBuffers {
    fn lock(&self) -> MutexGuard<'_, Vec<BytesMut>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for IdleBuffers {
    fn drop(&mut self) {
        self.lock().clear();
        kept::sweep();
    }
}

impl BufferPool {
    /// An empty buffer with room for `bytes`.
    pub fn take(&self, bytes: usize) -> BytesMut {
        let mut buffer = self.pick(bytes);
        buffer.clear();
        buffer
    }

    /// A buffer of `bytes` to be overwritten. It may hold an earlier content: clearing it would take time.
    pub fn take_filled(&self, bytes: usize) -> BytesMut {
        let mut buffer = self.pick(bytes);
        buffer.resize(bytes, 0);
        buffer
    }

    fn pick(&self, bytes: usize) -> BytesMut {
        if bytes < MIN_BYTES {
            return BytesMut::with_capacity(bytes);
        }
        let mut idle = self.idle.lock();
        idle.sort_unstable_by_key(BytesMut::capacity);
        match idle.iter().position(|buffer| buffer.capacity() >= bytes) {
            Some(smallest_that_fits) => idle.remove(smallest_that_fits),
            None => {
                // Replaces one that is too small.
                if idle.pop().is_some() {
                    kept::sweep();
                }
                allocated(bytes.next_multiple_of(GRAIN_BYTES))
            }
        }
    }

    /// Freezes `buffer`; it returns to the pool when the last reader drops it.
    pub fn lend(&self, buffer: BytesMut) -> Bytes {
        if buffer.len() < MIN_BYTES {
            buffer.freeze()
        } else {
            kept::note_lent(&buffer);
            Bytes::from_owner(Lent { buffer, pool: self.clone() })
        }
    }
}

/// A buffer that begins with a page, has room for `bytes`, and ends with a page to spare.
fn allocated(bytes: usize) -> BytesMut {
    let mut buffer = BytesMut::zeroed(bytes + 2 * PAGE_BYTES);
    let before = buffer.as_ptr().addr().next_multiple_of(PAGE_BYTES) - buffer.as_ptr().addr();
    buffer.advance(before);
    buffer
}

struct Lent {
    buffer: BytesMut,
    pool: BufferPool,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        kept::note_returned(&mut buffer);
        self.pool.idle.lock().push(buffer);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a step that fails fails the test")]
mod tests {
    use super::*;

    fn lent(pool: &BufferPool, bytes: usize) -> (Bytes, *const u8) {
        let mut buffer = pool.take(bytes);
        buffer.resize(bytes, 1);
        let place = buffer.as_ptr();
        (pool.lend(buffer), place)
    }

    #[test]
    fn a_buffer_comes_back_with_its_last_reader_and_is_used_again() {
        let pool = BufferPool::default();
        let (content, place) = lent(&pool, 3 << 20);
        let slice = content.slice(5..6);
        drop(content);
        assert!(pool.idle.lock().is_empty(), "somebody still reads");
        drop(slice);
        // Split as a read in pieces does, then joined again.
        let mut buffer = pool.take((2 << 20) + 7);
        let rest = buffer.split_off(1 << 20);
        buffer.resize(1 << 20, 2);
        buffer.unsplit(rest);
        assert_eq!(buffer.as_ptr(), place);
        drop(pool.lend(buffer));
        let again = pool.take(3 << 20);
        assert_eq!(again.as_ptr(), place, "all of it comes back");
        assert_ne!(pool.take(3 << 20).as_ptr(), place, "it is lent once");
    }

    #[test]
    fn a_buffer_to_overwrite_has_its_length_at_once() {
        let pool = BufferPool::default();
        let (content, place) = lent(&pool, 3 << 20);
        drop(content);
        for bytes in [2 << 20, (4 << 20) - 5, 1 << 20] {
            let buffer = pool.take_filled(bytes);
            assert_eq!((buffer.len(), buffer.as_ptr()), (bytes, place));
            drop(pool.lend(buffer));
        }
        assert_eq!(pool.take_filled(10).len(), 10);
        assert!(pool.take(1 << 20).is_empty());
    }

    #[test]
    fn the_smallest_buffer_that_fits_is_taken_and_one_too_small_makes_room() {
        let pool = BufferPool::default();
        let ((small, small_place), (large, large_place)) =
            (lent(&pool, 3 << 20), lent(&pool, 9 << 20));
        drop((large, small));
        let (content, place) = lent(&pool, 2 << 20);
        assert_eq!(place, small_place);
        drop(content);
        let (content, place) = lent(&pool, 5 << 20);
        assert_eq!(place, large_place);
        drop((content, lent(&pool, 20 << 20)));
        assert_eq!(pool.idle.lock().len(), 2, "no more than were in use at once");
    }

    #[test]
    fn small_contents_are_not_kept() {
        let pool = BufferPool::default();
        let mut buffer = pool.take(10);
        buffer.extend_from_slice(b"0123456789");
        assert_eq!(pool.lend(buffer), "0123456789");
        assert!(pool.idle.lock().is_empty());
    }
}
