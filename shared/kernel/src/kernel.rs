//! The kernel of an operator in any form, and the files an operator may need to make one.

use crate::{FieldCell, KernelOutput};

use bytes::Bytes;
use gristmill_model::{Epoch, Fingerprint, RecordKey};
use std::{
    any::{Any, TypeId},
    collections::BTreeMap,
    time::Duration,
};

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
    /// Makes a value of two, in place of the first.
    Combine(Box<dyn CombineKernel>),
    /// Cuts the value to at most its first bytes.
    Shorten { most_bytes: usize },
    /// Makes several elements of one.
    Duplicate { copies: u32 },
    /// Makes an element of each item of a field.
    FlatMap { item_bytes: usize },
    /// Makes an element of each item of all lists of the operator, side by side.
    Unbatch,
    /// Waits, without using the CPU.
    Wait(Duration),
    /// Leaves the value as it is.
    Nothing,
}

impl Kernel {
    /// A kernel whose output is another value than its input.
    pub fn transform(kernel: impl TransformKernel + 'static) -> Self {
        Kernel::Transform(Box::new(kernel))
    }

    /// A kernel that changes its value where it lies.
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

impl<F> TransformKernel for F
where
    F: Fn(
            ValueView<'_>,
            KernelOutput<'_>,
            &mut KernelScratch,
            &mut OperatorDraws,
        ) -> Result<OutputSize, String>
        + Send
        + Sync,
{
    fn run(
        &self,
        input: ValueView<'_>,
        output: KernelOutput<'_>,
        tools: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<OutputSize, String> {
        self(input, output, tools, draw)
    }
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

impl<F> InPlaceKernel for F
where
    F: Fn(&mut [u8], [usize; 2], &mut KernelScratch, &mut OperatorDraws) -> Result<(), String>
        + Send
        + Sync,
{
    fn run(
        &self,
        value: &mut [u8],
        size: [usize; 2],
        tools: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<(), String> {
        self(value, size, tools, draw)
    }
}

/// An operator that decides whether an element is kept.
pub trait PredicateKernel: Send + Sync {
    fn keeps(&self, input: ValueView<'_>, draw: &mut OperatorDraws) -> Result<bool, String>;
}

/// An operator that finds several values in one. What it finds where it is stands as
/// [`CellStorage::Record`](crate::CellStorage::Record) of `input`. Returns the bytes found; an error is the
/// record's, as above.
pub trait ExtractKernel: Send + Sync {
    fn extract(
        &self,
        input: &[u8],
        found: &mut [FieldCell],
        tools: &mut KernelScratch,
    ) -> Result<usize, String>;
}

/// An operator that makes a value of two. An error is the record's, as above.
pub trait CombineKernel: Send + Sync {
    fn run(
        &self,
        inputs: [ValueView<'_>; 2],
        output: KernelOutput<'_>,
        tools: &mut KernelScratch,
    ) -> Result<OutputSize, String>;
}

// Buffers that kernels share and reuse from element to element.

/// Scratch memory of one thread. What it holds has no effect on results.
#[derive(Debug, Default)]
pub struct KernelScratch {
    /// Bytes in a form that only one operator knows.
    pub pixels: Vec<u8>,
    /// An image between two operators that run as one step.
    pub image: Vec<u8>,
    /// Values of 16 bits.
    pub shorts: Vec<u16>,
    /// Values of 32 bits.
    pub floats: Vec<f32>,
    /// Ends of the values that stand one after the other in `pixels`.
    pub ends: Vec<usize>,
    /// Values found in one, before they become fields.
    pub found: Vec<FieldCell>,
    /// Height and width of the image that the last operator on images was given.
    pub source: [usize; 2],
    /// State of single kernels, such as a decoder's tables.
    pub state: KernelState,
}

/// One value of each type that kernels ask for: decoders and the like, whose construction costs more
/// than their use.
#[derive(Debug, Default)]
pub struct KernelState {
    // Few types: a scan costs less than a hash.
    values: Vec<(TypeId, Box<dyn Any + Send>)>,
}

impl KernelState {
    /// The value of type `T`, made by its default when it is asked for first.
    pub fn get<T: Any + Default + Send>(&mut self) -> &mut T {
        let id = TypeId::of::<T>();
        let found = self.values.iter().position(|(other, _)| *other == id);
        let index = found.unwrap_or_else(|| {
            self.values.push((id, Box::<T>::default()));
            self.values.len() - 1
        });
        let value = self.values[index].1.downcast_mut();
        value.expect("a value is stored under the identifier of its type")
    }
}

// Randomness that depends on what is processed, never on when or where.

/// Everything a random operator's draws depend on.
#[derive(Clone, Copy, Debug)]
pub struct DrawKey {
    pub seed: u64,
    pub epoch: Epoch,
    pub record: RecordKey,
    /// Which time the epoch has the record.
    pub repeat: u32,
    /// Which of several elements made of one record.
    pub copy: u32,
    /// The operator's place in the graph as its author wrote it.
    pub ordinal: u32,
}

impl DrawKey {
    /// A fresh stream of numbers.
    #[inline]
    pub fn draw(&self) -> OperatorDraws {
        // One BLAKE3 block: keys that differ in a bit give unrelated streams.
        let mut block = [0; 48];
        block[..16].copy_from_slice(b"gristmill draw 1");
        block[16..24].copy_from_slice(&self.seed.to_le_bytes());
        block[24..32].copy_from_slice(&self.record.packed().to_le_bytes());
        block[32..36].copy_from_slice(&self.epoch.to_le_bytes());
        block[36..40].copy_from_slice(&self.repeat.to_le_bytes());
        block[40..44].copy_from_slice(&self.copy.to_le_bytes());
        block[44..].copy_from_slice(&self.ordinal.to_le_bytes());
        let hash = blake3::hash(&block);
        let (head, _) = hash.as_bytes().split_at(8);
        OperatorDraws {
            state: head.iter().rev().fold(0, |state, byte| state << 8 | u64::from(*byte)),
        }
    }
}

/// The random numbers of one operator on one element. SplitMix64 (Steele, Lea and Flood 2014): a counter and a finaliser, ample for a few draws.
#[derive(Clone, Debug)]
pub struct OperatorDraws {
    state: u64,
}

impl OperatorDraws {
    /// The same numbers for every element.
    pub fn fixed() -> Self {
        OperatorDraws { state: 0 }
    }

    #[inline]
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`, in steps of 2^-53.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform in `[low, high)`; `low` if they are equal.
    #[inline]
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform in `0..=most`. Its bias, `most` / 2^64, is beyond measuring.
    #[inline]
    pub fn up_to(&mut self, most: u32) -> u32 {
        let scaled = u128::from(self.next()) * (u128::from(most) + 1);
        (scaled >> 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_one_value_that_stays() {
        let mut state = KernelState::default();
        state.get::<Vec<u8>>().push(1);
        *state.get::<u32>() += 5;
        state.get::<Vec<u8>>().push(2);
        assert_eq!(*state.get::<Vec<u8>>(), [1, 2]);
        assert_eq!(*state.get::<u32>(), 5);
    }

    const KEY: DrawKey = DrawKey {
        seed: 1,
        epoch: 2,
        record: RecordKey { file: 3, record: 4 },
        repeat: 0,
        copy: 0,
        ordinal: 5,
    };

    #[test]
    fn every_part_of_the_key_matters() {
        let base = KEY.draw().next();
        assert_eq!(base, KEY.draw().next());
        let others = [
            DrawKey { seed: 9, ..KEY },
            DrawKey { epoch: 9, ..KEY },
            DrawKey { record: RecordKey { file: 9, record: 4 }, ..KEY },
            DrawKey { record: RecordKey { file: 3, record: 9 }, ..KEY },
            DrawKey { repeat: 9, ..KEY },
            DrawKey { copy: 9, ..KEY },
            DrawKey { ordinal: 9, ..KEY },
        ];
        let mut seen: Vec<u64> = others.map(|key| key.draw().next()).to_vec();
        seen.push(base);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 8);
    }

    #[test]
    fn draws_stay_in_bounds_and_spread() {
        let mut draw = KEY.draw();
        let mut counts = [0; 4];
        for _ in 0..4000 {
            let unit = draw.unit();
            assert!((0.0..1.0).contains(&unit));
            counts[draw.up_to(3) as usize] += 1;
            assert_eq!(draw.up_to(0), 0);
            assert_eq!(draw.between(2.0, 2.0), 2.0);
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
