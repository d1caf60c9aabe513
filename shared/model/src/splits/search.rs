//! The search for a bundle to claim: a partition's own end is the high-water mark.
//!
//! An absent bundle was never claimed, and the bundles of a partition are claimed in order. So the
//! bundle after the last present one is the next to claim, and no item counts them. A search looks
//! at two partitions and takes the lower end; if another worker was faster, it takes the next
//! bundle of that partition. It reports nothing only after it has looked at all partitions.

use crate::splits::{
    ranges::BundleRanges,
    window::{WindowBounds, WindowOccupancy},
};
use crate::{BundleIndex, Epoch, Nonce};
use std::collections::{BTreeMap, VecDeque};

/// Partitions that a search looks at first.
const AT_FIRST: usize = 2;
/// The same with few workers at work, where the trainer's next bundle must not be left to chance.
const AT_FIRST_OF_FEW: usize = 8;
/// Partitions looked at together when few workers are at work and earlier findings are outdated.
const OF_FEW_AT_ONCE: usize = 3;
/// Bundles lost to other workers before a search gives up; more at one time are a fault elsewhere.
const MOST_TAKEN: u32 = 60;

/// Items that may be found.
#[derive(Debug, Clone, Copy)]
pub struct SearchScope {
    pub partitions: u32,
    /// `None` while indexing, which has no window.
    pub window: Option<WindowBounds>,
    pub ahead: WindowOccupancy,
    /// Whether few workers are at work.
    pub few: bool,
}

/// The end of a partition, as far as one range goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionEnd {
    /// Index in the ranges, one for each epoch.
    pub range: usize,
    pub partition: u32,
}

/// A bundle that nobody has claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnclaimedBundle {
    pub end: PartitionEnd,
    pub bundle: BundleIndex,
    /// Its first position, counted through all epochs.
    pub linear: u64,
}

/// The next step of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SearchStep {
    /// Look up the highest present bundle of each end, then call [`BundleSearch::saw`].
    Look(Vec<PartitionEnd>),
    /// Claim this bundle; if another worker was faster, call [`BundleSearch::taken`].
    Claim(UnclaimedBundle),
    /// Nothing can be claimed.
    Nothing,
    /// Too many workers claim at this time.
    Crowded,
}

/// The highest bundle seen in each partition of one job, if any. Bundles stay in the table, so that
/// each is a lower bound of the partition's end for ever: nobody needs to look again where the
/// bound leaves nothing to claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionEnds {
    highest: BTreeMap<(Epoch, u32), Option<BundleIndex>>,
    /// The last search found no change since the one before: most likely nobody else claims.
    is_current: bool,
}

impl PartitionEnds {
    fn saw(&mut self, at: (Epoch, u32), bundle: Option<BundleIndex>) {
        let highest = self.highest.entry(at).or_default();
        *highest = bundle.max(*highest);
    }

    /// Adds what another search saw, and drops the epochs before `from`.
    pub fn add(&mut self, other: &Self, from: Epoch) {
        for (at, bundle) in &other.highest {
            self.saw(*at, *bundle);
        }
        self.highest.retain(|(epoch, _), _| *epoch >= from);
        self.is_current = other.is_current;
    }
}

/// The next thing behind a partition's highest bundle.
enum Behind {
    Bundle(UnclaimedBundle),
    /// The partition's end in the next epoch.
    Partition(PartitionEnd),
    Nothing,
}

/// A search under way.
#[derive(Debug, Clone)]
pub struct BundleSearch<'a> {
    ranges: &'a BundleRanges,
    scope: SearchScope,
    ends: PartitionEnds,
    /// Partitions not looked at yet.
    ahead: VecDeque<u32>,
    /// Ends that this search looked at.
    looked: Vec<PartitionEnd>,
    /// Whether an end seen before is tried without a look.
    is_trusting: bool,
    at_first: usize,
    to_look: Vec<PartitionEnd>,
    found: Vec<UnclaimedBundle>,
    taken: u32,
}

impl<'a> BundleSearch<'a> {
    /// `nonce` decides where the search begins; `ends` holds the findings of earlier searches of
    /// this job.
    pub fn new(
        ranges: &'a BundleRanges,
        scope: SearchScope,
        nonce: Nonce,
        mut ends: PartitionEnds,
    ) -> Self {
        let partitions = scope.partitions;
        let chance = u64::from_be_bytes(nonce.0);
        let head = ranges.by_epoch.first().map_or(0, |range| range.bundles.start % partitions);
        let first = if scope.few { head } else { (chance % u64::from(partitions)) as u32 };
        let mut ahead: VecDeque<u32> = (0..partitions).map(|i| (first + i) % partitions).collect();
        if !scope.few && partitions > AT_FIRST as u32 {
            let second = 1 + ((chance >> 32) % u64::from(partitions - 1)) as usize;
            ahead.swap(1, second);
        }
        let was_current = std::mem::replace(&mut ends.is_current, true);
        let at_first = if scope.few { AT_FIRST_OF_FEW } else { AT_FIRST };
        Self {
            ranges,
            scope,
            ends,
            ahead,
            looked: Vec::new(),
            is_trusting: scope.few && was_current,
            at_first,
            to_look: Vec::new(),
            found: Vec::new(),
            taken: 0,
        }
    }

    /// The ends that this search and earlier ones saw.
    pub fn into_ends(self) -> PartitionEnds {
        self.ends
    }

    /// The next step. Each step is to be carried out before the next one is asked for.
    pub fn step(&mut self) -> SearchStep {
        loop {
            if self.taken > MOST_TAKEN {
                return SearchStep::Crowded;
            }
            let unknown = self.unknown();
            if !unknown.is_empty() {
                return SearchStep::Look(unknown);
            }
            if let Some(found) =
                self.found.pop_if(|f| self.is_trusting || self.looked.contains(&f.end))
            {
                return SearchStep::Claim(found);
            }
            if !self.found.is_empty() {
                return SearchStep::Look(self.lowest_unseen());
            }
            if self.ahead.is_empty() || self.ranges.by_epoch.is_empty() {
                return SearchStep::Nothing;
            }
            // First some, then all that are left.
            let some = std::mem::replace(&mut self.at_first, usize::MAX).min(self.ahead.len());
            self.to_look.extend(
                self.ahead.drain(..some).map(|partition| PartitionEnd { range: 0, partition }),
            );
        }
    }

    /// The ends to look at now: without those known to have nothing to claim and, with few workers,
    /// without those known to have something until it is their turn.
    fn unknown(&mut self) -> Vec<PartitionEnd> {
        let mut unknown = Vec::new();
        while let Some(end) = self.to_look.pop() {
            let known = self.at(end).and_then(|at| self.ends.highest.get(&at)).copied();
            match known.map(|highest| self.behind(end, highest)) {
                Some(Behind::Bundle(found)) if self.scope.few => self.found(found),
                None | Some(Behind::Bundle(_)) => unknown.push(end),
                Some(Behind::Partition(next)) => self.to_look.push(next),
                Some(Behind::Nothing) => {}
            }
        }
        unknown
    }

    fn found(&mut self, found: UnclaimedBundle) {
        self.found.push(found);
        self.found.sort_by_key(|found| std::cmp::Reverse(found.linear));
    }

    /// The lowest ends that were found without a look.
    fn lowest_unseen(&mut self) -> Vec<PartitionEnd> {
        let first = self.found.len().saturating_sub(OF_FEW_AT_ONCE);
        let lowest = self.found.split_off(first);
        let (seen, unseen): (Vec<_>, Vec<_>) =
            lowest.into_iter().partition(|found| self.looked.contains(&found.end));
        self.found.extend(seen);
        unseen.into_iter().map(|found| found.end).collect()
    }

    /// The highest bundle of a partition, in that range's epoch.
    pub fn saw(&mut self, end: PartitionEnd, highest: Option<BundleIndex>) {
        if let Some(at) = self.at(end) {
            let known = self.ends.highest.get(&at);
            self.ends.is_current &= known.is_none_or(|known| *known >= highest);
            self.ends.saw(at, highest);
        }
        self.looked.push(end);
        match self.behind(end, highest) {
            Behind::Bundle(found) => self.found(found),
            Behind::Partition(next) => self.to_look.push(next),
            Behind::Nothing => {}
        }
    }

    fn at(&self, end: PartitionEnd) -> Option<(Epoch, u32)> {
        Some((self.ranges.by_epoch.get(end.range)?.epoch, end.partition))
    }

    /// The next thing in a partition behind its highest bundle.
    fn behind(&self, end: PartitionEnd, highest: Option<BundleIndex>) -> Behind {
        let Some(range) = self.ranges.by_epoch.get(end.range) else { return Behind::Nothing };
        let SearchScope { partitions, window, ahead, .. } = self.scope;
        let Some(bundle) = range.first_in(end.partition, partitions, highest) else {
            let next = PartitionEnd { range: end.range + 1, ..end };
            let is_there = next.range < self.ranges.by_epoch.len();
            return if is_there { Behind::Partition(next) } else { Behind::Nothing };
        };
        let positions = range.positions(&self.ranges.division, bundle);
        if window.is_none_or(|window| window.admits(ahead, &positions)) {
            Behind::Bundle(UnclaimedBundle { end, bundle, linear: positions.start })
        } else {
            Behind::Nothing
        }
    }

    /// Records that the caller has claimed `found`.
    pub fn claimed(&mut self, found: UnclaimedBundle) {
        if let Some(at) = self.at(found.end) {
            self.ends.saw(at, Some(found.bundle));
        }
    }

    /// Records that another worker has claimed `found`.
    pub fn taken(&mut self, found: UnclaimedBundle) {
        self.taken += 1;
        self.ends.is_current = false;
        if std::mem::take(&mut self.is_trusting) {
            // The end seen before is outdated: look again.
            self.found(found);
        } else {
            self.saw(found.end, Some(found.bundle));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splits::order::BundleDivision;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The claimed part of a run, and by how many it is claimed.
    struct Table {
        claimed: BTreeSet<(u32, BundleIndex)>,
        partitions: u32,
    }

    impl Table {
        fn highest(&self, ranges: &BundleRanges, end: PartitionEnd) -> Option<BundleIndex> {
            let epoch = ranges.by_epoch[end.range].epoch;
            let of = |at: &&(u32, u32)| at.0 == epoch && at.1 % self.partitions == end.partition;
            self.claimed.iter().filter(of).map(|at| at.1).max()
        }
    }

    fn scope(partitions: u32, window: u32, delivered: u64, few: bool) -> SearchScope {
        let ahead = WindowOccupancy { delivered, ready: 0, ready_bytes: 0 };
        let window = Some(WindowBounds::new(window, u64::MAX, 4));
        SearchScope { partitions, window, ahead, few }
    }

    /// Searches; `faster` decides for each bundle found whether another worker takes it first.
    fn search(
        table: &mut Table,
        ranges: &BundleRanges,
        scope: SearchScope,
        (chance, ends): (u64, &mut PartitionEnds),
        mut faster: impl FnMut() -> bool,
    ) -> (SearchStep, usize) {
        let nonce = Nonce(chance.to_be_bytes());
        let mut search = BundleSearch::new(ranges, scope, nonce, ends.clone());
        let mut looks = 0;
        loop {
            match search.step() {
                SearchStep::Look(ends) => {
                    for end in ends {
                        looks += 1;
                        search.saw(end, table.highest(ranges, end));
                    }
                }
                SearchStep::Claim(found) => {
                    let at = (ranges.by_epoch[found.end.range].epoch, found.bundle);
                    let is_free = table.claimed.insert(at);
                    assert!(is_free || scope.few, "found what was claimed");
                    if is_free && !faster() {
                        search.claimed(found);
                        ends.add(&search.into_ends(), 0);
                        return (SearchStep::Claim(found), looks);
                    }
                    search.taken(found);
                }
                step => {
                    ends.add(&search.into_ends(), 0);
                    return (step, looks);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn all_that_may_be_claimed_is_found_and_nothing_else(
            n in 1u32..120, log in 0u32..5, window in 1u32..200, delivered in 0u64..200,
            epochs in 1u64..4, few: bool, chance: u64, processes in 1usize..4, faster in proptest::collection::vec(0u8..5, 1..40),
        ) {
            let division = BundleDivision::new(n, 4);
            let run = u64::from(n) * epochs;
            let delivered = delivered.min(run);
            let scope = scope(1 << log, window, delivered, few);
            let end = scope.window.unwrap().end(delivered).min(run);
            let ranges = BundleRanges::from_positions(division, delivered..end, |_| true);
            let mut table = Table { claimed: BTreeSet::new(), partitions: scope.partitions };
            let mut races = faster.iter().cycle();
            // Each process remembers its own findings.
            let mut ends = vec![PartitionEnds::default(); processes];
            for i in 0.. {
                let chance = chance.wrapping_mul(i + 1);
                let known = &mut ends[chance as usize % processes];
                let step = search(&mut table, &ranges, scope, (chance, known), || *races.next().unwrap() == 0).0;
                if step == SearchStep::Nothing {
                    break;
                }
                prop_assert!(matches!(step, SearchStep::Claim(_)), "{step:?}");
            }
            let admitted = ranges.by_epoch.iter().flat_map(|range| {
                range.bundles.clone().filter_map(|bundle| {
                    let positions = range.positions(&division, bundle);
                    scope.window.unwrap().admits(scope.ahead, &positions).then_some((range.epoch, bundle))
                })
            });
            prop_assert_eq!(table.claimed, admitted.collect::<BTreeSet<_>>());
        }
    }

    #[test]
    fn two_looks_are_enough_where_there_is_plenty() {
        let ranges =
            BundleRanges::from_positions(BundleDivision::new(10_000, 4), 0..9_000, |_| true);
        let scope = scope(32, 9_000, 0, false);
        let mut table = Table { claimed: BTreeSet::new(), partitions: 32 };
        for i in 0..1_000_u64 {
            let chance = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let (step, looks) =
                search(&mut table, &ranges, scope, (chance, &mut PartitionEnds::default()), || {
                    false
                });
            assert!(matches!(step, SearchStep::Claim(_)) && looks == 2);
        }
        let highest = table.claimed.iter().map(|at| at.1).max().unwrap();
        assert!(highest < 1_000 + 32 * 6, "partitions fill alike: {highest}");
    }

    #[test]
    fn head_comes_first_with_few_bundles() {
        let ranges =
            BundleRanges::from_positions(BundleDivision::new(1_000, 4), 100..900, |_| true);
        let mut table = Table { claimed: BTreeSet::new(), partitions: 8 };
        let (step, _) = search(
            &mut table,
            &ranges,
            scope(8, 800, 100, true),
            (7, &mut PartitionEnds::default()),
            || false,
        );
        assert!(matches!(step, SearchStep::Claim(found) if found.linear == 100), "{step:?}");
    }

    #[test]
    fn few_bundles_are_not_looked_at_twice() {
        let ranges =
            BundleRanges::from_positions(BundleDivision::new(1_000, 4), 0..1_000, |_| true);
        let (scope, mut ends) =
            (scope(8, 1_000, 0, true), [PartitionEnds::default(), PartitionEnds::default()]);
        let mut table = Table { claimed: BTreeSet::new(), partitions: 8 };
        let mut looks = [0; 2];
        for chance in 0..80_u64 {
            let process = usize::from(chance % 16 == 15);
            let known = &mut ends[process];
            let (step, some) = search(&mut table, &ranges, scope, (chance, known), || false);
            assert!(matches!(step, SearchStep::Claim(_)), "{step:?}");
            looks[process] += some;
        }
        let in_order: BTreeSet<_> = (0..80).map(|bundle| (0, bundle)).collect();
        assert_eq!(table.claimed, in_order);
        // The one looks where the other has claimed, the other where it sees what it did not.
        assert!(looks[0] <= 8 + 5 * 6 && looks[1] <= 8 * 5, "{looks:?}");
    }

    #[test]
    fn a_crowd_is_asked_to_send_again() {
        let ranges =
            BundleRanges::from_positions(BundleDivision::new(10_000, 4), 0..9_000, |_| true);
        let mut table = Table { claimed: BTreeSet::new(), partitions: 8 };
        let (step, _) = search(
            &mut table,
            &ranges,
            scope(8, 9_000, 0, false),
            (7, &mut PartitionEnds::default()),
            || true,
        );
        assert_eq!(step, SearchStep::Crowded);
    }
    #[test]
    fn partition_with_all_claimed_is_looked_at_once() {
        let ranges = BundleRanges::from_positions(BundleDivision::new(300, 4), 0..600, |_| true);
        let (scope, mut ends) = (scope(8, 900, 0, false), PartitionEnds::default());
        let mut table = Table { claimed: BTreeSet::new(), partitions: 8 };
        let mut looks = 0;
        for chance in 0_u64.. {
            let (step, some) = search(&mut table, &ranges, scope, (chance, &mut ends), || false);
            looks = some;
            if step == SearchStep::Nothing {
                break;
            }
        }
        assert_eq!(looks, 0, "the one that found nothing looked");
        // Another process looks at each partition once, in both epochs.
        let mut others = PartitionEnds::default();
        assert_eq!(
            search(&mut table, &ranges, scope, (1, &mut others), || false),
            (SearchStep::Nothing, 16)
        );
        assert_eq!(
            search(&mut table, &ranges, scope, (2, &mut others), || false),
            (SearchStep::Nothing, 0)
        );
        assert_eq!(ends.highest, others.highest);
        others.add(&PartitionEnds::default(), 1);
        assert_eq!(others.highest.len(), 8, "the first epoch's are dropped");
    }
}
