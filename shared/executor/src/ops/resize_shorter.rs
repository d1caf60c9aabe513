//! `resize_shorter`: an image to one of the same aspect ratio.

use super::resize::{ResizeImage, Window};
use crate::{
    cell::Sink,
    random::Draw,
    step::{Made, Tools, Transform, View},
};
use gristmill_pipeline::ops::ResizeShorter;

/// u8 `[h, w, 1 or 3]` -> u8 `[h', w', c]`.
#[derive(Debug)]
pub(crate) struct KeepAspect {
    pub(crate) op: ResizeShorter,
    pub(crate) channels: usize,
}

impl Transform for KeepAspect {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        tools: &mut Tools,
        _: &mut Draw,
    ) -> Result<Made, String> {
        let [height, width] = input.size.map(|side| side as u32);
        let size = self.op.output_size([height, width])?;
        let window = Window { left: 0, top: 0, width, height };
        let resize = ResizeImage::new(size, self.channels, self.op.antialias);
        resize.resize(input, window, output, tools)
    }
}
