//! BMP to RGB: palettes, run lengths, 16, 24 and 32 bits, with or without masks.

use super::{checked_size, indices::StoredIndices};
use gristmill_kernel::KernelOutput;
use std::borrow::Cow;

/// First bytes of a file.
pub(super) const MAGIC: &[u8] = b"BM";

/// Bytes before the image header.
const FILE_HEADER_BYTES: usize = 14;
/// Size of the OS/2 header, which has 16-bit sides and palettes of three bytes per colour.
const CORE_HEADER_BYTES: usize = 12;

struct Header<'a> {
    size: [usize; 2],
    /// Whether the first stored row is the top row.
    top_down: bool,
    bits: usize,
    rows: Cow<'a, [u8]>,
    palette: &'a [u8],
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
        let rows = bytes.get(data..).ok_or_else(cut_short)?;
        let palette = |start| bytes.get(start..data).unwrap_or_default();
        if header_bytes == CORE_HEADER_BYTES {
            let (width, height) = (u16_at(bytes, 18)?, u16_at(bytes, 20)?);
            let bits = u16_at(bytes, 24)? as usize;
            return Header {
                size: checked_size("BMP", height.into(), width.into())?,
                top_down: false,
                bits,
                rows: rows.into(),
                palette: palette(FILE_HEADER_BYTES + header_bytes),
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
            0..=2 => {}
            3 | 6 => {
                masks = [u32_at(bytes, 54)?, u32_at(bytes, 58)?, u32_at(bytes, 62)?];
                if header_bytes == 40 {
                    after += if compression == 6 { 16 } else { 12 };
                }
            }
            other => return Err(format!("bad BMP: compression {other}")),
        }
        let side = |side: i32| u64::from(side.unsigned_abs());
        if width < 0 {
            return Err("bad BMP: its width is negative".into());
        }
        let size = checked_size("BMP", side(height), side(width))?;
        let (mut stored_bits, mut rows) = (bits, Cow::from(rows));
        match (compression, bits) {
            (1, 8) | (2, 4) => (stored_bits, rows) = (8, unpack_runs(&rows, size, bits)?.into()),
            (1 | 2, _) => return Err(format!("bad BMP: run lengths of {bits} bits a pixel")),
            _ => {}
        }
        Header {
            size,
            top_down: height < 0,
            bits: stored_bits,
            rows,
            palette: palette(after),
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
        if self.rows.len() >= needed { Ok(self) } else { Err(cut_short()) }
    }

    /// Bytes per row, padded to a multiple of four.
    fn row_bytes(&self) -> usize {
        (self.size[1] * self.bits).div_ceil(32) * 4
    }

    /// The rows from top to bottom.
    fn rows(&self) -> impl Iterator<Item = &[u8]> {
        let (row_bytes, height) = (self.row_bytes(), self.size[0]);
        (0..height).map(move |y| {
            let start = row_bytes * if self.top_down { y } else { height - 1 - y };
            &self.rows[start..self.rows.len().min(start + row_bytes)]
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
        let stored = self.palette.chunks_exact(self.colour_bytes);
        for (colour, bgr) in colours.iter_mut().zip(stored) {
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

/// Indices coded by run lengths to rows of one byte an index, each padded to a multiple of four. Pixels that
/// are skipped are 0.
fn unpack_runs(coded: &[u8], [height, width]: [usize; 2], bits: usize) -> Result<Vec<u8>, String> {
    let row_bytes = width.next_multiple_of(4);
    let mut rows = vec![0; height * row_bytes];
    let index = |bytes: &[u8], at: usize| match bits {
        4 => bytes[at / 2] >> (4 - at % 2 * 4) & 15,
        _ => bytes[at],
    };
    let (mut x, mut y, mut rest) = (0, 0, coded);
    // The last row needs no mark of its end.
    while y < height && (x < width || y + 1 < height) {
        let [count, value, after @ ..] = rest else { return Err(cut_short()) };
        rest = after;
        let (count, literal) = match (*count, *value) {
            (0, 0) => {
                (x, y) = (0, y + 1);
                continue;
            }
            (0, 1) => break,
            (0, 2) => {
                let [right, up, after @ ..] = rest else { return Err(cut_short()) };
                (x, y, rest) = (x + usize::from(*right), y + usize::from(*up), after);
                continue;
            }
            (0, count) => {
                let count = usize::from(count);
                let (literal, after) =
                    rest.split_at_checked((count * bits).div_ceil(8)).ok_or_else(cut_short)?;
                // Literal indices end at an even byte.
                rest = after.get(literal.len() % 2..).unwrap_or_default();
                (count, Some(literal))
            }
            (count, _) => (usize::from(count), None),
        };
        for at in 0..count.min(width.saturating_sub(x)) {
            rows[y * row_bytes + x + at] = match literal {
                Some(literal) => index(literal, at),
                None => index(&[*value], at % (8 / bits)),
            };
        }
        x += count;
    }
    Ok(rows)
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
