//! TIFF to RGB: the first image of a file; grey or RGB of up to 16 bits, plain, PackBits, LZW or deflate.
//! Transparency is dropped.

use super::{MAX_MEMORY_BYTES, checked_size, indices::StoredIndices, one_line};
use gristmill_kernel::KernelOutput;
use std::io::Cursor;
use tiff::{
    ColorType, TiffError,
    decoder::{Decoder, DecodingResult, Limits},
    tags::Tag,
};

/// Most bytes of decoded numbers: half of the limit, because the decoder holds a copy besides ours.
const MAX_STORED_BYTES: usize = (MAX_MEMORY_BYTES / 2) as usize;

/// Whether the first bytes are those of a TIFF, in either byte order.
pub(super) fn is(bytes: &[u8]) -> bool {
    bytes.starts_with(b"II*\0") || bytes.starts_with(b"MM\0*")
}

fn bad(error: TiffError) -> String {
    match error {
        TiffError::UnsupportedError(what) => {
            format!("a TIFF that is not read ({}): store it as PNG", one_line(&what.to_string()))
        }
        TiffError::LimitsExceeded => "TIFF beyond limits".into(),
        other => format!("bad TIFF: {}", one_line(&other.to_string())),
    }
}

/// Decodes the stored numbers of a file into `spare`.
fn read<'a>(bytes: &[u8], spare: &'a mut Vec<u8>) -> Result<StoredIndices<'a>, String> {
    let mut decoder = Decoder::new(Cursor::new(bytes)).map_err(bad)?;
    let (width, height) = decoder.dimensions().map_err(bad)?;
    let size = checked_size("TIFF", height.into(), width.into())?;
    let mut limits = Limits::default();
    limits.decoding_buffer_size = MAX_STORED_BYTES;
    let mut decoder = decoder.with_limits(limits);
    let color = decoder.colortype().map_err(bad)?;
    let (samples, bits) = match color {
        ColorType::Gray(bits) => (1, bits),
        ColorType::GrayA(bits) => (2, bits),
        ColorType::RGB(bits) => (3, bits),
        ColorType::RGBA(bits) => (4, bits),
        other => return Err(format!("a TIFF of {other:?}: store it as RGB or grey")),
    };
    if decoder
        .find_tag_unsigned::<u16>(Tag::FillOrder)
        .map_err(bad)?
        .is_some_and(|order| order != 1)
    {
        return Err(
            "a TIFF whose bits lie in reverse in each byte (FillOrder 2): store it as PNG".into()
        );
    }
    let apart = decoder.find_tag_unsigned::<u16>(Tag::PlanarConfiguration).map_err(bad)?;
    if apart == Some(2) && samples > 1 {
        return Err("a TIFF with its channels one after the other: store them together".into());
    }
    let bits = usize::from(bits);
    if ![1, 2, 4, 8, 16].contains(&bits) {
        return Err(format!("a TIFF of {color:?}: store it with 8 or 16 bits"));
    }
    let needed = size[0] * (size[1] * samples * bits).div_ceil(8);
    if needed > MAX_STORED_BYTES {
        return Err(format!("TIFF beyond limits: it stores {needed} bytes"));
    }
    let stored = KernelOutput::Buffer(spare).take(needed)?;
    match decoder.read_image().map_err(bad)? {
        DecodingResult::U8(values) if bits <= 8 && values.len() == needed => {
            stored.copy_from_slice(&values);
        }
        DecodingResult::U16(values) if bits == 16 && 2 * values.len() == needed => {
            let numbers = stored.as_chunks_mut::<2>().0.iter_mut().zip(values);
            numbers.for_each(|(to, value)| *to = value.to_be_bytes());
        }
        _ => return Err(format!("a TIFF of {color:?} with other numbers than u8 or u16")),
    }
    Ok(StoredIndices { size, bits, samples, bytes: stored })
}

/// Decodes into `output` and returns height and width.
pub(super) fn decode(
    bytes: &[u8],
    output: KernelOutput<'_>,
    spare: &mut Vec<u8>,
) -> Result<[usize; 2], String> {
    let stored = read(bytes, spare)?;
    let StoredIndices { size: [height, width], bits, samples, .. } = stored;
    let rgb = output.take(height * width * 3)?.as_chunks_mut::<3>().0;
    let most = (1_u32 << bits) - 1;
    let eight = |number: u16| match bits {
        16 => (number >> 8) as u8,
        _ => (u32::from(number) * 255 / most) as u8,
    };
    for (y, row) in rgb.chunks_exact_mut(width).enumerate() {
        for (x, to) in row.iter_mut().enumerate() {
            let number = |sample: usize| stored.number(y, x, sample);
            *to = match samples {
                1 | 2 => [eight(number(0)); 3],
                _ => [0, 1, 2].map(|sample| eight(number(sample))),
            };
        }
    }
    Ok([height, width])
}

/// Decodes the stored numbers of a grey file into `spare`.
pub(super) fn stored<'a>(
    bytes: &[u8],
    spare: &'a mut Vec<u8>,
) -> Result<StoredIndices<'a>, String> {
    let stored = read(bytes, spare)?;
    match stored.samples {
        1 | 2 => Ok(stored),
        _ => Err(super::indices::no_colours("TIFF")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

    use super::*;

    /// A grey TIFF of eight pixels in a row, with this order of bits.
    fn of_order(order: u32) -> Vec<u8> {
        let values = [(256, 8), (257, 1), (258, 8), (259, 1), (262, 1), (266, order), (273, 8)];
        let values = values.into_iter().chain([(277, 1), (278, 1), (279, 8)]);
        let mut file = b"II*\0\x10\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08\x0a\0".to_vec();
        for (tag, value) in values {
            file.extend(u16::to_le_bytes(tag));
            file.extend([4, 0, 1, 0, 0, 0]);
            file.extend(value.to_le_bytes());
        }
        file.extend([0; 4]);
        file
    }

    #[test]
    fn bits_in_reverse_are_refused_by_name() {
        let (mut spare, mut out) = (Vec::new(), Vec::new());
        let mut decoded =
            |order| decode(&of_order(order), KernelOutput::Buffer(&mut out), &mut spare);
        assert_eq!(decoded(1), Ok([1, 8]));
        assert!(decoded(2).unwrap_err().contains("FillOrder 2"));
        let pixels: Vec<u8> = (1..=8).flat_map(|grey| [grey; 3]).collect();
        decoded(1).unwrap();
        assert_eq!(out, pixels);
    }
}
