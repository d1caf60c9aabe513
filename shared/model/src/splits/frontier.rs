//! The frontier: the findings of the last look at a job's window, for calls that do not look
//! themselves.
//!
//! All of it is a hint. A claim that follows a wrong hint finds less work than there is, or asks in
//! vain; the bundle's item alone decides whether it may be claimed. The next look corrects the
//! hint.

use crate::InvocationId;
use crate::splits::{TransitionOutcome, course::EpochBundle};
use serde::{Deserialize, Serialize};

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
    /// Remote workers whose [`lot`] is below this are surplus.
    pub surplus_below: u64,
    /// Splits committed, as far as they were read.
    pub progress: u64,
    /// Files indexed, while the job is indexing.
    pub indexed: u32,
    /// The problem that keeps the job from making progress.
    pub trouble: Option<String>,
}

/// A pseudo-random number for a worker and a look; the same however often it is computed.
pub fn lot(invocation: &InvocationId, at_ms: u64) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("gristmill surplus v1");
    hasher.update(&at_ms.to_le_bytes()).update(invocation.0.as_bytes());
    let mut bytes = [0; 8];
    hasher.finalize_xof().fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

impl WindowHints {
    /// Marks as many of `workers` as surplus as there are more than `target`.
    pub fn note_workers<'a>(
        &mut self,
        workers: impl IntoIterator<Item = &'a InvocationId>,
        target: u32,
    ) {
        let mut lots: Vec<u64> = workers.into_iter().map(|w| lot(w, self.at_ms)).collect();
        lots.sort_unstable();
        let too_many = lots.len().saturating_sub(usize::try_from(target).unwrap_or(usize::MAX));
        self.surplus_below = match too_many {
            0 => 0,
            some => lots.get(some).copied().unwrap_or(u64::MAX),
        };
    }

    /// Whether a worker is surplus.
    pub fn is_surplus(&self, invocation: &InvocationId) -> bool {
        lot(invocation, self.at_ms) < self.surplus_below
    }

    /// Whether a current look found nothing to claim, and the trainer has not moved since.
    pub fn shows_nothing(&self, delivered: u64, now_ms: u64) -> bool {
        let is_fresh = !self.is_due && now_ms.abs_diff(self.at_ms) < TRUSTED_MS;
        is_fresh && self.claimable == 0 && self.delivered == delivered
    }

    /// Adds bundles that may be claimed again, until the next look.
    pub fn freed(before: Option<&Self>, bundles: &[EpochBundle]) -> TransitionOutcome<Self> {
        let mut after = before.cloned().unwrap_or_default();
        after.is_due = true;
        after.add_returned(bundles);
        TransitionOutcome::new(before, after)
    }

    /// The frontier to write after a look. `read` was stored when the look began, `before` is
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
    use proptest::prelude::*;

    fn workers(n: u32) -> Vec<InvocationId> {
        (0..n).map(|i| InvocationId(format!("worker-{i}"))).collect()
    }

    proptest! {
        #[test]
        fn exactly_those_leave_that_are_too_many(n in 0u32..60, target in 0u32..60, at_ms: u64) {
            let workers = workers(n);
            let mut frontier = WindowHints { at_ms, ..WindowHints::default() };
            frontier.note_workers(&workers, target);
            let leave = workers.iter().filter(|worker| frontier.is_surplus(worker)).count();
            prop_assert_eq!(leave, n.saturating_sub(target) as usize);
        }
    }

    #[test]
    fn who_leaves_changes_from_look_to_look() {
        let workers = workers(100);
        let leaving = |at_ms| {
            let mut frontier = WindowHints { at_ms, ..WindowHints::default() };
            frontier.note_workers(&workers, 90);
            workers.iter().map(|worker| frontier.is_surplus(worker)).collect::<Vec<_>>()
        };
        assert_ne!(leaving(1_000), leaving(2_000));
    }

    #[test]
    fn what_is_freed_during_a_look_stays_named() {
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
        let frontier = WindowHints { at_ms: 10_000, delivered: 5, ..WindowHints::default() };
        assert!(frontier.shows_nothing(5, 11_000) && frontier.shows_nothing(5, 9_000));
        assert!(!frontier.shows_nothing(6, 11_000) && !frontier.shows_nothing(5, 12_000));
        assert!(!WindowHints { claimable: 1, ..frontier }.shows_nothing(5, 11_000));
    }
}
