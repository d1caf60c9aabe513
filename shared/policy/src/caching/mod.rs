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

use crate::cost::quantity;

use serde::{Deserialize, Serialize};

pub use decide::{CachingDecision, CachingOption, CachingSettings, TIE, decide};
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
    /// [`decide`](decide) decided. `stored_from_start`: everything that the current epoch made at
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

/// Totals of one operator over the profile: the executor's reports of splits, summed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct OpProfile {
    /// Name in the pipeline file; `source` for the first.
    pub op: String,
    /// Seconds of this operator alone.
    pub active_s: f64,
    /// Elements it yielded.
    pub elements: f64,
    /// Bytes of the elements it yielded: the size of a cache there. (An operator that changes one field
    /// reports that field; the caller sums the element.)
    pub bytes: f64,
}

/// One `autocache` point.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PointProfile {
    /// Index in [`CachingProfile::ops`] of the operator whose output would be cached. After the last operator
    /// this is the delivered output, which is stored anyway.
    pub after_op: usize,
    /// Whether an operator up to this point is random.
    pub random: bool,
    /// Whether the author allows reuse of random draws, at the price of less variety (Cachew 4.2, 7).
    pub reuse_random: bool,
    /// Objects of the profile at this point: one for each split.
    pub objects: f64,
}

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
    /// Source records covered.
    pub records: f64,
    /// Source records of an epoch.
    pub epoch_records: f64,
    /// The source, then every operator in execution order.
    pub ops: Vec<OpProfile>,
    /// Seconds that workers waited for the source's bytes.
    pub source_wait_s: f64,
    /// Points in pipeline order.
    pub points: Vec<PointProfile>,
    pub reads: ReadOverlap,
}

impl CachingProfile {
    /// Worker seconds of the whole profile: Cachew's `N x active_time(last)`, plus the wait for the
    /// source.
    pub fn compute_s(&self) -> f64 {
        quantity(self.source_wait_s) + self.active_s(self.ops.len())
    }

    /// Worker seconds that remain if `point` is read instead of computed: `compute - M x
    /// active_time(A)`.
    pub fn after_s(&self, point: &PointProfile) -> f64 {
        let computed_s = self.active_s(point.after_op.saturating_add(1));
        (self.active_s(self.ops.len()) - computed_s).max(0.0)
    }

    /// Whether a cache at `point` is the delivered output.
    pub fn is_last(&self, point: &PointProfile) -> bool {
        point.after_op + 1 >= self.ops.len()
    }

    /// Seconds of the first `ops` operators.
    fn active_s(&self, ops: usize) -> f64 {
        self.ops.iter().take(ops).map(|op| quantity(op.active_s)).sum()
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
