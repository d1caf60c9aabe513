//! The order of an epoch: a keyed permutation of split ids, and bundles that ramp up in size.
//!
//! The permutation is a Feistel network over the smallest power of two that holds `n`, walked until
//! it lands inside `0..n`; its round keys are BLAKE3 of (seed, epoch). So any position is found in
//! constant time and nothing is stored.

use crate::{BundleIndex, Epoch, Position, SplitId};
use std::ops::Range;

/// Enough that flipping one bit of the key or the index changes the whole of either half, also in
/// the tiny networks of small datasets.
const ROUNDS: usize = 8;

/// The order of splits in one epoch: a bijection between positions and split ids.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyedPermutation {
    n: u32,
    left_bits: u32,
    right_bits: u32,
    keys: [u64; ROUNDS],
}

impl KeyedPermutation {
    /// The order of `n` splits in `epoch` of a job with `seed`.
    pub fn new(n: u32, seed: u64, epoch: Epoch) -> Self {
        let bits = (u32::BITS - n.saturating_sub(1).leading_zeros()).max(2);
        let left_bits = bits / 2;
        let mut hasher = blake3::Hasher::new_derive_key("gristmill split order v1");
        hasher.update(&seed.to_le_bytes()).update(&epoch.to_le_bytes());
        let mut bytes = [0; ROUNDS * 8];
        hasher.finalize_xof().fill(&mut bytes);
        let mut keys = [0; ROUNDS];
        for (key, chunk) in keys.iter_mut().zip(bytes.chunks_exact(8)) {
            *key = chunk.iter().rev().fold(0, |key, byte| key << 8 | u64::from(*byte));
        }
        Self { n, left_bits, right_bits: bits - left_bits, keys }
    }

    /// Number of splits.
    pub fn n_splits(&self) -> u32 {
        self.n
    }

    /// The split delivered at `position`; none beyond the end.
    pub fn split_at(&self, position: Position) -> Option<SplitId> {
        self.walk(position, |x| self.through(x, 0..ROUNDS))
    }

    /// The position at which `split` is delivered; none for a split there is not.
    pub fn position_of(&self, split: SplitId) -> Option<Position> {
        self.walk(split, |x| self.through(x, (0..ROUNDS).rev()))
    }

    /// Cycle walking: a bijection on the power of two restricted to `0..n` is one on `0..n`.
    fn walk(&self, start: u32, step: impl Fn(u32) -> u32) -> Option<u32> {
        if start >= self.n {
            return None;
        }
        let mut x = step(start);
        while x >= self.n {
            x = step(x);
        }
        Some(x)
    }

    /// Each round is its own inverse: in reverse order they undo the network.
    fn through(&self, x: u32, rounds: impl Iterator<Item = usize>) -> u32 {
        let (mut left, mut right) = (x >> self.right_bits, x & mask(self.right_bits));
        for round in rounds {
            match round % 2 {
                0 => left ^= mix(right, self.keys[round]) & mask(self.left_bits),
                _ => right ^= mix(left, self.keys[round]) & mask(self.right_bits),
            }
        }
        left << self.right_bits | right
    }
}

fn mask(bits: u32) -> u32 {
    1u32.checked_shl(bits).unwrap_or(0).wrapping_sub(1)
}

/// The finaliser of splitmix64 over (half, key): every input bit reaches every output bit.
fn mix(half: u32, key: u64) -> u32 {
    let mut z = (u64::from(half) ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ z >> 31) >> 32) as u32
}

/// The visit at `position` of an epoch that visits `n` splits `copies` times: which copy of the
/// dataset, and which of its splits. Copies take turns, each in an order of its own; with
/// `in_order`, splits are delivered in dataset order, one copy after the other.
pub fn visit_of(
    n: u32,
    copies: u32,
    in_order: bool,
    seed: u64,
    epoch: Epoch,
    position: Position,
) -> Option<(u32, SplitId)> {
    if in_order {
        let copy = position.checked_div(n)?;
        return (copy < copies).then_some((copy, position % n));
    }
    let (turn, copy) = (position.checked_div(copies)?, position % copies);
    // The first copy has the order of a job with a single copy.
    let seed = seed ^ u64::from(copy).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Some((copy, KeyedPermutation::new(n, seed, epoch).split_at(turn)?))
}

/// The number of a visit among all visits of an epoch, independent of their order; cached splits
/// are stored under it.
pub fn visit_number(copies: u32, copy: u32, split: SplitId) -> u64 {
    u64::from(split) * u64::from(copies) + u64::from(copy)
}

/// The largest bundle for a dataset of `n_splits`: enough bundles that workers stay busy to the
/// end of an epoch, few enough writes that they cost little.
pub fn default_bundle_splits(n_splits: u32) -> u32 {
    let most = (n_splits / 128).clamp(1, 8);
    1 << most.ilog2()
}

/// Positions cut into bundles of 1, 1, 2, 4, .., max, max, ..: the first batch comes fast, and later
/// ones cost few writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BundleDivision {
    n_splits: u32,
    /// log2 of the positions of a full bundle.
    log_max: u32,
}

impl BundleDivision {
    /// Bundles of at most so many positions, rounded down to a power of two in 1..=8.
    pub fn new(n_splits: u32, max_bundle_splits: u32) -> Self {
        Self { n_splits, log_max: max_bundle_splits.clamp(1, 8).ilog2() }
    }

    /// Positions of a full bundle.
    pub fn max_bundle_splits(&self) -> u32 {
        1 << self.log_max
    }

    /// Number of positions.
    pub fn n_splits(&self) -> u32 {
        self.n_splits
    }

    /// Number of bundles.
    pub fn bundles(&self) -> BundleIndex {
        match self.n_splits {
            0 => 0,
            n => self.index_of(n - 1) + 1,
        }
    }

    /// The positions of `bundle`; empty beyond the last.
    pub fn positions(&self, bundle: BundleIndex) -> Range<Position> {
        let start = self.start(bundle).min(u64::from(self.n_splits));
        let end = self.start(bundle.saturating_add(1)).min(u64::from(self.n_splits));
        (start as u32)..(end as u32)
    }

    /// The bundle that holds `position`; none beyond the end.
    pub fn bundle_of(&self, position: Position) -> Option<BundleIndex> {
        (position < self.n_splits).then(|| self.index_of(position))
    }

    /// The start of `bundle` in an endless epoch.
    fn start(&self, bundle: BundleIndex) -> u64 {
        match bundle {
            0 => 0,
            b if b <= self.log_max => 1 << (b - 1),
            b => u64::from(b - self.log_max) << self.log_max,
        }
    }

    fn index_of(&self, position: Position) -> BundleIndex {
        match position {
            0 => 0,
            p if p < self.max_bundle_splits() => p.ilog2() + 1,
            p => (p >> self.log_max) + self.log_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Batches of a seed are forever: a change here changes what every job delivers.
    #[test]
    fn the_order_is_pinned() {
        let order = |n, seed, epoch| {
            let order = KeyedPermutation::new(n, seed, epoch);
            (0..n).map(|position| order.split_at(position).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(order(10, 0, 0), PINNED);
        assert_ne!(order(10, 0, 1), PINNED);
        assert_ne!(order(10, 1, 0), PINNED);
    }

    const PINNED: [u32; 10] = [5, 6, 8, 1, 9, 4, 0, 2, 7, 3];

    #[test]
    fn there_is_nothing_beyond_the_end() {
        let visit =
            |n, copies, seed, epoch, position| visit_of(n, copies, false, seed, epoch, position);
        let permute = |n, position| KeyedPermutation::new(n, 1, 1).split_at(position);
        assert_eq!(visit(10, 1, 0, 0, 3), Some((0, PINNED[3])));
        let mut visits: Vec<_> = (0..30).filter_map(|at| visit(10, 3, 7, 2, at)).collect();
        let orders: Vec<Vec<_>> = (0..3)
            .map(|copy| visits.iter().filter(|v| v.0 == copy).map(|v| v.1).collect())
            .collect();
        assert!(orders[0] != orders[1] && orders[1] != orders[2]);
        visits.sort_unstable();
        let all: Vec<_> = (0..3).flat_map(|copy| (0..10).map(move |split| (copy, split))).collect();
        assert_eq!(visits, all);
        assert_eq!((visit(10, 3, 7, 2, 30), visit(10, 0, 7, 2, 0)), (None, None));
        assert_eq!((permute(0, 0), permute(1, 0), permute(5, 5)), (None, Some(0), None));
        assert_eq!(KeyedPermutation::new(5, 1, 1).position_of(5), None);
        let largest = KeyedPermutation::new(u32::MAX, 1, 1);
        let split = largest.split_at(u32::MAX - 1).unwrap();
        assert_eq!(largest.position_of(split), Some(u32::MAX - 1));
    }

    /// Over many seeds every split is about as often at every position: no seat is favoured.
    #[test]
    fn the_order_is_even() {
        const N: usize = 8;
        let mut seen = [[0u32; N]; N];
        for seed in 0..4_000 {
            let order = KeyedPermutation::new(N as u32, seed, 0);
            for (position, seen) in (0..).zip(&mut seen) {
                seen[order.split_at(position).unwrap() as usize] += 1;
            }
        }
        // 500 expected; five standard deviations are 105.
        assert!(seen.iter().flatten().all(|times| (395..=605).contains(times)), "{seen:?}");
    }

    /// Neighbours in the dataset do not stay neighbours.
    #[test]
    fn the_order_breaks_up_runs() {
        let order = KeyedPermutation::new(10_000, 3, 0);
        let splits: Vec<_> =
            (0..10_000).map(|position| order.split_at(position).unwrap()).collect();
        let runs = splits.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
        assert!(runs < 20, "{runs} neighbours");
    }

    #[test]
    fn bundles_grow_in_size() {
        let sizes = |n, r| {
            let division = BundleDivision::new(n, r);
            (0..division.bundles())
                .map(|bundle| division.positions(bundle).len())
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(30, 8), [1, 1, 2, 4, 8, 8, 6]);
        assert_eq!(sizes(4, 1), [1, 1, 1, 1]);
        assert_eq!(sizes(7, 2), [1, 1, 2, 2, 1]);
        assert_eq!(sizes(0, 8), [0; 0]);
        assert_eq!(sizes(5, 100), [1, 1, 2, 1]);
        assert_eq!(sizes(5, 7), [1, 1, 2, 1]);
    }

    #[test]
    fn small_datasets_have_small_bundles() {
        assert_eq!(
            [0, 255, 256, 511, 512, 1024, u32::MAX].map(default_bundle_splits),
            [1, 1, 2, 2, 4, 8, 8]
        );
    }

    proptest! {
        #[test]
        fn the_order_is_a_bijection(n in 1u32..600, seed: u64, epoch: u32) {
            let order = KeyedPermutation::new(n, seed, epoch);
            let mut seen = vec![false; n as usize];
            for position in 0..n {
                let split = order.split_at(position).unwrap();
                prop_assert!(!std::mem::replace(&mut seen[split as usize], true));
                prop_assert_eq!(order.position_of(split), Some(position));
            }
        }

        #[test]
        fn every_position_is_in_exactly_its_bundle(n in 1u32..2_000, r in 0u32..12) {
            let division = BundleDivision::new(n, r);
            let mut next = 0;
            for bundle in 0..division.bundles() {
                let positions = division.positions(bundle);
                prop_assert_eq!(positions.start, next);
                prop_assert!(!positions.is_empty() && positions.len() <= division.max_bundle_splits() as usize);
                for position in positions.clone() {
                    prop_assert_eq!(division.bundle_of(position), Some(bundle));
                }
                next = positions.end;
            }
            prop_assert_eq!(next, n);
            prop_assert_eq!(division.bundle_of(n), None);
            prop_assert!(division.positions(division.bundles()).is_empty());
            prop_assert!(division.positions(u32::MAX).is_empty());
        }
    }
}
