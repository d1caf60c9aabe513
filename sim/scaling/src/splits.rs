//! A minimal split table: claimable, committed and delivered splits, in order.

use crate::ModelConditions;
use std::collections::{BTreeSet, VecDeque};

/// Positions, counted through all epochs.
#[derive(Debug, Clone, Default)]
pub(crate) struct ModelSplits {
    split_batches: u64,
    epoch_splits: u64,
    total: u64,
    batches: u64,
    /// The first position never claimed.
    unclaimed: u64,
    /// Positions released because their worker died.
    returned: BTreeSet<u64>,
    /// The first position not committed, and the commits after it.
    frontier: u64,
    done: VecDeque<bool>,
    committed: u64,
    delivered: u64,
}

impl ModelSplits {
    pub fn new(batches: u64, conditions: &ModelConditions) -> Self {
        let split_batches = u64::from(conditions.split_batches);
        // The last split may extend beyond the run.
        let total = batches.div_ceil(split_batches);
        Self {
            split_batches,
            epoch_splits: conditions.epoch_splits,
            total,
            batches,
            ..Self::default()
        }
    }

    pub fn batches(&self) -> u64 {
        self.batches
    }

    pub fn split_batches(&self) -> f64 {
        self.split_batches as f64
    }

    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Batches committed and not delivered.
    pub fn ready(&self) -> u64 {
        (self.committed * self.split_batches).saturating_sub(self.delivered)
    }

    /// Batches handed out or ready, and not delivered.
    pub fn ahead(&self) -> u64 {
        (self.unclaimed * self.split_batches).saturating_sub(self.delivered)
    }

    /// The first position that must not be claimed yet.
    fn end(&self, conditions: &ModelConditions) -> u64 {
        let delivered = self.delivered / self.split_batches;
        let window = (delivered + conditions.window_batches / self.split_batches).min(self.total);
        if !conditions.epoch_barrier {
            return window;
        }
        let epoch_end = (delivered / self.epoch_splits + 1).saturating_mul(self.epoch_splits);
        window.min(epoch_end)
    }

    pub fn claimable(&self, conditions: &ModelConditions) -> u32 {
        let fresh = self.end(conditions).saturating_sub(self.unclaimed) as usize;
        (fresh + self.returned.len()).min(u32::MAX as usize) as u32
    }

    /// Whether the full window allows no claim.
    pub fn is_full(&self, conditions: &ModelConditions) -> bool {
        self.unclaimed < self.total && self.claimable(conditions) == 0
    }

    /// Claims a lease: its first split and number of splits.
    pub fn claim(&mut self, conditions: &ModelConditions) -> Option<(u64, u32)> {
        if let Some(split) = self.returned.pop_first() {
            return Some((split, 1));
        }
        let splits = self.end(conditions).saturating_sub(self.unclaimed);
        let splits = splits.min(u64::from(conditions.lease_splits)) as u32;
        let first = self.unclaimed;
        self.unclaimed += u64::from(splits);
        (splits > 0).then_some((first, splits))
    }

    /// Releases the split of a dead worker and `more` following ones of its lease.
    pub fn give_back(&mut self, first: u64, more: u32) {
        self.returned.extend(first..=first + u64::from(more));
    }

    /// Commits a split; `arrived` receives the number of batches that are next in order.
    pub fn commit(&mut self, split: u64, mut arrived: impl FnMut(u64)) {
        let index = (split - self.frontier) as usize;
        if self.done.len() <= index {
            self.done.resize(index + 1, false);
        }
        self.done[index] = true;
        self.committed += 1;
        while self.done.front() == Some(&true) {
            self.done.pop_front();
            self.frontier += 1;
            arrived(self.split_batches);
        }
    }

    pub fn deliver(&mut self, batches: u64) {
        self.delivered += batches;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScalingScenario;

    #[test]
    fn splits_arrive_in_order_within_the_window() {
        let text = "name = 'w'\n[trainer]\nstep = '1s'\n[worker]\ncompute = '1s'\n\
                    [data]\nsplit_batches = 2\nwindow_batches = 6\n[run]\nbatches = 1000";
        let scenario = ScalingScenario::parse(text, "w.toml").unwrap();
        let conditions = &scenario.phases[0].conditions;
        let mut splits = ModelSplits::new(1_000, conditions);
        let claimed: Vec<_> = (0..4).map(|_| splits.claim(conditions)).collect();
        assert_eq!(claimed, [Some((0, 1)), Some((1, 1)), Some((2, 1)), None], "the window is full");
        let mut arrived = 0;
        splits.commit(1, |batches| arrived += batches);
        assert_eq!((arrived, splits.ready()), (0, 2), "0 comes first");
        splits.commit(0, |batches| arrived += batches);
        assert_eq!(arrived, 4);
        assert!(splits.is_full(conditions));
        splits.deliver(2);
        assert_eq!(splits.claim(conditions), Some((3, 1)));
        splits.give_back(2, 0);
        assert_eq!(splits.claim(conditions), Some((2, 1)), "what a dead worker had comes first");
    }
}
