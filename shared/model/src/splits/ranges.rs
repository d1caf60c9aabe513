//! A span of a run as the bundles it consists of, epoch after epoch.
//!
//! Bundles of an epoch are spread over partitions of the table, bundle `b` in partition `b mod P`, so that
//! one job's workers can write faster than a single partition allows.

use crate::splits::order::BundleDivision;
use crate::{BundleIndex, Epoch, Position};
use std::ops::Range;

/// The bundle of an epoch.
pub type EpochBundle = (Epoch, BundleIndex);

/// Partitions of an epoch where the job has few workers.
pub const FEWEST_PARTITIONS: u32 = 8;
const MOST_PARTITIONS: u32 = 128;
/// Workers for each partition. A worker writes a few times a second; a partition takes 1,000 writes
/// a second.
const WORKERS_A_PARTITION: u32 = 32;

/// The partitions that the bundles of a job with so many workers are spread over.
pub fn partitions(workers: u32) -> u32 {
    let enough = workers.min(MOST_PARTITIONS * WORKERS_A_PARTITION) / WORKERS_A_PARTITION;
    enough.next_power_of_two().clamp(FEWEST_PARTITIONS, MOST_PARTITIONS)
}

/// The bundles of a span that lie in one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochBundleRange {
    pub epoch: Epoch,
    /// The epoch's first position, counted through all epochs.
    pub base: u64,
    pub bundles: Range<BundleIndex>,
}

/// A span of a run: its bundles by epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleRanges {
    pub division: BundleDivision,
    pub by_epoch: Vec<EpochBundleRange>,
}

impl BundleRanges {
    /// The bundles of the epochs worked on that hold positions `span`, counted through all
    /// epochs.
    pub fn from_positions(
        division: BundleDivision,
        span: Range<u64>,
        is_worked_on: impl Fn(Epoch) -> bool,
    ) -> Self {
        let n = u64::from(division.n_splits());
        let mut by_epoch = Vec::new();
        let mut at = span.start;
        while n > 0 && at < span.end {
            let (number, base) = (at / n, at / n * n);
            let end = span.end.min(base + n);
            let epoch = u32::try_from(number).unwrap_or(Epoch::MAX);
            if is_worked_on(epoch) {
                by_epoch.push(EpochBundleRange {
                    epoch,
                    base,
                    bundles: bundles(&division, at - base, end - base),
                });
            }
            at = end;
        }
        Self { division, by_epoch }
    }

    /// The bundles of a single epoch that hold `positions`.
    pub fn from_epoch(division: BundleDivision, epoch: Epoch, positions: Range<Position>) -> Self {
        let bundles = bundles(&division, positions.start.into(), positions.end.into());
        Self { division, by_epoch: vec![EpochBundleRange { epoch, base: 0, bundles }] }
    }

    /// Number of bundles.
    pub fn len(&self) -> usize {
        self.by_epoch.iter().map(|range| range.bundles.len()).sum()
    }

    /// Whether there are no bundles.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it consists of exactly these bundles, in this order.
    pub fn is_of(&self, bundles: impl Iterator<Item = EpochBundle>) -> bool {
        let of = |range: &EpochBundleRange| {
            let epoch = range.epoch;
            range.bundles.clone().map(move |bundle| (epoch, bundle))
        };
        self.by_epoch.iter().flat_map(of).eq(bundles)
    }

    /// The first `most` bundles, and the rest.
    pub fn divided(mut self, most: usize) -> (Self, Self) {
        let mut rest = Self { division: self.division, by_epoch: Vec::new() };
        let mut room = u32::try_from(most).unwrap_or(u32::MAX);
        for range in &mut self.by_epoch {
            let end = range.bundles.end.min(range.bundles.start.saturating_add(room));
            rest.by_epoch
                .push(EpochBundleRange { bundles: end..range.bundles.end, ..range.clone() });
            range.bundles.end = end;
            room -= end - range.bundles.start;
        }
        self.by_epoch.retain(|range| !range.bundles.is_empty());
        rest.by_epoch.retain(|range| !range.bundles.is_empty());
        (self, rest)
    }
}

fn bundles(division: &BundleDivision, start: u64, end: u64) -> Range<BundleIndex> {
    let of = |position: u64| u32::try_from(position).ok().and_then(|p| division.bundle_of(p));
    match end.checked_sub(1).filter(|last| *last >= start).and_then(of) {
        Some(last) => of(start).unwrap_or(last)..last + 1,
        None => 0..0,
    }
}

impl EpochBundleRange {
    /// The positions of one of its epoch's bundles, counted through all epochs.
    pub fn positions(&self, division: &BundleDivision, bundle: BundleIndex) -> Range<u64> {
        let positions = division.positions(bundle);
        self.base + u64::from(positions.start)..self.base + u64::from(positions.end)
    }

    /// The first of its bundles that lies in `partition` of `partitions`, behind `above`.
    pub fn first_in(
        &self,
        partition: u32,
        partitions: u32,
        above: Option<BundleIndex>,
    ) -> Option<BundleIndex> {
        let least = above
            .map_or(self.bundles.start, |above| self.bundles.start.max(above.saturating_add(1)));
        let more = (partition + partitions - least % partitions) % partitions;
        least.checked_add(more).filter(|bundle| *bundle < self.bundles.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn partitions_follow_the_workers() {
        let counts = [0, 10, 287, 288, 1_000, 5_000, u32::MAX].map(partitions);
        assert_eq!(counts, [8, 8, 8, 16, 32, 128, 128]);
    }

    #[test]
    fn ranges_go_through_the_epochs_that_are_worked_on() {
        let ranges =
            BundleRanges::from_positions(BundleDivision::new(6, 2), 4..14, |epoch| epoch != 1);
        let by_epoch: Vec<_> =
            ranges.by_epoch.iter().map(|range| (range.epoch, range.base)).collect();
        assert_eq!(by_epoch, [(0, 0), (2, 12)]);
        assert_eq!(
            ranges.by_epoch.iter().map(|l| l.bundles.clone()).collect::<Vec<_>>(),
            [3..4, 0..2]
        );
        assert_eq!(ranges.len(), 3);
        let (first, rest) = ranges.divided(2);
        assert_eq!((first.len(), rest.len(), rest.by_epoch[0].bundles.clone()), (2, 1, 1..2));
    }

    proptest! {
        #[test]
        fn every_bundle_lies_in_one_partition(n in 1u32..400, from in 0u32..400, log in 0u32..5) {
            let from = from.min(n - 1);
            let ranges = BundleRanges::from_epoch(BundleDivision::new(n, 4), 0, from..n);
            let (range, partitions) = (&ranges.by_epoch[0], 1 << log);
            let mut found = Vec::new();
            for partition in 0..partitions {
                let mut above = None;
                while let Some(bundle) = range.first_in( partition, partitions, above) {
                    prop_assert_eq!(bundle % partitions, partition);
                    found.push(bundle);
                    above = Some(bundle);
                }
            }
            found.sort_unstable();
            prop_assert_eq!(found, range.bundles.clone().collect::<Vec<_>>());
        }

        #[test]
        fn ranges_hold_the_window_and_little_more(
            n in 1u32..60, start in 0u64..200, len in 0u64..120, r in 0u32..4,
        ) {
            let ranges = BundleRanges::from_positions(BundleDivision::new(n, 1 << r), start..start + len, |_| true);
            let mut next = None;
            for range in &ranges.by_epoch {
                for bundle in range.bundles.clone() {
                    let positions = range.positions(&ranges.division, bundle);
                    prop_assert!(positions.start < start + len && positions.end > start);
                    prop_assert!(next.is_none_or(|next| next == positions.start));
                    next = Some(positions.end);
                }
            }
            prop_assert!(len == 0 || next.is_some_and(|next| next >= start + len));
        }
    }
}
