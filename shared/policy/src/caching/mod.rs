//! Autocaching: whether a job computes every epoch, or stores the output of a prefix of its pipeline
//! once and reads it from then on, and at which `autocache` point (Cachew 4.4, 5.1).
//!
//! A job goes through these in order: [`lookup`] at registration (another job may have cached the
//! prefix), a profile of [`PROFILE_BATCHES`] batches during which scaling holds, [`decide`] over it, and
//! [`CachingState::advance`] at every decision and end of an epoch. [`evict`] keeps the cache within its
//! capacity, [`explain_miss`] explains a lookup without a hit. All of it is pure;
//! `tests/caching_study` compares the decision with the best one in hindsight on synthetic pipelines.

mod decide;
mod evict;
mod lookup;
mod miss;
mod modes;
mod profile;
mod read_time;

pub use decide::{CachingDecision, CachingOption, CachingSettings, TIE, decide};
pub use evict::{CacheFull, USE_HALF_LIFE_S, UseScore, evict};
pub use gristmill_model::wire::CacheMode as Mode;
pub use lookup::{CacheCandidate, CacheLookup, CachedPrefix, lookup};
pub use miss::{CacheMiss, PrefixDescription, PrefixDifference, SourceVersion, explain_miss};
pub use modes::{CachingEvent, CachingState, CachingTransition};
pub use profile::{CachingProfile, OpProfile, PointProfile, ReadOverlap};
pub use read_time::ReadTime;

/// Batches of a profile before the decision (Cachew 4.4 finds 300 enough). An epoch that ends sooner
/// is decided on with what was measured.
pub const PROFILE_BATCHES: u32 = 300;
