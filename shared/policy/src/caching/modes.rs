//! The mode of a job's epochs as a state machine: PROFILE -> COMPUTE | PUT -> GET (Cachew 4.4, 5.1).

use gristmill_model::wire::CacheMode as Mode;
use serde::{Deserialize, Serialize};

/// An event that may change the mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// [`decide`](super::decide) decided. `stored_from_start`: everything that the current epoch made at
    /// that point is stored and kept, as delivered objects are during a profile.
    Decided { mode: Mode, stored_from_start: bool },
    /// The epoch ended and the next one begins. `complete`: every object of a put is stored.
    EpochEnded { complete: bool },
    /// Cached data is gone: evicted, expired or deleted.
    CacheLost,
    /// The cache has no room for the data to be stored.
    CacheRefused,
}

/// Caching state of a job; small enough for the job's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// Current mode.
    #[serde(flatten)]
    pub mode: Mode,
    /// Point at which the next epoch will store.
    pub put_next: Option<u32>,
}

/// The state after an event, and its consequences.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Transition {
    pub state: State,
    /// Whether the worker's cost of a batch has changed: scaling then restarts with one worker.
    pub reset_scaling: bool,
    pub reason: String,
}

impl State {
    /// The state of a job in `mode`.
    pub fn of(mode: Mode) -> State {
        State { mode, put_next: None }
    }

    /// Whether the worker count must stay as it is.
    pub fn holds_scaling(&self) -> bool {
        self.mode == Mode::Profile
    }

    /// The state after `event`, and the reason. Events that do not concern a state leave it unchanged, so
    /// events may be repeated.
    pub fn advance(&self, event: &Event) -> Transition {
        let (state, reason) = match (self.mode, event) {
            (Mode::Profile, Event::Decided { mode: Mode::Put { point }, stored_from_start }) => {
                match stored_from_start {
                    true => (State::of(Mode::Put { point: *point }), self.storing(*point)),
                    false => (
                        State { mode: Mode::Compute, put_next: Some(*point) },
                        format!("the next epoch stores at point {point} from its first split on"),
                    ),
                }
            }
            (Mode::Profile, Event::Decided { mode: Mode::Compute, .. }) => {
                (State::of(Mode::Compute), "computing every epoch was decided".into())
            }
            (Mode::Put { point }, Event::EpochEnded { complete: true }) => {
                (State::of(Mode::Get { point }), format!("point {point} is stored completely"))
            }
            (Mode::Put { point }, Event::EpochEnded { complete: false }) => (
                *self,
                format!("point {point} is not stored completely: storing the missing splits"),
            ),
            (Mode::Put { point }, Event::CacheRefused) => (
                State::of(Mode::Compute),
                format!("the cache has no space for point {point}: computing every epoch"),
            ),
            (Mode::Get { point }, Event::CacheLost) => (
                State { mode: Mode::Compute, put_next: Some(point) },
                format!("entries of point {point} were deleted: computing, then storing again"),
            ),
            (Mode::Compute, Event::EpochEnded { .. }) if self.put_next.is_some() => {
                let point = self.put_next.unwrap_or_default();
                (State::of(Mode::Put { point }), self.storing(point))
            }
            (Mode::Compute, Event::CacheRefused) if self.put_next.is_some() => {
                (State::of(Mode::Compute), "the cache is full: computing every epoch".into())
            }
            _ => (*self, format!("{} goes on", self.mode)),
        };
        // Profiling, computing and putting do the same work, but puts use the worker's network beside
        // it, so only profile -> compute leaves the cost of a batch unchanged.
        let same_work = |mode| matches!(mode, Mode::Profile | Mode::Compute);
        let reset_scaling =
            state.mode != self.mode && !(same_work(state.mode) && same_work(self.mode));
        Transition { state, reset_scaling, reason }
    }

    fn storing(&self, point: u32) -> String {
        format!("this epoch stores its elements at point {point}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn walk(events: &[Event]) -> Vec<(Mode, bool)> {
        let mut state = State::default();
        let step = |event: &Event| {
            let transition = state.advance(event);
            state = transition.state;
            (state.mode, transition.reset_scaling)
        };
        events.iter().map(step).collect()
    }

    fn decided(point: u32, stored_from_start: bool) -> Event {
        Event::Decided { mode: Mode::Put { point }, stored_from_start }
    }

    #[test]
    fn an_inner_point_is_profiled_put_and_got() {
        let end = Event::EpochEnded { complete: true };
        assert_eq!(
            walk(&[decided(1, false), end.clone(), end.clone(), end]),
            [
                (Mode::Compute, false),
                (Mode::Put { point: 1 }, true),
                (Mode::Get { point: 1 }, true),
                (Mode::Get { point: 1 }, false),
            ]
        );
    }

    #[test]
    fn at_the_last_operator_the_profiled_epoch_is_the_put() {
        let end = Event::EpochEnded { complete: true };
        assert_eq!(
            walk(&[decided(2, true), end]),
            [(Mode::Put { point: 2 }, true), (Mode::Get { point: 2 }, true)]
        );
    }

    #[test]
    fn what_is_incomplete_lost_or_has_no_room_is_not_read() {
        let (half, end) =
            (Event::EpochEnded { complete: false }, Event::EpochEnded { complete: true });
        let put = Mode::Put { point: 0 };
        assert_eq!(walk(&[decided(0, true), half.clone()])[1], (put, false));
        let lost = walk(&[decided(0, true), end.clone(), Event::CacheLost, end.clone(), end]);
        assert_eq!(lost[2..], [(Mode::Compute, true), (put, true), (Mode::Get { point: 0 }, true)]);
        let refused = walk(&[decided(0, true), Event::CacheRefused, half]);
        assert_eq!(refused[1..], [(Mode::Compute, true), (Mode::Compute, false)]);
    }

    #[test]
    fn scaling_is_held_only_while_profiling() {
        assert!(State::default().holds_scaling());
        assert!(!State::of(Mode::Compute).holds_scaling());
    }

    #[test]
    fn a_state_reads_as_one_would_write_it() {
        let state = State { mode: Mode::Get { point: 1 }, put_next: None };
        let json = serde_json::to_string(&state).unwrap();
        assert_eq!(json, r#"{"mode":"get","point":1,"put_next":null}"#);
        assert_eq!(serde_json::from_str::<State>(&json).unwrap(), state);
    }

    fn any_event() -> impl Strategy<Value = Event> {
        let mode = prop_oneof![
            Just(Mode::Compute),
            (0u32..3).prop_map(|point| Mode::Put { point }),
            Just(Mode::Profile),
            (0u32..3).prop_map(|point| Mode::Get { point }),
        ];
        prop_oneof![
            (mode, any::<bool>())
                .prop_map(|(mode, stored_from_start)| Event::Decided { mode, stored_from_start }),
            any::<bool>().prop_map(|complete| Event::EpochEnded { complete }),
            Just(Event::CacheLost),
            Just(Event::CacheRefused),
        ]
    }

    proptest! {
        #[test]
        fn only_a_complete_put_is_ever_read(events in prop::collection::vec(any_event(), 0..40)) {
            let mut state = State::default();
            for event in &events {
                let next = state.advance(event);
                prop_assert!(!next.reason.is_empty() && !next.reason.contains('\n'));
                if let (Mode::Get { point }, true) = (next.state.mode, next.state != state) {
                    prop_assert_eq!(state.mode, Mode::Put { point });
                    prop_assert_eq!(event, &Event::EpochEnded { complete: true });
                }
                prop_assert!(next.state.mode != Mode::Profile || state.mode == Mode::Profile);
                state = next.state;
            }
        }
    }
}
