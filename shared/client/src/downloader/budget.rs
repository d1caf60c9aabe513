//! The memory budget of objects that are fetched ahead.

use crate::FetchError;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unit of the memory budget.
const PERMIT_BYTES: u64 = 1 << 16;

/// Bytes that release their share of the budget when the last batch made from them is dropped.
struct Held {
    bytes: Bytes,
    _permit: Arc<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// `bytes`, which hold `permit` until the last slice of them is dropped.
pub(super) fn hold(bytes: Bytes, permit: &Arc<OwnedSemaphorePermit>) -> Bytes {
    Bytes::from_owner(Held { bytes, _permit: Arc::clone(permit) })
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
    pub async fn take(&self, object_bytes: u64) -> Result<OwnedSemaphorePermit, FetchError> {
        let wanted = u32::try_from(object_bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.free).acquire_many_owned(wanted.min(self.permits)).await;
        permit.map_err(|error| FetchError::BadObject(error.to_string()))
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
    async fn held_bytes_give_their_room_back_with_the_last_slice() {
        let budget = Budget::new(PERMIT_BYTES, 1);
        let permit = Arc::new(budget.take(PERMIT_BYTES).await.unwrap());
        let bytes = hold(Bytes::from_static(b"ab"), &permit);
        drop(permit);
        let slice = bytes.slice(1..);
        drop(bytes);
        assert!(budget.take(1).now_or_never().is_none());
        drop(slice);
        assert!(budget.take(1).now_or_never().is_some());
    }
}
