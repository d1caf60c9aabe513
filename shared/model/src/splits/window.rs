//! How far workers may run ahead of the trainer: a window of positions, and a cap on bytes that are
//! ready and not yet taken.
//!
//! Positions are counted through all epochs (see [`crate::splits::SplitPlace::linear`]), so that the
//! window spans the end of an epoch. When the window is full, nothing is handed out and workers
//! leave. They are woken when it is half empty, not at the first free slot, so that they do not
//! come and go.

use std::ops::Range;

/// Steps of all ranks that the window holds at least.
const STEPS_AHEAD: u64 = 4;

/// The bounds of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowBounds {
    splits: u64,
    /// Two bundles, and the steps of several ranks.
    least: u64,
    /// Positions of these steps; 0 for one rank.
    steps: u64,
    ready_bytes: u64,
}

/// The job's place in the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowOccupancy {
    /// The first position that is not taken in, counted through all epochs.
    pub delivered: u64,
    /// Positions committed and not taken in.
    pub ready: u64,
    /// Bytes of the ready positions.
    pub ready_bytes: u64,
}

/// How full a window is, by what to do about workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowLevel {
    /// Less than half full: wake workers.
    Low,
    /// Leave things as they are.
    Between,
    /// Full: let workers go.
    High,
}

impl WindowBounds {
    /// At most `splits` positions (two full bundles at least, so that the bundle the trainer waits for and
    /// the one after it always fit) and `ready_bytes`.
    pub fn new(splits: u32, ready_bytes: u64, max_bundle_splits: u32) -> Self {
        let least = 2 * u64::from(max_bundle_splits);
        Self { splits: u64::from(splits).max(least), least, steps: 0, ready_bytes }
    }

    /// This window for a run of several ranks, which take a batch each at every step: it holds four
    /// steps beside two bundles at least, and their bytes.
    #[must_use]
    pub fn for_ranks(self, ranks: u32, split_batches: u32, batch_bytes: u64) -> Self {
        if ranks <= 1 {
            return self;
        }
        let batches = STEPS_AHEAD * u64::from(ranks);
        let steps = batches.div_ceil(u64::from(split_batches.max(1)));
        let least = self.least + steps;
        Self {
            splits: self.splits.max(least),
            least,
            steps,
            ready_bytes: self.ready_bytes.max(batches.saturating_mul(batch_bytes)),
        }
    }

    /// This window, limited to `splits` positions, but no less than it must hold.
    #[must_use]
    pub fn at_most(self, splits: u32) -> Self {
        Self { splits: self.splits.min(u64::from(splits).max(self.least)), ..self }
    }

    /// Number of positions in the window.
    pub fn splits(&self) -> u64 {
        self.splits
    }

    /// The first position beyond the window.
    pub fn end(&self, delivered: u64) -> u64 {
        delivered.saturating_add(self.splits)
    }

    /// Whether a trainer may wait for a bundle of these positions: it is the next, or holds a part of the next
    /// steps. A reader of some ranks needs whole steps before the last of all readers moves.
    pub fn is_awaited(&self, ahead: WindowOccupancy, bundle: &Range<u64>) -> bool {
        let steps = ahead.delivered.saturating_add(self.steps.max(1));
        bundle.end > ahead.delivered && bundle.start < steps
    }

    /// Whether a bundle of these positions may be handed out. One that a trainer may wait for always
    /// is, however many bytes are ready.
    pub fn admits(&self, ahead: WindowOccupancy, bundle: &Range<u64>) -> bool {
        bundle.start <= ahead.delivered
            || self.is_awaited(ahead, bundle)
            || bundle.end <= self.end(ahead.delivered) && ahead.ready_bytes < self.ready_bytes
    }

    /// How full the window is.
    pub fn level(&self, ahead: WindowOccupancy) -> WindowLevel {
        let half_bytes = self.ready_bytes / 2;
        if ahead.ready >= self.splits || ahead.ready_bytes >= self.ready_bytes {
            WindowLevel::High
        } else if ahead.ready * 2 < self.splits && ahead.ready_bytes <= half_bytes {
            WindowLevel::Low
        } else {
            WindowLevel::Between
        }
    }

    /// Whether workers are needed, given whether they are at work: drained at the top, woken below half.
    pub fn needs_workers(&self, ahead: WindowOccupancy, at_work: bool) -> bool {
        match self.level(ahead) {
            WindowLevel::Low => true,
            WindowLevel::Between => at_work,
            WindowLevel::High => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splits::order::BundleDivision;
    use proptest::prelude::*;

    fn ahead(delivered: u64, ready: u64, ready_bytes: u64) -> WindowOccupancy {
        WindowOccupancy { delivered, ready, ready_bytes }
    }

    #[test]
    fn drains_at_the_top_and_wakes_below_half() {
        let window = WindowBounds::new(8, 1000, 1);
        let mut needed = true;
        let mut seen = Vec::new();
        for ready in [0, 3, 7, 8, 7, 4, 3, 4, 7] {
            needed = window.needs_workers(ahead(0, ready, 0), needed);
            seen.push(needed);
        }
        assert_eq!(seen, [true, true, true, false, false, false, true, true, true]);
        assert!(!window.needs_workers(ahead(0, 1, 1000), true));
    }

    #[test]
    fn a_window_is_never_smaller_than_two_bundles() {
        assert_eq!(WindowBounds::new(1, 0, 8).splits(), 16);
        let sizes = [0, 20, 90].map(|most| WindowBounds::new(64, 0, 8).at_most(most).splits());
        assert_eq!(sizes, [16, 20, 64]);
    }

    #[test]
    fn four_steps_of_all_ranks_fit_into_the_window() {
        let window = WindowBounds::new(64, 1_000, 8);
        assert_eq!(window.for_ranks(1, 1, 1_000), window, "one rank is as before");
        let few = window.for_ranks(2, 4, 10);
        assert_eq!((few.splits(), few.ready_bytes), (64, 1_000), "the window is larger anyway");
        let many = window.for_ranks(64, 3, 10);
        assert_eq!((many.splits(), many.ready_bytes), (16 + 86, 2_560));
        assert_eq!(many.at_most(1).splits(), 16 + 86, "fewer workers need the steps as well");
        assert_eq!(window.for_ranks(64, 0, u64::MAX).ready_bytes, u64::MAX);
    }

    #[test]
    fn the_next_steps_of_several_ranks_are_handed_out_however_many_bytes_are_ready() {
        let window = WindowBounds::new(64, 1_000, 8).for_ranks(4, 2, 10);
        let full = ahead(10, 3, u64::MAX);
        assert!(window.admits(full, &(16..24)) && window.is_awaited(full, &(17..25)));
        assert!(!window.admits(full, &(18..26)) && !window.is_awaited(full, &(0..8)));
        let one = WindowBounds::new(64, 1_000, 8);
        assert!(one.admits(full, &(8..16)) && !one.admits(full, &(11..16)));
    }

    proptest! {
        #[test]
        fn what_the_trainer_waits_for_is_always_admitted(
            n in 1u32..500, r in 0u32..4, splits in 0u32..40, at in 0u32..500, bytes: u64, cap: u64,
        ) {
            let ramp = BundleDivision::new(n, 1 << r);
            let position = at % n;
            let bundle = ramp.positions(ramp.bundle_of(position).unwrap());
            let bundle = u64::from(bundle.start)..u64::from(bundle.end);
            let window = WindowBounds::new(splits, cap, ramp.max_bundle_splits());
            prop_assert!(window.admits(ahead(u64::from(position), 0, bytes), &bundle));
        }

        #[test]
        fn nothing_is_admitted_beyond_the_window(start in 1u64..100, len in 1u64..9, ready: u8) {
            let window = WindowBounds::new(16, 100, 8);
            let bytes = u64::from(ready);
            let admitted = window.admits(ahead(0, 0, bytes), &(start..start + len));
            prop_assert_eq!(admitted, start + len <= 16 && bytes < 100);
        }
    }
}
