//! The death log: one small item per job that puts the deaths of workers in order.
//!
//! Whoever claims a bundle whose owner died records that death here before the claim. A split is
//! suspected only while deaths on it follow each other without one elsewhere, and the ordinals tell: on
//! a host whose workers are killed at random, deaths spread over splits and no suspicion lasts. Where one
//! split is left, every death is on it: what tells then is the control that each worker runs before it
//! ([`Bundle::control`](crate::Bundle)), on which a host that kills at random kills as well.

use crate::Outcome;
use gristmill_types::{Attempt, BundleIndex, Epoch};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Deaths the log can tell from new ones when they are recorded again. A claimant that pauses
/// between recording and claiming while this many others die has its death counted twice, which
/// breaks a run of deaths and so errs on the safe side.
pub const RECENT_DEATHS: usize = 16;

/// A death as a claimant found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeathRecord {
    pub epoch: Epoch,
    pub bundle: BundleIndex,
    /// The attempt whose owner died.
    pub attempt: Attempt,
}

/// What a claim needs to know of the death it accounts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Death {
    pub attempt: Attempt,
    /// Its place in the order of all deaths of the job, from 1.
    pub ordinal: u64,
}

/// The deaths of a job's workers, in the order they were found.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct DeathLog {
    pub deaths: u64,
    /// The latest, oldest first; the last one has ordinal `deaths`.
    pub recent: VecDeque<DeathRecord>,
}

impl DeathLog {
    /// Records a death, once.
    ///
    /// `before` is the log as read, none when there is none yet. Always allowed.
    pub fn record(before: Option<&Self>, death: DeathRecord) -> Outcome<Self> {
        if let Some(log) = before
            && log.ordinal(death).is_some()
        {
            return Outcome::AlreadyApplied(log.clone());
        }
        let mut log = before.cloned().unwrap_or_default();
        log.deaths += 1;
        log.recent.push_back(death);
        while log.recent.len() > RECENT_DEATHS {
            log.recent.pop_front();
        }
        Outcome::Write(log)
    }

    /// The ordinal of a death recorded lately, from 1.
    pub fn ordinal(&self, death: DeathRecord) -> Option<u64> {
        let back = self.recent.iter().rev().position(|recorded| *recorded == death)?;
        self.deaths.checked_sub(u64::try_from(back).ok()?)
    }

    /// What the claim that accounts for `death` is to be given.
    pub fn death(&self, death: DeathRecord) -> Option<Death> {
        Some(Death { attempt: death.attempt, ordinal: self.ordinal(death)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn death(bundle: BundleIndex, attempt: Attempt) -> DeathRecord {
        DeathRecord { epoch: 0, bundle, attempt }
    }

    fn record(log: &DeathLog, bundle: BundleIndex, attempt: Attempt) -> DeathLog {
        DeathLog::record(Some(log), death(bundle, attempt)).into_item()
    }

    #[test]
    fn a_death_recorded_twice_keeps_its_ordinal() {
        let log = DeathLog::record(None, death(1, 1)).into_item();
        let log = record(&log, 2, 1);
        let again = DeathLog::record(Some(&log), death(1, 1));
        assert_eq!(again, Outcome::AlreadyApplied(log.clone()));
        assert_eq!(log.death(death(1, 1)), Some(Death { attempt: 1, ordinal: 1 }));
        assert_eq!(log.death(death(2, 1)), Some(Death { attempt: 1, ordinal: 2 }));
        assert_eq!(log.death(death(2, 2)), None);
    }

    #[test]
    fn the_log_stays_small_and_goes_on_counting() {
        let log = (0..100).fold(DeathLog::default(), |log, bundle| record(&log, bundle, 1));
        assert_eq!((log.deaths, log.recent.len()), (100, RECENT_DEATHS));
        assert_eq!(log.ordinal(death(99, 1)), Some(100));
        // Forgotten: counted as a new one, which only ever ends a suspicion.
        assert_eq!(log.ordinal(death(0, 1)), None);
        assert_eq!(record(&log, 0, 1).ordinal(death(0, 1)), Some(101));
        let bytes = postcard::to_stdvec(&log).unwrap();
        assert!(bytes.len() <= 1024, "{} bytes", bytes.len());
    }
}
