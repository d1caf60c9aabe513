//! The worker function: one event starts one worker, which claims bundles of splits, preprocesses
//! them into objects, and leaves when there is nothing to claim. It never waits idle.

mod handler;
mod orders;
mod paid_time;
mod wiring;

pub use handler::{WorkerFunction, WorkerFunctionError};
pub use orders::serve_orders;
#[cfg(feature = "aws")]
pub use wiring::serve;
