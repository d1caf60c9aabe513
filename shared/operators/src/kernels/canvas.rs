//! `center_crop`, `crop`, `random_crop`, `pad`: a window of an image, filled where it exceeds the image.

use crate::image::resize::kernel::ImageWindow;
use crate::prelude::*;
use gristmill_kernel::*;

/// The kernel `[h, w, c]` -> `[h', w', c]` of an operator that chooses a window; `fill` is its value beyond the image.
pub(crate) fn kernel(
    choice: impl WindowOperator + 'static,
    image: &FieldSchema,
    fill: f64,
) -> Kernel {
    let (pixel_bytes, fill) = (pixel_bytes(image), value_bytes(image.dtype, fill));
    transform(move |input, output, _, draw| {
        let frame = choice.frame(input.size, draw)?;
        let bytes = frame.height * frame.width * pixel_bytes;
        copy(input, frame, pixel_bytes, &fill, output.take(bytes)?);
        Ok(OutputSize { bytes, size: [frame.height, frame.width] })
    })
}

/// An operator that chooses the window.
pub(crate) trait WindowOperator: std::fmt::Debug + Send + Sync {
    /// The window of an image of this height and width.
    fn frame(&self, size: [usize; 2], draw: &mut OperatorDraws) -> Result<CanvasWindow, String>;
}

/// A rectangle that may reach beyond the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CanvasWindow {
    pub(crate) top: i64,
    pub(crate) left: i64,
    pub(crate) height: usize,
    pub(crate) width: usize,
}

impl From<ImageWindow> for CanvasWindow {
    fn from(window: ImageWindow) -> Self {
        let [top, left] = [window.top, window.left].map(i64::from);
        CanvasWindow { top, left, height: window.height as usize, width: window.width as usize }
    }
}

/// Copies the part of the image that lies in the frame, and fills the rest with the value `fill`.
fn copy(input: ValueView<'_>, frame: CanvasWindow, pixel: usize, fill: &[u8], out: &mut [u8]) {
    let [height, width] = input.size;
    // Columns of the frame that lie in the image: first..end.
    let first = (-frame.left).clamp(0, frame.width as i64) as usize;
    let end = (width as i64 - frame.left).clamp(first as i64, frame.width as i64) as usize;
    for (y, row) in out.chunks_exact_mut(frame.width * pixel).enumerate() {
        let source = frame.top + y as i64;
        if source < 0 || source >= height as i64 || first == end {
            fill_with(fill, row);
            continue;
        }
        fill_with(fill, &mut row[..first * pixel]);
        fill_with(fill, &mut row[end * pixel..]);
        let column = (frame.left + first as i64) as usize;
        let start = (source as usize * width + column) * pixel;
        let shown = (end - first) * pixel;
        row[first * pixel..end * pixel].copy_from_slice(&input.bytes[start..start + shown]);
    }
}

fn fill_with(value: &[u8], out: &mut [u8]) {
    match value {
        [byte] => out.fill(*byte),
        value if value.iter().all(|byte| *byte == 0) => out.fill(0),
        value => out.chunks_exact_mut(value.len()).for_each(|to| to.copy_from_slice(value)),
    }
}

impl WindowOperator for CenterCrop {
    fn frame(&self, sides: [usize; 2], _: &mut OperatorDraws) -> Result<CanvasWindow, String> {
        let [height, width] = self.size.map(|side| side as usize);
        let [top, left] = [middle(sides[0], height), middle(sides[1], width)];
        Ok(CanvasWindow { top, left, height, width })
    }
}

impl WindowOperator for Crop {
    fn frame(
        &self,
        [height, width]: [usize; 2],
        _: &mut OperatorDraws,
    ) -> Result<CanvasWindow, String> {
        let [top, left, h, w] = [self.top, self.left, self.height, self.width].map(|x| x as usize);
        let (bottom, right) = (top + h, left + w);
        if bottom > height || right > width {
            return Err(format!(
                "an image {height} x {width} has no rows {top} to {bottom} and columns {left} to {right}"
            ));
        }
        Ok(CanvasWindow { top: top as i64, left: left as i64, height: h, width: w })
    }
}

/// Start of the central `inner` of `outer` pixels. Rounds as torchvision: ties to even when cropping,
/// down when padding.
fn middle(outer: usize, inner: usize) -> i64 {
    if inner > outer {
        -(((inner - outer) / 2) as i64)
    } else {
        ((outer - inner) as f64 / 2.0).round_ties_even() as i64
    }
}

impl WindowOperator for RandomCrop {
    fn frame(&self, sides: [usize; 2], draw: &mut OperatorDraws) -> Result<CanvasWindow, String> {
        let [left, top, right, bottom] = self.padding.map(|x| x as usize);
        let mut start = [0, 0];
        for (i, (before, after)) in [(top, bottom), (left, right)].into_iter().enumerate() {
            let wanted = self.size[i] as usize;
            let (mut before, mut padded) = (before, sides[i] + before + after);
            if self.pad_if_needed && padded < wanted {
                let lacking = wanted - padded;
                before += lacking;
                padded += 2 * lacking;
            }
            if padded < wanted {
                let [height, width] = sides;
                return Err(format!(
                    "an image {height} x {width} is too small to crop {} x {}; say `pad_if_needed: true`",
                    self.size[0], self.size[1]
                ));
            }
            start[i] = i64::from(draw.up_to((padded - wanted) as u32)) - before as i64;
        }
        let [height, width] = self.size.map(|side| side as usize);
        Ok(CanvasWindow { top: start[0], left: start[1], height, width })
    }
}

impl WindowOperator for Pad {
    fn frame(
        &self,
        [height, width]: [usize; 2],
        _: &mut OperatorDraws,
    ) -> Result<CanvasWindow, String> {
        if let Some(size) = self.size {
            let [to_height, to_width] = size.map(|side| side as usize);
            if to_height < height || to_width < width {
                return Err(format!(
                    "an image {height} x {width} is larger than the {to_height} x {to_width} to pad it to"
                ));
            }
            let (top, left) = ((to_height - height) / 2, (to_width - width) / 2);
            let (top, left) = (-(top as i64), -(left as i64));
            return Ok(CanvasWindow { top, left, height: to_height, width: to_width });
        }
        let [left, top, right, bottom] = self.padding.unwrap_or_default().map(|x| x as usize);
        let (to_height, to_width) = (height + top + bottom, width + left + right);
        if to_height.max(to_width) > MAX_SIDE as usize {
            return Err(format!(
                "an image {height} x {width} would be padded beyond {MAX_SIDE} pixels a side"
            ));
        }
        Ok(CanvasWindow {
            top: -(top as i64),
            left: -(left as i64),
            height: to_height,
            width: to_width,
        })
    }
}
