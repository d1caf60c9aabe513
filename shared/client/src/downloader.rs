//! Fetches committed splits in delivery order, several at a time, within a memory budget.

use crate::{
    FetchError,
    ledger::{Ledger, Of},
    local::{LocalStore, Recompute, open, recompute},
    progress::Progress,
    start::{counts, cut},
};
use bytes::Bytes;
use gristmill_chunk::Chunk;
use gristmill_model::splits::{Place, SplitKind};
use gristmill_model::stored::keys;
use gristmill_model::wire::{CachedChunk, CachingView, Plan, ReadySplit};
use gristmill_ports::{ObjectError, ObjectPath, get_long_range};
use gristmill_runner::{JobContext, Runner};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    task::JoinSet,
};

/// Most splits that are being downloaded or waiting to be joined.
pub(crate) const MAX_AHEAD: usize = 32;
/// Unit of the memory budget.
const PERMIT_BYTES: u64 = 1 << 16;

/// One split in delivery order: its entry, and its content once it has arrived.
pub(crate) struct Arrival {
    pub entry: ReadySplit,
    pub content: Content,
}

pub(crate) enum Content {
    /// No content: the split is poisoned, or already passed and not needed.
    Nothing,
    Pending(oneshot::Receiver<Result<Chunk, FetchError>>),
}

/// Downloads the splits of one job.
#[derive(Clone)]
pub(crate) struct Downloader {
    pub runner: Runner,
    pub context: Arc<JobContext>,
    pub ledger: Arc<Ledger>,
    pub progress: Arc<Progress>,
    pub local: Arc<LocalStore>,
    pub budget_bytes: u64,
    /// How long the object store may keep failing.
    pub patience: Duration,
}

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

/// Memory for objects that are being downloaded or still in use.
struct Budget {
    permits: u32,
    free: Arc<Semaphore>,
}

impl Budget {
    /// A budget of `bytes`, but of at least two objects of the usual size: one to train on and one in
    /// transit.
    fn new(bytes: u64, object_bytes: u64) -> Self {
        let permits = bytes.max(object_bytes.saturating_mul(2)).div_ceil(PERMIT_BYTES).max(1);
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        Self { permits, free: Arc::new(Semaphore::new(permits as usize)) }
    }

    /// Permits are taken in delivery order, so the split that is needed next always gets its permits.
    /// An object larger than the budget takes all of it.
    async fn take(&self, object_bytes: u64) -> Result<OwnedSemaphorePermit, FetchError> {
        let wanted = u32::try_from(object_bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.free).acquire_many_owned(wanted.min(self.permits)).await;
        permit.map_err(|error| FetchError::BadObject(error.to_string()))
    }
}

impl Downloader {
    /// Sends every split from `start` to the end of the run, in order, then closes the channel. Splits before
    /// `next` are needed only for their leftover rows.
    pub async fn run(
        self,
        (start, next): (Place, Place),
        plan: Plan,
        arrivals: mpsc::Sender<Arrival>,
    ) -> Result<(), FetchError> {
        let (n_splits, cut) = (plan.n_splits, cut(&plan));
        let mut budget: Option<Budget> = None;
        let mut downloads = JoinSet::new();
        let mut place = start;
        while place.epoch < self.context.view.spec.epochs && n_splits > 0 {
            let entry = self.ledger.take(place).await?;
            let content = match entry.outcome.kind {
                SplitKind::Poison => Content::Nothing,
                _ if place < next && !cut.may_leave_rows(counts(&entry)) => Content::Nothing,
                SplitKind::Object | SplitKind::Local => {
                    let budget = budget.get_or_insert_with(|| {
                        Budget::new(self.budget_bytes, entry.outcome.object_bytes)
                    });
                    let permit = budget.take(entry.outcome.object_bytes).await?;
                    let (sender, receiver) = oneshot::channel();
                    let fetch = self.fetch(entry.clone(), permit);
                    downloads.spawn(async move { drop(sender.send(fetch.await)) });
                    Content::Pending(receiver)
                }
            };
            if arrivals.send(Arrival { entry, content }).await.is_err() {
                return Ok(());
            }
            while downloads.try_join_next().is_some() {}
            place = place.next(n_splits);
        }
        // Dropping the set would cancel the last downloads.
        while downloads.join_next().await.is_some() {}
        Ok(())
    }

    fn fetch(
        &self,
        entry: ReadySplit,
        permit: OwnedSemaphorePermit,
    ) -> impl Future<Output = Result<Chunk, FetchError>> + Send + use<> {
        let source = Fetching {
            runner: self.runner.clone(),
            context: Arc::clone(&self.context),
            ledger: Arc::clone(&self.ledger),
            progress: Arc::clone(&self.progress),
            patience: self.patience,
        };
        let local = Arc::clone(&self.local);
        async move { source.chunk(&entry, local.take(&entry), Arc::new(permit)).await }
    }
}

/// First and longest pause before a failing object store is retried.
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(2);

/// Gets one split: computed here, downloaded, or recomputed.
struct Fetching {
    runner: Runner,
    context: Arc<JobContext>,
    ledger: Arc<Ledger>,
    progress: Arc<Progress>,
    patience: Duration,
}

impl Fetching {
    /// The split committed as `entry`; `here` holds its bytes if this process computed it.
    async fn chunk(
        &self,
        entry: &ReadySplit,
        here: Option<Bytes>,
        permit: Arc<OwnedSemaphorePermit>,
    ) -> Result<Chunk, FetchError> {
        let cached = self.ledger.cached_chunk(entry.place);
        let caching = self.ledger.view().and_then(|view| view.caching);
        let key = key_of(&self.runner, &self.context, entry, cached, caching.as_ref());
        let path = ObjectPath::new(&self.runner.config.bucket, &key);
        let opened = |bytes| {
            let held = Held { bytes, _permit: Arc::clone(&permit) };
            open(Bytes::from_owner(held), entry, &key)
        };
        let lacking = match (entry.outcome.kind, here) {
            (_, Some(object)) => return opened(object),
            (SplitKind::Local, None) => None,
            (_, None) => match self.stored(&path, entry.outcome.object_bytes).await? {
                Some(object) => match opened(object) {
                    Ok(chunk) => return Ok(chunk),
                    Err(error) => Some(error.to_string()),
                },
                None => Some(format!("{path} is gone")),
            },
        };
        if let Some(lacking) = &lacking {
            // A too old checkpoint lacks many objects; wait for its refusal before recomputing any.
            tokio::select! {
                biased;
                error = self.ledger.failed() => return Err(error),
                () = self.progress.admitted() => {}
            }
            tracing::warn!(
                "{lacking}: split {} of epoch {} is computed here again",
                entry.place.position,
                entry.place.epoch
            );
            if cached.is_none() {
                self.ledger.note_healed();
            }
        }
        let at = Recompute::of(entry, cached, caching.as_ref());
        match (recompute(&self.runner, &self.context, entry, at).await, lacking) {
            (Ok(object), _) => opened(object),
            (Err(error), None) => Err(error),
            (Err(error), Some(lacking)) => Err(FetchError::BadObject(format!(
                "{lacking}, and cannot be computed again: {error}"
            ))),
        }
    }

    /// The object at `path`; none if it does not exist. Retries a failing store.
    async fn stored(&self, path: &ObjectPath, bytes: u64) -> Result<Option<Bytes>, FetchError> {
        let Runner { objects, clock, .. } = &self.runner;
        let give_up = clock.monotonic() + self.patience;
        let mut rest = FIRST_REST;
        loop {
            let error = match get_long_range(&**objects, path, 0..bytes, None).await {
                Ok(object) => {
                    self.ledger.set_trouble(Of::Objects, None);
                    self.ledger.note_fetched(object.len() as u64);
                    return Ok(Some(object));
                }
                Err(ObjectError::NotFound(_)) => return Ok(None),
                Err(error) => error.to_string(),
            };
            if clock.monotonic() >= give_up {
                let waited_s = self.patience.as_secs();
                return Err(FetchError::BadObject(format!(
                    "{path} cannot be read for {waited_s} s: {error}"
                )));
            }
            self.ledger.set_trouble(Of::Objects, Some(error));
            tokio::select! {
                biased;
                error = self.ledger.failed() => return Err(error),
                () = clock.sleep(rest) => rest = (rest * 2).min(LONGEST_REST),
            }
        }
    }
}

/// The key of a chunk: among the job's own objects, on a shelf of this job, or on the shelf of the job that
/// cached it. Reads are limited to the committed length: a larger object is not the committed one.
fn key_of(
    runner: &Runner,
    context: &JobContext,
    entry: &ReadySplit,
    cached: Option<CachedChunk>,
    caching: Option<&CachingView>,
) -> String {
    let own = || {
        let ns = &runner.config.ns;
        keys::bundle_prefix(ns, &context.view.job, entry.place.epoch, entry.bundle)
    };
    let delivered = caching.and_then(|caching| caching.delivered_shelf(entry.place.epoch));
    let shelf = delivered.or_else(|| caching.and_then(|c| c.chunks_shelf(entry.place.epoch)));
    let prefix = shelf.map_or_else(own, |shelf| keys::shelf_bundle(shelf, entry.bundle));
    let position = cached.map_or(entry.place.position, |chunk| chunk.position);
    keys::chunk(&prefix, position, entry.attempt, entry.nonce)
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
        let bytes = Bytes::from_owner(Held { bytes: Bytes::from_static(b"ab"), _permit: permit });
        let slice = bytes.slice(1..);
        drop(bytes);
        assert!(budget.take(1).now_or_never().is_none());
        drop(slice);
        assert!(budget.take(1).now_or_never().is_some());
    }
}
