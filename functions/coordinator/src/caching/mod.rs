//! Autocaching: which cached data a job finds when it registers, what is decided from its profile, and when
//! other jobs may read what it stores.
//!
//! Stored objects lie below a **cache prefix**: a key prefix that only one job writes to. Once a cache prefix is complete,
//! one object is put if absent: the **entry** of its fingerprint. Jobs that find the entry may read the
//! cache prefix, so no job reads incomplete data, and two jobs that store the same data do not interfere. The mode
//! of an epoch is settled before any of its splits is handed out, and never changes.

mod begin;
mod catalogue;
mod settle;

use gristmill_model::Epoch;
use gristmill_model::splits::epoch::SealedTotals;
use gristmill_model::wire::{CachePointView, CachingView, EpochCacheMode};
use gristmill_policy::caching::{CachingState, Mode};
use serde::{Deserialize, Serialize};

pub(crate) use begin::CacheQuery;
pub(crate) use catalogue::CacheUse;
pub(crate) use settle::settlement;

/// The caching state of a job, as stored in its item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobCaching {
    pub view: CachingView,
    /// State of the policy after the last epoch whose mode is settled.
    pub state: CachingState,
    /// Numerics class of the points' fingerprints.
    pub numerics: String,
    /// Reason for the decision to store, and its predicted benefit.
    pub decided: Option<String>,
    pub predicted: Option<CacheBenefit>,
    /// Totals of each epoch that is delivered from the cache.
    pub totals: Option<SealedTotals>,
}

/// The predicted benefit of reading a cache.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct CacheBenefit {
    /// Elements delivered per second by one worker.
    pub elements_per_s: f64,
    /// Worker-seconds saved per epoch.
    pub saved_s: f64,
    pub bytes: f64,
}

/// Fate of an epoch's chunks once the trainer has passed them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChunkRetention {
    /// The chunks are deleted.
    Deleted,
    /// The chunks are part of the cache.
    Kept,
    /// Not decided yet: the chunks may become the cache.
    Undecided,
}

impl JobCaching {
    /// The caching of a job that begins in `mode`, with nothing decided.
    fn new(points: Vec<CachePointView>, first: EpochCacheMode, numerics: &str) -> Self {
        let unsettled = (first.mode == Mode::Profile).then_some(1);
        Self {
            state: CachingState::new(first.mode),
            view: CachingView { points, modes: vec![first], unsettled },
            numerics: numerics.to_owned(),
            decided: None,
            predicted: None,
            totals: None,
        }
    }

    /// Whether the number of workers must not change while `epoch` is delivered, because it is profiled.
    pub fn holds_scaling(&self, epoch: Epoch) -> bool {
        self.state.holds_scaling()
            && self.view.mode_at(epoch).is_some_and(|m| m.mode == Mode::Profile)
    }

    /// Whether the mode of `epoch` is one that does not last: later epochs read what this one stores.
    pub fn is_passing(&self, epoch: Epoch) -> bool {
        let mode = self.view.mode_at(epoch).map(|mode| mode.mode);
        matches!(mode, Some(Mode::Profile | Mode::Put { .. }))
    }

    /// Fate of the chunks of `epoch` once the trainer has passed them.
    pub fn passed(&self, epoch: Epoch) -> ChunkRetention {
        if self.view.delivered_prefix(epoch).is_some() {
            return ChunkRetention::Kept;
        }
        let Some(cache_prefix) = self.view.chunks_prefix(epoch) else {
            return ChunkRetention::Deleted;
        };
        match self.state.mode {
            Mode::Profile => ChunkRetention::Undecided,
            Mode::Put { point } if self.view.is_whole(point) => ChunkRetention::Undecided,
            _ if self.is_read(cache_prefix) => ChunkRetention::Kept,
            _ => ChunkRetention::Deleted,
        }
    }

    fn is_read(&self, cache_prefix: &str) -> bool {
        let reads = |mode: &&EpochCacheMode| matches!(mode.mode, Mode::Get { .. });
        let last = self.view.modes.iter().rev().find(reads);
        last.is_some_and(|mode| mode.cache_prefix.as_deref() == Some(cache_prefix))
    }

    /// A number that changes whenever the work per batch changes, so that scaling starts over.
    pub fn mode_number(&self, epoch: Epoch) -> u32 {
        let begun = self.view.modes.iter().take_while(|mode| mode.from <= epoch);
        // Profiling computes the same as computing.
        let compute = |mode: &Mode| matches!(mode, Mode::Profile | Mode::Compute);
        let modes: Vec<Mode> = begun.map(|begun| begun.mode).collect();
        let differ =
            |pair: &&[Mode]| pair[0] != pair[1] && !(compute(&pair[0]) && compute(&pair[1]));
        modes.windows(2).filter(differ).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::Fingerprint;

    fn caching(
        state: Mode,
        modes: &[(Epoch, Mode, Option<&str>)],
        unsettled: Option<Epoch>,
    ) -> JobCaching {
        let point = |whole| CachePointView {
            after: "op".into(),
            fingerprint: Fingerprint([1; 32]),
            random: false,
            reuse_random: false,
            whole,
        };
        let mode = |&(from, mode, cache_prefix): &(Epoch, Mode, Option<&str>)| EpochCacheMode {
            from,
            mode,
            reason: String::new(),
            cache_prefix: cache_prefix.map(str::to_owned),
        };
        let points = vec![point(false), point(true)];
        let mut caching = JobCaching::new(points, mode(&modes[0]), "");
        caching.state = CachingState::new(state);
        (caching.view.modes, caching.view.unsettled) =
            (modes.iter().map(mode).collect(), unsettled);
        caching
    }

    #[test]
    fn chunks_that_may_become_the_cache_stay_until_that_is_decided() {
        let profile = (0, Mode::Profile, Some("a/"));
        let undecided = caching(Mode::Profile, &[profile], Some(1));
        assert_eq!(undecided.passed(0), ChunkRetention::Undecided);
        assert!(undecided.holds_scaling(0));
        let stored = caching(Mode::Put { point: 1 }, &[profile], Some(1));
        assert_eq!(stored.passed(0), ChunkRetention::Undecided, "not all of it is there");
        let get = (1, Mode::Get { point: 1 }, Some("a/"));
        let read = caching(Mode::Get { point: 1 }, &[profile, get], None);
        assert_eq!((read.passed(0), read.passed(5)), (ChunkRetention::Kept, ChunkRetention::Kept));
        let compute = (1, Mode::Compute, None);
        let computed = caching(Mode::Compute, &[profile, compute], None);
        assert_eq!(
            (computed.passed(0), computed.passed(1)),
            (ChunkRetention::Deleted, ChunkRetention::Deleted)
        );
        let inner = [profile, (1, Mode::Put { point: 0 }, Some("b/"))];
        let inner = caching(Mode::Put { point: 0 }, &inner, Some(2));
        assert_eq!(
            (inner.passed(0), inner.passed(1)),
            (ChunkRetention::Deleted, ChunkRetention::Deleted)
        );
    }

    #[test]
    fn scaling_begins_anew_when_workers_do_something_else() {
        let put = (1, Mode::Put { point: 0 }, Some("b/"));
        let get = (2, Mode::Get { point: 0 }, Some("b/"));
        let modes = [(0, Mode::Profile, None), put, get];
        let cached = caching(Mode::Get { point: 0 }, &modes, None);
        assert_eq!([0, 1, 2, 3].map(|epoch| cached.mode_number(epoch)), [0, 1, 2, 2]);
        let modes = [(0, Mode::Profile, None), (1, Mode::Compute, None)];
        let computed = caching(Mode::Compute, &modes, None);
        assert_eq!([0, 1, 2].map(|epoch| computed.mode_number(epoch)), [0, 0, 0]);
    }
}
