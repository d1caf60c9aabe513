//! The interface between operators and the executor: a kernel is the part of an operator that
//! computes. It reads and writes [`Cell`]s, takes random numbers from a [`Draw`], and reuses the
//! buffers of its [`Tools`].
//!
//! Operators, sources and the executor build on this crate; it knows none of them. No I/O, no clock.

mod cell;
mod draw;
mod kernel;
mod tools;
mod traits;

pub use cell::{Cell, Place, Sink};
pub use draw::{Draw, DrawKey};
pub use kernel::{Assets, Fused, Kernel, MAX_ITEMS, MoveBoxes, NoAssets};
pub use tools::{KernelState, Tools};
pub use traits::{Extract, InPlace, Made, Predicate, Transform, View};
