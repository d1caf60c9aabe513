//! `color_jitter`: brightness, contrast, saturation and hue, in random order.

use super::{
    colours::{Colours, Sum},
    planes::{self, F32, Planes, U8},
};
use crate::{
    random::Draw,
    step::{InPlace, Tools},
};
use gristmill_pipeline::{DType, FieldSchema, ops::ColorJitter};

/// `[h, w, 3]` of u8 or f32 -> the same, in place.
#[derive(Debug)]
pub(crate) struct Jitter {
    op: ColorJitter,
    dtype: DType,
    /// Whether there is one channel: no hue, and no saturation.
    gray: bool,
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
    /// What it comes to where all channels are equal.
    fn on_gray(self) -> Change {
        match self {
            Change::Saturation(_) => Change::Saturation(1.0),
            Change::Hue(_) => Change::Hue(0.0),
            other => other,
        }
    }

    /// Whether it leaves any image as it is.
    fn is_nothing(&self) -> bool {
        match *self {
            Change::Brightness(x) | Change::Contrast(x) | Change::Saturation(x) => x == 1.0,
            Change::Hue(x) => x == 0.0,
        }
    }
}

impl Jitter {
    pub(crate) fn new(op: &ColorJitter, field: &FieldSchema) -> Self {
        let gray = field.shape.last() == Some(&Some(1));
        Jitter { op: op.clone(), dtype: field.dtype, gray }
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
        tools: &mut Tools,
        draw: &mut Draw,
    ) -> Result<(), String> {
        if draw.unit() >= self.op.p {
            return Ok(());
        }
        let changes = self.draw(draw);
        match self.gray {
            true => apply_to_gray(&changes, self.dtype, value, &mut tools.pixels),
            false => apply(&changes, self.dtype, value),
        }
        Ok(())
    }
}

/// As to the colour image of three such channels.
fn apply_to_gray(changes: &[Change; 4], dtype: DType, gray: &mut [u8], rgb: &mut Vec<u8>) {
    let bytes = super::dtype_bytes(dtype);
    rgb.clear();
    rgb.extend(gray.chunks_exact(bytes).flat_map(|value| value.repeat(3)));
    apply(&changes.map(Change::on_gray), dtype, rgb);
    for (pixel, value) in rgb.chunks_exact(3 * bytes).zip(gray.chunks_exact_mut(bytes)) {
        value.copy_from_slice(&pixel[..bytes]);
    }
}

/// Applies `changes` in their order to an RGB image.
pub(crate) fn apply(changes: &[Change; 4], dtype: DType, pixels: &mut [u8]) {
    match dtype {
        DType::U8 => apply_to::<U8>(changes, pixels),
        _ => apply_to::<F32>(changes, pixels),
    }
}

/// In one pass over the image, or two if there is a contrast, which needs the mean of what it gets.
fn apply_to<S: Colours>(changes: &[Change; 4], pixels: &mut [u8]) {
    let contrast = changes.iter().position(|c| matches!(c, Change::Contrast(x) if *x != 1.0));
    let (before, after) = changes.split_at(contrast.unwrap_or(0));
    let mut mean = 0.0;
    if contrast.is_some() {
        let mut sum = Sum::new();
        if before.iter().all(Change::is_nothing) {
            planes::read::<S>(pixels, |planes| S::sum(planes, &mut sum));
        } else {
            planes::change::<S>(pixels, |planes| {
                before.iter().for_each(|change| change.apply::<S>(planes, 0.0));
                S::sum(planes, &mut sum);
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
    fn apply<S: Colours>(&self, planes: &mut Planes<S::Value>, mean: f32) {
        match *self {
            change if change.is_nothing() => {}
            Change::Brightness(factor) => S::affine(planes, factor, 0.0),
            Change::Contrast(factor) => S::affine(planes, factor, mean * (1.0 - factor)),
            Change::Saturation(factor) => S::saturate(planes, factor),
            Change::Hue(turns) => S::turn(planes, turns),
        }
    }
}
