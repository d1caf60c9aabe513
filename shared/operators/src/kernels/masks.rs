//! Masks under image operators: class numbers come from the nearest pixel and are never interpolated.

use crate::image::random_resized_crop::kernel::CropAndResize;
use crate::image::resize::kernel::Window;
use crate::kernels::warp::Matrix;
use crate::prelude::*;
use gristmill_kernel::*;

/// The kernel of an operator that resizes: to `to` if the first of `fields` is a mask, otherwise
/// `image`, which is made for the number of channels.
pub(crate) fn or_resized<K: Transform + 'static>(
    fields: &Fields,
    given: &FieldSchema,
    to: impl FnOnce() -> To,
    image: impl FnOnce(usize) -> K,
) -> Kernel {
    match fields.first_is_mask() {
        true => Kernel::transform(Resample { to: to(), pixel_bytes: super::pixel_bytes(given) }),
        false => Kernel::transform(image(super::channels(given))),
    }
}

/// The kernel of an operator that rotates or shears a mask.
pub(crate) fn turn_by(angle: Angle, fields: &Fields, given: &FieldSchema) -> Kernel {
    let fill = super::value_bytes(given.dtype, fields.mask_fill).repeat(super::channels(given));
    Kernel::transform(Turn { angle, fill })
}

/// `[h, w, c]` -> `[h', w', c]`.
#[derive(Debug)]
struct Resample {
    to: To,
    pixel_bytes: usize,
}

/// The size that a mask is resized to, and the part of it that is resized.
#[derive(Debug)]
pub(crate) enum To {
    Size([u32; 2]),
    Shorter(ResizeShorter),
    Drawn(CropAndResize, [u32; 2]),
}

impl Transform for Resample {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        tools: &mut Tools,
        draw: &mut Draw,
    ) -> Result<Made, String> {
        let [height, width] = input.size.map(|side| side as u32);
        let whole = Window { left: 0, top: 0, width, height };
        let (window, size) = match &self.to {
            To::Size(size) => (whole, *size),
            To::Shorter(op) => (whole, op.output_size([height, width])?),
            To::Drawn(crop, size) => (crop.window(input.size, draw), *size),
        };
        let size = size.map(|side| side as usize);
        let bytes = size[0] * size[1] * self.pixel_bytes;
        nearest(input, window, size, self.pixel_bytes, (output.take(bytes)?, &mut tools.ends));
        Ok(Made { bytes, size })
    }
}

/// Resizes `window` of a mask as torch's `interpolate(mode="nearest")`. `columns` is scratch space.
pub(crate) fn nearest(
    input: View<'_>,
    window: Window,
    [height, width]: [usize; 2],
    pixel_bytes: usize,
    (out, columns): (&mut [u8], &mut Vec<usize>),
) {
    let row_bytes = input.size[1] * pixel_bytes;
    columns.clear();
    let column = |x: usize| window.left as usize + source_of(x, window.width as usize, width);
    columns.extend((0..width).map(|x| column(x) * pixel_bytes));
    for (y, to) in out.chunks_exact_mut(width * pixel_bytes).enumerate() {
        let y = window.top as usize + source_of(y, window.height as usize, height);
        let from = &input.bytes[y * row_bytes..][..row_bytes];
        match pixel_bytes {
            1 => to.iter_mut().zip(&*columns).for_each(|(to, x)| *to = from[*x]),
            _ => to
                .chunks_exact_mut(pixel_bytes)
                .zip(&*columns)
                .for_each(|(to, x)| to.copy_from_slice(&from[*x..][..pixel_bytes])),
        }
    }
}

/// Source index, out of `from`, for output index `to` out of `length`. Computed in f32, as torch does.
fn source_of(to: usize, from: usize, length: usize) -> usize {
    const { assert!(MAX_SIDE < 1 << 24, "f32 counts every pixel") };
    let scale = from as f32 / length as f32;
    ((to as f32 * scale) as usize).min(from - 1)
}

/// `rotate` and `shear`: `[h, w, c]` -> the same.
#[derive(Debug)]
struct Turn {
    angle: Angle,
    /// Encoded bytes of one pixel.
    fill: Vec<u8>,
}

impl Transform for Turn {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        _: &mut Tools,
        draw: &mut Draw,
    ) -> Result<Made, String> {
        let bytes = input.bytes.len();
        turn(&self.angle.matrix(draw), input, &self.fill, output.take(bytes)?);
        Ok(Made { bytes, size: input.size })
    }
}

/// Writes the mask transformed by `matrix`; `fill` is one pixel.
pub(crate) fn turn(matrix: &Matrix, input: View<'_>, fill: &[u8], out: &mut [u8]) {
    let [height, width] = input.size;
    for (y, row) in out.chunks_exact_mut(width * fill.len()).enumerate() {
        let places = matrix.nearest_of_row(y, [height, width]);
        for (to, place) in row.chunks_exact_mut(fill.len()).zip(places) {
            let pixel = place.map(|[y, x]| &input.bytes[(y * width + x) * fill.len()..]);
            to.copy_from_slice(&pixel.unwrap_or(fill)[..fill.len()]);
        }
    }
}
