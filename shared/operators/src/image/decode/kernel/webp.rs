//! WebP to RGB, lossy and lossless. Drops transparency, and all but the first frame of an animation.

use super::{MAX_MEMORY_BYTES, checked_size, one_line};
use gristmill_kernel::KernelOutput;
use image_webp::{DecodingError, WebPDecoder};
use std::io::Cursor;

/// Whether the first bytes are those of a WebP.
pub(super) fn is(bytes: &[u8]) -> bool {
    bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP")
}

/// Decodes into `output` and returns height and width. `spare` is scratch space for pixels that are not RGB.
pub(super) fn decode(
    bytes: &[u8],
    output: KernelOutput<'_>,
    spare: &mut Vec<u8>,
) -> Result<[usize; 2], String> {
    let bad = |error: DecodingError| format!("bad WebP: {}", one_line(&error.to_string()));
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(bad)?;
    let (width, height) = decoder.dimensions();
    let size = checked_size("WebP", height.into(), width.into())?;
    decoder.set_memory_limit(MAX_MEMORY_BYTES as usize);
    let pixels = size[0] * size[1];
    let rgb = output.take(pixels * 3)?;
    if decoder.has_alpha() {
        let decoded = KernelOutput::Buffer(spare).take(pixels * 4)?;
        decoder.read_image(decoded).map_err(bad)?;
        super::drop_alpha(decoded, rgb.as_chunks_mut::<3>().0);
    } else {
        decoder.read_image(rgb).map_err(bad)?;
    }
    Ok(size)
}

/// The EXIF of a file.
pub(super) fn exif(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).ok()?;
    decoder.set_memory_limit(bytes.len());
    decoder.exif_metadata().ok()?
}
