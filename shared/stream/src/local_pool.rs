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
                    let hosts = self.hosts();
                    let member = PoolMember { number, count: Arc::clone(&wanted), hosts };
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

    /// Hosts of the run that have local workers.
    fn hosts(&self) -> u32 {
        let target = self.state.ledger.local_target();
        target.map_or(1, |target| readers(&self.own).min(target))
    }

    fn wanted(&self) -> u32 {
        let target = self.state.ledger.local_target();
        target.map_or(self.most, |target| dealt(target, &self.own).min(self.most))
    }
}

/// Readers of the run, one on each host.
fn readers(own: &ServedRanks) -> u32 {
    own.run.ranks.count.get().div_ceil(own.range.count.get())
}

/// The part of `workers` that falls to the reader of `own` ranks: all readers have as many, the first ones one more.
fn dealt(workers: u32, own: &ServedRanks) -> u32 {
    let (readers, index) = (readers(own), own.range.first / own.range.count.get());
    workers / readers + u32::from(index < workers % readers)
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
            assert!(
                each.is_sorted_by(|one, other| one >= other) && each[0] - each[2] <= 1,
                "{each:?}"
            );
        }
    }
}
