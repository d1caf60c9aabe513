//! `decode` and `random_resized_crop` fused: only the window is decoded.
//!
//! A JPEG is coded from top to bottom: rows below the window are not read at all, and data above and beside
//! it is parsed but not turned into pixels. The pixels equal those of the whole image, bit for bit. Damage
//! below the window goes unnoticed, but truncation does not.

use crate::image::decode::kernel::{checked_size, decode, decode_jpeg_by_library};
use crate::image::random_resized_crop::kernel::CropAndResize;
use crate::image::resize::kernel::ImageWindow;
use gristmill_jpeg::{JpegDecoder, JpegHeaders};
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
        output: KernelOutput<'_>,
        tools: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<OutputSize, String> {
        let OutputSize { bytes, size } = decode(bytes, KernelOutput::Buffer(image), tools)?;
        tools.source = size;
        self.crop.run(ValueView { bytes: &image[..bytes], size }, output, tools, draw)
    }

    /// Decodes only the window and resizes it.
    fn window(
        &self,
        (jpeg, frame): (&[u8], &JpegHeaders<'_>),
        image: &mut Vec<u8>,
        output: KernelOutput<'_>,
        tools: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<OutputSize, String> {
        let size = checked_size("JPEG", frame.height as u64, frame.width as u64)?;
        tools.source = size;
        let window = self.crop.window(size, draw);
        let range = |start: u32, length: u32| start as usize..(start + length) as usize;
        let (x, y) = (range(window.left, window.width), range(window.top, window.height));
        let size = [y.len(), x.len()];
        let rgb = KernelOutput::Buffer(image).take(x.len() * y.len() * 3)?;
        if tools.state.get::<JpegDecoder>().decode(frame, x, y, rgb).is_some() {
            let window = ImageWindow { left: 0, top: 0, ..window };
            return self.crop.resize.resize(ValueView { bytes: rgb, size }, window, output, tools);
        }
        let OutputSize { bytes, size } =
            decode_jpeg_by_library(jpeg, KernelOutput::Buffer(image), tools)?;
        if size != [frame.height, frame.width] {
            return Err("bad JPEG: its header and its image differ in size".into());
        }
        self.crop.resize.resize(ValueView { bytes: &image[..bytes], size }, window, output, tools)
    }
}

impl TransformKernel for DecodeAndCrop {
    fn run(
        &self,
        input: ValueView<'_>,
        output: KernelOutput<'_>,
        tools: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<OutputSize, String> {
        let mut image = std::mem::take(&mut tools.image);
        let made = match JpegHeaders::find(input.bytes) {
            Some(frame) => self.window((input.bytes, &frame), &mut image, output, tools, draw),
            None => self.whole(input.bytes, &mut image, output, tools, draw),
        };
        tools.image = image;
        made
    }
}
