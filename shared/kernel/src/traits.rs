//! The forms that a kernel can have.

use crate::{FieldCell, KernelOutput, KernelScratch, OperatorDraws};

/// A value being read: numbers little-endian, images row by row.
#[derive(Clone, Copy, Debug)]
pub struct ValueView<'a> {
    pub bytes: &'a [u8],
    /// Height and width of an image.
    pub size: [usize; 2],
}

/// The size of a transformation's output.
#[derive(Clone, Copy, Debug)]
pub struct OutputSize {
    pub bytes: usize,
    /// Height and width of an image.
    pub size: [usize; 2],
}

/// An operator that writes its output elsewhere than its input. An error is the record's: one
/// line saying what is wrong with it.
pub trait TransformKernel: Send + Sync {
    fn run(
        &self,
        input: ValueView<'_>,
        output: KernelOutput<'_>,
        tools: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<OutputSize, String>;
}

/// An operator that changes a value where it is. An error is the record's, as above.
pub trait InPlaceKernel: Send + Sync {
    fn run(
        &self,
        value: &mut [u8],
        size: [usize; 2],
        tools: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<(), String>;
}

/// An operator that decides whether an element is kept.
pub trait PredicateKernel: Send + Sync {
    fn keeps(&self, input: ValueView<'_>, draw: &mut OperatorDraws) -> Result<bool, String>;
}

/// An operator that finds several values in one. What it finds where it is stands as
/// [`CellStorage::Record`](crate::CellStorage::InputRecord) of `input`. Returns the bytes found; an error is the
/// record's, as above.
pub trait ExtractKernel: Send + Sync {
    fn extract(
        &self,
        input: &[u8],
        found: &mut [FieldCell],
        tools: &mut KernelScratch,
    ) -> Result<usize, String>;
}
