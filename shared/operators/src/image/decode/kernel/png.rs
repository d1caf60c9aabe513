//! PNG to RGB: any colour type, bit depth and interlacing; transparency is dropped, as TensorFlow and
//! Pillow's `convert("RGB")` drop it.

use super::{MAX_MEMORY_BYTES, checked_size, indices::StoredIndices, one_line};
use gristmill_kernel::KernelOutput;
use png::{BitDepth, ColorType, Decoder, Limits, Reader, Transformations};
use std::io::Cursor;

/// First bytes of a file.
pub(super) const MAGIC: &[u8] = b"\x89PNG\r\n\x1a\n";

/// 256 colours of three bytes (PNG specification, 11.2.2).
const MAX_PALETTE_BYTES: usize = 768;

/// Decodes the stored numbers of a palette or grey file into `spare`.
pub(super) fn stored<'a>(
    bytes: &[u8],
    spare: &'a mut Vec<u8>,
) -> Result<StoredIndices<'a>, String> {
    let (mut reader, size) = open(bytes, Transformations::IDENTITY)?;
    let (color, depth) = reader.output_color_type();
    let samples = match color {
        ColorType::Indexed | ColorType::Grayscale => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb | ColorType::Rgba => {
            return Err(super::indices::no_colours("PNG"));
        }
    };
    let bits = depth as usize;
    let needed = reader.output_buffer_size().ok_or("bad PNG: it is too large")?;
    if needed != size[0] * (size[1] * samples * bits).div_ceil(8) {
        return Err(format!("bad PNG: it decodes to {needed} bytes of {color:?}"));
    }
    let stored = KernelOutput::Buffer(spare).take(needed)?;
    reader.next_frame(stored).map_err(bad)?;
    Ok(StoredIndices { size, bits, samples, bytes: stored })
}

fn bad(error: png::DecodingError) -> String {
    format!("bad PNG: {}", one_line(&plain(&error.to_string())))
}

/// The decoder's message with chunks replaced by their names: the decoder prints their debug form.
fn plain(message: &str) -> String {
    const SHOWN: &str = "ChunkType { type: ";
    let (mut out, mut rest) = (String::new(), message);
    while let Some((before, after)) = rest.split_once(SHOWN) {
        let end = after.find('}').map_or(after.len(), |end| end + 1);
        out.push_str(before);
        out.push_str(after.split([',', ' ', '}']).next().unwrap_or_default());
        rest = &after[end..];
    }
    out + rest
}

/// A file with a valid header, and its height and width.
type Opened<'a> = (Reader<Cursor<&'a [u8]>>, [usize; 2]);

/// Reads and checks the header.
fn open(bytes: &[u8], transformations: Transformations) -> Result<Opened<'_>, String> {
    let limits = Limits { bytes: MAX_MEMORY_BYTES as usize };
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(transformations);
    let reader = decoder.read_info().map_err(bad)?;
    let size = checked_size("PNG", reader.info().height.into(), reader.info().width.into())?;
    let palette = reader.info().palette.as_deref().unwrap_or_default();
    if !palette.len().is_multiple_of(3) || palette.len() > MAX_PALETTE_BYTES {
        // The decoder would panic.
        return Err(format!("bad PNG: its palette has {} bytes", palette.len()));
    }
    Ok((reader, size))
}

/// Decodes into `output` and returns height and width. `spare` is scratch space for pixels that are not RGB.
pub(super) fn decode(
    bytes: &[u8],
    output: KernelOutput<'_>,
    spare: &mut Vec<u8>,
) -> Result<[usize; 2], String> {
    // Expands palettes and narrow greys to bytes; keeps the upper eight of sixteen bits.
    let (mut reader, size) = open(bytes, Transformations::EXPAND | Transformations::STRIP_16)?;
    let pixels = size[0] * size[1];
    let (color, depth) = reader.output_color_type();
    let needed = reader.output_buffer_size().ok_or("bad PNG: it is too large")?;
    if depth != BitDepth::Eight || needed != pixels * color.samples() {
        return Err(format!("bad PNG: it decodes to {needed} bytes of {color:?}"));
    }
    let rgb = output.take(pixels * 3)?;
    if color == ColorType::Rgb {
        reader.next_frame(rgb).map_err(bad)?;
        return Ok(size);
    }
    let decoded = KernelOutput::Buffer(spare).take(needed)?;
    reader.next_frame(decoded).map_err(bad)?;
    let to = rgb.as_chunks_mut::<3>().0;
    match color {
        ColorType::Rgba => super::drop_alpha(decoded, to),
        ColorType::GrayscaleAlpha => {
            for (from, to) in decoded.as_chunks::<2>().0.iter().zip(to) {
                *to = [from[0]; 3];
            }
        }
        _ => {
            for (from, to) in decoded.iter().zip(to) {
                *to = [*from; 3];
            }
        }
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_chunk_is_called_by_its_name() {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 2, 2);
        encoder.set_color(ColorType::Grayscale);
        encoder.write_header().unwrap().write_image_data(&[1, 2, 3, 4]).unwrap();
        // The last byte of IDAT's checksum: IEND, of twelve bytes, follows it.
        let at = file.len() - 13;
        file[at] ^= 1;
        let error = stored(&file, &mut Vec::new()).err().unwrap();
        assert!(error.contains("while decoding IDAT chunk"), "{error}");
        assert!(!error.contains('{'), "{error}");
    }
}
