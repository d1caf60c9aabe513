//! One natural-looking JPEG as a function of (seed, index) alone.
//!
//! Photographs owe their file size and their decoding cost to energy at every scale, to hard edges
//! and to sensor grain, so an image here is multi-octave noise over a gradient, a few solid shapes,
//! then grain, at the sizes, qualities and chroma samplings common in ImageNet. It is painted
//! directly in YCbCr planes. Only IEEE-exact arithmetic is used (no sine, no logarithm), so the
//! bytes are the same on every machine.

use anyhow::{Context, Result};
use jpeg_encoder::{ChromaSubsamplingMethod, Encoder, ImageBuffer, JpegColorType, SamplingFactor};

use super::random::RandomStream;

/// Classes of ImageNet's classification task; labels are `0..CLASSES`.
pub const CLASSES: u64 = 1000;

/// Doublings from the coarsest noise grid (about four cells across) to one cell per pixel.
const OCTAVES: u32 = 7;
/// Colour varies slowly in photographs: chroma planes stop getting detail this many octaves early.
const SMOOTH_CHROMA_OCTAVES: u32 = 3;
/// Share of photographs stored with 4:2:0 chroma; the rest are 4:4:4.
const SUBSAMPLED_SHARE: f32 = 0.7;

/// Facts about a painted image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaintedImage {
    pub width: u16,
    pub height: u16,
    /// Class, `0..CLASSES`.
    pub label: u64,
}

/// Paints images, reusing its planes from one to the next.
#[derive(Default)]
pub struct ImagePainter {
    luma: Vec<f32>,
    blue: Vec<f32>,
    red: Vec<f32>,
    coarse: Vec<f32>,
    row: Vec<f32>,
    planes: [Vec<u8>; 3],
}

impl ImagePainter {
    /// Appends image `index` of the dataset `seed` to `jpeg`.
    pub fn paint(&mut self, seed: u64, index: u64, jpeg: &mut Vec<u8>) -> Result<PaintedImage> {
        let mut random = RandomStream::keyed(seed, index);
        let label = random.below(CLASSES);
        let (width, height) = size(&mut random);
        let (w, h) = (usize::from(width), usize::from(height));
        self.lay_ground(&mut random, w, h);
        for _ in 0..random.between(2, 10) {
            self.draw_shape(&mut random, w, h);
        }
        self.develop(&mut random);
        let quality = random.between(85, 96) as u8;
        let sampling = if random.unit() < SUBSAMPLED_SHARE {
            SamplingFactor::F_2_2
        } else {
            SamplingFactor::F_1_1
        };
        let mut encoder = Encoder::new(jpeg, quality);
        encoder.set_sampling_factor(sampling);
        encoder.set_chroma_subsampling_method(ChromaSubsamplingMethod::Average);
        encoder
            .encode_image(Planes { planes: &self.planes, width, height })
            .with_context(|| format!("image {index} could not be encoded"))?;
        Ok(PaintedImage { width, height, label })
    }

    /// Noise of every scale over a linear gradient, in all three planes.
    fn lay_ground(&mut self, random: &mut RandomStream, w: usize, h: usize) {
        let falloff = random.range(0.66, 0.88);
        let contrast = random.range(30.0, 50.0);
        let (dx, dy) = random.direction();
        let mut plane = |random: &mut RandomStream, out: &mut Vec<f32>, plan: Plan| {
            fractal(random, w, h, plan, out, &mut self.coarse, &mut self.row);
            let slope = random.range(-plan.slope, plan.slope);
            tilt(out, w, plan.centre, slope * dx / w as f32, slope * dy / h as f32);
        };
        let luma = Plan {
            centre: random.range(70.0, 175.0),
            slope: 60.0,
            contrast,
            falloff,
            smooth_octaves: 1,
        };
        plane(random, &mut self.luma, luma);
        for out in [&mut self.blue, &mut self.red] {
            let chroma = Plan {
                centre: random.range(108.0, 148.0),
                slope: 20.0,
                contrast: contrast * 0.2,
                falloff,
                smooth_octaves: SMOOTH_CHROMA_OCTAVES,
            };
            plane(random, out, chroma);
        }
    }

    /// One solid ellipse, box or stroke of any slant, through which some of the ground shows.
    fn draw_shape(&mut self, random: &mut RandomStream, w: usize, h: usize) {
        let (wf, hf) = (w as f32, h as f32);
        let centre = (random.range(0.0, wf), random.range(0.0, hf));
        let kind = random.below(3);
        let half_width = random.range(5.0, wf / 6.0);
        let half_height =
            if kind == 2 { random.range(0.5, 4.0) } else { random.range(5.0, hf / 6.0) };
        let shape = Shape {
            centre,
            direction: random.direction(),
            half: (half_width, half_height),
            round: kind == 0,
        };
        let colour =
            [random.range(0.0, 255.0), random.range(80.0, 176.0), random.range(80.0, 176.0)];
        let opacity = random.range(0.7, 1.0);
        let planes = [&mut self.luma, &mut self.blue, &mut self.red];
        for (plane, colour) in planes.into_iter().zip(colour) {
            for (y, row) in plane.chunks_exact_mut(w).enumerate() {
                if let Some((from, to)) = shape.span(y as f32 + 0.5) {
                    fill(row, from, to, colour, opacity);
                }
            }
        }
    }

    /// Adds grain to luma and rounds all planes to bytes.
    fn develop(&mut self, random: &mut RandomStream) {
        let grain = random.range(6.0, 19.5) * GAUSSIAN_SCALE;
        let mut noise = random.fork();
        scatter(&mut noise, &mut self.luma, grain);
        for (out, plane) in self.planes.iter_mut().zip([&self.luma, &self.blue, &self.red]) {
            out.resize(plane.len(), 0);
            for (byte, &value) in out.iter_mut().zip(plane) {
                *byte = to_byte(value);
            }
        }
    }
}

/// Turns the integer sums of [`RandomStream::two_gaussians`] into unit variance.
const GAUSSIAN_SCALE: f32 = 1.0 / 147.8;

/// Rounds and clips. Adding 2^23 leaves the rounded value in the low bits of the mantissa, which,
/// unlike a saturating cast, compiles to a few vector instructions.
fn to_byte(value: f32) -> u8 {
    (value.clamp(0.0, 255.0) + 8_388_608.0).to_bits() as u8
}

/// Width and height in pixels: the two common ones, else a clipped spread.
fn size(random: &mut RandomStream) -> (u16, u16) {
    let shape = random.unit();
    if shape < 0.55 {
        (500, 375)
    } else if shape < 0.75 {
        (375, 500)
    } else {
        let mut side = |mean: f32, spread: f32, most: f32| {
            let (deviation, _) = random.two_gaussians();
            (mean + deviation * GAUSSIAN_SCALE * spread).clamp(160.0, most) as u16
        };
        (side(480.0, 120.0, 900.0), side(400.0, 100.0, 800.0))
    }
}

/// Noise parameters of one plane.
#[derive(Clone, Copy)]
struct Plan {
    centre: f32,
    /// Largest contribution of a gradient across the whole plane.
    slope: f32,
    contrast: f32,
    /// Amplitude of an octave relative to the next coarser one.
    falloff: f32,
    /// Finest octaves left without noise of their own.
    smooth_octaves: u32,
}

/// Fills `out` (`w` x `h`) with noise about zero: a coarse grid doubled again and again by a
/// quadratic spline, fresh noise added after every doubling. Costs 4/3 of its last doubling.
fn fractal(
    random: &mut RandomStream,
    w: usize,
    h: usize,
    plan: Plan,
    out: &mut Vec<f32>,
    coarse: &mut Vec<f32>,
    row: &mut Vec<f32>,
) {
    // A grid needs one cell more than half of the grid it is doubled to.
    let side = |pixels: usize, octave: u32| (0..octave).fold(pixels, |n, _| n.div_ceil(2) + 1);
    let mut noise = random.fork();
    let mut amplitude = plan.contrast * GAUSSIAN_SCALE;
    out.clear();
    out.resize(side(w, OCTAVES) * side(h, OCTAVES), 0.0);
    scatter(&mut noise, out, amplitude);
    for octave in (0..OCTAVES).rev() {
        std::mem::swap(out, coarse);
        double(coarse, side(w, octave + 1), out, side(w, octave), side(h, octave), row);
        amplitude *= plan.falloff;
        if octave >= plan.smooth_octaves {
            scatter(&mut noise, out, amplitude);
        }
    }
}

fn scatter(noise: &mut RandomStream, grid: &mut [f32], amplitude: f32) {
    let mut pairs = grid.chunks_exact_mut(2);
    for pair in &mut pairs {
        let (first, second) = noise.two_gaussians();
        pair[0] += first * amplitude;
        pair[1] += second * amplitude;
    }
    if let [last] = pairs.into_remainder() {
        *last += noise.two_gaussians().0 * amplitude;
    }
}

/// Doubles a grid of `coarse_w` columns into `out` of `w` x `h`, weights 3/4 and 1/4.
fn double(
    coarse: &[f32],
    coarse_w: usize,
    out: &mut Vec<f32>,
    w: usize,
    h: usize,
    row: &mut Vec<f32>,
) {
    // Every value is overwritten below.
    out.resize(w * h, 0.0);
    for (y, line) in out.chunks_exact_mut(w).enumerate() {
        let above = &coarse[(y / 2) * coarse_w..][..coarse_w];
        let below = &coarse[(y / 2 + 1) * coarse_w..][..coarse_w];
        let (near, far) = if y % 2 == 0 { (0.75, 0.25) } else { (0.25, 0.75) };
        row.clear();
        row.extend(above.iter().zip(below).map(|(a, b)| a * near + b * far));
        let (left, right) = (&row[..coarse_w - 1], &row[1..coarse_w]);
        let mut pairs = line.chunks_exact_mut(2);
        for ((pair, left), right) in (&mut pairs).zip(left).zip(right) {
            pair[0] = left * 0.75 + right * 0.25;
            pair[1] = left * 0.25 + right * 0.75;
        }
        if let [last] = pairs.into_remainder() {
            *last = left[w / 2] * 0.75 + right[w / 2] * 0.25;
        }
    }
}

/// Adds the plane `level + x * dx + y * dy`.
fn tilt(plane: &mut [f32], w: usize, level: f32, dx: f32, dy: f32) {
    for (y, row) in plane.chunks_exact_mut(w).enumerate() {
        let start = level + y as f32 * dy;
        for (x, value) in row.iter_mut().enumerate() {
            *value += start + x as f32 * dx;
        }
    }
}

/// A convex shape: a box or ellipse of half-axes `half`, turned to `direction`.
struct Shape {
    centre: (f32, f32),
    direction: (f32, f32),
    half: (f32, f32),
    round: bool,
}

impl Shape {
    /// The columns it covers on the line at height `y`, if any.
    fn span(&self, y: f32) -> Option<(f32, f32)> {
        let (cos, sin) = self.direction;
        let (a, b) = self.half;
        let dy = y - self.centre.1;
        // A point (dx, dy) is u = dx cos + dy sin along the shape and v = dy cos - dx sin across.
        if self.round {
            // (u/a)^2 + (v/b)^2 = 1, a quadratic in dx.
            let (cos_a, sin_a, cos_b, sin_b) = (cos / a, sin / a, cos / b, sin / b);
            let p = cos_a * cos_a + sin_b * sin_b;
            let q = dy * (cos_a * sin_a - cos_b * sin_b);
            let r = dy * dy * (sin_a * sin_a + cos_b * cos_b) - 1.0;
            let root = q * q - p * r;
            if root <= 0.0 {
                return None;
            }
            let root = root.sqrt();
            return Some((self.centre.0 + (-q - root) / p, self.centre.0 + (-q + root) / p));
        }
        let along = slab(cos, dy * sin, a);
        let across = slab(-sin, dy * cos, b);
        let (from, to) = (along.0.max(across.0), along.1.min(across.1));
        (from < to).then_some((self.centre.0 + from, self.centre.0 + to))
    }
}

/// The interval of x with |x * slope + offset| <= half.
fn slab(slope: f32, offset: f32, half: f32) -> (f32, f32) {
    if slope.abs() < 1e-6 {
        return if offset.abs() <= half {
            (f32::NEG_INFINITY, f32::INFINITY)
        } else {
            (f32::INFINITY, f32::NEG_INFINITY)
        };
    }
    let (one, other) = ((-half - offset) / slope, (half - offset) / slope);
    (one.min(other), one.max(other))
}

/// Blends `colour` over columns `from..to`; the two end pixels by the part of them covered.
fn fill(row: &mut [f32], from: f32, to: f32, colour: f32, opacity: f32) {
    let (from, to) = (from.clamp(0.0, row.len() as f32), to.clamp(0.0, row.len() as f32));
    let (first, last) = (from as usize, (to as usize).min(row.len().saturating_sub(1)));
    let mut blend = |x: usize| {
        let covered = (to.min(x as f32 + 1.0) - from.max(x as f32)).max(0.0);
        row[x] += (colour - row[x]) * opacity * covered;
    };
    blend(first.min(last));
    if last > first {
        blend(last);
        for value in &mut row[first + 1..last] {
            *value += (colour - *value) * opacity;
        }
    }
}

/// Finished planes, handed to the encoder without interleaving them.
struct Planes<'a> {
    planes: &'a [Vec<u8>; 3],
    width: u16,
    height: u16,
}

impl ImageBuffer for Planes<'_> {
    fn get_jpeg_color_type(&self) -> JpegColorType {
        JpegColorType::Ycbcr
    }

    fn width(&self) -> u16 {
        self.width
    }

    fn height(&self) -> u16 {
        self.height
    }

    fn fill_buffers(&self, y: u16, buffers: &mut [Vec<u8>; 4]) {
        let w = usize::from(self.width);
        for (buffer, plane) in buffers.iter_mut().zip(self.planes) {
            buffer.extend_from_slice(&plane[usize::from(y) * w..][..w]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paint(seed: u64, index: u64) -> (Vec<u8>, PaintedImage) {
        let mut jpeg = Vec::new();
        let painted = ImagePainter::default().paint(seed, index, &mut jpeg).unwrap();
        (jpeg, painted)
    }

    #[test]
    fn an_image_depends_on_seed_and_index_alone() {
        let mut painter = ImagePainter::default();
        let mut fresh_order = Vec::new();
        for index in [5, 1, 3] {
            let mut jpeg = Vec::new();
            painter.paint(9, index, &mut jpeg).unwrap();
            fresh_order.push(jpeg);
        }
        assert_eq!(fresh_order[1], paint(9, 1).0);
        assert_eq!(fresh_order[0], paint(9, 5).0);
        assert_ne!(paint(9, 1).0, paint(8, 1).0);
        assert_ne!(paint(9, 1).0, paint(9, 2).0);
    }

    #[test]
    fn images_are_whole_jpegs_of_the_size_of_photographs() {
        let mut total = 0;
        for index in 0..60 {
            let (jpeg, painted) = paint(1, index);
            assert_eq!(&jpeg[..4], [0xff, 0xd8, 0xff, 0xe0], "image {index} starts with SOI, APP0");
            assert_eq!(&jpeg[jpeg.len() - 2..], [0xff, 0xd9], "image {index} ends with EOI");
            // SOF0: marker, length (2), precision, height, width.
            let sof = jpeg.windows(2).position(|two| two == [0xff, 0xc0]).unwrap();
            assert_eq!(jpeg[sof + 5..sof + 7], painted.height.to_be_bytes());
            assert_eq!(jpeg[sof + 7..sof + 9], painted.width.to_be_bytes());
            assert!(painted.label < CLASSES);
            total += jpeg.len();
        }
        let mean = total / 60;
        assert!((85_000..120_000).contains(&mean), "mean JPEG is {mean} bytes");
    }

    #[test]
    fn a_turned_box_spans_what_its_corners_say() {
        let unit = std::f32::consts::FRAC_1_SQRT_2;
        let shape =
            Shape { centre: (10.0, 10.0), direction: (unit, unit), half: (2.0, 2.0), round: false };
        let (from, to) = shape.span(10.0).unwrap();
        assert!(
            (from - (10.0 - 2.0 / unit)).abs() < 1e-4 && (to - (10.0 + 2.0 / unit)).abs() < 1e-4
        );
        assert!(shape.span(13.0).is_none());
        let circle =
            Shape { centre: (0.0, 0.0), direction: (unit, unit), half: (5.0, 5.0), round: true };
        let (from, to) = circle.span(3.0).unwrap();
        assert!((from + 4.0).abs() < 1e-4 && (to - 4.0).abs() < 1e-4);
    }
}
