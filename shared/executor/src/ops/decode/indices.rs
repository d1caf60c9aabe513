//! Masks: the class numbers that a PNG stores, whatever its palette shows for them.

use super::{png, webp};
use crate::{cell::Sink, step::Made};
use gristmill_pipeline::DType;

/// What a file stores for each pixel, row by row.
pub(super) struct Stored<'a> {
    pub(super) size: [usize; 2],
    /// Bits of a number: 1, 2, 4, 8 or 16.
    pub(super) bits: usize,
    /// Numbers of a pixel, of which the first counts.
    pub(super) samples: usize,
    /// Numbers below 8 bits are packed, high bits first, and each row starts with a byte. Those of 16 bits
    /// are big-endian.
    pub(super) bytes: &'a [u8],
}

/// bytes (PNG, palette or grey) -> `[h, w, 1]` of u8 or u16. `spare` holds what the file stores.
pub(super) fn decode(
    bytes: &[u8],
    dtype: DType,
    output: Sink<'_>,
    spare: &mut Vec<u8>,
) -> Result<Made, String> {
    if !bytes.starts_with(png::MAGIC) {
        let found = match bytes {
            [] => "the image is empty".to_owned(),
            [0xff, 0xd8, ..] => "this is a JPEG, which does not keep them".to_owned(),
            _ if webp::is(bytes) => "this is a WebP, which stores colours".to_owned(),
            _ => format!("this starts with {:02x?}", &bytes[..bytes.len().min(4)]),
        };
        return Err(format!("class numbers are read from PNG files (palette or grey): {found}"));
    }
    let stored = png::stored(bytes, spare)?;
    if stored.bits == 16 && dtype == DType::U8 {
        return Err("the mask stores 16 bits a pixel: say `dtype: u16`".into());
    }
    let [height, width] = stored.size;
    let bytes = height * width * super::super::dtype_bytes(dtype);
    unpack(&stored, dtype, output.take(bytes)?);
    Ok(Made { bytes, size: stored.size })
}

/// Writes one number a pixel.
fn unpack(stored: &Stored<'_>, dtype: DType, out: &mut [u8]) {
    let Stored { size: [_, width], bits, samples, bytes } = *stored;
    let row_bytes = (width * samples * bits).div_ceil(8);
    let pixel_bytes = super::super::dtype_bytes(dtype);
    let rows = bytes.chunks_exact(row_bytes).zip(out.chunks_exact_mut(width * pixel_bytes));
    for (from, to) in rows {
        for (x, to) in to.chunks_exact_mut(pixel_bytes).enumerate() {
            let at = x * samples * bits;
            let number = match bits {
                16 => u16::from_be_bytes([from[at / 8], from[at / 8 + 1]]),
                bits => u16::from(from[at / 8]) >> (8 - bits - at % 8) & ((1 << bits) - 1),
            };
            to.copy_from_slice(&number.to_le_bytes()[..pixel_bytes]);
        }
    }
}
