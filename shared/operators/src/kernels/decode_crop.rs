//! `decode` and `random_resized_crop` fused: only the window is decoded.
//!
//! A JPEG is coded from top to bottom: rows below the window are not read at all, and data above and beside
//! it is parsed but not turned into pixels. The pixels equal those of the whole image, bit for bit. Damage
//! below the window goes unnoticed, but truncation does not.

use crate::image::decode::kernel::{checked_size, decode, decode_jpeg_by_library};
use crate::image::random_resized_crop::kernel::CropAndResize;
use crate::image::resize::kernel::Window;
use gristmill_jpeg::{Decoder, Frame};
use gristmill_kernel::*;

/// bytes (JPEG) -> u8 `[size[0], size[1], 3]`.
#[derive(Debug)]
pub(crate) struct DecodeAndCrop {
    crop: CropAndResize,
}

impl DecodeAndCrop {
    pub(crate) fn new(crop: CropAndResize) -> Self {
        DecodeAndCrop { crop }
    }

    /// Decodes the whole image first, for formats that cannot be decoded by window.
    fn whole(
        &self,
        bytes: &[u8],
        image: &mut Vec<u8>,
        output: Sink<'_>,
        tools: &mut Tools,
        draw: &mut Draw,
    ) -> Result<Made, String> {
        let Made { bytes, size } = decode(bytes, Sink::Buffer(image), tools)?;
        tools.source = size;
        self.crop.run(View { bytes: &image[..bytes], size }, output, tools, draw)
    }

    /// Decodes only the window and resizes it.
    fn window(
        &self,
        (jpeg, frame): (&[u8], &Frame<'_>),
        image: &mut Vec<u8>,
        output: Sink<'_>,
        tools: &mut Tools,
        draw: &mut Draw,
    ) -> Result<Made, String> {
        let size = checked_size("JPEG", frame.height as u64, frame.width as u64)?;
        tools.source = size;
        let window = self.crop.window(size, draw);
        let range = |start: u32, length: u32| start as usize..(start + length) as usize;
        let (x, y) = (range(window.left, window.width), range(window.top, window.height));
        let size = [y.len(), x.len()];
        let rgb = Sink::Buffer(image).take(x.len() * y.len() * 3)?;
        if tools.state.get::<Decoder>().decode(frame, x, y, rgb).is_some() {
            let window = Window { left: 0, top: 0, ..window };
            return self.crop.resize.resize(View { bytes: rgb, size }, window, output, tools);
        }
        let Made { bytes, size } = decode_jpeg_by_library(jpeg, Sink::Buffer(image), tools)?;
        if size != [frame.height, frame.width] {
            return Err("bad JPEG: its header and its image differ in size".into());
        }
        self.crop.resize.resize(View { bytes: &image[..bytes], size }, window, output, tools)
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
        let mut image = std::mem::take(&mut tools.image);
        let made = match Frame::find(input.bytes) {
            Some(frame) => self.window((input.bytes, &frame), &mut image, output, tools, draw),
            None => self.whole(input.bytes, &mut image, output, tools, draw),
        };
        tools.image = image;
        made
    }
}
