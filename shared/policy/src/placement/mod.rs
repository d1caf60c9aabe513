//! The place where a job's data is made: functions, the trainer's own host, or both.
//!
//! [`place_epoch`] prices a placement, [`search`] finds the one that costs least before a job runs, and [`place`] corrects
//! the number of local workers while it runs.

mod deployed;
mod live;
mod local_part;
mod model;
mod search;
#[cfg(test)]
mod tests;

pub use deployed::place_deployed;
pub use live::{
    PlacementDecision, PlacementObservation, PlacementReason, PlacementSettings, PlacementState,
    WorkerTarget, place,
};
pub use local_part::LocalPart;
pub use model::{HostWork, PackedBytes, PlacedEpoch, PlacedHost, PlacementTerms, place_epoch};
pub use search::{
    PlacedOrder, PlacementAlternative, PlacementInput, PlacementPlan, WorkerRegion, search,
};
