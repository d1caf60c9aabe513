//! `random_erasing`: a random rectangle becomes one value, or not.

use super::resize::Window;
use crate::{
    random::Draw,
    step::{InPlace, Tools},
};
use gristmill_pipeline::{FieldSchema, ops::RandomErasing};

/// Tries before nothing is erased; torchvision's number.
const TRIES: u32 = 10;

/// `[h, w, c]` -> the same, in place.
#[derive(Debug)]
pub(crate) struct Erase {
    op: RandomErasing,
    log_ratio: [f64; 2],
    /// One pixel, as it is stored.
    pixel: Vec<u8>,
}

impl Erase {
    pub(crate) fn new(op: &RandomErasing, image: &FieldSchema) -> Self {
        let pixel = super::value_bytes(image.dtype, op.value).repeat(super::channels(image));
        Erase { op: op.clone(), log_ratio: op.ratio.map(libm::log), pixel }
    }

    /// As `torchvision.transforms.RandomErasing.get_params`.
    fn window(&self, [height, width]: [usize; 2], draw: &mut Draw) -> Option<Window> {
        let area = (height * width) as f64;
        for _ in 0..TRIES {
            let erased = area * draw.between(self.op.scale[0], self.op.scale[1]);
            let ratio = libm::exp(draw.between(self.log_ratio[0], self.log_ratio[1]));
            let h = (erased * ratio).sqrt().round_ties_even();
            let w = (erased / ratio).sqrt().round_ties_even();
            if h < height as f64 && w < width as f64 {
                let (h, w) = (h as u32, w as u32);
                let top = draw.up_to(height as u32 - h);
                let left = draw.up_to(width as u32 - w);
                return Some(Window { left, top, width: w, height: h });
            }
        }
        None
    }
}

impl InPlace for Erase {
    fn run(
        &self,
        value: &mut [u8],
        size: [usize; 2],
        _: &mut Tools,
        draw: &mut Draw,
    ) -> Result<(), String> {
        if draw.unit() >= self.op.p {
            return Ok(());
        }
        let Some(window) = self.window(size, draw) else { return Ok(()) };
        let Window { left, top, width, height } = window;
        let pixel = self.pixel.len();
        let rows = value.chunks_exact_mut(size[1] * pixel).skip(top as usize);
        for row in rows.take(height as usize) {
            let erased = &mut row[left as usize * pixel..][..width as usize * pixel];
            erased.chunks_exact_mut(pixel).for_each(|to| to.copy_from_slice(&self.pixel));
        }
        Ok(())
    }
}
