//! Fetches committed splits in delivery order, several at a time, within a memory budget.

mod budget;
mod fetching;
mod needs;

use crate::{
    FetchError, ServedRanks,
    bounds::MemoryBound,
    ledger::SplitLedger,
    local::LocalStore,
    own_batches::{BatchPicker, PickedBatches},
    progress::FetcherProgress,
};
pub(crate) use budget::MemoryBudget;
pub use budget::MemoryShare;
use bytes::Bytes;
use gristmill_chunk::Chunk;
use gristmill_model::splits::SplitPlace;
use gristmill_model::wire::{EpochPlan, ReadySplit};
use gristmill_runner::{JobContext, Runner};
use needs::{NeededPart, SplitNeeds};
use std::sync::Arc;
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
    let ranks_of = |own: ServedRanks| own.run.ranks.count.get() / own.range.count.get();
    MAX_AHEAD * part.map_or(1, ranks_of).clamp(1, MAX_SKIPPED) as usize
}

/// One split in delivery order.
pub(crate) struct ArrivingSplit {
    pub entry: ReadySplit,
    pub picked: PickedBatches,
    /// The objects that its batches need, or frames of them: of this split and of earlier ones.
    pub contents: Vec<ArrivingObject>,
}

/// A split's object, or the frames of it that are needed, once they have arrived.
pub(crate) struct ArrivingObject {
    pub entry: ReadySplit,
    pub chunk: oneshot::Receiver<Result<Chunk, FetchError>>,
    /// Its share of the memory budget.
    pub room: MemoryShare,
}

/// Downloads the splits of one job.
#[derive(Clone)]
pub(crate) struct SplitDownloader {
    pub runner: Runner,
    pub context: Arc<JobContext>,
    pub ledger: Arc<SplitLedger>,
    pub progress: Arc<FetcherProgress>,
    pub local: Arc<LocalStore>,
    /// The bound on objects fetched or in use.
    pub bound: Arc<MemoryBound>,
}

impl SplitDownloader {
    /// Sends every split from `start` to the end of the run, in order, then closes the channel.
    pub async fn run(
        self,
        start: SplitPlace,
        mut own: BatchPicker,
        plan: EpochPlan,
        (budget, arrivals): (Arc<MemoryBudget>, mpsc::Sender<ArrivingSplit>),
    ) -> Result<(), FetchError> {
        let n_splits = plan.n_splits;
        let mut needs = SplitNeeds::new(plan.batch_size, own.is_part());
        self.local.begins_at(start);
        let mut downloads = JoinSet::new();
        let mut place = start;
        while place.epoch < self.context.view.spec.epochs && n_splits > 0 {
            let entry = self.ledger.take(place).await?;
            let picked = own.push(place, entry.outcome.counts());
            let shares = needs.parts_of_split(&entry, &picked);
            self.bound.learn(&plan, place, &entry.outcome);
            let mut contents = Vec::with_capacity(shares.len());
            let room = if shares.is_empty() {
                MemoryShare::default()
            } else {
                let is_here = self.local.holds(&entry);
                // Bytes that were computed here are all in memory.
                let bytes_of = |(of, share): &(ReadySplit, NeededPart)| {
                    let all = self.bound.size_of(of);
                    if is_here && of.place == place { all } else { share.bytes(of, all) }
                };
                let bytes = shares.iter().map(bytes_of).fold(0, u64::saturating_add);
                // Nothing that was admitted is left for the assembler.
                let is_next = || arrivals.capacity() == arrivals.max_capacity();
                budget.take(bytes, is_next).await
            };
            let mut here = self.local.take(&entry);
            for share in shares {
                let here = here.take_if(|_| share.0.place == place);
                let (sender, chunk) = oneshot::channel();
                let entry = share.0.clone();
                let fetch = self.fetch(share, here);
                downloads.spawn(async move { drop(sender.send(fetch.await)) });
                contents.push(ArrivingObject { entry, chunk, room: room.clone() });
            }
            if arrivals.send(ArrivingSplit { entry, picked, contents }).await.is_err() {
                return Ok(());
            }
            while downloads.try_join_next().is_some() {}
            place = place.next(n_splits);
        }
        self.local.end();
        // Dropping the set would cancel the last downloads.
        while downloads.join_next().await.is_some() {}
        Ok(())
    }

    fn fetch(
        &self,
        (entry, share): (ReadySplit, NeededPart),
        here: Option<Bytes>,
    ) -> impl Future<Output = Result<Chunk, FetchError>> + Send + use<> {
        let source = self.clone();
        async move { source.chunk((&entry, &share), here).await }
    }
}

#[cfg(test)]
mod tests;
