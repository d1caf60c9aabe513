//! Gets one split, or frames of it: computed here, downloaded, or recomputed.

use super::{SplitDownloader, needs::NeededPart};
use crate::{
    FetchError,
    ledger::FetchErrorSource,
    local::{committed_as, open, open_index, recompute},
};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use gristmill_chunk::{Chunk, ChunkFormatError, ChunkLimits, Footer};
use gristmill_model::splits::{SplitKind, SplitPlace};
use gristmill_model::stored::keys;
use gristmill_model::wire::{CacheOrders, CachedChunk, CachingView, ReadySplit};
use gristmill_ports::{ObjectError, ObjectPath, get_long_range};
use gristmill_runner::{JobContext, LeaseError, Runner};
use std::{ops::Range, time::Duration};

/// First and longest pause before a failing object store is retried.
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(2);
/// Parts of one object that are read at the same time.
const PARTS_AT_ONCE: usize = 4;

impl SplitDownloader {
    /// `share` of the split committed as `entry`; `here` holds its bytes if this process computed it. A stored object
    /// that is missing, or in which any byte is damaged, is computed again.
    pub(super) async fn chunk(
        &self,
        (entry, share): (&ReadySplit, &NeededPart),
        here: Option<Bytes>,
    ) -> Result<Chunk, FetchError> {
        let cached = self.ledger.cached_chunk(entry.place);
        let caching = self.ledger.view().and_then(|view| view.caching);
        let key = key_of(&self.runner, &self.context, entry, cached, caching.as_ref());
        let opened = |bytes| open(bytes, entry, &key);
        let lacking = match (entry.outcome.kind, here) {
            (_, Some(object)) => return opened(object),
            (SplitKind::Local, None) => None,
            (_, None) => match self.stored(entry, share, &key).await? {
                Ok(chunk) => return Ok(chunk),
                Err(lacking) => Some(lacking),
            },
        };
        if let Some(lacking) = &lacking {
            // A too old checkpoint lacks many objects; wait for its refusal before recomputing any.
            tokio::select! {
                biased;
                error = self.ledger.failed() => return Err(error),
                () = self.progress.admitted() => {}
            }
            let healed = self.ledger.note_healed();
            // An old checkpoint may lack thousands.
            if healed.is_power_of_two() {
                tracing::warn!(
                    "{lacking}: split {} of epoch {} is computed here again, number {healed}",
                    entry.place.position,
                    entry.place.epoch
                );
            }
        }
        let at = committed_as(entry, cached, caching.as_ref());
        opened(self.recomputed(entry, &at).await.map_err(|error| {
            FetchError::BadObject(match &lacking {
                Some(lacking) => format!("{lacking}, and cannot be computed again: {error}"),
                None => error.to_string(),
            })
        })?)
    }

    /// The object of the split committed as `entry`, computed here. Retries what may pass.
    async fn recomputed(
        &self,
        entry: &ReadySplit,
        at: &(SplitPlace, CacheOrders),
    ) -> Result<Bytes, LeaseError> {
        let Runner { clock, .. } = &self.runner;
        let mut rest = FIRST_REST;
        loop {
            match recompute(&self.runner, &self.context, entry, at).await {
                Err(LeaseError::Passing(why)) => {
                    self.ledger.set_trouble(FetchErrorSource::Objects, Some(why.clone()));
                    tokio::select! {
                        biased;
                        _ = self.ledger.failed() => return Err(LeaseError::Passing(why)),
                        () = clock.sleep(rest) => rest = (rest * 2).min(LONGEST_REST),
                    }
                }
                computed => {
                    self.ledger.set_trouble(FetchErrorSource::Objects, None);
                    return computed;
                }
            }
        }
    }

    /// `share` of the stored object, or why it is not to be had.
    async fn stored(
        &self,
        entry: &ReadySplit,
        share: &NeededPart,
        key: &str,
    ) -> Result<Result<Chunk, String>, FetchError> {
        let path = ObjectPath::new(&self.runner.config.bucket, key);
        let damaged = |error: ChunkFormatError| format!("{path}: {error}");
        let object_bytes = entry.outcome.object_bytes;
        let NeededPart::Frames { frames, .. } = share else {
            let object = match self.read(&path, 0..object_bytes).await? {
                Ok(object) => object,
                Err(lacking) => return Ok(Err(lacking)),
            };
            // Once a frame is on its way to the trainer, it is too late to compute it again.
            return Ok(open(object, entry, key)
                .map_err(|error| error.to_string())
                .and_then(|chunk| chunk.verified().map_err(damaged)));
        };
        let index_at = object_bytes.saturating_sub(index_bytes(entry));
        let index = match self.read(&path, index_at..object_bytes).await? {
            Ok(index) => open_index(&index, entry, key).map_err(|error| error.to_string()),
            Err(lacking) => Err(lacking),
        };
        let index = match index {
            Ok(index) => index,
            Err(lacking) => return Ok(Err(lacking)),
        };
        let runs = index.runs(frames.iter().map(|frame| *frame as usize));
        let part = async |run: Range<u64>| {
            let read = self.read(&path, run.clone()).await?;
            Ok::<_, FetchError>(read.map(|bytes| (run.start, bytes)))
        };
        let parts = stream::iter(runs).map(part).buffered(PARTS_AT_ONCE);
        let parts: Vec<Result<(u64, Bytes), String>> = parts.try_collect().await?;
        let parts = parts.into_iter().collect::<Result<Vec<_>, _>>();
        Ok(parts.and_then(|parts| {
            Chunk::from_parts(index, parts, &ChunkLimits::default()).map_err(damaged)
        }))
    }

    /// Bytes `range` of the object at `path`, or why they are not there. Retries a failing store.
    async fn read(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
    ) -> Result<Result<Bytes, String>, FetchError> {
        let Runner { objects, clock, .. } = &self.runner;
        let mut rest = FIRST_REST;
        loop {
            let error = match get_long_range(&**objects, path, range.clone(), None).await {
                Ok(bytes) => {
                    self.ledger.set_trouble(FetchErrorSource::Objects, None);
                    self.ledger.note_fetched(bytes.len() as u64);
                    return Ok(Ok(bytes));
                }
                Err(ObjectError::NotFound(_)) => return Ok(Err(format!("{path} is gone"))),
                // It is cut short.
                Err(ObjectError::Rejected(why)) => return Ok(Err(why)),
                Err(error) => error.to_string(),
            };
            let trouble = format!("{path} cannot be read: {error}");
            self.ledger.set_trouble(FetchErrorSource::Objects, Some(trouble));
            tokio::select! {
                biased;
                error = self.ledger.failed() => return Err(error),
                () = clock.sleep(rest) => rest = (rest * 2).min(LONGEST_REST),
            }
        }
    }
}

/// Bytes of the index at the end of the object committed as `entry`.
fn index_bytes(entry: &ReadySplit) -> u64 {
    let outcome = &entry.outcome;
    Footer::bytes(u64::from(outcome.batches) + u64::from(outcome.remainder_rows > 0))
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
