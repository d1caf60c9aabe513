//! Buffers of large reads, used again: memory stays what the first reads took, and the kernel need
//! not clear pages for each.

use bytes::{Bytes, BytesMut};
use std::sync::{Arc, Mutex, PoisonError};

/// Smaller reads are left to the allocator.
const MIN_BYTES: usize = 1 << 20;
/// Buffers are made in multiples of this, so that objects of about one size share them; what is
/// never written to takes no memory.
const GRAIN_BYTES: usize = 4 << 20;
/// Idle buffers kept.
const MAX_IDLE: usize = 2;

/// Idle buffers, shared by all clones.
#[derive(Debug, Clone, Default)]
pub(super) struct BufferPool {
    idle: Arc<Mutex<Vec<BytesMut>>>,
}

impl BufferPool {
    /// An empty buffer with room for `bytes`.
    pub fn take(&self, bytes: usize) -> BytesMut {
        if bytes < MIN_BYTES {
            return BytesMut::with_capacity(bytes);
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        match idle.iter_mut().position(|buffer| buffer.try_reclaim(bytes)) {
            Some(at) => idle.swap_remove(at),
            None => {
                // What is idle is too small: it would only lie about.
                idle.clear();
                BytesMut::with_capacity(bytes.next_multiple_of(GRAIN_BYTES))
            }
        }
    }

    /// The content of a buffer; the buffer comes back when the last reader is done.
    pub fn lend(&self, buffer: BytesMut) -> Bytes {
        match buffer.len() < MIN_BYTES {
            true => buffer.freeze(),
            false => Bytes::from_owner(Lent { buffer, pool: self.clone() }),
        }
    }
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
        buffer.clear();
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_with_its_last_reader_and_is_used_again() {
        let pool = BufferPool::default();
        let mut buffer = pool.take(3 << 20);
        buffer.extend_from_slice(&[1; 3 << 20]);
        let place = buffer.as_ptr();
        let content = pool.lend(buffer);
        let slice = content.slice(5..6);
        drop(content);
        assert!(pool.idle.lock().unwrap().is_empty(), "somebody still reads");
        drop(slice);
        // Taken apart as a read in pieces does it, and joined again.
        let mut buffer = pool.take((2 << 20) + 7);
        let rest = buffer.split_off(1 << 20);
        buffer.resize(1 << 20, 2);
        drop(rest);
        assert_eq!(buffer.as_ptr(), place);
        drop(pool.lend(buffer));
        let again = pool.take(3 << 20);
        assert_eq!(again.as_ptr(), place, "all of it comes back");
        assert_ne!(pool.take(3 << 20).as_ptr(), place, "it is lent once");
    }

    #[test]
    fn small_reads_are_not_kept() {
        let pool = BufferPool::default();
        let mut buffer = pool.take(10);
        buffer.extend_from_slice(b"0123456789");
        assert_eq!(pool.lend(buffer), "0123456789");
        assert!(pool.idle.lock().unwrap().is_empty());
    }
}
