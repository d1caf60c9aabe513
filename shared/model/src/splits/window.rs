//! How far workers may run ahead of the trainer: a window of positions, and a cap on bytes that are
//! ready and not yet taken.
//!
//! Positions are counted through all epochs (see [`crate::splits::SplitPlace::linear`]), so that the
//! window spans the end of an epoch. When the window is full, nothing is handed out and workers
//! leave. They are woken when it is half empty, not at the first free slot, so that they do not
//! come and go.

use crate::{
    InvocationId,
    splits::{TransitionOutcome, ranges::EpochBundle},
};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Steps of all ranks that the window holds at least.
const STEPS_AHEAD: u64 = 4;
/// Bundles per worker that the window must have room for.
const BUNDLES_PER_WORKER: u32 = 3;
/// Least splits of a window. A trainer may take a light split in a millisecond, and workers that left because the window
/// was full come back after some hundred.
const MIN_SPLITS: u32 = 32;

/// Splits of a window ahead of the trainer, for `workers` and bundles of at most `max_bundle_splits`.
pub fn window_splits(workers: u32, max_bundle_splits: u32) -> u32 {
    let bundles = workers.max(1).saturating_add(1).saturating_mul(BUNDLES_PER_WORKER);
    bundles.saturating_mul(max_bundle_splits).max(MIN_SPLITS)
}

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

    /// Whether workers are needed, given whether they are at work: drained at the top, woken below half.
    pub fn needs_workers(&self, ahead: WindowOccupancy, at_work: bool) -> bool {
        let is_full = ahead.ready >= self.splits || ahead.ready_bytes >= self.ready_bytes;
        let is_below_half =
            ahead.ready * 2 < self.splits && ahead.ready_bytes <= self.ready_bytes / 2;
        !is_full && (is_below_half || at_work)
    }
}

/// Most bundles in [`WindowHints::returned`].
pub const MOST_RETURNED: usize = 64;
/// Age in milliseconds up to which a look counts as current.
const TRUSTED_MS: u64 = 2_000;

/// The findings of a look.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WindowHints {
    /// When the look took place, in milliseconds by the clock of the process that looked.
    pub at_ms: u64,
    /// Start of the current series of looks without a break.
    pub steady_since_ms: u64,
    /// Something has changed since: the next poll looks again.
    pub is_due: bool,
    /// The trainer's place, counted through all epochs.
    pub delivered: u64,
    /// Bundles that were claimed before and may be claimed again. A search at the end of a
    /// partition does not find them. At most one of them is on trial.
    pub returned: Vec<EpochBundle>,
    /// Positions that may be claimed.
    pub claimable: u32,
    /// Bytes committed and not taken in.
    pub ready_bytes: u64,
    /// Positions leased or ready, and not delivered.
    pub ahead: u32,
    /// Positions that workers may run ahead of the trainer; 0 before the first look.
    pub window: u32,
    pub window_full: bool,
    /// Remote workers with a lease, and local ones.
    pub remote_workers: u32,
    pub local_workers: u32,
    /// Always 0: functions of the release before, which may work beside, find nobody surplus by it.
    pub surplus_below: u64,
    /// Remote workers with numbers from the first to before the second are surplus.
    #[serde(skip_serializing_if = "Range::is_empty")]
    pub surplus: Range<u32>,
    /// Splits committed, as far as they were read.
    pub progress: u64,
    /// Files indexed, while the job is indexing.
    pub indexed: u32,
    /// The problem that keeps the job from making progress.
    pub trouble: Option<String>,
}

impl WindowHints {
    /// Marks as many of `workers` as surplus as there are more than `target`: the latest ones. A later look that still sees
    /// them marks no others in their place. Workers that were invoked since this look are none of them.
    pub fn note_workers<'a>(
        &mut self,
        workers: impl IntoIterator<Item = &'a InvocationId>,
        target: u32,
    ) {
        let mut numbers: Vec<u32> = workers.into_iter().filter_map(InvocationId::worker).collect();
        numbers.sort_unstable();
        let (staying, surplus) = numbers.split_at(numbers.len().min(target as usize));
        self.surplus = match (surplus.first(), surplus.last()) {
            (Some(&first), Some(&last)) => {
                // An event that the platform repeats makes two workers of one number.
                let is_twice = staying.last() == Some(&first);
                first.saturating_add(is_twice.into())..last.saturating_add(1)
            }
            _ => 0..0,
        };
    }

    /// Whether the look is not too old to say anything.
    pub fn is_fresh(&self, now_ms: u64) -> bool {
        now_ms.abs_diff(self.at_ms) < TRUSTED_MS
    }

    /// Whether a worker is surplus, by a fresh look.
    pub fn is_surplus(&self, invocation: &InvocationId, now_ms: u64) -> bool {
        let number = invocation.worker().filter(|_| self.is_fresh(now_ms));
        number.is_some_and(|worker| self.surplus.contains(&worker))
    }

    /// Whether a current look found nothing to claim, and the trainer has not moved since.
    pub fn shows_nothing(&self, delivered: u64, now_ms: u64) -> bool {
        !self.is_due && self.is_fresh(now_ms) && self.claimable == 0 && self.delivered == delivered
    }

    /// Adds bundles that may be claimed again, until the next look.
    pub fn freed(before: Option<&Self>, bundles: &[EpochBundle]) -> TransitionOutcome<Self> {
        let mut after = before.cloned().unwrap_or_default();
        after.is_due = true;
        after.add_returned(bundles);
        TransitionOutcome::new(before, after)
    }

    /// The hints to write after a look. `read` was stored when the look began, `before` is
    /// stored now; bundles freed in between are kept.
    pub fn looked(mut self, read: Option<&Self>, before: Option<&Self>) -> Self {
        let Some(before) = before.filter(|before| Some(*before) != read) else { return self };
        let known = read.map_or(&[][..], |read| &read.returned);
        let meanwhile: Vec<_> =
            before.returned.iter().filter(|at| !known.contains(at)).copied().collect();
        if !meanwhile.is_empty() {
            self.add_returned(&meanwhile);
            self.is_due = true;
        }
        self
    }

    fn add_returned(&mut self, bundles: &[EpochBundle]) {
        for bundle in bundles {
            if !self.returned.contains(bundle) && self.returned.len() < MOST_RETURNED {
                self.returned.push(*bundle);
            }
        }
        self.claimable = self.claimable.max(1);
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
        fn split_that_the_trainer_waits_for_is_always_admitted(
            n in 1u32..500, r in 0u32..4, splits in 0u32..40, at in 0u32..500, bytes: u64, cap: u64,
        ) {
            let division = BundleDivision::new(n, 1 << r);
            let position = at % n;
            let bundle = division.positions(division.bundle_of(position).unwrap());
            let bundle = u64::from(bundle.start)..u64::from(bundle.end);
            let window = WindowBounds::new(splits, cap, division.max_bundle_splits());
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

#[cfg(test)]
mod hints_tests {
    use super::*;
    use proptest::prelude::*;

    fn workers(n: u32) -> Vec<InvocationId> {
        (0..n).map(|i| InvocationId::new(i, "r")).collect()
    }

    fn looked(workers: &[InvocationId], target: u32) -> WindowHints {
        let mut hints = WindowHints::default();
        hints.note_workers(workers, target);
        hints
    }

    proptest! {
        #[test]
        fn exactly_those_leave_that_are_too_many(n in 0u32..60, target in 0u32..60) {
            let workers = workers(n);
            let hints = looked(&workers, target);
            let leave = workers.iter().filter(|worker| hints.is_surplus(worker, 0)).count();
            prop_assert_eq!(leave, n.saturating_sub(target) as usize);
        }

        /// Looks see only those that hold a lease, and those that were asked to leave do so later, in any order.
        #[test]
        fn looks_that_overlap_never_ask_too_many(
            n in 0u32..40,
            target in 0u32..40,
            looks in proptest::collection::vec((any::<[u64; 2]>(), any::<u64>()), 1..12),
        ) {
            let is_in = |mask: u64, worker: &InvocationId| mask >> worker.worker().unwrap() & 1 > 0;
            let (mut workers, mut asked) = (workers(n), Vec::<InvocationId>::new());
            for ([some, others], leaving) in looks {
                let is_seen = |worker: &&InvocationId| is_in(some | others, worker);
                let seen: Vec<_> = workers.iter().filter(is_seen).cloned().collect();
                let hints = looked(&seen, target);
                asked.extend(workers.iter().filter(|w| hints.is_surplus(w, 0)).cloned());
                workers.retain(|worker| !asked.contains(worker) || !is_in(leaving, worker));
            }
            workers.retain(|worker| !asked.contains(worker));
            prop_assert!(workers.len() >= n.min(target) as usize, "{} of {target}", workers.len());
        }
    }

    #[test]
    fn a_look_asks_nobody_who_came_after_it_nor_when_it_is_old() {
        let hints = looked(&workers(10), 8);
        let asked = |number, now_ms| hints.is_surplus(&InvocationId::new(number, "r"), now_ms);
        assert_eq!([7, 8, 9, 10].map(|number| asked(number, 0)), [false, true, true, false]);
        assert!(asked(9, TRUSTED_MS - 1) && !asked(9, TRUSTED_MS));
        assert!(!hints.is_surplus(&InvocationId("local-9".into()), 0));
    }

    #[test]
    fn workers_with_one_number_do_not_leave_in_each_others_place() {
        let twice =
            [InvocationId::new(0, "a"), InvocationId::new(1, "a"), InvocationId::new(1, "b")];
        assert!(!twice.iter().any(|worker| looked(&twice, 2).is_surplus(worker, 0)));
        assert_eq!(
            twice.map(|worker| looked(&workers(3), 1).is_surplus(&worker, 0)),
            [false, true, true]
        );
    }

    #[test]
    fn bundle_freed_during_a_look_stays_named() {
        let read = WindowHints { returned: vec![(0, 3)], ..WindowHints::default() };
        let before = WindowHints::freed(Some(&read), &[(0, 7)]).into_item();
        let seen = WindowHints { at_ms: 9, returned: vec![(0, 5)], ..WindowHints::default() };
        let after = seen.clone().looked(Some(&read), Some(&before));
        assert_eq!((after.returned.as_slice(), after.is_due), (&[(0, 5), (0, 7)][..], true));
        assert!(!after.shows_nothing(0, 9));
        assert_eq!(seen.clone().looked(Some(&read), Some(&read)), seen);
        assert_eq!(seen.clone().looked(None, None), seen);
    }

    #[test]
    fn few_bundles_are_named_and_each_once() {
        let many: Vec<_> = (0..100).map(|i| (0, i)).collect();
        let once = WindowHints::freed(None, &many).into_item();
        assert_eq!(once.returned.len(), MOST_RETURNED);
        assert_eq!(
            WindowHints::freed(Some(&once), &many),
            TransitionOutcome::AlreadyApplied(once.clone())
        );
        assert!(serde_json::to_vec(&once).unwrap().len() < 1_000);
    }

    #[test]
    fn an_old_look_shows_nothing() {
        let hints = WindowHints { at_ms: 10_000, delivered: 5, ..WindowHints::default() };
        assert!(hints.shows_nothing(5, 11_000) && hints.shows_nothing(5, 9_000));
        assert!(!hints.shows_nothing(6, 11_000) && !hints.shows_nothing(5, 12_000));
        assert!(!WindowHints { claimable: 1, ..hints }.shows_nothing(5, 11_000));
    }
}
