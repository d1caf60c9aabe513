//! BMP to RGB: palettes, 16, 24 and 32 bits, with or without masks. Refuses run-length encoding.

use super::{checked_size, indices::StoredIndices};
use gristmill_kernel::KernelOutput;
use std::ops::Range;

/// First bytes of a file.
pub(super) const MAGIC: &[u8] = b"BM";

/// Bytes before the image header.
const FILE_HEADER_BYTES: usize = 14;
/// Size of the OS/2 header, which has 16-bit sides and palettes of three bytes per colour.
const CORE_HEADER_BYTES: usize = 12;

struct Header<'a> {
    bytes: &'a [u8],
    size: [usize; 2],
    /// Whether the first stored row is the top row.
    top_down: bool,
    bits: usize,
    /// Offset of the rows.
    data: usize,
    palette: Range<usize>,
    /// Bytes per palette colour.
    colour_bytes: usize,
    /// Bit masks of red, green and blue in a pixel of 16 or 32 bits.
    masks: [u32; 3],
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u32, String> {
    let found = bytes.get(at..at + 2).and_then(<[u8]>::first_chunk::<2>);
    found.map(|x| u16::from_le_bytes(*x).into()).ok_or_else(cut_short)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, String> {
    Ok(u16_at(bytes, at)? | u16_at(bytes, at + 2)? << 16)
}

fn cut_short() -> String {
    "bad BMP: it is cut short".into()
}

impl<'a> Header<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let [data, header_bytes] = [u32_at(bytes, 10)? as usize, u32_at(bytes, 14)? as usize];
        if header_bytes == CORE_HEADER_BYTES {
            let (width, height) = (u16_at(bytes, 18)?, u16_at(bytes, 20)?);
            let bits = u16_at(bytes, 24)? as usize;
            return Header {
                bytes,
                size: checked_size("BMP", height.into(), width.into())?,
                top_down: false,
                bits,
                data,
                palette: FILE_HEADER_BYTES + header_bytes..data,
                colour_bytes: 3,
                masks: default_masks(bits),
            }
            .checked();
        }
        if !(40..=1024).contains(&header_bytes) {
            return Err(format!("bad BMP: its header has {header_bytes} bytes"));
        }
        let (width, height) = (u32_at(bytes, 18)? as i32, u32_at(bytes, 22)? as i32);
        let (bits, compression) = (u16_at(bytes, 28)? as usize, u32_at(bytes, 30)?);
        let mut masks = default_masks(bits);
        let mut after = FILE_HEADER_BYTES + header_bytes;
        match compression {
            0 => {}
            3 | 6 => {
                masks = [u32_at(bytes, 54)?, u32_at(bytes, 58)?, u32_at(bytes, 62)?];
                if header_bytes == 40 {
                    after += if compression == 6 { 16 } else { 12 };
                }
            }
            1 | 2 => return Err("a BMP coded by run lengths: store it plainly, or as PNG".into()),
            other => return Err(format!("bad BMP: compression {other}")),
        }
        let side = |side: i32| u64::from(side.unsigned_abs());
        if width < 0 {
            return Err("bad BMP: its width is negative".into());
        }
        Header {
            bytes,
            size: checked_size("BMP", side(height), side(width))?,
            top_down: height < 0,
            bits,
            data,
            palette: after..data,
            colour_bytes: 4,
            masks,
        }
        .checked()
    }

    /// Refuses bit depths that do not exist, and missing rows.
    fn checked(self) -> Result<Self, String> {
        if ![1, 4, 8, 16, 24, 32].contains(&self.bits) {
            return Err(format!("bad BMP: {} bits a pixel", self.bits));
        }
        let [height, width] = self.size;
        // The last row may lack its padding.
        let needed = self.row_bytes() * (height - 1) + (width * self.bits).div_ceil(8);
        if self.bytes.len().checked_sub(self.data).is_some_and(|rest| rest >= needed) {
            Ok(self)
        } else {
            Err(cut_short())
        }
    }

    /// Bytes per row, padded to a multiple of four.
    fn row_bytes(&self) -> usize {
        (self.size[1] * self.bits).div_ceil(32) * 4
    }

    /// The rows from top to bottom.
    fn rows(&self) -> impl Iterator<Item = &'a [u8]> {
        let (bytes, data, row_bytes) = (self.bytes, self.data, self.row_bytes());
        let (height, top_down) = (self.size[0], self.top_down);
        (0..height).map(move |y| {
            let start = data + row_bytes * if top_down { y } else { height - 1 - y };
            &bytes[start..bytes.len().min(start + row_bytes)]
        })
    }

    /// The palette index of pixel `x`; for depths of at most 8 bits.
    fn index(&self, row: &[u8], x: usize) -> u8 {
        let at = x * self.bits;
        row[at / 8] << (at % 8) >> (8 - self.bits)
    }

    /// RGB by palette index; colours that the file lacks are black.
    fn colours(&self) -> Vec<[u8; 3]> {
        let mut colours = vec![[0; 3]; 1 << self.bits];
        let stored = self.bytes.get(self.palette.clone()).unwrap_or_default();
        for (colour, bgr) in colours.iter_mut().zip(stored.chunks_exact(self.colour_bytes)) {
            *colour = [bgr[2], bgr[1], bgr[0]];
        }
        colours
    }

    fn pixel(&self, row: &[u8], x: usize) -> [u8; 3] {
        let value = match self.bits {
            16 => u32::from(u16::from_le_bytes([row[2 * x], row[2 * x + 1]])),
            24 => return [row[3 * x + 2], row[3 * x + 1], row[3 * x]],
            _ => u32::from_le_bytes([row[4 * x], row[4 * x + 1], row[4 * x + 2], row[4 * x + 3]]),
        };
        self.masks.map(|mask| match mask {
            0 => 0,
            mask => {
                let shift = mask.trailing_zeros();
                let most = u64::from(mask >> shift);
                (u64::from((value & mask) >> shift) * 255 / most) as u8
            }
        })
    }
}

fn default_masks(bits: usize) -> [u32; 3] {
    match bits {
        16 => [0x7c00, 0x3e0, 0x1f],
        _ => [0xff_0000, 0xff00, 0xff],
    }
}

/// Decodes into `output` and returns height and width.
pub(super) fn decode(bytes: &[u8], output: KernelOutput<'_>) -> Result<[usize; 2], String> {
    let header = Header::read(bytes)?;
    let [height, width] = header.size;
    let rgb = output.take(height * width * 3)?.as_chunks_mut::<3>().0;
    let colours = if header.bits <= 8 { header.colours() } else { Vec::new() };
    for (row, to) in header.rows().zip(rgb.chunks_exact_mut(width)) {
        for (x, to) in to.iter_mut().enumerate() {
            *to = if colours.is_empty() {
                header.pixel(row, x)
            } else {
                colours[usize::from(header.index(row, x))]
            };
        }
    }
    Ok(header.size)
}

/// Decodes the palette indices of a file into `spare`.
pub(super) fn stored<'a>(
    bytes: &[u8],
    spare: &'a mut Vec<u8>,
) -> Result<StoredIndices<'a>, String> {
    let header = Header::read(bytes)?;
    if header.bits > 8 {
        return Err(super::indices::no_colours("BMP"));
    }
    let [height, width] = header.size;
    let indices = KernelOutput::Buffer(spare).take(height * width)?;
    for (row, to) in header.rows().zip(indices.chunks_exact_mut(width)) {
        to.iter_mut().enumerate().for_each(|(x, to)| *to = header.index(row, x));
    }
    Ok(StoredIndices { size: header.size, bits: 8, samples: 1, bytes: indices })
}
