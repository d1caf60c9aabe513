//! `vertical_flip`: the rows of an image change places, or not.

use crate::{
    random::Draw,
    step::{InPlace, Tools},
};

/// `[h, w, c]` -> the same, in place.
#[derive(Debug)]
pub(crate) struct UpsideDown {
    pub(crate) p: f64,
}

impl InPlace for UpsideDown {
    fn run(
        &self,
        value: &mut [u8],
        [height, _]: [usize; 2],
        _: &mut Tools,
        draw: &mut Draw,
    ) -> Result<(), String> {
        if draw.unit() < self.p && height > 1 {
            let row_bytes = value.len() / height;
            let (mut top, mut bottom) = value.split_at_mut(height / 2 * row_bytes);
            while let Some((row, rest)) = top.split_at_mut_checked(row_bytes)
                && !row.is_empty()
            {
                let (before, other) = bottom.split_at_mut(bottom.len() - row_bytes);
                row.swap_with_slice(other);
                (top, bottom) = (rest, before);
            }
        }
        Ok(())
    }
}
