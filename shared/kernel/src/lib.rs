//! The interface between operators and the executor: a kernel is the part of an operator that
//! computes. It reads and writes [`FieldCell`]s, takes random numbers from a [`OperatorDraws`], and reuses the
//! buffers of its [`KernelScratch`].
//!
//! Operators, sources and the executor build on this crate; it knows none of them. No I/O, no clock.

mod cell;
mod draw;
mod kernel;
mod tools;
mod traits;

pub use cell::{CellStorage, FieldCell, KernelOutput};
pub use draw::{DrawKey, OperatorDraws};
pub use kernel::{AssetLoader, FusedKernel, Kernel, MAX_ITEMS, MoveBoxes, NoAssets};
pub use tools::{KernelScratch, KernelState};
pub use traits::{
    ExtractKernel, InPlaceKernel, OutputSize, PredicateKernel, TransformKernel, ValueView,
};
