//! `layout`: channels last to channels first, and back.

use super::planes::vectorised;
use crate::{
    cell::Sink,
    random::Draw,
    step::{Made, Tools, Transform, View},
};
use gristmill_pipeline::{FieldSchema, ops::Order};

/// `[h, w, c]` -> `[c, h, w]`, or the other way round.
#[derive(Debug)]
pub(crate) struct Transpose {
    to: Order,
    channels: usize,
    value_bytes: usize,
}

impl Transpose {
    pub(crate) fn new(to: Order, input: &FieldSchema) -> Self {
        let channels = match to {
            Order::Nchw => input.shape.last(),
            Order::Nhwc => input.shape.first(),
        };
        let channels = channels.copied().flatten().unwrap_or(1) as usize;
        Transpose { to, channels, value_bytes: super::dtype_bytes(input.dtype) }
    }

    /// Values of `N` bytes, `C` of them a pixel.
    #[inline(always)]
    fn copy<const N: usize, const C: usize>(&self, from: &[u8], to: &mut [u8]) {
        let (from, to) = (from.as_chunks::<N>().0, to.as_chunks_mut::<N>().0);
        let pixels = from.len() / C;
        match self.to {
            Order::Nchw => {
                for (c, plane) in to.chunks_exact_mut(pixels.max(1)).enumerate() {
                    for (to, pixel) in plane.iter_mut().zip(from.as_chunks::<C>().0) {
                        *to = pixel[c];
                    }
                }
            }
            Order::Nhwc => {
                for (c, plane) in from.chunks_exact(pixels.max(1)).enumerate() {
                    for (pixel, from) in to.as_chunks_mut::<C>().0.iter_mut().zip(plane) {
                        pixel[c] = *from;
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn values<const N: usize>(&self, from: &[u8], to: &mut [u8]) {
        match self.channels {
            2 => self.copy::<N, 2>(from, to),
            3 => self.copy::<N, 3>(from, to),
            4 => self.copy::<N, 4>(from, to),
            // One channel is first and last at once.
            _ => to.copy_from_slice(from),
        }
    }
}

impl Transform for Transpose {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        _: &mut Tools,
        _: &mut Draw,
    ) -> Result<Made, String> {
        let View { bytes, size } = input;
        let out = output.take(bytes.len())?;
        vectorised(|| match self.value_bytes {
            1 => self.values::<1>(bytes, out),
            2 => self.values::<2>(bytes, out),
            4 => self.values::<4>(bytes, out),
            _ => self.values::<8>(bytes, out),
        });
        Ok(Made { bytes: bytes.len(), size })
    }
}
