//! TIFF and BigTIFF to RGB: the first image of a file; grey, RGB, palette or CMYK of up to 16 bits, plain,
//! PackBits, LZW or deflate. Transparency is dropped.

use super::{MAX_MEMORY_BYTES, checked_size, indices::StoredIndices, one_line};
use gristmill_kernel::KernelOutput;
use std::io::Cursor;
use tiff::{
    TiffError,
    decoder::{ChunkType, Decoder, Limits},
    tags::Tag,
};

/// Most bytes of decoded numbers: half of the limit, because the decoder holds a copy besides ours.
const MAX_STORED_BYTES: usize = (MAX_MEMORY_BYTES / 2) as usize;

/// Whether the first bytes are those of a TIFF, in either byte order.
pub(super) fn is(bytes: &[u8]) -> bool {
    [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"].iter().any(|start| bytes.starts_with(*start))
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

/// Meaning of the numbers (PhotometricInterpretation).
#[derive(Clone, Copy, PartialEq)]
enum TiffColours {
    Grey,
    Rgb,
    Palette,
    Cmyk,
}

struct TiffPicture<'a> {
    colours: TiffColours,
    /// Red, green and blue of the palette: all reds first, sixteen bits each.
    palette: Vec<u16>,
    /// Place of a transparency that the colours are multiplied by.
    alpha: Option<usize>,
    /// One image of all numbers, or one for each of them.
    planes: Vec<StoredIndices<'a>>,
}

/// The file with its bits in order, and as one of grey: the decoder takes such files of any number of
/// samples, and leaves those as they are.
fn as_grey(bytes: &[u8], decoder: &mut Decoder<Cursor<&[u8]>>) -> Result<Vec<u8>, TiffError> {
    let mut file = bytes.to_vec();
    if decoder.find_tag_unsigned::<u16>(Tag::FillOrder)? == Some(2) {
        for [offsets, counts] in
            [[Tag::StripOffsets, Tag::StripByteCounts], [Tag::TileOffsets, Tag::TileByteCounts]]
        {
            let offsets = decoder.find_tag_unsigned_vec::<usize>(offsets)?.unwrap_or_default();
            let counts = decoder.find_tag_unsigned_vec::<usize>(counts)?.unwrap_or_default();
            for (start, count) in offsets.into_iter().zip(counts) {
                let part = file.get_mut(start..start.saturating_add(count)).unwrap_or_default();
                part.iter_mut().for_each(|byte| *byte = byte.reverse_bits());
            }
        }
    }
    // The directory's entries of twelve bytes follow their number of two; of a BigTIFF 20 and eight.
    let big = bytes[..4].contains(&43);
    let (first, entry_bytes, value) = if big { (8, 20, 12) } else { (2, 12, 8) };
    let directory = decoder.ifd_pointer().map_or(0, |pointer| pointer.0 as usize);
    let is_little = bytes[0] == b'I';
    let tag = Tag::PhotometricInterpretation.to_u16();
    let tag = if is_little { tag.to_le_bytes() } else { tag.to_be_bytes() };
    let entries = file.get_mut(directory + first..).unwrap_or_default();
    if let Some(entry) = entries.chunks_exact_mut(entry_bytes).find(|entry| entry[..2] == tag) {
        let number_bytes = match entry[2] | entry[3] {
            3 => 2,
            _ => 4,
        };
        entry[value..value + number_bytes].fill(0);
        entry[value + if is_little { 0 } else { number_bytes - 1 }] = 1;
    }
    Ok(file)
}

/// Decodes the stored numbers of a file into `spare`.
fn read<'a>(bytes: &[u8], spare: &'a mut Vec<u8>) -> Result<TiffPicture<'a>, String> {
    let mut decoder = Decoder::new(Cursor::new(bytes)).map_err(bad)?;
    let (width, height) = decoder.dimensions().map_err(bad)?;
    let size = checked_size("TIFF", height.into(), width.into())?;
    let number = |decoder: &mut Decoder<_>, tag, default: u16| {
        Ok(decoder.find_tag_unsigned_vec(tag)?.and_then(|v| v.first().copied()).unwrap_or(default))
    };
    let mut tag = |tag, default| number(&mut decoder, tag, default).map_err(bad);
    let (colours, normal) = match tag(Tag::PhotometricInterpretation, 0)? {
        0 | 1 => (TiffColours::Grey, 1),
        2 => (TiffColours::Rgb, 3),
        3 => (TiffColours::Palette, 1),
        5 => (TiffColours::Cmyk, 4),
        6 => return Err("a TIFF of YCbCr: store it as PNG".into()),
        other => return Err(format!("a TIFF of colours of kind {other}: store it as PNG")),
    };
    let inverted = tag(Tag::PhotometricInterpretation, 0)? == 0;
    let bits = usize::from(tag(Tag::BitsPerSample, 1)?);
    let samples = usize::from(tag(Tag::SamplesPerPixel, 1)?);
    if ![1, 2, 4, 8, 16].contains(&bits) || tag(Tag::SampleFormat, 1)? != 1 {
        return Err(format!(
            "a TIFF of numbers other than u8 or u16 ({bits} bits): store it as PNG"
        ));
    }
    if samples < normal || colours == TiffColours::Palette && bits > 8 {
        return Err(format!("bad TIFF: {samples} numbers of {bits} bits a pixel"));
    }
    let apart = tag(Tag::PlanarConfiguration, 1)? == 2 && samples > 1;
    let alpha = (samples > normal && tag(Tag::ExtraSamples, 0)? == 1).then_some(normal);
    if apart && decoder.get_chunk_type() == ChunkType::Tile {
        // The decoder would panic.
        return Err("a TIFF with its channels in tiles of their own: store them together".into());
    }
    let palette = decoder.find_tag_unsigned_vec(Tag::ColorMap).map_err(bad)?.unwrap_or_default();
    let file = as_grey(bytes, &mut decoder).map_err(bad)?;
    let mut limits = Limits::default();
    limits.decoding_buffer_size = MAX_STORED_BYTES;
    let mut decoder = Decoder::new(Cursor::new(&file)).map_err(bad)?.with_limits(limits);
    let (planes, together) = if apart { (samples, 1) } else { (1, samples) };
    let plane_bytes = size[0] * (size[1] * together * bits).div_ceil(8);
    let needed = plane_bytes * planes;
    if needed > MAX_STORED_BYTES {
        return Err(format!("TIFF beyond limits: it stores {needed} bytes"));
    }
    if decoder.image_buffer_layout().map_err(bad)?.complete_len != needed {
        return Err(format!("bad TIFF: its image does not have {needed} bytes"));
    }
    let stored = KernelOutput::Buffer(spare).take(needed)?;
    decoder.read_image_bytes(stored).map_err(bad)?;
    if bits == 16 {
        let numbers = stored.as_chunks_mut::<2>().0.iter_mut();
        numbers.for_each(|number| *number = u16::from_ne_bytes(*number).to_be_bytes());
    }
    if inverted {
        stored.iter_mut().for_each(|byte| *byte = !*byte);
    }
    let planes = stored.chunks_exact(plane_bytes);
    let planes =
        planes.map(|bytes| StoredIndices { size, bits, samples: together, bytes }).collect();
    Ok(TiffPicture { colours, palette, alpha, planes })
}

impl TiffPicture<'_> {
    /// Number `sample` of pixel `x` in row `y`.
    fn number(&self, y: usize, x: usize, sample: usize) -> u16 {
        match &self.planes[..] {
            [together] => together.number(y, x, sample),
            apart => apart[sample].number(y, x, 0),
        }
    }

    fn pixel(&self, y: usize, x: usize) -> [u8; 3] {
        let bits = self.planes[0].bits;
        let eight = |sample| match (self.number(y, x, sample), bits) {
            (number, 16) => (number >> 8) as u8,
            (number, bits) => (u32::from(number) * 255 / ((1 << bits) - 1)) as u8,
        };
        let pixel = match self.colours {
            TiffColours::Grey => [eight(0); 3],
            TiffColours::Rgb => [0, 1, 2].map(eight),
            TiffColours::Palette => {
                let index = usize::from(self.number(y, x, 0));
                let colour =
                    |at: usize| self.palette.get((at << bits) + index).copied().unwrap_or(0);
                return [0, 1, 2].map(|at| (colour(at) >> 8) as u8);
            }
            TiffColours::Cmyk => {
                let paper = 255 - eight(3);
                return [0, 1, 2].map(|ink| paper - scaled(eight(ink), paper));
            }
        };
        match self.alpha.map(|sample| u32::from(eight(sample))) {
            None => pixel,
            Some(0) => [0; 3],
            Some(alpha) => pixel.map(|value| (u32::from(value) * 255 / alpha).min(255) as u8),
        }
    }
}

/// A share of 255, rounded as Pillow does.
fn scaled(value: u8, share: u8) -> u8 {
    let product = u32::from(value) * u32::from(share) + 128;
    ((product + (product >> 8)) >> 8) as u8
}

/// The EXIF orientation that a file states.
pub(super) fn orientation(bytes: &[u8]) -> Option<u8> {
    let mut decoder = Decoder::new(Cursor::new(bytes)).ok()?;
    decoder.find_tag_unsigned(Tag::Orientation).ok()?
}

/// Decodes into `output` and returns height and width.
pub(super) fn decode(
    bytes: &[u8],
    output: KernelOutput<'_>,
    spare: &mut Vec<u8>,
) -> Result<[usize; 2], String> {
    let picture = read(bytes, spare)?;
    let [height, width] = picture.planes[0].size;
    let rgb = output.take(height * width * 3)?.as_chunks_mut::<3>().0;
    for (y, row) in rgb.chunks_exact_mut(width).enumerate() {
        for (x, to) in row.iter_mut().enumerate() {
            *to = picture.pixel(y, x);
        }
    }
    Ok([height, width])
}

/// Decodes the stored numbers of a grey or palette file into `spare`.
pub(super) fn stored<'a>(
    bytes: &[u8],
    spare: &'a mut Vec<u8>,
) -> Result<StoredIndices<'a>, String> {
    let picture = read(bytes, spare)?;
    match (picture.colours, picture.planes.into_iter().next()) {
        (TiffColours::Grey | TiffColours::Palette, Some(stored)) => Ok(stored),
        _ => Err(super::indices::no_colours("TIFF")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

    use super::*;

    /// A grey TIFF of eight pixels in a row, with this order of bits.
    fn grey_tiff(order: u32) -> Vec<u8> {
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
    fn bits_in_reverse_are_turned() {
        let (mut spare, mut out) = (Vec::new(), Vec::new());
        for (order, first) in [(1, [1, 2, 3]), (2, [128, 64, 192])] {
            decode(&grey_tiff(order), KernelOutput::Buffer(&mut out), &mut spare).unwrap();
            assert_eq!(out[..9].as_chunks::<3>().0, first.map(|grey| [grey; 3]));
        }
    }
}
