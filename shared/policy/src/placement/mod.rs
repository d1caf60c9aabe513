//! Where a job's data is made: on functions, on the trainer's own host, or on both.
//!
//! [`place`] corrects the number of local workers while a job runs.

mod live;

pub use live::{
    PlacementDecision, PlacementObservation, PlacementReason, PlacementSettings, PlacementState,
    WorkerTarget, place,
};
