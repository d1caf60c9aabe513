//! The forms that a kernel can have.

use crate::{Cell, Draw, Sink, Tools};

/// A value being read: numbers little-endian, images row by row.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub bytes: &'a [u8],
    /// Height and width of an image.
    pub size: [usize; 2],
}

/// The size of a transformation's output.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    pub bytes: usize,
    /// Height and width of an image.
    pub size: [usize; 2],
}

/// An operator that writes its output elsewhere than its input. An error is the record's: one
/// line saying what is wrong with it.
pub trait Transform: Send + Sync {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        tools: &mut Tools,
        draw: &mut Draw,
    ) -> Result<Made, String>;
}

/// An operator that changes a value where it is. An error is the record's, as above.
pub trait InPlace: Send + Sync {
    fn run(
        &self,
        value: &mut [u8],
        size: [usize; 2],
        tools: &mut Tools,
        draw: &mut Draw,
    ) -> Result<(), String>;
}

/// An operator that decides whether an element is kept.
pub trait Predicate: Send + Sync {
    fn keeps(&self, input: View<'_>, draw: &mut Draw) -> Result<bool, String>;
}

/// An operator that finds several values in one. What it finds where it is stands as
/// [`Place::Record`](crate::Place::Record) of `input`. Returns the bytes found; an error is the
/// record's, as above.
pub trait Extract: Send + Sync {
    fn extract(&self, input: &[u8], found: &mut [Cell], tools: &mut Tools)
    -> Result<usize, String>;
}
