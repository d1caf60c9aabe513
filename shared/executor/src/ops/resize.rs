//! `resize`: an image to one of another size.

use crate::{
    cell::Sink,
    random::Draw,
    step::{Made, Tools, Transform, View},
};
use fast_image_resize::{
    FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer,
    images::{TypedCroppedImage, TypedImage, TypedImageRef},
    pixels::{U8, U8x3},
};

/// A rectangle of pixels inside an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) left: u32,
    pub(crate) top: u32,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// u8 `[h, w, 1 or 3]` -> u8 `[size[0], size[1], c]`, the whole image or a window of it.
#[derive(Debug)]
pub(crate) struct ResizeImage {
    size: [u32; 2],
    channels: usize,
    options: ResizeOptions,
}

impl ResizeImage {
    pub(crate) fn new(size: [u32; 2], channels: usize, antialias: bool) -> Self {
        let algorithm = match antialias {
            true => ResizeAlg::Convolution(FilterType::Bilinear),
            false => ResizeAlg::Interpolation(FilterType::Bilinear),
        };
        ResizeImage { size, channels, options: ResizeOptions::new().resize_alg(algorithm) }
    }

    /// Resizes `window` of the image as if it were all there is: nothing outside of it counts.
    pub(crate) fn resize(
        &self,
        input: View<'_>,
        window: Window,
        output: Sink<'_>,
        tools: &mut Tools,
    ) -> Result<Made, String> {
        // Typed, as the untyped call brings the resizer's code for every kind of pixel along.
        match self.channels {
            1 => self.resize_typed::<U8>(input, window, output, tools),
            _ => self.resize_typed::<U8x3>(input, window, output, tools),
        }
    }

    fn resize_typed<P: PixelTrait>(
        &self,
        input: View<'_>,
        window: Window,
        output: Sink<'_>,
        tools: &mut Tools,
    ) -> Result<Made, String> {
        let [height, width] = input.size.map(|side| side as u32);
        let [out_height, out_width] = self.size;
        let bytes = out_height as usize * out_width as usize * size_of::<P>();
        let image = TypedImageRef::<P>::from_buffer(width, height, input.bytes)
            .map_err(|error| format!("cannot resize: {error}"))?;
        let Window { left, top, width, height } = window;
        let image = TypedCroppedImage::from_ref(&image, left, top, width, height)
            .map_err(|error| format!("cannot crop: {error}"))?;
        let output = output.take(bytes)?;
        TypedImage::<P>::from_buffer(out_width, out_height, output)
            .map_err(|error| error.to_string())
            .and_then(|mut output| {
                let resized =
                    tools.state.get::<Resizer>().resize_typed(&image, &mut output, &self.options);
                resized.map_err(|error| error.to_string())
            })
            .map_err(|error| format!("cannot resize: {error}"))?;
        Ok(Made { bytes, size: [out_height as usize, out_width as usize] })
    }
}

impl Transform for ResizeImage {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        tools: &mut Tools,
        _: &mut Draw,
    ) -> Result<Made, String> {
        let [height, width] = input.size.map(|side| side as u32);
        self.resize(input, Window { left: 0, top: 0, width, height }, output, tools)
    }
}
