//! The kernels of the ResNet pipeline in a bare loop: the lower bound for any engine built on them.

use crate::image::random_resized_crop::kernel::{CropAndResize, rgb};
use crate::image::resize::kernel::ImageWindow;
use crate::prelude::*;
use gristmill_jpeg::{JpegDecoder, JpegHeaders};
use gristmill_kernel::{KernelOutput, KernelScratch, OperatorDraws};

const SIDE: u32 = 224;

/// Processes images in turn until `more` returns false: decodes a window of each, resizes it, mirrors
/// every second one and normalises to f32. Returns the number of images.
///
/// # Errors
/// An image is not a baseline JPEG, or is damaged.
pub fn resnet(
    jpegs: &[&[u8]],
    antialias: bool,
    more: &mut dyn FnMut() -> bool,
) -> Result<u32, String> {
    let (fields, size) = (ImageFields::one("image"), [SIDE; 2]);
    let (scale, ratio) = ([0.08, 1.0], [3.0 / 4.0, 4.0 / 3.0]);
    let filter = ResizeFilter { antialias, interpolation: PixelInterpolation::Bilinear };
    let op = RandomResizedCrop { fields, size, scale, ratio, filter };
    let crop = CropAndResize::new(&op, &rgb());
    let (mut draw, mut tools) = (OperatorDraws::fixed(), KernelScratch::default());
    let (mut decoder, mut decoded) = (JpegDecoder::default(), Vec::new());
    let mut pixels = vec![0; (SIDE * SIDE * 3) as usize];
    let mut normalised = vec![0.0_f32; pixels.len()];
    let mut images = 0_u32;
    for (i, jpeg) in (0_u64..).zip(jpegs.iter().cycle()) {
        if !more() {
            break;
        }
        let frame = JpegHeaders::find(jpeg).ok_or("not a baseline JPEG")?;
        let ImageWindow { left, top, width, height } =
            crop.window([frame.height, frame.width], &mut draw);
        let [left, top, width, height] = [left, top, width, height].map(|side| side as usize);
        let image = KernelOutput::Buffer(&mut decoded).take(width * height * 3)?;
        decoder
            .decode(&frame, left..left + width, top..top + height, image)
            .ok_or("a damaged JPEG")?;
        let source = ValueView { bytes: image, size: [height, width] };
        let whole = ImageWindow::whole(source.size);
        crop.resize.resize(source, whole, KernelOutput::Row(&mut pixels), &mut tools)?;
        if i % 2 == 0 {
            for row in pixels.chunks_exact_mut(SIDE as usize * 3) {
                row.as_chunks_mut::<3>().0.reverse();
            }
        }
        let outs = normalised.as_chunks_mut::<3>().0.iter_mut();
        for (out, from) in outs.zip(pixels.as_chunks::<3>().0) {
            for c in 0..3 {
                out[c] = f32::from(from[c]) * 0.017 - 2.1;
            }
        }
        std::hint::black_box(&normalised);
        images += 1;
    }
    Ok(images)
}
