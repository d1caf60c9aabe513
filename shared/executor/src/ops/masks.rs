//! What operators on images do to masks: class numbers are taken from the nearest pixel, never mixed.

use super::{
    canvas::Canvas,
    flip::Mirror,
    random_resized_crop::CropAndResize,
    resize::Window,
    vertical_flip::UpsideDown,
    warp::{Angle, Matrix},
};
use crate::{
    cell::Sink,
    random::Draw,
    step::{Action, Made, Tools, Transform, View},
};
use gristmill_pipeline::{
    FieldSchema, Op,
    ops::{Fields, MAX_SIDE, ResizeShorter},
};

/// The action of an operator on a mask; none of those that move no pixels.
pub(super) fn action(
    op: &Op,
    fields: &Fields,
    schema: &FieldSchema,
    cells: &super::Cells,
) -> Option<Action> {
    let pixel_bytes = super::pixel_bytes(schema);
    let fill = fields.mask_fill;
    let resample = |to: To| cells.transform(Box::new(Resample { to, pixel_bytes }));
    let warp = |angle: Angle| {
        let pixel = super::value_bytes(schema.dtype, fill).repeat(super::channels(schema));
        cells.transform(Box::new(Turn { angle, fill: pixel }))
    };
    Some(match op {
        Op::Resize(op) => resample(To::Size(op.size)),
        Op::ResizeShorter(op) => resample(To::Shorter(op.clone())),
        Op::RandomResizedCrop(op) => resample(To::Drawn(CropAndResize::new(op, 1), op.size)),
        Op::CenterCrop(op) => cells.transform(Box::new(Canvas::centre(op, schema, fill))),
        Op::Crop(op) => cells.transform(Box::new(Canvas::fixed(op, schema))),
        Op::RandomCrop(op) => cells.transform(Box::new(Canvas::random(op, schema, fill))),
        Op::Pad(op) => cells.transform(Box::new(Canvas::padded(op, schema, fill))),
        Op::Flip(op) => cells.in_place(Box::new(Mirror::new(op, pixel_bytes))),
        Op::VerticalFlip(op) => cells.in_place(Box::new(UpsideDown { p: op.p })),
        Op::Rotate(op) => warp(Angle::Rotate(op.degrees)),
        Op::Shear(op) => warp(Angle::Shear(op.degrees)),
        _ => return None,
    })
}

/// `[h, w, c]` -> `[h', w', c]`.
#[derive(Debug)]
struct Resample {
    to: To,
    pixel_bytes: usize,
}

/// What a mask is resized to, and of which part.
#[derive(Debug)]
enum To {
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

/// Resizes `window` of a mask as torch's `interpolate(mode="nearest")`. `columns` is a buffer.
pub(super) fn nearest(
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

/// The pixel of `from` that pixel `to` of `length` is taken from: torch's, which computes in f32.
fn source_of(to: usize, from: usize, length: usize) -> usize {
    const { assert!(MAX_SIDE < 1 << 24, "f32 counts every pixel") };
    let scale = from as f32 / length as f32;
    ((to as f32 * scale) as usize).min(from - 1)
}

/// `rotate` and `shear`: `[h, w, c]` -> the same.
#[derive(Debug)]
struct Turn {
    angle: Angle,
    /// One pixel.
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

/// Writes the mask as `matrix` moves it; `fill` is one pixel.
pub(super) fn turn(matrix: &Matrix, input: View<'_>, fill: &[u8], out: &mut [u8]) {
    let [height, width] = input.size;
    for (y, row) in out.chunks_exact_mut(width * fill.len()).enumerate() {
        let places = matrix.nearest_of_row(y, [height, width]);
        for (to, place) in row.chunks_exact_mut(fill.len()).zip(places) {
            let pixel = place.map(|[y, x]| &input.bytes[(y * width + x) * fill.len()..]);
            to.copy_from_slice(&pixel.unwrap_or(fill)[..fill.len()]);
        }
    }
}
