//! Splits computed in the trainer's process and not yet taken by its stream.

use crate::bounds::MemoryBound;
use bytes::Bytes;
use gristmill_model::wire::ReadySplit;
use gristmill_model::{Epoch, Nonce, Position, splits::SplitPlace};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// Behind every split.
const END: SplitPlace = SplitPlace { epoch: Epoch::MAX, position: Position::MAX };

/// Holds splits until they are taken. A full store delays claims. It accepts every split that is finished, because it
/// may be the one that the trainer waits for.
#[derive(Debug)]
pub(crate) struct LocalStore {
    inner: Mutex<Inner>,
    pub bound: Arc<MemoryBound>,
    /// Whether other readers of the run need every split: then each is an object too, and a copy may be dropped at any
    /// time.
    pub is_shared: bool,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    outputs: BTreeMap<(SplitPlace, Nonce), Output>,
    held_bytes: u64,
    /// The stream needs no split before this one.
    needed: SplitPlace,
}

#[derive(Debug)]
struct Output {
    object: Bytes,
    /// The bytes for which it counts.
    bytes: u64,
}

impl Inner {
    fn remove(&mut self, key: &(SplitPlace, Nonce)) -> Option<Bytes> {
        let Output { object, bytes } = self.outputs.remove(key)?;
        self.held_bytes -= bytes;
        Some(object)
    }

    /// The stream has come to `place`: drops what lies before.
    fn pass(&mut self, place: SplitPlace) {
        while let Some((key, _)) = self.outputs.first_key_value().filter(|((at, _), _)| *at < place)
        {
            let key = *key;
            self.remove(&key);
        }
        self.needed = self.needed.max(place);
    }
}

impl LocalStore {
    pub fn new(bound: Arc<MemoryBound>, is_shared: bool) -> Self {
        Self { inner: Mutex::default(), bound, is_shared, freed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a finished split, unless the stream is past it. If it is an object too, keeps as many of the next ones as
    /// there is room for.
    pub fn put(&self, place: SplitPlace, nonce: Nonce, object: Bytes) {
        let bytes = self.bound.size(place, object.len() as u64);
        let mut inner = self.lock();
        if place < inner.needed {
            return;
        }
        inner.remove(&(place, nonce));
        inner.held_bytes += bytes;
        inner.outputs.insert((place, nonce), Output { object, bytes });
        while self.is_shared
            && inner.held_bytes > self.bound.bytes()
            && let Some((furthest, _)) = inner.outputs.last_key_value()
        {
            let furthest = *furthest;
            inner.remove(&furthest);
        }
    }

    /// Whether the split committed as `entry` is held.
    pub fn holds(&self, entry: &ReadySplit) -> bool {
        self.lock().outputs.contains_key(&(entry.place, entry.nonce))
    }

    /// Takes the split committed as `entry`, if this process computed it. Other results for its place are of no use,
    /// nor are those of earlier places.
    pub fn take(&self, entry: &ReadySplit) -> Option<Bytes> {
        let SplitPlace { epoch, position } = entry.place;
        let mut inner = self.lock();
        let object = inner.remove(&(entry.place, entry.nonce));
        inner.pass(SplitPlace::new(epoch, position.saturating_add(1)));
        drop(inner);
        self.freed.notify_waiters();
        object
    }

    /// Drops a split that did not become known as committed.
    pub fn discard(&self, place: SplitPlace, nonce: Nonce) {
        self.lock().remove(&(place, nonce));
        self.freed.notify_waiters();
    }

    /// The stream begins at `place`.
    pub fn begins_at(&self, place: SplitPlace) {
        self.lock().pass(place);
        self.freed.notify_waiters();
    }

    /// The stream will begin again, and may need splits from `place` on. What is held may be needed too.
    pub fn reopen(&self, place: SplitPlace) {
        self.lock().needed = place;
    }

    /// The stream is at its end.
    pub fn end(&self) {
        self.begins_at(END);
    }

    /// Whether there is room for more results.
    pub fn has_room(&self) -> bool {
        self.is_shared || self.lock().held_bytes < self.bound.bytes()
    }

    /// The bytes for which the splits count that are held.
    pub fn held_bytes(&self) -> u64 {
        self.lock().held_bytes
    }

    /// Resolves once a split has left.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PrefetchMemory, samples::entry};
    use gristmill_model::splits::ObjectSizes;

    fn store(bytes: u64, is_shared: bool) -> LocalStore {
        let bound = MemoryBound::new(PrefetchMemory::Bytes(bytes), (1, 1), ObjectSizes::Real);
        LocalStore::new(Arc::new(bound), is_shared)
    }

    /// Puts a split of ten bytes.
    fn put(store: &LocalStore, position: u32, nonce: u8) {
        store.put(SplitPlace::new(0, position), Nonce([nonce; 8]), Bytes::from_static(&[0; 10]));
    }

    fn committed(position: u32, nonce: u8) -> ReadySplit {
        ReadySplit { nonce: Nonce([nonce; 8]), ..entry(0, position, 4) }
    }

    #[test]
    fn a_full_store_takes_what_is_finished() {
        let store = store(1, false);
        assert!(store.has_room());
        put(&store, 3, 1);
        assert!(!store.has_room());
        put(&store, 0, 1);
        assert_eq!(store.held_bytes(), 20);
        assert!(store.holds(&committed(0, 1)) && store.take(&committed(0, 1)).is_some());
        assert!(!store.has_room() && !store.holds(&committed(0, 1)));
        assert!(store.take(&committed(3, 1)).is_some() && store.has_room());
    }

    #[test]
    fn what_is_never_taken_goes() {
        let store = store(1, false);
        for (position, nonce) in [(0, 1), (1, 1), (1, 2), (2, 1), (3, 1)] {
            put(&store, position, nonce);
        }
        assert!(store.take(&committed(1, 9)).is_none(), "another process has committed it");
        assert_eq!(store.held_bytes(), 20, "the results for it and for earlier places are gone");
        put(&store, 1, 3);
        assert_eq!(store.held_bytes(), 20, "the stream is past it");
        store.discard(SplitPlace::new(0, 2), Nonce([1; 8]));
        store.discard(SplitPlace::new(0, 2), Nonce([1; 8]));
        assert_eq!(store.held_bytes(), 10);
        store.end();
        assert_eq!((store.held_bytes(), store.has_room()), (0, true));
        put(&store, 7, 1);
        assert_eq!(store.held_bytes(), 0);
    }

    #[test]
    fn a_stream_that_begins_again_finds_what_is_held() {
        let store = store(100, false);
        put(&store, 5, 1);
        assert!(store.take(&committed(4, 1)).is_none());
        store.reopen(SplitPlace::default());
        put(&store, 2, 1);
        store.begins_at(SplitPlace::new(0, 1));
        assert!(store.take(&committed(2, 1)).is_some() && store.take(&committed(5, 1)).is_some());
        store.reopen(SplitPlace::default());
        put(&store, 0, 1);
        store.begins_at(SplitPlace::new(0, 3));
        assert_eq!(store.held_bytes(), 0, "it begins behind that split");
    }

    #[test]
    fn splits_that_are_objects_too_leave_room_for_the_next_ones() {
        let store = store(25, true);
        for position in [4, 2, 3, 9] {
            put(&store, position, 1);
            assert!(store.has_room() && store.held_bytes() <= 25);
        }
        assert!(store.holds(&committed(2, 1)) && store.holds(&committed(3, 1)));
        let store = self::store(1, true);
        put(&store, 0, 1);
        assert_eq!((store.held_bytes(), store.has_room()), (0, true));
    }

    #[tokio::test]
    async fn who_waits_for_room_learns_of_it() {
        let store = store(1, false);
        put(&store, 0, 1);
        let freed = store.freed();
        let freeing = async { store.take(&committed(0, 1)) };
        tokio::join!(freed, freeing);
        assert!(store.has_room());
    }
}
