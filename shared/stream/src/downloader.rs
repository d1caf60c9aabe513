//! Fetches committed splits in delivery order, several at a time, within a memory budget.

pub(crate) use crate::memory::MemoryBudget;
pub use crate::memory::MemoryShare;
use crate::{
    FetchError, ServedRanks,
    ledger::FetchErrorSource,
    local::{before_bad, committed_as, open, open_index, recompute},
    served_ranks::{BatchPicker, PickedBatches},
    waiting::StreamState,
};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use gristmill_chunk::{Chunk, ChunkFormatError, ChunkLimits, Footer};
use gristmill_model::Position;
use gristmill_model::splits::batches::BatchLocation;
use gristmill_model::splits::{SplitKind, SplitPlace};
use gristmill_model::stored::keys;
use gristmill_model::wire::{CacheOrders, CachedChunk, CachingView, EpochPlan, ReadySplit};
use gristmill_ports::{ObjectError, ObjectPath, get_long_range};
use gristmill_runner::{JobContext, LeaseError};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};

/// Most splits that are being downloaded or waiting to be joined, if all of them are needed.
const MAX_AHEAD: usize = 32;
/// Most splits for each of these, if only the batches of some ranks are needed.
const MAX_SKIPPED: u32 = 64;

/// How many splits ahead of the trainer a reader of `part` goes: of every so many ranks it serves one, and has
/// something to download.
pub(crate) fn ahead(part: Option<ServedRanks>) -> usize {
    let ranks_of = |own: ServedRanks| own.run.ranks.data_ranks() / own.data_ranks();
    MAX_AHEAD * part.map_or(1, ranks_of).clamp(1, MAX_SKIPPED) as usize
}

/// One split in delivery order.
pub(crate) struct ArrivingSplit {
    pub entry: ReadySplit,
    /// Whether it has all that its split will have, and not only what precedes a bad record.
    pub is_whole: bool,
    pub picked: PickedBatches,
    /// The objects that its batches need, or frames of them: of this split and of earlier ones.
    pub contents: Vec<ArrivingObject>,
}

/// A split's object, or the frames of it that are needed, once they have arrived.
pub(crate) struct ArrivingObject {
    pub entry: ReadySplit,
    pub chunk: oneshot::Receiver<Result<Chunk, FetchError>>,
    pub room: MemoryShare,
}

/// Downloads the splits of one job.
#[derive(Clone)]
pub(crate) struct SplitDownloader {
    pub context: JobContext,
    pub state: StreamState,
}

impl SplitDownloader {
    /// Sends every split from `start` to the end of the run, in order, then closes the channel. If the job fails, ends
    /// before the first split that was not committed, or within it before a bad record, and returns false.
    pub async fn run(
        self,
        start: SplitPlace,
        mut own: BatchPicker,
        plan: EpochPlan,
        budget: Arc<MemoryBudget>,
        arrivals: mpsc::Sender<ArrivingSplit>,
    ) -> Result<bool, FetchError> {
        let StreamState { ledger, local, bound, .. } = self.state.clone();
        let n_splits = plan.n_splits;
        let mut needs = SplitNeeds::new(plan.batch_size, own.is_part());
        local.begins_at(start);
        let mut downloads = JoinSet::new();
        let (mut place, mut is_whole) = (start, true);
        while is_whole && place.epoch < self.context.view.spec.epochs && n_splits > 0 {
            let (entry, partial) = match ledger.take(place).await? {
                Some(entry) => (entry, None),
                None => {
                    is_whole = false;
                    let Some((entry, object)) = self.before_bad(place).await else { break };
                    own.ends_within_epoch();
                    (entry, Some(object))
                }
            };
            let picked = own.push(place, entry.outcome.counts());
            let shares = needs.parts_of_split(&entry, &picked);
            bound.learn(&plan, place, &entry.outcome);
            let mut contents = Vec::with_capacity(shares.len());
            let room = if shares.is_empty() {
                MemoryShare::default()
            } else {
                let is_here = local.holds(&entry);
                // Bytes that were computed here are all in memory.
                let bytes_of = |(of, share): &(ReadySplit, NeededPart)| {
                    let all = bound.size_of(of);
                    if is_here && of.place == place { all } else { share.bytes(of, all) }
                };
                let bytes = shares.iter().map(bytes_of).fold(0, u64::saturating_add);
                // Nothing that was admitted is left for the assembler.
                let is_next = || arrivals.capacity() == arrivals.max_capacity();
                budget.take(bytes, is_next).await
            };
            let mut here = partial.or_else(|| local.take(&entry));
            for (entry, part) in shares {
                let here = here.take_if(|_| entry.place == place);
                let (sender, chunk) = oneshot::channel();
                let (source, of) = (self.clone(), entry.clone());
                let fetch = async move { source.chunk(&of, &part, here).await };
                downloads.spawn(async move { drop(sender.send(fetch.await)) });
                contents.push(ArrivingObject { entry, chunk, room: room.clone() });
            }
            if arrivals.send(ArrivingSplit { entry, is_whole, picked, contents }).await.is_err() {
                return Ok(true);
            }
            while downloads.try_join_next().is_some() {}
            place = place.next(n_splits);
        }
        local.end();
        // Dropping the set would cancel the last downloads.
        while downloads.join_next().await.is_some() {}
        Ok(is_whole)
    }

    /// The part of the split at `place` before the bad record that failed the job; none if not all of the split may be
    /// stored.
    async fn before_bad(&self, place: SplitPlace) -> Option<(ReadySplit, Bytes)> {
        let caching = self.state.ledger.view()?.caching;
        let orders = caching.map_or_else(CacheOrders::default, |c| c.orders(place.epoch));
        if orders.put.is_some() {
            return None;
        }
        before_bad(&self.context, place, &orders).await
    }
}

// Gets one split, or frames of it: computed here, downloaded, or recomputed.

/// First and longest pause before a failing object store is retried.
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(2);
/// Parts of one object that are read at the same time.
const PARTS_AT_ONCE: usize = 4;

impl SplitDownloader {
    /// `share` of the split committed as `entry`; `here` holds its bytes if this process computed it. A stored object
    /// that is missing, or in which any byte is damaged, is computed again.
    async fn chunk(
        &self,
        entry: &ReadySplit,
        share: &NeededPart,
        here: Option<Bytes>,
    ) -> Result<Chunk, FetchError> {
        let StreamState { ledger, progress, .. } = &self.state;
        let cached = ledger.cached_chunk(entry.place);
        let caching = ledger.view().and_then(|view| view.caching);
        let key = key_of(&self.context, entry, cached, caching.as_ref());
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
                error = ledger.failed() => return Err(error),
                () = progress.admitted() => {}
            }
            let healed = ledger.note_healed();
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
        let StreamState { ledger, clock, .. } = &self.state;
        let mut rest = FIRST_REST;
        loop {
            match recompute(&self.context, entry, at).await {
                Err(LeaseError::Passing(why)) => {
                    ledger.set_trouble(FetchErrorSource::Objects, Some(why.clone()));
                    tokio::select! {
                        biased;
                        _ = ledger.failed() => return Err(LeaseError::Passing(why)),
                        () = clock.sleep(rest) => rest = (rest * 2).min(LONGEST_REST),
                    }
                }
                computed => {
                    ledger.set_trouble(FetchErrorSource::Objects, None);
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
        let path = ObjectPath::new(&self.context.runner.config.bucket, key);
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
        let StreamState { ledger, clock, .. } = &self.state;
        let objects = &*self.context.runner.objects;
        let mut rest = FIRST_REST;
        loop {
            let error = match get_long_range(objects, path, range.clone(), None).await {
                Ok(bytes) => {
                    ledger.set_trouble(FetchErrorSource::Objects, None);
                    ledger.note_fetched(bytes.len() as u64);
                    return Ok(Ok(bytes));
                }
                Err(ObjectError::NotFound(_)) => return Ok(Err(format!("{path} is gone"))),
                // It is cut short.
                Err(ObjectError::Rejected(why)) => return Ok(Err(why)),
                Err(error) => error.to_string(),
            };
            let trouble = format!("{path} cannot be read: {error}");
            ledger.set_trouble(FetchErrorSource::Objects, Some(trouble));
            tokio::select! {
                biased;
                error = ledger.failed() => return Err(error),
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

/// The key of a chunk: among the job's own objects, below a cache prefix of this job, or below the cache prefix of the job that
/// cached it. Reads are limited to the committed length: a larger object is not the committed one.
fn key_of(
    context: &JobContext,
    entry: &ReadySplit,
    cached: Option<CachedChunk>,
    caching: Option<&CachingView>,
) -> String {
    let own = || {
        let ns = &context.runner.config.ns;
        keys::bundle_prefix(ns, &context.view.job, entry.place.epoch, entry.bundle)
    };
    let delivered = caching.and_then(|caching| caching.delivered_prefix(entry.place.epoch));
    let cache_prefix =
        delivered.or_else(|| caching.and_then(|c| c.chunks_prefix(entry.place.epoch)));
    let prefix = cache_prefix
        .map_or_else(own, |cache_prefix| keys::cached_bundle(cache_prefix, entry.bundle));
    let position = cached.map_or(entry.place.position, |chunk| chunk.position);
    keys::chunk(&prefix, position, entry.attempt, entry.nonce)
}

// Which objects, or frames of them, the batches of a split need.

/// Objects up to this size are read whole: a second request takes longer than the bytes that it saves.
const SMALL_BYTES: u64 = 16 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
enum NeededPart {
    Whole,
    Frames {
        /// Numbers of the frames.
        frames: BTreeSet<u32>,
        /// About how many bytes they have.
        bytes: u64,
    },
}

impl NeededPart {
    /// `frames` of the object of `entry`, in batches of `size` rows.
    fn from_frames(entry: &ReadySplit, frames: BTreeSet<u32>, size: u32) -> Self {
        let outcome = &entry.outcome;
        let rows_of = |frame: &u32| {
            if *frame < outcome.batches {
                u64::from(size)
            } else {
                u64::from(outcome.remainder_rows)
            }
        };
        let needed: u64 = frames.iter().map(rows_of).sum();
        let all = u64::from(outcome.batches) * u64::from(size) + u64::from(outcome.remainder_rows);
        let is_most = u128::from(needed) * 10 >= u128::from(all) * 9;
        // A chunk of an earlier local worker has no object: all of it is computed again.
        let is_local = outcome.kind == SplitKind::Local;
        if is_most || is_local || outcome.object_bytes <= SMALL_BYTES {
            return Self::Whole;
        }
        let bytes = u128::from(outcome.object_bytes) * u128::from(needed) / u128::from(all.max(1));
        Self::Frames { frames, bytes: u64::try_from(bytes).unwrap_or(u64::MAX) }
    }

    /// About how many of the `all` bytes that the object of `entry` counts for this is.
    pub fn bytes(&self, entry: &ReadySplit, all: u64) -> u64 {
        let Self::Frames { bytes, .. } = self else { return all };
        let object_bytes = u128::from(entry.outcome.object_bytes.max(1));
        let part = u128::from(all) * u128::from(*bytes) / object_bytes;
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

/// Finds what is needed, and remembers the entries of splits that later batches may need.
struct SplitNeeds {
    /// Rows per batch.
    size: u32,
    /// Whether only the batches of some ranks are delivered here.
    is_part: bool,
    entries: BTreeMap<Position, ReadySplit>,
}

impl SplitNeeds {
    /// The needs of a reader of batches of `size`; `is_part` if other readers take some of them.
    pub fn new(size: u32, is_part: bool) -> Self {
        Self { size: size.max(1), is_part, entries: BTreeMap::new() }
    }

    /// Finds what is needed of the split committed as `entry`, which brought `picked`, and of earlier ones.
    pub fn parts_of_split(
        &mut self,
        entry: &ReadySplit,
        picked: &PickedBatches,
    ) -> Vec<(ReadySplit, NeededPart)> {
        if !self.is_part {
            let has_batches = !(picked.batches.is_empty() && picked.repeats.is_empty());
            let is_needed =
                entry.outcome.kind != SplitKind::Poison && (has_batches || picked.left.is_some());
            return is_needed.then(|| (entry.clone(), NeededPart::Whole)).into_iter().collect();
        }
        self.entries.insert(entry.place.position, entry.clone());
        let mut shares = Vec::new();
        for (position, frames) in frames(picked, self.size) {
            // An absent entry is an error when the batch is joined.
            if let Some(entry) = self.entries.get(&position) {
                shares.push((entry.clone(), NeededPart::from_frames(entry, frames, self.size)));
            }
        }
        match picked.epoch_end {
            Some(_) => self.entries.clear(),
            None => self.entries = self.entries.split_off(&picked.needed),
        }
        shares
    }
}

/// The frames that hold rows of the batches, by split.
fn frames(picked: &PickedBatches, size: u32) -> BTreeMap<Position, BTreeSet<u32>> {
    let mut frames: BTreeMap<Position, BTreeSet<u32>> = BTreeMap::new();
    for batch in picked.batches.iter().chain(&picked.repeats) {
        match &batch.source {
            BatchLocation::Whole { position, frame } => {
                frames.entry(*position).or_default().insert(*frame);
            }
            BatchLocation::Joined(pieces) => {
                for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
                    let numbers = piece.rows.start / size..=(piece.rows.end - 1) / size;
                    frames.entry(piece.position).or_default().extend(numbers);
                }
            }
        }
    }
    frames
}

#[cfg(test)]
mod tests;
