//! A stretch of a run as the bundles it consists of, epoch after epoch.
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
/// Most partitions of an epoch.
const MOST_PARTITIONS: u32 = 128;
/// Workers for each partition. A worker writes a few times a second; a partition takes 1,000 writes
/// a second.
const WORKERS_A_PARTITION: u32 = 32;

/// The partitions that the bundles of a job with so many workers are spread over.
pub fn partitions(workers: u32) -> u32 {
    let enough = workers.min(MOST_PARTITIONS * WORKERS_A_PARTITION) / WORKERS_A_PARTITION;
    enough.next_power_of_two().clamp(FEWEST_PARTITIONS, MOST_PARTITIONS)
}

/// The part of a course that lies in one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochBundleRange {
    pub epoch: Epoch,
    /// The epoch's first position, counted through all epochs.
    pub base: u64,
    pub bundles: Range<BundleIndex>,
}

/// A stretch of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleRanges {
    pub ramp: BundleDivision,
    pub legs: Vec<EpochBundleRange>,
}

impl BundleRanges {
    /// The bundles of the epochs worked on that hold positions `stretch`, counted through all
    /// epochs.
    pub fn from_positions(
        ramp: BundleDivision,
        stretch: Range<u64>,
        is_worked_on: impl Fn(Epoch) -> bool,
    ) -> Self {
        let n = u64::from(ramp.n_splits());
        let mut legs = Vec::new();
        let mut at = stretch.start;
        while n > 0 && at < stretch.end {
            let (number, base) = (at / n, at / n * n);
            let end = stretch.end.min(base + n);
            let epoch = u32::try_from(number).unwrap_or(Epoch::MAX);
            if is_worked_on(epoch) {
                legs.push(EpochBundleRange {
                    epoch,
                    base,
                    bundles: bundles(&ramp, at - base, end - base),
                });
            }
            at = end;
        }
        Self { ramp, legs }
    }

    /// The bundles of a single epoch that hold `positions`.
    pub fn from_epoch(ramp: BundleDivision, epoch: Epoch, positions: Range<Position>) -> Self {
        let bundles = bundles(&ramp, positions.start.into(), positions.end.into());
        Self { ramp, legs: vec![EpochBundleRange { epoch, base: 0, bundles }] }
    }

    /// Number of bundles.
    pub fn len(&self) -> usize {
        self.legs.iter().map(|leg| leg.bundles.len()).sum()
    }

    /// Whether there are no bundles.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it consists of exactly these bundles, in this order.
    pub fn is_of(&self, bundles: impl Iterator<Item = EpochBundle>) -> bool {
        let of = |leg: &EpochBundleRange| {
            let epoch = leg.epoch;
            leg.bundles.clone().map(move |bundle| (epoch, bundle))
        };
        self.legs.iter().flat_map(of).eq(bundles)
    }

    /// The first `most` bundles, and the rest.
    pub fn divided(mut self, most: usize) -> (Self, Self) {
        let mut rest = Self { ramp: self.ramp, legs: Vec::new() };
        let mut room = u32::try_from(most).unwrap_or(u32::MAX);
        for leg in &mut self.legs {
            let end = leg.bundles.end.min(leg.bundles.start.saturating_add(room));
            rest.legs.push(EpochBundleRange { bundles: end..leg.bundles.end, ..leg.clone() });
            leg.bundles.end = end;
            room -= end - leg.bundles.start;
        }
        self.legs.retain(|leg| !leg.bundles.is_empty());
        rest.legs.retain(|leg| !leg.bundles.is_empty());
        (self, rest)
    }
}

fn bundles(ramp: &BundleDivision, start: u64, end: u64) -> Range<BundleIndex> {
    let of = |position: u64| u32::try_from(position).ok().and_then(|p| ramp.bundle_of(p));
    match end.checked_sub(1).filter(|last| *last >= start).and_then(of) {
        Some(last) => of(start).unwrap_or(last)..last + 1,
        None => 0..0,
    }
}

impl EpochBundleRange {
    /// The positions of one of its epoch's bundles, counted through all epochs.
    pub fn positions(&self, ramp: &BundleDivision, bundle: BundleIndex) -> Range<u64> {
        let positions = ramp.positions(bundle);
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
    fn a_course_goes_through_the_epochs_that_are_worked_on() {
        let course =
            BundleRanges::from_positions(BundleDivision::new(6, 2), 4..14, |epoch| epoch != 1);
        let legs: Vec<_> = course.legs.iter().map(|leg| (leg.epoch, leg.base)).collect();
        assert_eq!(legs, [(0, 0), (2, 12)]);
        assert_eq!(course.legs.iter().map(|l| l.bundles.clone()).collect::<Vec<_>>(), [3..4, 0..2]);
        assert_eq!(course.len(), 3);
        let (first, rest) = course.divided(2);
        assert_eq!((first.len(), rest.len(), rest.legs[0].bundles.clone()), (2, 1, 1..2));
    }

    proptest! {
        #[test]
        fn every_bundle_lies_in_one_partition(n in 1u32..400, from in 0u32..400, log in 0u32..5) {
            let from = from.min(n - 1);
            let course = BundleRanges::from_epoch(BundleDivision::new(n, 4), 0, from..n);
            let (leg, partitions) = (&course.legs[0], 1 << log);
            let mut found = Vec::new();
            for partition in 0..partitions {
                let mut above = None;
                while let Some(bundle) = leg.first_in( partition, partitions, above) {
                    prop_assert_eq!(bundle % partitions, partition);
                    found.push(bundle);
                    above = Some(bundle);
                }
            }
            found.sort_unstable();
            prop_assert_eq!(found, leg.bundles.clone().collect::<Vec<_>>());
        }

        #[test]
        fn a_course_holds_its_stretch_and_little_more(
            n in 1u32..60, start in 0u64..200, len in 0u64..120, r in 0u32..4,
        ) {
            let course = BundleRanges::from_positions(BundleDivision::new(n, 1 << r), start..start + len, |_| true);
            let mut next = None;
            for leg in &course.legs {
                for bundle in leg.bundles.clone() {
                    let positions = leg.positions(&course.ramp, bundle);
                    prop_assert!(positions.start < start + len && positions.end > start);
                    prop_assert!(next.is_none_or(|next| next == positions.start));
                    next = Some(positions.end);
                }
            }
            prop_assert!(len == 0 || next.is_some_and(|next| next >= start + len));
        }
    }
}
