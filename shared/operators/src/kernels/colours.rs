//! Colour arithmetic over blocks of pixels, for `color_jitter`.
//!
//! u8 pixels stay integers: 16-bit fixed-point numbers, sixteen at a time. Results round down, as in
//! torchvision.

use crate::kernels::planes::{
    BLOCK, ChannelBlock, F32Pixels, PixelType, RgbBlock, U8Pixels, vectorised,
};

/// The operations on the colours of a block.
pub(crate) trait ColourArithmetic: PixelType {
    /// Multiplies each value by `factor` and adds `addend`.
    fn affine(planes: &mut RgbBlock<Self::Value>, factor: f32, addend: f32);
    /// Moves each value away from the grey of its pixel, or towards it.
    fn saturate(planes: &mut RgbBlock<Self::Value>, factor: f32);
    /// Shifts the hue, in turns.
    fn turn(planes: &mut RgbBlock<Self::Value>, turns: f32);
    /// Adds the greys to a sum: integers exactly, floats always in the same order.
    fn sum(planes: &RgbBlock<Self::Value>, to: &mut GreySum);
}

/// A sum of greys.
pub(crate) struct GreySum {
    whole: u64,
    lanes: [f64; LANES],
}

/// Number of partial sums of floats.
const LANES: usize = 16;

impl GreySum {
    pub(crate) fn new() -> Self {
        GreySum { whole: 0, lanes: [0.0; LANES] }
    }

    pub(crate) fn mean(&self, pixels: usize) -> f32 {
        let sum = self.lanes.iter().fold(self.whole as f64, |sum, lane| sum + lane);
        (sum / pixels.max(1) as f64) as f32
    }
}

/// A factor as a 16-bit number; products with it have `bits` fractional bits.
#[derive(Clone, Copy)]
struct Factor {
    factor: i16,
    bits: u32,
}

/// Most fractional bits: with eight integer bits and a sign, a sum of two still fits 16 bits.
const MOST_BITS: u32 = 6;
/// Largest factor that is precise enough: its products have two fractional bits.
const MAX_FACTOR: f32 = 15.99;

impl Factor {
    fn new(factor: f32) -> Self {
        let factor = factor.clamp(0.0, MAX_FACTOR);
        let fits = |bits: &u32| factor * (1_u32 << (bits + 9)) as f32 <= 32_767.0;
        let bits = (0..=MOST_BITS).rev().find(fits).unwrap_or(0);
        let factor = (factor * (1_u32 << (bits + 9)) as f32).round_ties_even() as i16;
        Factor { factor, bits }
    }
}

/// The upper half of a product.
#[inline(always)]
fn high(x: i16, y: i16) -> i16 {
    ((i32::from(x) * i32::from(y)) >> 16) as i16
}

impl ColourArithmetic for U8Pixels {
    #[inline(never)]
    fn affine(planes: &mut RgbBlock<i16>, factor: f32, addend: f32) {
        let Factor { factor, bits } = Factor::new(factor);
        let addend = (addend * (1_u32 << bits) as f32).round_ties_even() as i16;
        for plane in planes {
            vectorised(|| {
                for x in plane {
                    let scaled = high(*x << 7, factor).saturating_add(addend);
                    *x = (scaled >> bits).clamp(0, 255);
                }
            });
        }
    }

    fn saturate(planes: &mut RgbBlock<i16>, factor: f32) {
        let mut grey = [0; BLOCK];
        U8Pixels::grey(planes, &mut grey);
        let factor = Factor::new(factor);
        planes.iter_mut().for_each(|plane| away(plane, &grey, factor));
    }

    #[inline(never)]
    fn turn([reds, greens, blues]: &mut RgbBlock<i16>, turns: f32) {
        let turned = (turns * 6.0 * 8192.0).round_ties_even() as i16;
        vectorised(|| {
            for i in 0..BLOCK {
                let (r, g, b) = (reds[i], greens[i], blues[i]);
                let (most, least) = (r.max(g).max(b), r.min(g).min(b));
                // Four fractional bits: eight times a spread of 255 uses all sixteen bits.
                let spread = (most - least) << 4;
                let (base, top) = if most == r {
                    (0, g - b)
                } else if most == g {
                    (2 * spread, b - r)
                } else {
                    (4 * spread, r - g)
                };
                let hue = base + (top << 4) + high((most - least) << 7, turned);
                let hue = if hue < 0 { hue + 6 * spread } else { hue };
                let hue = if hue >= 6 * spread { hue - 6 * spread } else { hue };
                // As torchvision maps 0..1 to 0..255: times 255.999, rounded down.
                let value = |share: i16| {
                    let value = share.max(0).min(spread) + (least << 4);
                    (value + (value >> 8)) >> 4
                };
                reds[i] = value((hue - 3 * spread).abs() - spread);
                greens[i] = value(2 * spread - (hue - 2 * spread).abs());
                blues[i] = value(2 * spread - (hue - 4 * spread).abs());
            }
        });
    }

    fn sum(planes: &RgbBlock<i16>, to: &mut GreySum) {
        let mut grey = [0; BLOCK];
        U8Pixels::grey(planes, &mut grey);
        to.whole += vectorised(|| grey.iter().map(|x| i32::from(*x)).sum::<i32>()) as u64;
    }
}

#[inline(never)]
fn away(plane: &mut ChannelBlock<i16>, grey: &ChannelBlock<i16>, Factor { factor, bits }: Factor) {
    vectorised(|| {
        for (x, grey) in plane.iter_mut().zip(grey) {
            let far = high((*x - grey) << 7, factor).saturating_add(grey << bits);
            *x = (far >> bits).clamp(0, 255);
        }
    });
}

#[inline(always)]
#[allow(clippy::manual_clamp, reason = "two instructions of a vector, and not-a-number becomes 0")]
fn settle(x: f32) -> f32 {
    x.max(0.0).min(1.0)
}

impl ColourArithmetic for F32Pixels {
    #[inline(never)]
    fn affine(planes: &mut RgbBlock<f32>, factor: f32, addend: f32) {
        vectorised(|| {
            for x in planes.as_flattened_mut() {
                *x = settle(*x * factor + addend);
            }
        });
    }

    #[inline(never)]
    fn saturate(planes: &mut RgbBlock<f32>, factor: f32) {
        let mut grey = [0.0; BLOCK];
        F32Pixels::grey(planes, &mut grey);
        let rest = 1.0 - factor;
        for plane in planes {
            vectorised(|| {
                for (x, grey) in plane.iter_mut().zip(&grey) {
                    *x = settle(*x * factor + grey * rest);
                }
            });
        }
    }

    /// In the hexcone model each channel is the least of the three plus a share of their spread. Everything is
    /// scaled by the spread, which avoids a division by it.
    #[inline(never)]
    fn turn([reds, greens, blues]: &mut RgbBlock<f32>, turns: f32) {
        let turned = turns * 6.0;
        vectorised(|| {
            for i in 0..BLOCK {
                let (r, g, b) = (reds[i], greens[i], blues[i]);
                let (most, least) = (r.max(g).max(b), r.min(g).min(b));
                let spread = most - least;
                let (base, top) = if most == r {
                    (0.0, g - b)
                } else if most == g {
                    (2.0, b - r)
                } else {
                    (4.0, r - g)
                };
                let hue = (base + turned) * spread + top;
                let whole = 6.0 * spread;
                let hue = if hue < 0.0 { hue + whole } else { hue };
                let hue = if hue >= whole { hue - whole } else { hue };
                let value = |share: f32| share.max(0.0).min(spread) + least;
                reds[i] = value((hue - 3.0 * spread).abs() - spread);
                greens[i] = value(2.0 * spread - (hue - 2.0 * spread).abs());
                blues[i] = value(2.0 * spread - (hue - 4.0 * spread).abs());
            }
        });
    }

    #[inline(never)]
    fn sum(planes: &RgbBlock<f32>, to: &mut GreySum) {
        let mut grey = [0.0; BLOCK];
        F32Pixels::grey(planes, &mut grey);
        vectorised(|| {
            for part in grey.as_chunks::<LANES>().0 {
                for (lane, x) in to.lanes.iter_mut().zip(part) {
                    *lane += f64::from(*x);
                }
            }
        });
    }
}
