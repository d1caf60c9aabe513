//! Autocaching: whether a job computes every epoch anew or stores the output of a prefix of its
//! pipeline once and reads it from then on, and at which of its `autocache` points (Cachew 4.4, 5.1).
//!
//! A job goes through these in order: [`lookup`] at registration (somebody may have cached it),
//! a profile of [`PROFILE_BATCHES`] batches with scaling held, [`decide`] over it, and
//! [`State::advance`] at every decision and epoch's end. [`evict`] keeps the cache within its
//! capacity, [`explain_miss`] says why a lookup found nothing. All of it is pure; [`study`] holds
//! the decision against the best one in hindsight on made-up pipelines.

mod decide;
mod evict;
mod lookup;
mod miss;
mod modes;
mod profile;
mod read_time;
pub mod study;

pub use decide::{Decision, Objective, OptionEstimate, Settings, TIE, decide};
pub use evict::{NoRoom, USE_HALF_LIFE_S, UseScore, evict};
pub use gristmill_model::wire::CacheMode as Mode;
pub use lookup::{Candidate, Entry, EntryState, Lookup, lookup};
pub use miss::{Described, Difference, Miss, OpIdentity, SourceVersion, explain_miss};
pub use modes::{Event, State, Transition};
pub use profile::{OpProfile, PROBES, PointProfile, Profile, Reads};
pub use read_time::ReadTime;

/// Batches a profile is measured over before it is decided on (Cachew 4.4 finds 300 enough); an
/// epoch that ends sooner is decided on with what there is.
pub const PROFILE_BATCHES: u32 = 300;
