//! Masks: the class numbers that a file stores; the colours of its palette do not matter.

use super::{bmp, gif, png, pnm, tiff, webp};
use gristmill_kernel::{KernelOutput, OutputSize};
use gristmill_pipeline::FieldDType;

/// The stored numbers of a file, row by row.
pub(super) struct StoredIndices<'a> {
    pub(super) size: [usize; 2],
    /// Bits per number: 1, 2, 4, 8 or 16.
    pub(super) bits: usize,
    /// Numbers per pixel; the first one is the class.
    pub(super) samples: usize,
    /// Numbers below 8 bits are packed, high bits first, and each row starts at a byte boundary. 16-bit
    /// numbers are big-endian.
    pub(super) bytes: &'a [u8],
}

/// bytes (PNG, BMP, GIF, TIFF or PGM; palette or grey) -> `[h, w, 1]` of u8 or u16. `spare` is scratch space.
pub(crate) fn decode(
    bytes: &[u8],
    dtype: FieldDType,
    output: KernelOutput<'_>,
    spare: &mut Vec<u8>,
) -> Result<OutputSize, String> {
    let stored = match bytes {
        [] => return Err("the image is empty".into()),
        [0xff, 0xd8, ..] => {
            return Err("a JPEG does not keep class numbers: store masks as PNG".into());
        }
        _ if bytes.starts_with(png::MAGIC) => png::stored(bytes, spare)?,
        _ if bytes.starts_with(bmp::MAGIC) => bmp::stored(bytes, spare)?,
        _ if bytes.starts_with(gif::MAGIC) => gif::stored(bytes, spare)?,
        _ if tiff::is(bytes) => tiff::stored(bytes, spare)?,
        _ if pnm::is(bytes) => pnm::stored(bytes, spare)?,
        _ if webp::is(bytes) => return Err(no_colours("WebP")),
        _ => {
            let start = &bytes[..bytes.len().min(4)];
            return Err(format!("not a PNG, BMP, GIF, TIFF or PGM: it starts with {start:02x?}"));
        }
    };
    if stored.bits == 16 && dtype == FieldDType::U8 {
        return Err("the mask stores 16 bits a pixel: say `dtype: u16`".into());
    }
    let [height, width] = stored.size;
    let bytes = height * width * crate::kernels::dtype_bytes(dtype);
    unpack(&stored, dtype, output.take(bytes)?);
    Ok(OutputSize { bytes, size: stored.size })
}

/// The error for a colour file used as a mask.
pub(super) fn no_colours(format: &str) -> String {
    format!("the {format} stores colours, not class numbers: a mask is grey or has a palette")
}

impl StoredIndices<'_> {
    /// Number `sample` of pixel `x` in row `y`.
    pub(super) fn number(&self, y: usize, x: usize, sample: usize) -> u16 {
        let StoredIndices { size: [_, width], bits, samples, bytes } = *self;
        let row = &bytes[y * (width * samples * bits).div_ceil(8)..];
        let at = (x * samples + sample) * bits;
        match bits {
            16 => u16::from_be_bytes([row[at / 8], row[at / 8 + 1]]),
            bits => u16::from(row[at / 8]) >> (8 - bits - at % 8) & ((1 << bits) - 1),
        }
    }
}

/// Writes the first number of each pixel.
fn unpack(stored: &StoredIndices<'_>, dtype: FieldDType, out: &mut [u8]) {
    let pixel_bytes = crate::kernels::dtype_bytes(dtype);
    for (y, row) in out.chunks_exact_mut(stored.size[1] * pixel_bytes).enumerate() {
        for (x, to) in row.chunks_exact_mut(pixel_bytes).enumerate() {
            to.copy_from_slice(&stored.number(y, x, 0).to_le_bytes()[..pixel_bytes]);
        }
    }
}
