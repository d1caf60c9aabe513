//! `decode`: encoded images to RGB or grey. This file handles JPEG; submodules handle the other formats.

use gristmill_jpeg::JpegHeaders;
use gristmill_kernel::*;
use libjpeg_turbo_rs::{
    ColorSpace, DecodeLimits, DecodeWarning, Decoder, JpegError, PixelFormat, simd,
};

mod bmp;
pub(crate) mod exif;
mod gif;
pub(super) mod indices;
mod png;
mod pnm;
mod rare_jpeg;
mod tiff;
mod webp;

/// Largest image, in pixels: 300 MB of RGB. Checked on the header, before any allocation. Smaller under
/// fuzzing, where large images would take most of the time.
const MAX_PIXELS: u64 = if cfg!(fuzzing) { 1_000_000 } else { 100_000_000 };
/// Most scans of a progressive image; real images have about ten, a scan bomb thousands.
const MAX_SCANS: usize = 500;
/// Most pixels over all scans: twenty scans of the largest image. Each scan visits the whole image, so a few
/// scans of a large image take as long as many scans of a small one.
const MAX_SCAN_PIXELS: u64 = 20 * MAX_PIXELS;
/// Most bytes that a decoder may allocate by its own estimate: progressive coefficients and output.
const MAX_MEMORY_BYTES: u64 = 1 << 30;

/// Decodes an image to grey, `[h, w, 1]`.
pub(super) fn decode_grey(
    bytes: &[u8],
    output: KernelOutput<'_>,
    tools: &mut KernelScratch,
) -> Result<OutputSize, String> {
    let mut image = std::mem::take(&mut tools.image);
    let made = decode(bytes, KernelOutput::Buffer(&mut image), tools);
    tools.image = image;
    let OutputSize { bytes, size } = made?;
    let grey = output.take(bytes / 3)?;
    for (pixel, to) in tools.image[..bytes].as_chunks::<3>().0.iter().zip(grey) {
        *to = luma(*pixel);
    }
    Ok(OutputSize { bytes: bytes / 3, size })
}

/// Grey as in Pillow's `convert("L")`.
fn luma([r, g, b]: [u8; 3]) -> u8 {
    let [r, g, b] = [r, g, b].map(u32::from);
    ((r * 19_595 + g * 38_470 + b * 7_471 + (1 << 15)) >> 16) as u8
}

/// Decodes an image to RGB; its first bytes determine the format.
pub(crate) fn decode(
    bytes: &[u8],
    output: KernelOutput<'_>,
    tools: &mut KernelScratch,
) -> Result<OutputSize, String> {
    let size = if bytes.starts_with(&[0xff, 0xd8]) {
        return decode_jpeg(bytes, output, tools);
    } else if bytes.starts_with(png::MAGIC) {
        png::decode(bytes, output, &mut tools.pixels)?
    } else if webp::is(bytes) {
        webp::decode(bytes, output, &mut tools.pixels)?
    } else if bytes.starts_with(bmp::MAGIC) {
        bmp::decode(bytes, output)?
    } else if bytes.starts_with(gif::MAGIC) {
        gif::decode(bytes, output, &mut tools.pixels)?
    } else if tiff::is(bytes) {
        tiff::decode(bytes, output, &mut tools.pixels)?
    } else if pnm::is(bytes) {
        pnm::decode(bytes, output, &mut tools.pixels)?
    } else {
        return Err(match bytes {
            [] => "the image is empty".into(),
            _ => {
                let start = &bytes[..bytes.len().min(4)];
                format!(
                    "not a JPEG, PNG, WebP, BMP, GIF, TIFF, PGM or PPM: it starts with {start:02x?}"
                )
            }
        });
    };
    Ok(OutputSize { bytes: size[0] * size[1] * 3, size })
}

/// Height and width; an error if the image is empty or too large.
pub(crate) fn checked_size(format: &str, height: u64, width: u64) -> Result<[usize; 2], String> {
    if height == 0 || width == 0 {
        return Err(format!("bad {format}: its size is {width} x {height}"));
    }
    if height.checked_mul(width).is_none_or(|pixels| pixels > MAX_PIXELS) {
        return Err(format!("{width} x {height} is more than {MAX_PIXELS} pixels"));
    }
    Ok([height as usize, width as usize])
}

fn drop_alpha(rgba: &[u8], rgb: &mut [[u8; 3]]) {
    for ([r, g, b, _], to) in rgba.as_chunks::<4>().0.iter().zip(rgb) {
        *to = [*r, *g, *b];
    }
}

fn decode_jpeg(
    jpeg: &[u8],
    output: KernelOutput<'_>,
    tools: &mut KernelScratch,
) -> Result<OutputSize, String> {
    let Some(frame) = JpegHeaders::find(jpeg) else {
        return decode_jpeg_by_library(jpeg, output, tools);
    };
    let size = checked_size("JPEG", frame.height as u64, frame.width as u64)?;
    let bytes = size[0] * size[1] * 3;
    let rgb = output.take(bytes)?;
    match tools.state.get::<gristmill_jpeg::JpegDecoder>().decode(
        &frame,
        0..size[1],
        0..size[0],
        rgb,
    ) {
        Some(()) => Ok(OutputSize { bytes, size }),
        None => decode_jpeg_by_library(jpeg, KernelOutput::Row(rgb), tools),
    }
}

/// Decodes rare kinds of JPEG, and reports the errors of damaged ones.
pub(crate) fn decode_jpeg_by_library(
    jpeg: &[u8],
    output: KernelOutput<'_>,
    tools: &mut KernelScratch,
) -> Result<OutputSize, String> {
    let joined = rare_jpeg::in_one_scan(jpeg);
    let jpeg = joined.as_deref().unwrap_or(jpeg);
    let mut decoder = Decoder::new_with_limits(jpeg, limits(MAX_SCANS)).map_err(reason)?;
    let header = decoder.header();
    let size = checked_size("JPEG", header.height.into(), header.width.into())?;
    let pixels = size[0] * size[1];
    let scans = usize::try_from(MAX_SCAN_PIXELS / pixels as u64).unwrap_or(MAX_SCANS);
    if scans < MAX_SCANS {
        decoder = Decoder::new_with_limits(jpeg, limits(scans)).map_err(reason)?;
    }
    // As libjpeg does where scans are missing; the library does not for arithmetic coding.
    decoder.set_block_smoothing(true);
    rare_jpeg::check_arithmetic(jpeg).map_err(reason)?;
    let bytes = pixels * 3;
    if matches!(decoder.jpeg_color_space(), ColorSpace::Cmyk | ColorSpace::Ycck) {
        decoder.set_output_format(PixelFormat::Cmyk);
        let cmyk = KernelOutput::Buffer(&mut tools.pixels).take(pixels * 4)?;
        if cmyk_is_common(&decoder, pixels) {
            decode_into(&decoder, cmyk, size)?;
        } else {
            decode_cmyk_by_component(jpeg, &decoder, cmyk, size)?;
        }
        cmyk_to_rgb(cmyk, output.take(bytes)?);
    } else {
        decoder.set_output_format(PixelFormat::Rgb);
        let rgb = output.take(bytes)?;
        if brightness_is_coarse(&decoder) {
            decoder.set_output_colorspace(ColorSpace::YCbCr);
            // Permits this sampling. What it permits besides, damage, is a warning.
            decoder.set_lenient(true);
            let image = decoder.decode_image().map_err(reason)?;
            check_warnings(&image.warnings)?;
            ycbcr_to_rgb(&image.data, rgb, size[1]);
        } else {
            decode_into(&decoder, rgb, size)?;
        }
    }
    Ok(OutputSize { bytes, size })
}

/// Whether brightness has fewer samples than a colour, for which the library's own conversion is not made.
fn brightness_is_coarse(decoder: &Decoder<'_>) -> bool {
    let [first, others @ ..] = &decoder.header().components[..] else { return false };
    decoder.jpeg_color_space() == ColorSpace::YCbCr
        && others.iter().any(|other| {
            other.horizontal_sampling > first.horizontal_sampling
                || other.vertical_sampling > first.vertical_sampling
        })
}

fn ycbcr_to_rgb(pixels: &[u8], rgb: &mut [u8], width: usize) {
    let routines = simd::detect();
    for (row, to) in pixels.chunks_exact(width * 3).zip(rgb.chunks_exact_mut(width * 3)) {
        let plane = |at: usize| row.iter().skip(at).step_by(3).copied().collect::<Vec<u8>>();
        routines.ycbcr_to_rgb_row(&plane(0), &plane(1), &plane(2), to, width);
    }
}

/// Whether the library reads the sampling of a CMYK image: all components have a sample per pixel. Of large
/// images also, but for the last column, where two have half of that.
fn cmyk_is_common(decoder: &Decoder<'_>, pixels: usize) -> bool {
    let components = decoder.header().components.iter();
    let factors: Vec<_> =
        components.map(|c| (c.horizontal_sampling, c.vertical_sampling)).collect();
    let [first, a, b, black] = factors[..] else { return false };
    let is_half = [(2 * a.0, a.1), (2 * a.0, 2 * a.1)].contains(&first);
    first == black && a == b && (first == a || is_half && pixels > rare_jpeg::MAX_PIXELS)
}

fn decode_cmyk_by_component(
    jpeg: &[u8],
    decoder: &Decoder<'_>,
    cmyk: &mut [u8],
    [height, width]: [usize; 2],
) -> Result<(), String> {
    if height * width > rare_jpeg::MAX_PIXELS {
        return Err(
            "a large CMYK JPEG with fewer samples of black than pixels: store it as RGB".into()
        );
    }
    let mut planes = rare_jpeg::planes(jpeg).map_err(reason)?;
    if decoder.jpeg_color_space() == ColorSpace::Ycck {
        let routines = simd::detect();
        let mut rgb = vec![0; height * width * 3];
        routines.ycbcr_to_rgb_row(&planes[0], &planes[1], &planes[2], &mut rgb, height * width);
        for (at, plane) in planes[..3].iter_mut().enumerate() {
            let inks = rgb.iter().skip(at).step_by(3).map(|value| 255 - value);
            plane.iter_mut().zip(inks).for_each(|(to, ink)| *to = ink);
        }
    }
    for (at, plane) in planes.iter().enumerate() {
        cmyk.iter_mut().skip(at).step_by(4).zip(plane).for_each(|(to, ink)| *to = *ink);
    }
    Ok(())
}

fn limits(max_scans: usize) -> DecodeLimits {
    let max_memory = Some(MAX_MEMORY_BYTES);
    DecodeLimits { max_pixels: MAX_PIXELS, max_scans, max_memory, ..DecodeLimits::default() }
}

fn decode_into(decoder: &Decoder<'_>, out: &mut [u8], size: [usize; 2]) -> Result<(), String> {
    // Compared with the decoder's own output size, so that no stale byte is left in the output.
    let needed = decoder.output_buffer_size().map_err(reason)?;
    if needed != out.len() {
        return Err(format!("bad JPEG: it decodes to {needed} bytes, not {}", out.len()));
    }
    let info = decoder.decode_image_into(out).map_err(reason)?;
    if [info.height, info.width] != size || info.bytes_written != out.len() {
        return Err("bad JPEG: its header and its image differ in size".into());
    }
    check_warnings(&info.warnings)
}

/// Extraneous bytes between markers are common and harmless. With other warnings, image data is missing.
fn check_warnings(warnings: &[DecodeWarning]) -> Result<(), String> {
    let broken = warnings.iter().find(|w| !matches!(w, DecodeWarning::ExtraneousData { .. }));
    match broken {
        Some(DecodeWarning::TruncatedData { decoded_mcus, total_mcus }) => {
            Err(format!("bad JPEG: cut short after {decoded_mcus} of {total_mcus} blocks"))
        }
        Some(warning) => Err(format!("bad JPEG: {}", one_line(&warning.to_string()))),
        None => Ok(()),
    }
}

fn reason(error: JpegError) -> String {
    match error {
        JpegError::LimitExceeded { what, actual, limit } => {
            format!("JPEG beyond limits: {what} is {actual}, the limit is {limit}")
        }
        error => format!("bad JPEG: {}", one_line(&error.to_string())),
    }
}

fn one_line(text: &str) -> String {
    text.chars().take(160).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Converts Adobe's inverted CMYK (255 is no ink), the only kind found in practice. Scales each channel by
/// black, as Pillow and TensorFlow do.
fn cmyk_to_rgb(cmyk: &[u8], rgb: &mut [u8]) {
    for (from, to) in cmyk.as_chunks::<4>().0.iter().zip(rgb.as_chunks_mut::<3>().0) {
        let [c, m, y, k] = from.map(u32::from);
        *to = [c, m, y].map(|ink| ((ink * k + 127) / 255) as u8);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

    use super::*;
    use libjpeg_turbo_rs::Encoder;

    #[test]
    fn black_of_fewer_samples_is_read_unless_scans_are_missing() {
        let pixels = vec![90; 33 * 40 * 4];
        let encoded = |black| {
            let encoder = Encoder::new(&pixels, 33, 40, PixelFormat::Cmyk);
            encoder.sampling_factors(vec![(2, 2), (1, 1), (1, 1), black]).encode().unwrap()
        };
        let decoded = |jpeg: &[u8]| {
            let mut rgb = Vec::new();
            decode(jpeg, KernelOutput::Buffer(&mut rgb), &mut KernelScratch::default())
                .map(|OutputSize { size, .. }| (size, rgb))
        };
        let whole = decoded(&encoded((2, 2))).unwrap();
        assert_eq!(whole.0, [40, 33]);
        assert_eq!(decoded(&encoded((1, 1))).unwrap(), whole);
        for arithmetic in [false, true] {
            let encoder = Encoder::new(&pixels, 33, 40, PixelFormat::Cmyk).arithmetic(arithmetic);
            let factors = vec![(2, 2), (1, 1), (1, 1), if arithmetic { (2, 2) } else { (1, 1) }];
            let jpeg = encoder.progressive(true).sampling_factors(factors).encode().unwrap();
            assert_eq!(decoded(&jpeg).unwrap(), whole);
            let last = jpeg.windows(2).rposition(|marker| marker == [0xff, 0xda]).unwrap();
            let said = decoded(&[&jpeg[..last], &[0xff, 0xd9]].concat()).unwrap_err();
            assert!(said.contains("lacks scans"), "{said}");
        }
    }
}
