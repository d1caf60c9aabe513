//! The kernel of an operator in any form, and the files an operator may need to make one.

use crate::{ExtractKernel, InPlaceKernel, OperatorDraws, PredicateKernel, TransformKernel};
use bytes::Bytes;
use gristmill_model::Fingerprint;
use std::{collections::BTreeMap, time::Duration};

/// Most items of one element that may become elements: more would not have numbers of their own.
pub const MAX_ITEMS: u32 = 65_536;

/// The work of an operator on an element.
pub enum Kernel {
    /// Writes its output elsewhere than its input.
    Transform(Box<dyn TransformKernel>),
    /// Changes a value where it is.
    InPlace(Box<dyn InPlaceKernel>),
    /// Keeps the element or leaves it out.
    Filter(Box<dyn PredicateKernel>),
    /// Finds several values in one, in the order of the operator's outputs.
    Extract(Box<dyn ExtractKernel>),
    /// Cuts the value to at most its first bytes.
    Shorten { most_bytes: usize },
    /// Makes several elements of one.
    Duplicate { copies: u32 },
    /// Makes an element of each item of a field.
    FlatMap { item_bytes: usize },
    /// Waits, without using the CPU.
    Wait(Duration),
    /// Leaves the value as it is.
    Nothing,
}

impl Kernel {
    pub fn transform(kernel: impl TransformKernel + 'static) -> Self {
        Kernel::Transform(Box::new(kernel))
    }

    pub fn in_place(kernel: impl InPlaceKernel + 'static) -> Self {
        Kernel::InPlace(Box::new(kernel))
    }
}

/// Several operators as one step: the names of all, and the kernel.
pub type FusedKernel = (&'static str, Box<dyn TransformKernel>);

/// Moves the boxes of an image, f32 `[n, 4]`, as a kernel moves the image.
pub trait MoveBoxes: Send + Sync {
    /// Moves `boxes`, of an image of `size` (height and width). Those that stay come first; returns how
    /// many they are, and puts into `kept` which.
    ///
    /// # Errors
    /// The record's error, in one line.
    fn run(
        &self,
        boxes: &mut [u8],
        size: [usize; 2],
        draw: &mut OperatorDraws,
        kept: &mut Vec<usize>,
    ) -> Result<usize, String>;
}

/// Files that operators need beside the pipeline, by the hash of their content. What comes from there is
/// checked against its hash; it need not be trusted.
pub trait AssetLoader {
    /// The content with this hash.
    ///
    /// # Errors
    /// Why it cannot be had, in one line.
    fn load(&self, hash: &Fingerprint) -> Result<Bytes, String>;
}

/// Contents that were fetched before.
impl AssetLoader for BTreeMap<Fingerprint, Bytes> {
    fn load(&self, hash: &Fingerprint) -> Result<Bytes, String> {
        self.get(hash).cloned().ok_or_else(|| "it was not loaded".into())
    }
}

/// For pipelines whose operators need none.
#[derive(Clone, Copy, Debug)]
pub struct NoAssets;

impl AssetLoader for NoAssets {
    fn load(&self, _: &Fingerprint) -> Result<Bytes, String> {
        Err("this part of the system loads no files for operators".into())
    }
}
