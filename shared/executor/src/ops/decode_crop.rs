//! `decode` and `random_resized_crop` as one step: only what the window needs is decoded.
//!
//! Entropy decoding is two thirds of a JPEG's cost and goes from top to bottom, so the rows below the
//! window are not read at all: the decoder is given an image that ends there. Left, right and above,
//! what lies outside is parsed but not made into pixels. Around the window a block is decoded more
//! than is used: upsampling looks at neighbours, and so the pixels are those of the whole image, bit
//! for bit. What is damaged below the window goes unnoticed, but not that an image was cut short.

use super::{
    decode::{checked_size, decode, decode_part},
    random_resized_crop::CropAndResize,
    resize::Window,
};
use crate::{
    cell::Sink,
    random::Draw,
    step::{Made, Tools, Transform, View},
};

/// How far from its end the end-of-image marker of a whole image is looked for, in bytes: cameras
/// append previews and padding.
const MAX_TRAILER_BYTES: usize = 64 << 10;

/// bytes (JPEG) -> u8 `[size[0], size[1], 3]`.
#[derive(Debug)]
pub(crate) struct DecodeAndCrop {
    crop: CropAndResize,
}

impl DecodeAndCrop {
    pub(crate) fn new(crop: CropAndResize) -> Self {
        DecodeAndCrop { crop }
    }

    /// Decodes all of it first: for images whose rows do not come from top to bottom.
    fn whole(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        tools: &mut Tools,
        draw: &mut Draw,
    ) -> Result<Made, String> {
        let mut image = std::mem::take(&mut tools.image);
        let decoded = decode(input.bytes, Sink::Buffer(&mut image), tools);
        let made = decoded.and_then(|Made { bytes, size }| {
            self.crop.run(View { bytes: &image[..bytes], size }, output, tools, draw)
        });
        tools.image = image;
        made
    }
}

impl Transform for DecodeAndCrop {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        tools: &mut Tools,
        draw: &mut Draw,
    ) -> Result<Made, String> {
        let frame = Frame::find(input.bytes).filter(|_| is_whole(input.bytes));
        let Some(Frame { height_at, size, block }) = frame else {
            return self.whole(input, output, tools, draw);
        };
        let [height, width] = checked_size("JPEG", size[0].into(), size[1].into())?;
        let window = self.crop.window([height, width], draw);
        let around = |start: u32, length: u32, block: usize, most: usize| {
            let (start, end) = (start as usize, (start + length) as usize);
            (start / block * block).saturating_sub(block)..(end + block).min(most)
        };
        let x = around(window.left, window.width, block[1], width);
        let y = around(window.top, window.height, block[0], height);
        // Whole blocks, so that the last row has its neighbours.
        let rows = y.end.next_multiple_of(block[0]).min(height);
        tools.pixels.clear();
        tools.pixels.extend_from_slice(input.bytes);
        // Not more than the height was, which is a u16.
        tools.pixels[height_at..height_at + 2].copy_from_slice(&(rows as u16).to_be_bytes());
        let part = decode_part(&tools.pixels, x.clone(), y.clone())?;
        let (left, top) = (window.left - x.start as u32, window.top - y.start as u32);
        let view = View { bytes: &part, size: [y.len(), x.len()] };
        self.crop.resize.resize(view, Window { left, top, ..window }, output, tools)
    }
}

/// What a JPEG's frame header says, if the image is one scan of 8-bit gray or YCbCr.
struct Frame {
    /// Where the height stands, two bytes.
    height_at: usize,
    size: [u16; 2],
    /// Height and width of the blocks that are coded together.
    block: [usize; 2],
}

impl Frame {
    /// Walks the markers up to the first scan (ITU-T T.81, annex B).
    fn find(jpeg: &[u8]) -> Option<Frame> {
        if !jpeg.starts_with(&[0xff, 0xd8]) {
            return None;
        }
        let mut at = 2;
        let mut frame: Option<(Frame, usize)> = None;
        loop {
            let [0xff, marker, high, low] = *jpeg.get(at..)?.first_chunk()? else { return None };
            let length = usize::from(u16::from_be_bytes([high, low]));
            let segment = jpeg.get(at + 4..at + 2 + length)?;
            match marker {
                0xc0 | 0xc1 => frame = Some((Self::read(segment, at + 5)?, segment.len())),
                // Progressive, lossless and arithmetic coding.
                0xc2..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcf => return None,
                0xda => {
                    let (frame, bytes) = frame?;
                    let components = (bytes - 6) / 3;
                    return (usize::from(*segment.first()?) == components).then_some(frame);
                }
                _ => {}
            }
            at += 2 + length;
        }
    }

    fn read(segment: &[u8], height_at: usize) -> Option<Frame> {
        let (head, components) = segment.split_first_chunk::<6>()?;
        let [precision, h1, h0, w1, w0, count] = *head;
        if precision != 8 || !matches!(count, 1 | 3) || components.len() != usize::from(count) * 3 {
            return None;
        }
        let most = |shift: u8| {
            let factors = components.iter().skip(1).step_by(3).map(|factors| factors >> shift & 15);
            8 * usize::from(factors.max().unwrap_or(1).clamp(1, 4))
        };
        let size = [u16::from_be_bytes([h1, h0]), u16::from_be_bytes([w1, w0])];
        Some(Frame { height_at, size, block: [most(0), most(4)] })
    }
}

/// Whether the image ends as it should, and not before.
fn is_whole(jpeg: &[u8]) -> bool {
    let tail = &jpeg[jpeg.len().saturating_sub(MAX_TRAILER_BYTES)..];
    tail.ends_with(&[0xff, 0xd9]) || tail.windows(2).any(|pair| pair == [0xff, 0xd9])
}
