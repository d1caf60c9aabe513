//! `color_jitter`: brightness, contrast, saturation and hue, in random order.

use super::planes::{self, BLOCK, F32, Plane, Planes, Sample, U8, vectorised};
use crate::{
    random::Draw,
    step::{InPlace, Tools},
};
use gristmill_pipeline::{DType, ops::ColorJitter};

/// `[h, w, 3]` of u8 or f32 -> the same, in place.
#[derive(Debug)]
pub(crate) struct Jitter {
    op: ColorJitter,
    dtype: DType,
}

/// One change with what was drawn for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    /// Factor.
    Brightness(f32),
    /// Factor.
    Contrast(f32),
    /// Factor.
    Saturation(f32),
    /// Turns.
    Hue(f32),
}

impl Change {
    /// Whether it leaves any image as it is.
    fn is_nothing(&self) -> bool {
        match *self {
            Change::Brightness(x) | Change::Contrast(x) | Change::Saturation(x) => x == 1.0,
            Change::Hue(x) => x == 0.0,
        }
    }
}

impl Jitter {
    pub(crate) fn new(op: &ColorJitter, dtype: DType) -> Self {
        Jitter { op: op.clone(), dtype }
    }

    /// As `torchvision.transforms.ColorJitter`: an order, and four amounts.
    fn draw(&self, draw: &mut Draw) -> [Change; 4] {
        let mut order = [0, 1, 2, 3];
        for i in (1..4).rev() {
            order.swap(i, draw.up_to(i as u32) as usize);
        }
        let mut between = |[low, high]: [f64; 2]| draw.between(low, high) as f32;
        let changes = [
            Change::Brightness(between(self.op.brightness)),
            Change::Contrast(between(self.op.contrast)),
            Change::Saturation(between(self.op.saturation)),
            Change::Hue(between(self.op.hue)),
        ];
        order.map(|i| changes[i])
    }
}

impl InPlace for Jitter {
    fn run(
        &self,
        value: &mut [u8],
        _: [usize; 2],
        _: &mut Tools,
        draw: &mut Draw,
    ) -> Result<(), String> {
        if draw.unit() < self.op.p {
            apply(&self.draw(draw), self.dtype, value);
        }
        Ok(())
    }
}

/// Applies `changes` in their order to an RGB image.
pub(crate) fn apply(changes: &[Change; 4], dtype: DType, pixels: &mut [u8]) {
    match planes::is_whole(dtype) {
        true => vectorised(|| apply_to::<U8>(changes, pixels)),
        false => vectorised(|| apply_to::<F32>(changes, pixels)),
    }
}

/// In one pass over the image, or two if there is a contrast, which needs the mean of what it gets.
#[inline(always)]
fn apply_to<S: Sample>(changes: &[Change; 4], pixels: &mut [u8]) {
    let contrast = changes.iter().position(|c| matches!(c, Change::Contrast(x) if *x != 1.0));
    let (before, after) = changes.split_at(contrast.unwrap_or(0));
    let mut mean = 0.0;
    if contrast.is_some() {
        let mut sum = Sum::new();
        if before.iter().all(Change::is_nothing) {
            planes::read::<S>(pixels, |planes| sum.add::<S>(planes));
        } else {
            planes::change::<S>(pixels, |planes| {
                before.iter().for_each(|change| change.apply::<S>(planes, 0.0));
                sum.add::<S>(planes);
            });
        }
        mean = sum.mean(pixels.len() / (3 * S::BYTES));
    }
    if !after.iter().all(Change::is_nothing) {
        planes::change::<S>(pixels, |planes| {
            after.iter().for_each(|change| change.apply::<S>(planes, mean));
        });
    }
}

impl Change {
    #[inline(always)]
    fn apply<S: Sample>(&self, planes: &mut Planes, mean: f32) {
        match *self {
            change if change.is_nothing() => {}
            Change::Brightness(factor) => brighten::<S>(planes, factor),
            Change::Contrast(factor) => blend::<S>(planes, &[mean; BLOCK], factor),
            Change::Saturation(factor) => blend::<S>(planes, &planes::grey::<S>(planes), factor),
            Change::Hue(turns) => turn::<S>(planes, turns),
        }
    }
}

/// Sum of greys: whole numbers exactly, others in an order that is always the same.
struct Sum {
    whole: u64,
    lanes: [f64; BLOCK],
}

impl Sum {
    fn new() -> Self {
        Sum { whole: 0, lanes: [0.0; BLOCK] }
    }

    #[inline(always)]
    fn add<S: Sample>(&mut self, planes: &Planes) {
        let grey = planes::grey::<S>(planes);
        if S::WHOLE {
            let mut sum = 0_i32;
            for x in grey {
                sum += x as i32;
            }
            self.whole += sum as u64;
        } else {
            for (lane, x) in self.lanes.iter_mut().zip(grey) {
                *lane += f64::from(x);
            }
        }
    }

    fn mean(&self, pixels: usize) -> f32 {
        let sum = self.lanes.iter().fold(self.whole as f64, |sum, lane| sum + lane);
        (sum / pixels.max(1) as f64) as f32
    }
}

/// Back into what a sample can hold.
#[inline(always)]
fn settle<S: Sample>(x: f32) -> f32 {
    let x = x.max(0.0).min(S::MAX);
    if S::WHOLE { x.floor() } else { x }
}

#[inline(always)]
fn brighten<S: Sample>(planes: &mut Planes, factor: f32) {
    for plane in planes {
        for x in plane {
            *x = settle::<S>(*x * factor);
        }
    }
}

/// Away from `other`, or towards it.
#[inline(always)]
fn blend<S: Sample>(planes: &mut Planes, other: &Plane, factor: f32) {
    let rest = 1.0 - factor;
    for plane in planes {
        for (x, other) in plane.iter_mut().zip(other) {
            *x = settle::<S>(*x * factor + other * rest);
        }
    }
}

/// Turns the hue. In the hexcone model each channel is the least of the three plus a share of their
/// spread that depends on the hue alone, so that saturation and value are never computed.
#[inline(always)]
fn turn<S: Sample>([reds, greens, blues]: &mut Planes, turns: f32) {
    // torchvision's way from 0..1 to 0..255: times 255.999, cut.
    let last = if S::WHOLE { 255.999 / 255.0 } else { 1.0 };
    let turned = turns * 6.0;
    for i in 0..BLOCK {
        let (r, g, b) = (reds[i], greens[i], blues[i]);
        let (most, least) = (r.max(g).max(b), r.min(g).min(b));
        let spread = most - least;
        let inverse = 1.0 / if spread > 0.0 { spread } else { 1.0 };
        let blueish = (r - g) * inverse + 4.0;
        let greenish = (b - r) * inverse + 2.0;
        let reddish = (g - b) * inverse;
        let hue = if most == r {
            reddish
        } else if most == g {
            greenish
        } else {
            blueish
        };
        let hue = hue + turned;
        let hue = hue - 6.0 * (hue * (1.0 / 6.0)).floor();
        let share = |x: f32| x.max(0.0).min(1.0) * spread + least;
        reds[i] = settle::<S>(share((hue - 3.0).abs() - 1.0) * last);
        greens[i] = settle::<S>(share(2.0 - (hue - 2.0).abs()) * last);
        blues[i] = settle::<S>(share(2.0 - (hue - 4.0).abs()) * last);
    }
}
