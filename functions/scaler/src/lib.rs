//! The scaler function: reads the job's SCALE item, decides, records, invokes.

mod handler;
#[cfg(feature = "aws")]
mod wiring;

pub use handler::{ScaleError, Scaled, Scaler};
#[cfg(feature = "aws")]
pub use wiring::serve;
