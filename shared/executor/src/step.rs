//! What a compiled pipeline consists of, and how one element goes through it.

use crate::{
    cell::{Cell, Sink},
    ops::LineReader,
    random::Draw,
};
use fast_image_resize::Resizer;
use gristmill_pipeline::ops::MAX_ITEMS;
use std::time::Duration;

/// What operators work with beside their input; reused, and without effect on the result.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    pub(crate) resizer: Resizer,
    /// Bytes in a form that only one operator knows.
    pub(crate) pixels: Vec<u8>,
    /// An image on its way between two operators that are one step.
    pub(crate) image: Vec<u8>,
    /// The same, of wider numbers.
    pub(crate) shorts: Vec<u16>,
    pub(crate) floats: Vec<f32>,
    /// Where values end that stand one after the other in `pixels`.
    pub(crate) ends: Vec<usize>,
    pub(crate) csv: LineReader,
    /// Values found in one, before they become fields.
    pub(crate) found: Vec<Cell>,
}

/// A value being read: numbers little-endian, images row by row.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub bytes: &'a [u8],
    /// Height and width of an image.
    pub size: [usize; 2],
}

/// What a transformation made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) bytes: usize,
    /// Height and width of an image.
    pub(crate) size: [usize; 2],
}

/// An operator that writes its output elsewhere than its input. An error is the record's: one
/// line saying what is wrong with it.
pub(crate) trait Transform: Send + Sync {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        tools: &mut Tools,
        draw: &mut Draw,
    ) -> Result<Made, String>;
}

/// An operator that changes a value where it is. An error is the record's, as above.
pub(crate) trait InPlace: Send + Sync {
    fn run(
        &self,
        value: &mut [u8],
        size: [usize; 2],
        tools: &mut Tools,
        draw: &mut Draw,
    ) -> Result<(), String>;
}

/// An operator that decides whether an element is kept.
pub(crate) trait Predicate: Send + Sync {
    fn keeps(&self, input: View<'_>, draw: &mut Draw) -> Result<bool, String>;
}

/// An operator that finds several values in one. What it finds where it is stands as
/// [`Place::Record`](crate::cell::Place::Record) of `input`. Returns the bytes found; an error is the
/// record's, as above.
pub(crate) trait Extract: Send + Sync {
    fn extract(&self, input: &[u8], found: &mut [Cell], tools: &mut Tools)
    -> Result<usize, String>;
}

/// What a step does.
pub(crate) enum Action {
    /// `to_row`: the output is final, and goes straight to where it is delivered.
    Transform {
        input: usize,
        output: usize,
        kernel: Box<dyn Transform>,
        to_row: bool,
    },
    InPlace {
        field: usize,
        kernel: Box<dyn InPlace>,
    },
    Filter {
        field: usize,
        kernel: Box<dyn Predicate>,
    },
    /// The value keeps at most its first bytes.
    Shorten {
        field: usize,
        most_bytes: usize,
    },
    /// The element several times.
    Duplicate {
        copies: u32,
    },
    /// An element for each item of a field.
    FlatMap {
        field: usize,
        item_bytes: usize,
    },
    /// Several values found in one, in the order of `outputs`.
    Parse {
        input: usize,
        outputs: Vec<usize>,
        kernel: Box<dyn Extract>,
    },
    Wait(Duration),
    /// A place to cache: index in [`Program::points`](crate::Program).
    Point(usize),
    /// The value is already what the operator asks for.
    Nothing,
}

impl Action {
    /// How many numbers the elements that it makes of one need; 1 if it makes one at most.
    pub(crate) fn width(&self) -> u32 {
        match self {
            Action::Duplicate { copies } => *copies,
            Action::FlatMap { .. } => MAX_ITEMS,
            _ => 1,
        }
    }
}

/// One operator of the author's graph, compiled.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// The operator that a record's error is put down to.
    pub(crate) blame: &'static str,
    /// Index in the pipeline's stages.
    pub(crate) stage: u32,
    pub(crate) ordinal: u32,
    /// Height and width of its input, where the schema says them; else the element does.
    pub(crate) size: Option<[usize; 2]>,
    pub(crate) action: Action,
}
