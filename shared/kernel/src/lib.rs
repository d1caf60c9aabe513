//! The interface between operators and the executor: a kernel is the part of an operator that
//! computes. It reads and writes [`FieldCell`]s, takes random numbers from a [`OperatorDraws`], and reuses the
//! buffers of its [`KernelScratch`].
//!
//! Operators, sources and the executor build on this crate; it knows none of them. No I/O, no clock.

mod cell;
mod kernel;

pub use cell::{CellStorage, FieldCell, KernelOutput};
pub use kernel::{
    AssetLoader, CombineKernel, DrawKey, ExtractKernel, FusedKernel, InPlaceKernel, Kernel,
    KernelScratch, KernelState, MAX_ITEMS, MoveBoxes, NoAssets, OperatorDraws, OutputSize,
    PredicateKernel, TransformKernel, ValueView,
};
