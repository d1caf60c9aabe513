//! `rotate` and `shear`: each output pixel is looked up in the input.
//!
//! Positions are 64-bit fixed-point numbers that grow by a constant from pixel to pixel: the same on every
//! machine, and exact for exact angles.

use crate::prelude::*;
use gristmill_kernel::*;

/// `[h, w, 1 or 3]` of u8 or f32 -> the same shape.
#[derive(Debug)]
pub(crate) struct ImageWarp {
    interpolation: Interpolation,
    fill: f64,
    dtype: FieldDType,
    channels: usize,
}

impl WarpAngle {
    pub(crate) fn matrix(self, draw: &mut OperatorDraws) -> WarpMatrix {
        match self {
            WarpAngle::Rotate([low, high]) => WarpMatrix::rotation(draw.between(low, high)),
            WarpAngle::Shear([x_low, x_high, y_low, y_high]) => {
                let x = draw.between(x_low, x_high);
                WarpMatrix::shear([x, draw.between(y_low, y_high)])
            }
        }
    }
}

impl ImageWarp {
    pub(crate) fn new<A: AngleBounds>(
        op: &RotateOrShear<A>,
        dtype: FieldDType,
        channels: usize,
    ) -> Self {
        let RotateOrShear { interpolation, fill, .. } = *op;
        ImageWarp { interpolation, fill, dtype, channels }
    }

    /// Writes the image transformed by `matrix`.
    pub(crate) fn apply(&self, matrix: &WarpMatrix, input: ValueView<'_>, out: &mut [u8]) {
        match (self.dtype, self.channels) {
            (FieldDType::U8, 3) => self.texels::<u8, 3>(matrix, input, out),
            (FieldDType::U8, _) => self.texels::<u8, 1>(matrix, input, out),
            (_, 3) => self.texels::<f32, 3>(matrix, input, out),
            (_, _) => self.texels::<f32, 1>(matrix, input, out),
        }
    }

    fn texels<T: Texel, const C: usize>(
        &self,
        matrix: &WarpMatrix,
        input: ValueView<'_>,
        out: &mut [u8],
    ) {
        let image = Image::<T, C>::new(input, self.fill as f32);
        let [height, width] = input.size;
        let step = [fixed(matrix.0[0][0]), fixed(matrix.0[1][0])];
        for (y, row) in out.chunks_exact_mut(width * C * T::BYTES).enumerate().take(height) {
            let [mut x, mut y] = matrix.start(y, input.size).map(fixed);
            for pixel in row.chunks_exact_mut(C * T::BYTES) {
                match self.interpolation {
                    Interpolation::Nearest => image.nearest(x, y, pixel),
                    Interpolation::Bilinear => image.bilinear(x, y, pixel),
                }
                (x, y) = (x + step[0], y + step[1]);
            }
        }
    }
}

/// Maps positions in the output to positions in the input, both relative to the centre of the image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WarpMatrix([[f64; 2]; 2]);

impl WarpMatrix {
    /// Counter-clockwise, as `torchvision.transforms.RandomRotation`.
    pub(crate) fn rotation(degrees: f64) -> Self {
        let angle = degrees.to_radians();
        let (sin, cos) = (libm::sin(angle), libm::cos(angle));
        WarpMatrix([[cos, -sin], [sin, cos]])
    }

    /// As `torchvision.transforms.functional.affine` with `shear`.
    pub(crate) fn shear(degrees: [f64; 2]) -> Self {
        let [x, y] = degrees.map(|degrees| libm::tan(degrees.to_radians()));
        // The inverse of a shear along x followed by one along y; its determinant is 1.
        WarpMatrix([[1.0 + x * y, x], [y, 1.0]])
    }

    /// Maps a point of the input to the output: (x, y) from the upper left corner of the image.
    pub(crate) fn map_point(&self, (x, y): (f32, f32), [height, width]: [usize; 2]) -> [f32; 2] {
        let middle = [width as f64 / 2.0, height as f64 / 2.0];
        let (x, y) = (f64::from(x) - middle[0], f64::from(y) - middle[1]);
        // The inverse; the determinant is 1.
        let [[a, b], [c, d]] = self.0;
        [(d * x - b * y + middle[0]) as f32, (a * y - c * x + middle[1]) as f32]
    }

    /// Row and column of the source of each pixel of output row `y`; none if it lies outside the image.
    pub(crate) fn nearest_of_row(
        &self,
        y: usize,
        size: [usize; 2],
    ) -> impl Iterator<Item = Option<[usize; 2]>> {
        let step = [fixed(self.0[0][0]), fixed(self.0[1][0])];
        let [mut x, mut y] = self.start(y, size).map(fixed);
        let pixel = |at: i64, side: usize| {
            let at = usize::try_from((at + (1 << 31)) >> 32).ok();
            at.filter(|at| *at < side)
        };
        (0..size[1]).map(move |_| {
            let place = pixel(y, size[0]).zip(pixel(x, size[1]));
            (x, y) = (x + step[0], y + step[1]);
            place.map(|(y, x)| [y, x])
        })
    }

    /// Source position (x, y) of the first pixel of output row `y`.
    fn start(&self, y: usize, [height, width]: [usize; 2]) -> [f64; 2] {
        let middle = [(width as f64 - 1.0) / 2.0, (height as f64 - 1.0) / 2.0];
        let (x, y) = (-middle[0], y as f64 - middle[1]);
        let [to_x, to_y] = self.0;
        [to_x[0] * x + to_x[1] * y + middle[0], to_y[0] * x + to_y[1] * y + middle[1]]
    }
}

/// To fixed point, with 32 fractional bits.
fn fixed(x: f64) -> i64 {
    (x * (1_u64 << 32) as f64).round_ties_even() as i64
}

/// One channel of a pixel.
trait Texel: Copy {
    const BYTES: usize;

    fn read(from: &[u8]) -> Self;
    fn write(self, to: &mut [u8]);
    fn to_f32(self) -> f32;
    fn from_f32(x: f32) -> Self;
    /// Interpolates between four neighbours; `x` and `y` are 32-bit fractions.
    fn mix(corners: [Self; 4], x: u32, y: u32) -> Self;
}

impl Texel for u8 {
    const BYTES: usize = 1;

    #[inline(always)]
    fn read(from: &[u8]) -> u8 {
        from[0]
    }

    #[inline(always)]
    fn write(self, to: &mut [u8]) {
        to[0] = self;
    }

    fn to_f32(self) -> f32 {
        f32::from(self)
    }

    fn from_f32(x: f32) -> u8 {
        x.round_ties_even() as u8
    }

    #[inline(always)]
    fn mix(corners: [u8; 4], x: u32, y: u32) -> u8 {
        // Two 11-bit weights and an 8-bit value use 30 bits.
        let (x, y) = (x >> 21, y >> 21);
        let [a, b, c, d] = corners.map(u32::from);
        let (top, bottom) = (a * (2048 - x) + b * x, c * (2048 - x) + d * x);
        ((top * (2048 - y) + bottom * y + (1 << 21)) >> 22) as u8
    }
}

impl Texel for f32 {
    const BYTES: usize = 4;

    #[inline(always)]
    fn read(from: &[u8]) -> f32 {
        f32::from_le_bytes([from[0], from[1], from[2], from[3]])
    }

    #[inline(always)]
    fn write(self, to: &mut [u8]) {
        to.copy_from_slice(&self.to_le_bytes());
    }

    fn to_f32(self) -> f32 {
        self
    }

    fn from_f32(x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn mix([a, b, c, d]: [f32; 4], x: u32, y: u32) -> f32 {
        let [x, y] = [x, y].map(share);
        let (top, bottom) = (a * (1.0 - x) + b * x, c * (1.0 - x) + d * x);
        top * (1.0 - y) + bottom * y
    }
}

/// A 32-bit fraction as a number.
fn share(x: u32) -> f32 {
    (x >> 8) as f32 * (1.0 / (1 << 24) as f32)
}

struct Image<'a, T, const C: usize> {
    bytes: &'a [u8],
    height: i64,
    width: i64,
    fill: T,
    fill_f32: f32,
}

impl<'a, T: Texel, const C: usize> Image<'a, T, C> {
    fn new(view: ValueView<'a>, fill: f32) -> Self {
        let [height, width] = view.size.map(|side| side as i64);
        Image { bytes: view.bytes, height, width, fill: T::from_f32(fill), fill_f32: fill }
    }

    /// The bytes that start at pixel (x, y).
    #[inline(always)]
    fn from(&self, x: i64, y: i64) -> &'a [u8] {
        &self.bytes[(y * self.width + x) as usize * C * T::BYTES..]
    }

    #[inline(always)]
    fn nearest(&self, x: i64, y: i64, out: &mut [u8]) {
        let [x, y] = [x, y].map(|at| (at + (1 << 31)) >> 32);
        if (0..self.width).contains(&x) && (0..self.height).contains(&y) {
            out.copy_from_slice(&self.from(x, y)[..C * T::BYTES]);
        } else {
            out.chunks_exact_mut(T::BYTES).for_each(|to| self.fill.write(to));
        }
    }

    #[inline(always)]
    fn bilinear(&self, x: i64, y: i64, out: &mut [u8]) {
        let (left, top) = (x >> 32, y >> 32);
        let inside = (0..self.width - 1).contains(&left) && (0..self.height - 1).contains(&top);
        if !inside {
            return self.border(x, y, out);
        }
        let upper = &self.from(left, top)[..2 * C * T::BYTES];
        let lower = &self.from(left, top + 1)[..2 * C * T::BYTES];
        for c in 0..C {
            let (a, b) = (c * T::BYTES, (c + C) * T::BYTES);
            let corners = [&upper[a..], &upper[b..], &lower[a..], &lower[b..]].map(T::read);
            T::mix(corners, x as u32, y as u32).write(&mut out[a..a + T::BYTES]);
        }
    }

    /// Interpolates at the border, where some neighbours are outside. Like torchvision, it weighs the inside
    /// pixels twice: in the sum and again in the blend with `fill`.
    #[inline(never)]
    fn border(&self, x: i64, y: i64, out: &mut [u8]) {
        let (left, top) = (x >> 32, y >> 32);
        let [right_share, lower_share] = [x as u32, y as u32].map(share);
        let mut values = [0.0; C];
        let mut inside = 0.0;
        for (dx, dy) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            let (column, row) = (left + dx, top + dy);
            if !(0..self.width).contains(&column) || !(0..self.height).contains(&row) {
                continue;
            }
            let x_share = if dx == 1 { right_share } else { 1.0 - right_share };
            let y_share = if dy == 1 { lower_share } else { 1.0 - lower_share };
            let weight = x_share * y_share;
            let pixel = self.from(column, row);
            for (c, value) in values.iter_mut().enumerate() {
                *value += weight * T::read(&pixel[c * T::BYTES..]).to_f32();
            }
            inside += weight;
        }
        for (value, to) in values.iter().zip(out.chunks_exact_mut(T::BYTES)) {
            T::from_f32((value - self.fill_f32) * inside + self.fill_f32).write(to);
        }
    }
}
