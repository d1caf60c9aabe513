//! Masks under image operators: class numbers come from the nearest pixel and are never interpolated.

use crate::image::random_resized_crop::kernel::CropAndResize;
use crate::image::resize::kernel::ImageWindow;
use crate::kernels::warp::WarpMatrix;
use crate::prelude::*;
use gristmill_kernel::*;

/// The kernel of an operator that resizes: to `to` if the first of `fields` is a mask, otherwise `image`.
pub(crate) fn or_resized(
    fields: &ImageFields,
    given: &FieldSchema,
    to: impl FnOnce() -> MaskResize,
    image: impl FnOnce() -> Kernel,
) -> Kernel {
    if !fields.first_is_mask() {
        return image();
    }
    let (to, pixel_bytes) = (to(), pixel_bytes(given));
    transform(move |input, output, tools, draw| {
        let (window, size) = to.draw(input.size, draw)?;
        let window = window.unwrap_or_else(|| ImageWindow::whole(input.size));
        let bytes = size[0] * size[1] * pixel_bytes;
        nearest(input, window, size, pixel_bytes, (output.take(bytes)?, &mut tools.ends));
        Ok(OutputSize { bytes, size })
    })
}

/// The kernel of an operator that rotates or shears a mask.
pub(crate) fn turn_by(angle: WarpAngle, fields: &ImageFields, given: &FieldSchema) -> Kernel {
    let fill = value_bytes(given.dtype, fields.mask_fill).repeat(channels_of(given));
    transform(move |input, output, _, draw| {
        let bytes = input.bytes.len();
        turn(&angle.matrix(draw), input, &fill, output.take(bytes)?);
        Ok(OutputSize { bytes, size: input.size })
    })
}

/// The size that a mask, or an image with boxes, is resized to, and the part of it that is resized.
#[derive(Debug)]
pub(crate) enum MaskResize {
    Size([u32; 2]),
    Shorter(ResizeShorter),
    Drawn(CropAndResize, [u32; 2]),
}

impl MaskResize {
    /// The part of an image of this height and width that is resized, unless it is all, and its new size.
    pub(crate) fn draw(
        &self,
        size: [usize; 2],
        draw: &mut OperatorDraws,
    ) -> Result<(Option<ImageWindow>, [usize; 2]), String> {
        let (window, size) = match self {
            MaskResize::Size(size) => (None, *size),
            MaskResize::Shorter(op) => (None, op.output_size(size.map(|side| side as u32))?),
            MaskResize::Drawn(crop, after) => (Some(crop.window(size, draw)), *after),
        };
        Ok((window, size.map(|side| side as usize)))
    }
}

/// Resizes `window` of a mask as torch's `interpolate(mode="nearest")`. `columns` is scratch space.
pub(crate) fn nearest(
    input: ValueView<'_>,
    window: ImageWindow,
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

/// Writes the mask transformed by `matrix`; `fill` is one pixel.
pub(crate) fn turn(matrix: &WarpMatrix, input: ValueView<'_>, fill: &[u8], out: &mut [u8]) {
    let [height, width] = input.size;
    for (y, row) in out.chunks_exact_mut(width * fill.len()).enumerate() {
        let places = matrix.nearest_of_row(y, [height, width]);
        for (to, place) in row.chunks_exact_mut(fill.len()).zip(places) {
            let pixel = place.map(|[y, x]| &input.bytes[(y * width + x) * fill.len()..]);
            to.copy_from_slice(&pixel.unwrap_or(fill)[..fill.len()]);
        }
    }
}
