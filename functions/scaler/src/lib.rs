//! The scaler function: reads the job's SCALE item, decides, records, invokes.

mod handler;
#[cfg(feature = "aws")]
mod wiring;

pub use handler::{ScaleError, ScalerFunction, ScalerOutcome};
#[cfg(feature = "aws")]
pub use wiring::serve;
