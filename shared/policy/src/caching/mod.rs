//! Autocaching: whether a job computes every epoch, or stores the output of a prefix of its pipeline
//! once and reads it from then on, and at which `autocache` point (Cachew 4.4, 5.1).
//!
//! A job goes through these in order: [`lookup`] at registration (another job may have cached the
//! prefix), a profile of [`PROFILE_BATCHES`] batches during which scaling holds, [`decide`] over it, and
//! [`CachingState::advance`] at every decision and end of an epoch. [`evict`] keeps the cache within its
//! capacity, [`explain_miss`] explains a lookup without a hit. All of it is pure;
//! `tests/caching_study` compares the decision with the best one in hindsight on synthetic pipelines.

mod decide;
mod lookup;
mod miss;
mod read_time;

use crate::{
    cost::quantity,
    plan::{MeasuredSample, PlannedCachePoint},
};

use serde::{Deserialize, Serialize};

pub use decide::{CachingDecision, CachingOption, TIE, decide};
pub use gristmill_model::wire::CacheMode as Mode;
pub use lookup::{
    CacheCandidate, CacheFull, CacheLookup, CachedPrefix, USE_HALF_LIFE_S, UseScore, evict, lookup,
};
pub use miss::{CacheMiss, PrefixDescription, PrefixDifference, SourceVersion, explain_miss};
pub use read_time::ReadTime;

/// Batches of a profile before the decision (Cachew 4.4 finds 300 enough). An epoch that ends sooner
/// is decided on with what was measured.
pub const PROFILE_BATCHES: u32 = 300;

// The mode of a job's epochs as a state machine: PROFILE -> COMPUTE | PUT -> GET (Cachew 4.4,
// 5.1).

/// An event that may change the mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum CachingEvent {
    /// [`decide`] decided. `stored_from_start`: everything that the current epoch made at
    /// that point is stored and kept, as delivered objects are during a profile.
    Decided { mode: Mode, stored_from_start: bool },
    /// The epoch ended and the next one begins. `complete`: every object of a put is stored.
    EpochEnded { complete: bool },
}

/// Caching state of a job; small enough for the job's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CachingState {
    /// Current mode.
    #[serde(flatten)]
    pub mode: Mode,
    /// Point at which the next epoch will store.
    pub put_next: Option<u32>,
}

/// The state after an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CachingTransition {
    pub state: CachingState,
    pub reason: String,
}

impl CachingState {
    /// The state of a job in `mode`.
    pub fn new(mode: Mode) -> CachingState {
        CachingState { mode, put_next: None }
    }

    /// Whether the worker count must stay as it is.
    pub fn holds_scaling(&self) -> bool {
        self.mode == Mode::Profile
    }

    /// The state after `event`, and the reason. Events that do not concern a state leave it unchanged, so
    /// events may be repeated.
    pub fn advance(&self, event: &CachingEvent) -> CachingTransition {
        let (state, reason) = match (self.mode, event) {
            (
                Mode::Profile,
                CachingEvent::Decided { mode: Mode::Put { point }, stored_from_start },
            ) => {
                if *stored_from_start {
                    (CachingState::new(Mode::Put { point: *point }), self.storing(*point))
                } else {
                    (
                        CachingState { mode: Mode::Compute, put_next: Some(*point) },
                        format!("the next epoch stores at point {point} from its first split on"),
                    )
                }
            }
            (Mode::Profile, CachingEvent::Decided { mode: Mode::Compute, .. }) => {
                (CachingState::new(Mode::Compute), "computing every epoch was decided".into())
            }
            (Mode::Put { point }, CachingEvent::EpochEnded { complete: true }) => (
                CachingState::new(Mode::Get { point }),
                format!("point {point} is stored completely"),
            ),
            (Mode::Put { point }, CachingEvent::EpochEnded { complete: false }) => (
                *self,
                format!("point {point} is not stored completely: storing the missing splits"),
            ),
            (Mode::Compute, CachingEvent::EpochEnded { .. }) if self.put_next.is_some() => {
                let point = self.put_next.unwrap_or_default();
                (CachingState::new(Mode::Put { point }), self.storing(point))
            }
            _ => (*self, format!("{} goes on", self.mode)),
        };
        CachingTransition { state, reason }
    }

    fn storing(&self, point: u32) -> String {
        format!("this epoch stores its elements at point {point}")
    }
}

// Measurements of a job that the caching decision needs.

/// How a worker combines cache reads and computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadOverlap {
    /// Sequentially, as in Cachew's formula.
    InTurn,
    /// The next split is read while this one is computed, as in our workers: the longer counts.
    Ahead,
}

/// All measurements of a profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CachingProfile {
    /// Batches covered.
    pub batches: u32,
    pub measured: MeasuredSample,
    /// Seconds that workers waited for the source's bytes.
    pub source_wait_s: f64,
    /// Objects at any point: one for each split.
    pub objects: f64,
    pub reads: ReadOverlap,
}

impl CachingProfile {
    /// Worker seconds of the whole profile: Cachew's `N x active_time(last)`, plus the wait for the
    /// source.
    pub fn compute_s(&self) -> f64 {
        quantity(self.source_wait_s) + self.active_s(0)
    }

    /// Worker seconds that remain if `point` is read instead of computed: `compute - M x
    /// active_time(A)`.
    pub fn after_s(&self, point: &PlannedCachePoint) -> f64 {
        self.active_s(point.after_op.saturating_add(1))
    }

    /// Seconds of the operators from `first` on.
    fn active_s(&self, first: usize) -> f64 {
        let ops = self.measured.ops.iter().skip(first);
        ops.map(|op| quantity(op.cpu_s) + quantity(op.wait_s)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn walk(events: &[CachingEvent]) -> Vec<Mode> {
        let mut state = CachingState::default();
        let step = |event: &CachingEvent| {
            state = state.advance(event).state;
            state.mode
        };
        events.iter().map(step).collect()
    }

    fn decided(point: u32, stored_from_start: bool) -> CachingEvent {
        CachingEvent::Decided { mode: Mode::Put { point }, stored_from_start }
    }

    #[test]
    fn an_inner_point_is_profiled_put_and_got() {
        let end = CachingEvent::EpochEnded { complete: true };
        assert_eq!(
            walk(&[decided(1, false), end.clone(), end.clone(), end]),
            [Mode::Compute, Mode::Put { point: 1 }, Mode::Get { point: 1 }, Mode::Get { point: 1 },]
        );
    }

    #[test]
    fn at_the_last_operator_the_profiled_epoch_is_the_put() {
        let end = CachingEvent::EpochEnded { complete: true };
        assert_eq!(
            walk(&[decided(2, true), end]),
            [Mode::Put { point: 2 }, Mode::Get { point: 2 }]
        );
    }

    #[test]
    fn incomplete_caches_are_not_read() {
        let half = CachingEvent::EpochEnded { complete: false };
        assert_eq!(walk(&[decided(0, true), half])[1], Mode::Put { point: 0 });
    }

    #[test]
    fn scaling_is_held_only_while_profiling() {
        assert!(CachingState::default().holds_scaling());
        assert!(!CachingState::new(Mode::Compute).holds_scaling());
    }

    #[test]
    fn a_state_reads_as_one_would_write_it() {
        let state = CachingState { mode: Mode::Get { point: 1 }, put_next: None };
        let json = serde_json::to_string(&state).unwrap();
        assert_eq!(json, r#"{"mode":"get","point":1,"put_next":null}"#);
        assert_eq!(serde_json::from_str::<CachingState>(&json).unwrap(), state);
    }

    fn any_event() -> impl Strategy<Value = CachingEvent> {
        let mode = prop_oneof![
            Just(Mode::Compute),
            (0u32..3).prop_map(|point| Mode::Put { point }),
            Just(Mode::Profile),
            (0u32..3).prop_map(|point| Mode::Get { point }),
        ];
        prop_oneof![
            (mode, any::<bool>()).prop_map(|(mode, stored_from_start)| CachingEvent::Decided {
                mode,
                stored_from_start
            }),
            any::<bool>().prop_map(|complete| CachingEvent::EpochEnded { complete }),
        ]
    }

    proptest! {
        #[test]
        fn only_a_complete_put_is_ever_read(events in prop::collection::vec(any_event(), 0..40)) {
            let mut state = CachingState::default();
            for event in &events {
                let next = state.advance(event);
                prop_assert!(!next.reason.is_empty() && !next.reason.contains('\n'));
                if let (Mode::Get { point }, true) = (next.state.mode, next.state != state) {
                    prop_assert_eq!(state.mode, Mode::Put { point });
                    prop_assert_eq!(event, &CachingEvent::EpochEnded { complete: true });
                }
                prop_assert!(next.state.mode != Mode::Profile || state.mode == Mode::Profile);
                state = next.state;
            }
        }
    }
}
