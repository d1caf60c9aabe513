//! The memory budget of objects that are fetched ahead or in use.

use crate::bounds::MemoryBound;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
use tokio::sync::Notify;

/// The share of an object in the budget. The fetcher takes it back when all batches made from the object have dropped
/// theirs: with the batch, or before, by a trainer that keeps batches.
#[derive(Debug, Clone, Default)]
pub struct MemoryShare {
    _share: Option<Arc<Share>>,
}

#[derive(Debug)]
struct Share {
    bytes: u64,
    held: Arc<Held>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.held.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.held.changed.notify_one();
    }
}

#[derive(Debug, Default)]
struct Held {
    bytes: AtomicU64,
    /// Whether the assembler waits for the next object.
    is_awaited: AtomicBool,
    changed: Notify,
}

/// Memory for the objects of one stream that are being downloaded or still in use.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    bound: Arc<MemoryBound>,
    held: Arc<Held>,
}

impl MemoryBudget {
    pub fn new(bound: Arc<MemoryBound>) -> Self {
        Self { bound, held: Arc::default() }
    }

    /// The assembler waits for the next object, having used up all that came before.
    pub fn await_next(&self) {
        self.held.is_awaited.store(true, Ordering::Relaxed);
        self.held.changed.notify_one();
    }

    /// Resolves once there is room for objects of `bytes`, which are admitted in the order of delivery by one caller.
    /// Room for two of them is always there: one to train on and one on its way. The objects that the assembler waits
    /// for are admitted however much is in use, because a trainer may keep batches; `is_next` says whether all that
    /// was admitted before has reached it.
    pub async fn take(&self, bytes: u64, is_next: impl Fn() -> bool) -> MemoryShare {
        while !self.admits(bytes, &is_next) {
            self.held.changed.notified().await;
        }
        self.held.is_awaited.store(false, Ordering::Relaxed);
        self.held.bytes.fetch_add(bytes, Ordering::Relaxed);
        MemoryShare { _share: Some(Arc::new(Share { bytes, held: Arc::clone(&self.held) })) }
    }

    fn admits(&self, bytes: u64, is_next: &impl Fn() -> bool) -> bool {
        let most = self.bound.bytes().max(bytes.saturating_mul(2));
        let held = self.held.bytes.load(Ordering::Relaxed);
        held.saturating_add(bytes) <= most
            || self.held.is_awaited.load(Ordering::Relaxed) && is_next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PrefetchMemory;
    use futures::FutureExt as _;
    use gristmill_model::splits::ObjectSizes;

    fn budget(bytes: u64) -> MemoryBudget {
        let bound = MemoryBound::new(PrefetchMemory::Bytes(bytes), (0, 1), ObjectSizes::Real);
        MemoryBudget::new(Arc::new(bound))
    }

    fn take(budget: &MemoryBudget, bytes: u64) -> Option<MemoryShare> {
        budget.take(bytes, || true).now_or_never()
    }

    #[test]
    fn the_budget_holds_two_objects() {
        let budget = budget(1);
        let (first, second) = (take(&budget, 3), take(&budget, 3));
        assert!(first.is_some() && second.is_some() && take(&budget, 1).is_none());
        drop(first);
        assert!(take(&budget, 3).is_some());
    }

    #[test]
    fn an_object_larger_than_the_budget_is_admitted() {
        let budget = budget(10);
        let large = take(&budget, 1_000);
        assert!(large.is_some() && take(&budget, 1).is_none());
        drop(large);
        assert!(take(&budget, 5).is_some_and(|_| take(&budget, 5).is_some()));
    }

    #[test]
    fn an_object_gives_its_room_back_with_its_last_batch() {
        let budget = budget(10);
        let first = take(&budget, 10).unwrap();
        let second = first.clone();
        drop(first);
        assert!(take(&budget, 1).is_none());
        drop(second);
        assert!(take(&budget, 1).is_some());
    }

    #[test]
    fn one_object_that_the_assembler_waits_for_is_admitted_however_much_is_in_use() {
        let budget = budget(1);
        let _kept = take(&budget, 1_000).unwrap();
        for bytes in [10, 1] {
            assert!(take(&budget, bytes).is_none(), "nobody waits for it");
            budget.await_next();
            let unsent = budget.take(bytes, || false).now_or_never();
            assert!(unsent.is_none(), "what was admitted before has not arrived");
            std::mem::forget(take(&budget, bytes).unwrap());
        }
        assert!(take(&budget, 1).is_none(), "the one before is on its way");
    }
}
