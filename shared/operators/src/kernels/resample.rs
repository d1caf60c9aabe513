//! Resampling by weights: every output pixel is a weighted sum of the source pixels near it, along rows and
//! then along columns.
//!
//! With `antialias` the bytes are those of Pillow, which sums u8 with 22-bit weights and floats in f64, and
//! rounds after each direction. The sums have one order, so vector units do not change them.

use crate::image::resize::kernel::ImageWindow;
use crate::prelude::*;
use gristmill_kernel::*;
use std::ops::Range;

/// Fractional bits of the weights of u8 pixels.
const WEIGHT_BITS: u32 = 22;

impl ResizeFilter {
    /// Largest distance, in pixels, at which a source pixel counts.
    fn support(self) -> f64 {
        match self.interpolation {
            PixelInterpolation::Bilinear => 1.0,
            PixelInterpolation::Bicubic => 2.0,
        }
    }

    fn weight(self, distance: f64) -> f64 {
        let x = distance.abs();
        // Pillow's parameter, and torch's where it does not average.
        let a = if self.antialias { -0.5 } else { -0.75 };
        match self.interpolation {
            PixelInterpolation::Bilinear => (1.0 - x).max(0.0),
            PixelInterpolation::Bicubic if x < 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
            PixelInterpolation::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * a,
            PixelInterpolation::Bicubic => 0.0,
        }
    }

    /// The source pixels of output pixel `at`, and a weight for each, which add up to 1.
    fn taps(self, at: usize, from: usize, to: usize, weights: &mut Vec<f64>) -> Range<usize> {
        weights.clear();
        if self.antialias {
            let scale = from as f64 / to as f64;
            let widened = scale.max(1.0);
            let support = self.support() * widened;
            let centre = (at as f64 + 0.5) * scale;
            let first = (centre - support + 0.5).max(0.0) as usize;
            let end = ((centre + support + 0.5) as usize).min(from);
            let narrowed = 1.0 / widened;
            let weight = |x: usize| self.weight((x as f64 - centre + 0.5) * narrowed);
            weights.extend((first..end).map(weight));
            let sum: f64 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= sum);
            return first..end;
        }
        // In f32, as torch computes places.
        let scale = from as f32 / to as f32;
        let place = scale * (at as f32 + 0.5) - 0.5;
        let (floor, reach) = (place.floor(), self.support() as i64);
        let inside = |x: i64| x.clamp(0, from as i64 - 1) as usize;
        let (first, end) = (floor as i64 + 1 - reach, floor as i64 + 1 + reach);
        let taps = inside(first)..inside(end - 1) + 1;
        weights.resize(taps.len(), 0.0);
        for x in first..end {
            // A pixel at the border stands for those beyond it.
            let distance = f64::from(place - floor) - (x - floor as i64) as f64;
            weights[inside(x) - taps.start] += self.weight(distance);
        }
        taps
    }

    /// Writes `window` of an image, of `channels` values a pixel, in another `size`.
    pub(crate) fn resize<T: ResampledValue>(
        self,
        input: ValueView<'_>,
        window: ImageWindow,
        size: [usize; 2],
        channels: usize,
        output: KernelOutput<'_>,
        tools: &mut KernelScratch,
    ) -> Result<OutputSize, String> {
        let [height, width] = size;
        let pixel_bytes = channels * T::BYTES;
        let [left, top, columns, rows] =
            [window.left, window.top, window.width, window.height].map(|side| side as usize);
        let state = tools.state.get::<ResampleState<T>>();
        let between = KernelOutput::Buffer(&mut state.between).take(rows * width * pixel_bytes)?;
        let row_bytes = input.size[1] * pixel_bytes;
        let lines = input.bytes.chunks_exact(row_bytes.max(1)).skip(top);
        let lines = lines.map(|line| &line[left * pixel_bytes..][..columns * pixel_bytes]);
        let made = between.chunks_exact_mut((width * pixel_bytes).max(1));
        if columns == width {
            made.zip(lines).for_each(|(to, line)| to.copy_from_slice(line));
        } else {
            state.along.fill(self, columns, width);
            let along = &state.along;
            made.zip(lines).for_each(|(to, line)| match channels {
                1 => along.row::<1>(line, to),
                _ => along.row::<3>(line, to),
            });
        }
        let bytes = height * width * pixel_bytes;
        let out = output.take(bytes)?;
        if rows == height {
            out.copy_from_slice(between);
        } else {
            state.down.fill(self, rows, height);
            state.down.columns(between, width * pixel_bytes, out, &mut state.sums);
        }
        Ok(OutputSize { bytes, size })
    }
}

/// A value of a pixel, and the type in which it is summed.
pub(crate) trait ResampledValue: Default + Send + 'static {
    type Sum: Copy + Default + Send + 'static;
    const BYTES: usize;
    /// The start of a sum, so that it is rounded at its end.
    const START: Self::Sum;

    fn weight(weight: f64) -> Self::Sum;
    /// `sum` and the value at the start of `from`, times `weight`.
    fn add(sum: Self::Sum, from: &[u8], weight: Self::Sum) -> Self::Sum;
    fn store(sum: Self::Sum, to: &mut [u8]);
}

impl ResampledValue for u8 {
    type Sum = i32;
    const BYTES: usize = 1;
    const START: i32 = 1 << (WEIGHT_BITS - 1);

    fn weight(weight: f64) -> i32 {
        let scaled = weight * f64::from(1 << WEIGHT_BITS);
        (scaled + 0.5_f64.copysign(scaled)) as i32
    }

    #[inline(always)]
    fn add(sum: i32, from: &[u8], weight: i32) -> i32 {
        sum + i32::from(from[0]) * weight
    }

    #[inline(always)]
    fn store(sum: i32, to: &mut [u8]) {
        to[0] = (sum >> WEIGHT_BITS).clamp(0, 255) as u8;
    }
}

impl ResampledValue for f32 {
    type Sum = f64;
    const BYTES: usize = 4;
    const START: f64 = 0.0;

    fn weight(weight: f64) -> f64 {
        weight
    }

    #[inline(always)]
    fn add(sum: f64, from: &[u8], weight: f64) -> f64 {
        sum + f64::from(f32::from_le_bytes([from[0], from[1], from[2], from[3]])) * weight
    }

    #[inline(always)]
    fn store(sum: f64, to: &mut [u8]) {
        to.copy_from_slice(&(sum as f32).to_le_bytes());
    }
}

/// Memory that is reused from image to image.
#[derive(Default)]
struct ResampleState<T: ResampledValue> {
    along: AxisWeights<T>,
    down: AxisWeights<T>,
    /// The image after the first direction.
    between: Vec<u8>,
    sums: Vec<T::Sum>,
}

/// The source pixels of every output pixel along one axis, with their weights one after the other.
#[derive(Default)]
struct AxisWeights<T: ResampledValue> {
    taps: Vec<Range<usize>>,
    weights: Vec<T::Sum>,
    one: Vec<f64>,
}

impl<T: ResampledValue> AxisWeights<T> {
    fn fill(&mut self, filter: ResizeFilter, from: usize, to: usize) {
        self.taps.clear();
        self.weights.clear();
        for at in 0..to {
            self.taps.push(filter.taps(at, from, to, &mut self.one));
            self.weights.extend(self.one.iter().map(|weight| T::weight(*weight)));
        }
    }

    /// Each output pixel's source pixels and weights.
    #[inline(always)]
    fn each(&self) -> impl Iterator<Item = (Range<usize>, &[T::Sum])> {
        let mut rest = &self.weights[..];
        self.taps.iter().map(move |taps| {
            let (weights, others) = rest.split_at(taps.len());
            rest = others;
            (taps.clone(), weights)
        })
    }

    /// One row of pixels with `C` channels.
    fn row<const C: usize>(&self, from: &[u8], to: &mut [u8]) {
        vectorised(|| {
            for (to, (taps, weights)) in to.chunks_exact_mut(C * T::BYTES).zip(self.each()) {
                let pixels = from[taps.start * C * T::BYTES..].chunks_exact(C * T::BYTES);
                let mut sums = [T::START; C];
                for (pixel, weight) in pixels.zip(weights) {
                    for (c, sum) in sums.iter_mut().enumerate() {
                        *sum = T::add(*sum, &pixel[c * T::BYTES..], *weight);
                    }
                }
                for (sum, to) in sums.iter().zip(to.chunks_exact_mut(T::BYTES)) {
                    T::store(*sum, to);
                }
            }
        });
    }

    /// All columns, which are `row_bytes` wide.
    fn columns(&self, from: &[u8], row_bytes: usize, to: &mut [u8], sums: &mut Vec<T::Sum>) {
        for (to, (taps, weights)) in to.chunks_exact_mut(row_bytes.max(1)).zip(self.each()) {
            sums.clear();
            sums.resize(row_bytes / T::BYTES, T::START);
            let rows = from[taps.start * row_bytes..].chunks_exact(row_bytes);
            for (row, weight) in rows.zip(weights) {
                vectorised(|| {
                    for (sum, value) in sums.iter_mut().zip(row.chunks_exact(T::BYTES)) {
                        *sum = T::add(*sum, value, *weight);
                    }
                });
            }
            for (sum, to) in sums.iter().zip(to.chunks_exact_mut(T::BYTES)) {
                T::store(*sum, to);
            }
        }
    }
}
