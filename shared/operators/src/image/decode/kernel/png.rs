//! PNG to RGB: any colour type, bit depth and interlacing; transparency is dropped, as TensorFlow and
//! Pillow's `convert("RGB")` drop it.

use super::{MAX_MEMORY_BYTES, checked_size, indices::StoredIndices, one_line};
use gristmill_kernel::KernelOutput;
use png::{BitDepth, ColorType, DecodeOptions, Decoder, Limits, Reader, Transformations};
use std::{borrow::Cow, io::Cursor, ops::Range};

/// First bytes of a file.
pub(super) const MAGIC: &[u8] = b"\x89PNG\r\n\x1a\n";

/// 256 colours of three bytes (PNG specification, 11.2.2).
const MAX_PALETTE_BYTES: usize = 768;

/// The last chunk of a file.
const END: &[u8] = b"\0\0\0\0IEND\xae\x42\x60\x82";
const CHECKSUM_BYTES: usize = 4;

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
    read(&mut reader, bytes, Transformations::IDENTITY, stored)?;
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
type Opened<'a> = (Reader<Cursor<Cow<'a, [u8]>>>, [usize; 2]);

/// Reads and checks the header. An error in a chunk that does not matter is none.
fn open(bytes: &[u8], transformations: Transformations) -> Result<Opened<'_>, String> {
    open_as(bytes, transformations, false)
        .or_else(|error| open_as(essence(bytes), transformations, false).map_err(|_| error))
}

fn open_as<'a>(
    bytes: impl Into<Cow<'a, [u8]>>,
    transformations: Transformations,
    ignore_crc: bool,
) -> Result<Opened<'a>, String> {
    let mut options = DecodeOptions::default();
    options.set_ignore_adler32(false);
    options.set_ignore_crc(ignore_crc);
    // A small profile or text may inflate to gigabytes.
    options.set_ignore_iccp_chunk(true);
    options.set_ignore_text_chunk(true);
    let mut decoder = Decoder::new_with_options(Cursor::new(bytes.into()), options);
    decoder.set_limits(Limits { bytes: MAX_MEMORY_BYTES as usize });
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

/// Reads the pixels. As Pillow, takes them without the checksums of their chunks (the data has another one)
/// and without all that should follow.
fn read(
    reader: &mut Reader<Cursor<Cow<'_, [u8]>>>,
    bytes: &[u8],
    transformations: Transformations,
    out: &mut [u8],
) -> Result<(), String> {
    let Err(error) = reader.next_frame(out) else { return Ok(()) };
    let mut again = || {
        let (mut reader, _) = open_as(essence(bytes), transformations, true).ok()?;
        reader.next_frame(out).ok()
    };
    again().map(drop).ok_or_else(|| bad(error))
}

/// The chunks that make the image, and an end.
fn essence(bytes: &[u8]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    for (name, content) in chunks(bytes) {
        if [b"IHDR", b"PLTE", b"tRNS", b"IDAT"].contains(&&name) {
            let end = content.end + CHECKSUM_BYTES;
            let whole = file.len() + 8 + content.len() + CHECKSUM_BYTES;
            file.extend(&bytes[content.start - 8..end.min(bytes.len())]);
            file.resize(whole, 0);
        }
    }
    file.extend(END);
    file
}

/// Names and places of the chunks that the file holds whole, but perhaps for their checksums.
pub(super) fn chunks(file: &[u8]) -> impl Iterator<Item = ([u8; 4], Range<usize>)> {
    let mut at = MAGIC.len();
    std::iter::from_fn(move || {
        let [a, b, c, d, name @ ..] = *file.get(at..)?.first_chunk::<8>()?;
        let start = at + 8;
        let end = start.checked_add(u32::from_be_bytes([a, b, c, d]) as usize)?;
        file.get(start..end)?;
        at = end + CHECKSUM_BYTES;
        Some((name, start..end))
    })
}

/// Decodes into `output` and returns height and width. `spare` is scratch space for pixels that are not RGB.
pub(super) fn decode(
    bytes: &[u8],
    output: KernelOutput<'_>,
    spare: &mut Vec<u8>,
) -> Result<[usize; 2], String> {
    // Expands palettes and narrow greys to bytes; keeps the upper eight of sixteen bits.
    let expand = Transformations::EXPAND | Transformations::STRIP_16;
    let (mut reader, size) = open(bytes, expand)?;
    let pixels = size[0] * size[1];
    let (color, depth) = reader.output_color_type();
    let needed = reader.output_buffer_size().ok_or("bad PNG: it is too large")?;
    if depth != BitDepth::Eight || needed != pixels * color.samples() {
        return Err(format!("bad PNG: it decodes to {needed} bytes of {color:?}"));
    }
    let rgb = output.take(pixels * 3)?;
    if color == ColorType::Rgb {
        read(&mut reader, bytes, expand, rgb)?;
        return Ok(size);
    }
    let decoded = KernelOutput::Buffer(spare).take(needed)?;
    read(&mut reader, bytes, expand, decoded)?;
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
        // The last byte of IHDR's checksum.
        file[32] ^= 1;
        let error = stored(&file, &mut Vec::new()).err().unwrap();
        assert!(error.contains("while decoding IHDR chunk"), "{error}");
        assert!(!error.contains('{'), "{error}");
    }

    /// A profile of a few kilobytes may inflate to gigabytes.
    #[test]
    fn a_profile_is_not_read() {
        let mut info = png::Info::with_size(2, 1);
        (info.bit_depth, info.color_type) = (BitDepth::Eight, ColorType::Grayscale);
        info.icc_profile = Some(vec![7; 100_000].into());
        let mut file = Vec::new();
        let encoder = png::Encoder::with_info(&mut file, info).unwrap();
        encoder.write_header().unwrap().write_image_data(&[1, 2]).unwrap();
        assert!(file.windows(4).any(|name| name == b"iCCP"));
        let (reader, size) = open(&file, Transformations::IDENTITY).unwrap();
        assert_eq!((size, reader.info().icc_profile.as_ref()), ([1, 2], None));
    }
}
