//! `resize_shorter`: RGB to RGB of the same aspect ratio.

use super::resize::{ResizeImage, Window};
use crate::{
    cell::Sink,
    random::Draw,
    step::{Made, Tools, Transform, View},
};
use gristmill_pipeline::ops::ResizeShorter;

/// u8 `[h, w, 3]` -> u8 `[h', w', 3]`.
#[derive(Debug)]
pub(crate) struct KeepAspect(pub(crate) ResizeShorter);

impl Transform for KeepAspect {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        tools: &mut Tools,
        _: &mut Draw,
    ) -> Result<Made, String> {
        let [height, width] = input.size.map(|side| side as u32);
        let size = self.0.output_size([height, width])?;
        let window = Window { left: 0, top: 0, width, height };
        ResizeImage::new(size, self.0.antialias).resize(input, window, output, tools)
    }
}
