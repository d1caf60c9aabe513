//! The kernels of the ResNet pipeline in a bare loop: the lower bound for any engine built on them.

use fast_image_resize::{
    FilterType, ResizeAlg, ResizeOptions, Resizer,
    images::{TypedImage, TypedImageRef},
    pixels::U8x3,
};
use gristmill_jpeg::{JpegDecoder, JpegHeaders};

const SIDE: u32 = 224;

/// A crop window.
struct Window {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
}

/// Processes images in turn until `more` returns false: decodes a window of each, resizes it, mirrors
/// every second one and normalises to f32. `unit` draws uniformly from [0, 1). Returns the number of images.
///
/// # Errors
/// An image is not a baseline JPEG, or is damaged.
pub fn resnet(
    jpegs: &[&[u8]],
    antialias: bool,
    unit: &mut dyn FnMut() -> f32,
    more: &mut dyn FnMut() -> bool,
) -> Result<u32, String> {
    let algorithm = if antialias {
        ResizeAlg::Convolution(FilterType::Bilinear)
    } else {
        ResizeAlg::Interpolation(FilterType::Bilinear)
    };
    let options = ResizeOptions::new().resize_alg(algorithm);
    let (mut decoder, mut resizer) = (JpegDecoder::default(), Resizer::new());
    let mut decoded = Vec::new();
    let mut pixels = vec![0; (SIDE * SIDE * 3) as usize];
    let mut normalised = vec![0.0_f32; pixels.len()];
    let mut images = 0_u32;
    for (i, jpeg) in (0_u64..).zip(jpegs.iter().cycle()) {
        if !more() {
            break;
        }
        let frame = JpegHeaders::find(jpeg).ok_or("not a baseline JPEG")?;
        let Window { left, top, width, height } = window(frame.width, frame.height, unit);
        decoded.resize(decoded.len().max(width * height * 3), 0);
        let image = &mut decoded[..width * height * 3];
        decoder
            .decode(&frame, left..left + width, top..top + height, image)
            .ok_or("a damaged JPEG")?;
        let source = TypedImageRef::<U8x3>::from_buffer(width as u32, height as u32, image)
            .map_err(|error| error.to_string())?;
        let mut target = TypedImage::<U8x3>::from_buffer(SIDE, SIDE, &mut pixels)
            .map_err(|error| error.to_string())?;
        resizer.resize_typed(&source, &mut target, &options).map_err(|error| error.to_string())?;
        if i % 2 == 0 {
            for row in pixels.chunks_exact_mut(SIDE as usize * 3) {
                row.as_chunks_mut::<3>().0.reverse();
            }
        }
        for (out, from) in
            normalised.as_chunks_mut::<3>().0.iter_mut().zip(pixels.as_chunks::<3>().0)
        {
            for c in 0..3 {
                out[c] = f32::from(from[c]) * 0.017 - 2.1;
            }
        }
        std::hint::black_box(&normalised);
        images += 1;
    }
    Ok(images)
}

/// Draws a window as torchvision's `RandomResizedCrop`: area 8 to 100 %, ratio 3/4 to 4/3.
fn window(width: usize, height: usize, unit: &mut dyn FnMut() -> f32) -> Window {
    let (w, h) = (width as f64, height as f64);
    for _ in 0..10 {
        let area = w * h * (0.08 + 0.92 * f64::from(unit()));
        let ratio = ((0.75_f64).ln() + (16.0_f64 / 9.0).ln() * f64::from(unit())).exp();
        let (cw, ch) = ((area * ratio).sqrt().round(), (area / ratio).sqrt().round());
        if cw >= 1.0 && ch >= 1.0 && cw <= w && ch <= h {
            let at = |room: f64, draw: f64| ((room + 1.0) * draw) as usize;
            let (left, top) = (at(w - cw, f64::from(unit())), at(h - ch, f64::from(unit())));
            return Window { left, top, width: cw as usize, height: ch as usize };
        }
    }
    Window { left: 0, top: 0, width, height }
}
