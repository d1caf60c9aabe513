//! The local workers of a fetcher: as many as were asked for, or as the scaler wants now.

use crate::{
    ServedRanks,
    local::{LocalSink, PoolMember, WorkEnd, work},
    waiting::StreamState,
};
use gristmill_runner::JobContext;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};
use tokio::task::JoinSet;

/// Holds as many workers as are wanted, of which a poll's answer tells. One that is no longer wanted ends after the split
/// at hand and gives the rest of its bundle back.
pub(crate) struct LocalPool {
    pub context: JobContext,
    pub state: StreamState,
    pub own: ServedRanks,
    /// The workers that were asked for; the most of them if the scaler decides.
    pub most: u32,
}

impl LocalPool {
    /// Works until the job or its stream has ended.
    pub async fn run(self) {
        let StreamState { ledger, local, .. } = &self.state;
        let (wanted, mut at_work, mut workers) =
            (Arc::<AtomicU32>::default(), BTreeSet::new(), JoinSet::new());
        while ledger.error().is_none() {
            wanted.store(self.wanted(), Ordering::Relaxed);
            for number in 0..self.wanted() {
                if at_work.insert(number) {
                    let member = PoolMember { number, count: Arc::clone(&wanted) };
                    let (store, ledger) = (Arc::clone(local), Arc::clone(ledger));
                    let sink = LocalSink::new(&self.context, store, ledger, member);
                    let context = self.context.clone();
                    workers.spawn(async move { (number, work(context, sink).await) });
                }
            }
            tokio::select! {
                biased;
                Some(ended) = workers.join_next() => match ended {
                    Ok((number, WorkEnd::Unwanted)) => drop(at_work.remove(&number)),
                    // The job has ended, or a panic says that this machine cannot work for it.
                    Ok((_, WorkEnd::JobEnded)) | Err(_) => {}
                },
                () = ledger.changed() => {}
            }
        }
        // Their last calls are answered soon.
        while workers.join_next().await.is_some() {}
    }

    fn wanted(&self) -> u32 {
        let target = self.state.ledger.local_target();
        target.map_or(self.most, |target| dealt(target, &self.own).min(self.most))
    }
}

/// The part of `workers` that falls to the reader of `own` ranks: all readers of a run together have as many.
fn dealt(workers: u32, own: &ServedRanks) -> u32 {
    let each = own.range.count.get();
    let readers = u64::from(own.run.ranks.count.get().div_ceil(each));
    let before = |readers_before: u64| u64::from(workers) * readers_before / readers;
    let index = u64::from(own.range.first / each);
    u32::try_from(before(index + 1) - before(index)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{batch, own};
    use gristmill_model::splits::ranks::TailPolicy;

    #[test]
    fn readers_of_a_run_share_all_local_workers() {
        let of = |workers, count, range| {
            dealt(workers, &own(count, range, batch(0, 0), TailPolicy::Drop))
        };
        assert_eq!(of(5, 8, 0..8), 5, "one reader has them all");
        for workers in 0..20 {
            let each: Vec<_> = (0..3).map(|i| of(workers, 6, 2 * i..2 * i + 2)).collect();
            assert_eq!(each.iter().sum::<u32>(), workers);
            assert!(each.iter().all(|n| n.abs_diff(workers / 3) <= 1), "{each:?}");
        }
    }
}
