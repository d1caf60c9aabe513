//! A pool of large buffers. Memory stays bounded by the buffers in use at once, and the kernel need
//! not clear pages for each object or batch.

use bytes::{Buf as _, Bytes, BytesMut};
use parking_lot::{Mutex, MutexGuard};
use std::{collections::BTreeMap, sync::Arc};

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

impl Drop for IdleBuffers {
    fn drop(&mut self) {
        self.0.lock().clear();
        table().sweep();
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
        let mut idle = self.idle.0.lock();
        idle.sort_unstable_by_key(BytesMut::capacity);
        match idle.iter().position(|buffer| buffer.capacity() >= bytes) {
            Some(smallest_that_fits) => idle.remove(smallest_that_fits),
            None => {
                // Replaces one that is too small.
                if idle.pop().is_some() {
                    table().sweep();
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
            table().lent.insert(address_of(&buffer), buffer.capacity());
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
        table().take_back(&mut buffer);
        self.pool.idle.0.lock().push(buffer);
    }
}

/// Addresses belong to the process, as registrations do.
static TABLE: Mutex<BufferTable> =
    Mutex::new(BufferTable { lent: BTreeMap::new(), held: BTreeMap::new() });

/// Whole pages of one buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferPages {
    /// Address of the first byte.
    pub start: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// Buffers by the address of their first byte.
struct BufferTable {
    /// Capacities of those that are lent, in bytes.
    lent: BTreeMap<usize, usize>,
    held: BTreeMap<usize, HeldBuffer>,
}

struct HeldBuffer {
    bytes: usize,
    /// Whether it still is. One that was let go may be kept again.
    is_kept: bool,
    /// Its last page. None until it comes back for the first time: who borrows it holds its memory.
    last_page: Option<BytesMut>,
}

impl HeldBuffer {
    /// Whether nobody else holds memory of it.
    fn is_alone(&mut self) -> bool {
        self.last_page.as_mut().is_some_and(|page| page.try_reclaim(self.bytes))
    }
}

/// Keeps the memory of the lent buffer around `address`. None where no buffer of a pool is, or none of whole pages.
pub fn keep_buffer(address: usize) -> Option<BufferPages> {
    let mut table = table();
    let (&start, &capacity) = table.lent.range(..=address).next_back()?;
    let bytes = capacity - capacity % PAGE_BYTES;
    if !start.is_multiple_of(PAGE_BYTES) || address >= start + bytes {
        return None;
    }
    let fresh = HeldBuffer { bytes, is_kept: true, last_page: None };
    let held = table.held.entry(start).or_insert(fresh);
    held.is_kept = true;
    Some(BufferPages { start, bytes: held.bytes })
}

/// The buffer that begins at `start` is not registered any more.
pub fn let_go_buffer(start: usize) {
    let mut table = table();
    if let Some(held) = table.held.get_mut(&start) {
        held.is_kept = false;
    }
    table.sweep();
}

/// First addresses of the kept buffers that nobody uses, and that no pool has any more.
pub fn unused_buffers() -> Vec<usize> {
    let mut table = table();
    table.sweep();
    let held = table.held.iter_mut();
    held.filter_map(|(start, held)| held.is_alone().then_some(*start)).collect()
}

impl BufferTable {
    /// `buffer` has come back. Takes its last page if it is kept.
    fn take_back(&mut self, buffer: &mut BytesMut) {
        let start = address_of(buffer);
        self.lent.remove(&start);
        let Some(held) = self.held.get_mut(&start) else { return };
        if held.last_page.is_none() {
            held.last_page = Some(buffer.split_off(buffer.capacity() - PAGE_BYTES));
        }
    }

    /// Frees what was let go and is used no more.
    fn sweep(&mut self) {
        self.held.retain(|_, held| held.is_kept || (held.last_page.is_some() && !held.is_alone()));
    }
}

fn address_of(buffer: &BytesMut) -> usize {
    buffer.as_ptr().addr()
}

fn table() -> MutexGuard<'static, BufferTable> {
    TABLE.lock()
}

#[cfg(test)]
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
        assert!(pool.idle.0.lock().is_empty(), "somebody still reads");
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
        assert_eq!(pool.idle.0.lock().len(), 2, "no more than were in use at once");
    }

    #[test]
    fn small_contents_are_not_kept() {
        let pool = BufferPool::default();
        let mut buffer = pool.take(10);
        buffer.extend_from_slice(b"0123456789");
        assert_eq!(pool.lend(buffer), "0123456789");
        assert!(pool.idle.0.lock().is_empty());
    }
}

#[cfg(test)]
mod kept_tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn lent(pool: &BufferPool, bytes: usize) -> Bytes {
        pool.lend(pool.take_filled(bytes))
    }

    /// The place of the buffer of `content`, which is kept from now on.
    fn kept(content: &Bytes) -> BufferPages {
        keep_buffer(content.as_ptr().addr()).unwrap()
    }

    fn is_unused(place: BufferPages) -> bool {
        unused_buffers().contains(&place.start)
    }

    #[test]
    fn a_place_is_all_pages_of_its_buffer() {
        let pool = BufferPool::default();
        let content = lent(&pool, 5 * MIB);
        let place = kept(&content);
        assert_eq!((place.start, place.start % PAGE_BYTES), (content.as_ptr().addr(), 0));
        assert!(place.bytes >= 8 * MIB && place.bytes.is_multiple_of(PAGE_BYTES));
        assert_eq!(keep_buffer(content.as_ptr().addr() + 5 * MIB - 1), Some(place));
        assert_eq!(kept(&content.slice(MIB..)), place, "a batch is a part of it");
        assert_eq!(keep_buffer(place.start + place.bytes), None);
        assert_eq!(keep_buffer(Bytes::from(vec![1; 3 * MIB]).as_ptr().addr()), None);
        let_go_buffer(place.start);
    }

    #[test]
    fn it_is_used_again_with_the_same_capacity_and_the_same_place() {
        let pool = BufferPool::default();
        let place = kept(&lent(&pool, 8 * MIB));
        for _ in 0..100 {
            let content = lent(&pool, 8 * MIB);
            assert_eq!(kept(&content), place);
            let_go_buffer(place.start);
            assert_eq!(kept(&content), place);
        }
        assert!(!is_unused(place), "the pool has it");
        let_go_buffer(place.start);
    }

    #[test]
    fn memory_that_the_pool_frees_stays_until_it_is_let_go() {
        let pool = BufferPool::default();
        let content = lent(&pool, 3 * MIB);
        let place = kept(&content);
        drop(content);
        assert!(!is_unused(place));
        drop(pool);
        assert!(is_unused(place) && is_unused(place));
        // New buffers of all sizes lie elsewhere.
        let other = BufferPool::default();
        let others: Vec<Bytes> = (1..20).map(|mib| lent(&other, mib * MIB)).collect();
        let inside = place.start..place.start + place.bytes;
        assert!(others.iter().all(|other| !inside.contains(&other.as_ptr().addr())));
        let_go_buffer(place.start);
        assert!(!is_unused(place) && !table().held.contains_key(&place.start));
    }

    #[test]
    fn a_buffer_that_is_lost_outgrown_or_replaced_is_unused() {
        let ways: [fn(&BufferPool); 3] = [
            |pool| drop(pool.take(3 * MIB)),
            |pool| {
                let mut buffer = pool.take(3 * MIB);
                buffer.resize(40 * MIB, 7);
                drop(pool.lend(buffer));
            },
            |pool| drop(lent(pool, 40 * MIB)),
        ];
        for lose in ways {
            let pool = BufferPool::default();
            let place = kept(&lent(&pool, 3 * MIB));
            assert!(!is_unused(place));
            lose(&pool);
            assert!(is_unused(place));
            let_go_buffer(place.start);
        }
    }

    #[test]
    fn buffer_let_go_while_in_use_is_freed_with_its_pool() {
        let pool = BufferPool::default();
        let first = kept(&lent(&pool, 3 * MIB));
        let content = lent(&pool, 3 * MIB);
        let_go_buffer(first.start);
        assert!(table().held.contains_key(&first.start), "its memory is lent");
        drop(pool);
        drop(content);
        assert!(!table().held.contains_key(&first.start));
    }
}
