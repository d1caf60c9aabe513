//! The memory budget of objects that are fetched ahead.

use crate::FetchError;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unit of the memory budget.
const PERMIT_BYTES: u64 = 1 << 16;

/// The share of an object in the budget. The fetcher takes it back when all batches made from the object have dropped
/// theirs: with the batch, or before, by a trainer that keeps batches.
#[derive(Debug, Clone, Default)]
pub struct Room {
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

/// Memory for objects that are being downloaded or still in use.
pub(super) struct Budget {
    permits: u32,
    free: Arc<Semaphore>,
}

impl Budget {
    /// A budget of `bytes`, but of at least two objects of the usual size: one to train on and one in
    /// transit.
    pub fn new(bytes: u64, object_bytes: u64) -> Self {
        let permits = bytes.max(object_bytes.saturating_mul(2)).div_ceil(PERMIT_BYTES).max(1);
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        Self { permits, free: Arc::new(Semaphore::new(permits as usize)) }
    }

    /// Permits are taken in delivery order, so the split that is needed next always gets its permits.
    /// An object larger than the budget takes all of it.
    pub async fn take(&self, object_bytes: u64) -> Result<Room, FetchError> {
        let wanted = u32::try_from(object_bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.free).acquire_many_owned(wanted.min(self.permits)).await;
        let permit = permit.map_err(|error| FetchError::BadObject(error.to_string()))?;
        Ok(Room { _permit: Some(Arc::new(permit)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn the_budget_holds_two_objects_of_the_usual_size() {
        let budget = Budget::new(0, PERMIT_BYTES * 3);
        let take = |permits| budget.take(PERMIT_BYTES * permits).now_or_never().map(Result::unwrap);
        let (first, second) = (take(3), take(3));
        assert!(first.is_some() && second.is_some() && take(1).is_none());
        drop(first);
        assert!(take(3).is_some());
    }

    #[test]
    fn an_object_larger_than_the_budget_takes_all_of_it() {
        let budget = Budget::new(PERMIT_BYTES, 1);
        let large = budget.take(PERMIT_BYTES * 100).now_or_never();
        assert!(large.is_some());
        assert!(budget.take(1).now_or_never().is_none());
    }

    #[tokio::test]
    async fn an_object_gives_its_room_back_with_its_last_batch() {
        let budget = Budget::new(PERMIT_BYTES, 1);
        let first = budget.take(PERMIT_BYTES).await.unwrap();
        let second = first.clone();
        drop(first);
        assert!(budget.take(1).now_or_never().is_none());
        drop(second);
        assert!(budget.take(1).now_or_never().is_some());
    }
}
