//! EXIF orientation: how a camera was held, and pixels turned upright.

use super::{png, rare_jpeg, tiff, webp};
use gristmill_kernel::{KernelOutput, OutputSize};
use libjpeg_turbo_rs::common::exif::parse_orientation;
use std::borrow::Cow;

/// Before EXIF in a JPEG, and in some other files.
const HEADER: &[u8] = b"Exif\0\0";

/// Orientation of an image, 1 to 8: 1, upright, also where the file does not say.
pub(crate) fn orientation(bytes: &[u8]) -> u8 {
    let exif: Option<Cow<'_, [u8]>> = if bytes.starts_with(&[0xff, 0xd8]) {
        jpeg_exif(bytes).map(Into::into)
    } else if bytes.starts_with(png::MAGIC) {
        let mut chunks = png::chunks(bytes);
        chunks.find(|(name, _)| name == b"eXIf").map(|(_, content)| bytes[content].into())
    } else if webp::is(bytes) {
        webp::exif(bytes).map(Into::into)
    } else if tiff::is(bytes) {
        return tiff::orientation(bytes).filter(|found| (1..=8).contains(found)).unwrap_or(1);
    } else {
        None
    };
    let orientation =
        exif.and_then(|exif| parse_orientation(exif.strip_prefix(HEADER).unwrap_or(&exif)));
    orientation.unwrap_or(1)
}

/// The EXIF of a JPEG, from before its first scan.
fn jpeg_exif(jpeg: &[u8]) -> Option<&[u8]> {
    let mut segments = rare_jpeg::segments(jpeg, false).filter(|(code, _)| *code == 0xe1);
    segments.find_map(|(_, segment)| segment.get(4..)?.strip_prefix(HEADER))
}

/// Decodes by `decode` and turns the image, of `pixel_bytes` bytes a pixel, as its orientation asks.
pub(crate) fn upright(
    orientation: u8,
    pixel_bytes: usize,
    output: KernelOutput<'_>,
    decode: impl FnOnce(KernelOutput<'_>) -> Result<OutputSize, String>,
) -> Result<OutputSize, String> {
    if orientation == 1 {
        return decode(output);
    }
    let mut stored = Vec::new();
    let OutputSize { bytes, size: [height, width] } = decode(KernelOutput::Buffer(&mut stored))?;
    let size = if orientation < 5 { [height, width] } else { [width, height] };
    let pixels = output.take(bytes)?.chunks_exact_mut(pixel_bytes);
    for (at, to) in pixels.enumerate() {
        let (y, x) = (at / size[1], at % size[1]);
        let (up, left) = (height - 1, width - 1);
        // As in EXIF 2.32, 4.6.4: row 0 and column 0 of what is stored are its top and left side, and so on.
        let (y, x) = match orientation {
            2 => (y, left - x),
            3 => (up - y, left - x),
            4 => (up - y, x),
            5 => (x, y),
            6 => (up - x, y),
            7 => (up - x, left - y),
            _ => (x, left - y),
        };
        to.copy_from_slice(&stored[(y * width + x) * pixel_bytes..][..pixel_bytes]);
    }
    Ok(OutputSize { bytes, size })
}
