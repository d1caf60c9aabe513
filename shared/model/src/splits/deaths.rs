//! The death log: one small item per job that puts the deaths of workers in order.
//!
//! A claimant of a bundle whose owner died records the death here before the claim. A split is
//! suspected only while consecutive deaths are on it, which the ordinals show: when a host kills
//! workers at random, deaths spread over splits and no suspicion lasts. When only one split is
//! left, every death is on it. Then the control decides, which each worker runs before the split
//! ([`Bundle::control`](crate::splits::Bundle)): a host that kills at random kills during controls
//! too.

use crate::{Attempt, BundleIndex, Epoch, splits::TransitionOutcome};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Deaths that the log recognises when they are recorded again. If this many others are recorded
/// between the record and the claim of a death, it is counted twice, which breaks a run of deaths
/// and so errs on the safe side.
pub const RECENT_DEATHS: usize = 16;

/// A death as a claimant found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeathRecord {
    pub epoch: Epoch,
    pub bundle: BundleIndex,
    /// The attempt whose owner died.
    pub attempt: Attempt,
}

/// A recorded death, as its claim takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeathEvidence {
    pub attempt: Attempt,
    /// Its number among the recorded deaths, from 1. `None` if its split is unknown: such a death
    /// is no evidence.
    pub ordinal: Option<u64>,
}

/// The deaths of a job's workers, in the order they were found.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct DeathLog {
    pub deaths: u64,
    /// The latest, oldest first; the last one has ordinal `deaths`.
    pub recent: VecDeque<DeathRecord>,
    /// The worker of the latest death had marked the split that it died on.
    pub is_marked: bool,
}

impl DeathLog {
    /// Records a death, once.
    ///
    /// `before` is the log as read, `None` if there is none yet; `is_marked` says whether the
    /// worker had marked the split that it died on. Never refused.
    pub fn record(
        before: Option<&Self>,
        death: DeathRecord,
        is_marked: bool,
    ) -> TransitionOutcome<Self> {
        let mut log = before.cloned().unwrap_or_default();
        let is_known = log.ordinal(death).is_some();
        // Deaths after an unmarked one are not written, so that a mark seen late counts as a new
        // death.
        let is_marked_late = is_marked && !log.is_marked && log.recent.back() == Some(&death);
        let says_nothing = log.deaths > 0 && !log.is_marked && !is_marked;
        if is_known && !is_marked_late || says_nothing {
            return TransitionOutcome::AlreadyApplied(log);
        }
        log.deaths += 1;
        log.is_marked = is_marked;
        log.recent.push_back(death);
        while log.recent.len() > RECENT_DEATHS {
            log.recent.pop_front();
        }
        TransitionOutcome::Write(log)
    }

    /// The ordinal of a death recorded lately, from 1.
    pub fn ordinal(&self, death: DeathRecord) -> Option<u64> {
        let back = self.recent.iter().rev().position(|recorded| *recorded == death)?;
        self.deaths.checked_sub(u64::try_from(back).ok()?)
    }

    /// The input of the claim that accounts for `death`, which was recorded with or without a mark.
    pub fn death(&self, death: DeathRecord, is_marked: bool) -> DeathEvidence {
        let ordinal = self.ordinal(death).filter(|_| is_marked);
        DeathEvidence { attempt: death.attempt, ordinal }
    }
}

/// Flushes of one bundle.
const FLUSHES: u64 = 3;
/// Bounds of the interval between an owner's signs of life, for any split time.
const SIGN_MS: (u64, u64) = (1_500, 10_000);
/// Bounds of the silence that is tolerated: well above [`SIGN_MS`], as a call may be sent more than
/// once.
const PATIENCE_MS: (u64, u64) = (2_500, 15_000);
/// From this attempt on, silence does not end a lease early.
const TOO_OFTEN: Attempt = 4;

/// Milliseconds without a flush after which the owner of a bundle of `splits` renews its lease.
/// `split_ms` is the time of one of its splits so far, 0 if there was none.
pub fn sign_of_life_ms(split_ms: u64, splits: usize) -> u64 {
    let to_a_flush = (splits as u64).div_ceil(FLUSHES);
    (split_ms.saturating_mul(to_a_flush) * 3 / 2).clamp(SIGN_MS.0, SIGN_MS.1)
}

/// Milliseconds of silence after which the owner of a bundle of `splits` is presumed dead, if
/// splits take other workers `longest_ms`. The time doubles with each attempt; `None` means that
/// the lease lasts to its end.
pub fn silence_limit_ms(longest_ms: u64, splits: usize, attempt: Attempt) -> Option<u64> {
    let to_a_flush = (splits as u64).div_ceil(FLUSHES);
    let tried = attempt.saturating_sub(1);
    let at_first = longest_ms.saturating_mul(to_a_flush * 3).max(PATIENCE_MS.0);
    (attempt < TOO_OFTEN).then(|| at_first.saturating_mul(1 << tried).min(PATIENCE_MS.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn death(bundle: BundleIndex, attempt: Attempt) -> DeathRecord {
        DeathRecord { epoch: 0, bundle, attempt }
    }

    fn record(log: &DeathLog, bundle: BundleIndex, attempt: Attempt) -> DeathLog {
        DeathLog::record(Some(log), death(bundle, attempt), true).into_item()
    }

    #[test]
    fn a_death_recorded_twice_keeps_its_ordinal() {
        let log = DeathLog::record(None, death(1, 1), true).into_item();
        let log = record(&log, 2, 1);
        for is_marked in [false, true] {
            let again = DeathLog::record(Some(&log), death(1, 1), is_marked);
            assert_eq!(again, TransitionOutcome::AlreadyApplied(log.clone()));
        }
        assert_eq!(log.death(death(1, 1), true), DeathEvidence { attempt: 1, ordinal: Some(1) });
        assert_eq!(log.death(death(2, 1), true), DeathEvidence { attempt: 1, ordinal: Some(2) });
        assert_eq!(log.death(death(2, 1), false), DeathEvidence { attempt: 1, ordinal: None });
        assert_eq!(log.death(death(2, 2), true), DeathEvidence { attempt: 2, ordinal: None });
    }

    #[test]
    fn deaths_of_no_known_split_are_written_once_between_two_of_known_ones() {
        let marked = record(&DeathLog::default(), 7, 2);
        let unmarked = DeathLog::record(Some(&marked), death(1, 1), false).into_item();
        assert_eq!(unmarked.deaths, 2, "it ends the suspicion of the one before");
        for bundle in 2..100 {
            let outcome = DeathLog::record(Some(&unmarked), death(bundle, 1), false);
            assert_eq!(outcome, TransitionOutcome::AlreadyApplied(unmarked.clone()));
        }
        assert_eq!(record(&unmarked, 7, 3).ordinal(death(7, 3)), Some(3));
    }

    #[test]
    fn a_mark_that_is_seen_late_counts() {
        let unmarked = DeathLog::record(None, death(7, 2), false).into_item();
        let marked = record(&unmarked, 7, 2);
        assert_eq!((marked.is_marked, marked.ordinal(death(7, 2))), (true, Some(2)));
        assert_eq!(record(&marked, 7, 2), marked);
        let other = DeathLog::record(Some(&marked), death(1, 1), false).into_item();
        assert_eq!(other.deaths, 3, "the next one elsewhere is written");
    }

    #[test]
    fn the_log_stays_small_and_goes_on_counting() {
        let log = (0..100).fold(DeathLog::default(), |log, bundle| record(&log, bundle, 1));
        assert_eq!((log.deaths, log.recent.len()), (100, RECENT_DEATHS));
        assert_eq!(log.ordinal(death(99, 1)), Some(100));
        // A forgotten death counts as a new one, which can only end a suspicion.
        assert_eq!(log.ordinal(death(0, 1)), None);
        assert_eq!(record(&log, 0, 1).ordinal(death(0, 1)), Some(101));
        let bytes = postcard::to_stdvec(&log).unwrap();
        assert!(bytes.len() <= 1024, "{} bytes", bytes.len());
    }
}

#[cfg(test)]
mod silence_tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_live_worker_gives_a_sign_of_life_in_time(split_ms in 0u64..100_000, splits in 1usize..=8, attempt in 1u32..6) {
            let sign = sign_of_life_ms(split_ms, splits);
            let limit = silence_limit_ms(split_ms, splits, attempt);
            prop_assert!(limit.is_none_or(|limit| sign + 1_000 <= limit));
            prop_assert_eq!(limit.is_none(), attempt >= TOO_OFTEN);
        }
    }
}
