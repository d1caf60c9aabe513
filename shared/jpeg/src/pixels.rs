//! Colour conversion and upsampling: samples of components to RGB.

use crate::{
    frame::{JpegComponent, JpegHeaders, SIDE},
    window::ROUTINES,
};
use std::ops::Range;

/// Samples of one component, for the decoded units.
#[derive(Debug, Default)]
pub(crate) struct ComponentPlane {
    samples: Vec<u8>,
    /// Samples per row.
    stride: usize,
    /// Columns and rows of the component that are held, clipped to the image.
    x: Range<usize>,
    y: Range<usize>,
}

impl ComponentPlane {
    /// Resizes the plane for the component's samples of the units.
    pub(crate) fn cover(
        &mut self,
        frame: &JpegHeaders<'_>,
        component: &JpegComponent,
        x: &Range<usize>,
        y: &Range<usize>,
    ) -> Option<()> {
        let [height, width] = frame.unit();
        let (across, down) = (component.across * SIDE, component.down * SIDE);
        // All components but the first have one block per unit.
        let columns = (frame.width * across).div_ceil(width);
        let rows = (frame.height * down).div_ceil(height);
        self.x = x.start * across..(x.end * across).min(columns);
        self.y = y.start * down..(y.end * down).min(rows);
        self.stride = x.len() * across;
        let samples = self.stride * y.len() * down;
        if self.samples.len() < samples {
            self.samples.try_reserve(samples - self.samples.len()).ok()?;
            self.samples.resize(samples, 0);
        }
        Some(())
    }

    /// Writes a block at `place`, in blocks across and down.
    #[inline(always)]
    pub(crate) fn put(&mut self, place: [usize; 2], samples: &[u8; SIDE * SIDE]) {
        let start = place[1] * SIDE * self.stride + place[0] * SIDE;
        let end = start + (SIDE - 1) * self.stride + SIDE;
        let rows = self.samples[start..end].chunks_mut(self.stride);
        for (row, from) in rows.zip(samples.as_chunks::<SIDE>().0) {
            row[..SIDE].copy_from_slice(from);
        }
    }

    /// A row of the component, clamped to the first and last row of the image.
    fn row(&self, y: usize) -> &[u8] {
        let y = y.clamp(self.y.start, self.y.end - 1) - self.y.start;
        &self.samples[y * self.stride..][..self.x.len()]
    }
}

/// Upsamples chroma and converts to RGB.
#[derive(Debug, Default)]
pub(crate) struct ColourConverter {
    /// A row of each chroma component at twice its width.
    wide: [Vec<u8>; 2],
    sums: Vec<u16>,
}

impl ColourConverter {
    pub(crate) fn rows(
        &mut self,
        frame: &JpegHeaders<'_>,
        planes: &[ComponentPlane; 3],
        x: Range<usize>,
        y: Range<usize>,
        rgb: &mut [u8],
    ) {
        let [brightness, colours @ ..] = planes;
        let columns = x.start - brightness.x.start..x.end - brightness.x.start;
        for (y, rgb) in y.zip(rgb.chunks_exact_mut(x.len() * 3)) {
            let luma = &brightness.row(y)[columns.clone()];
            let [first, .., last] = frame.components() else {
                for (to, &grey) in rgb.as_chunks_mut::<3>().0.iter_mut().zip(luma) {
                    *to = [grey; 3];
                }
                continue;
            };
            let chroma = match (first.across / last.across, first.down / last.down) {
                (1, _) => colours.each_ref().map(|plane| &plane.row(y)[columns.clone()]),
                (_, 1) => {
                    self.widen(colours, |plane, wide, _| {
                        let row = plane.row(y);
                        ROUTINES.fancy_upsample_h2v1(row, row.len(), wide);
                    });
                    self.wide.each_ref().map(|row| &row[columns.clone()])
                }
                _ => {
                    self.widen(colours, |plane, wide, sums| {
                        // The nearer chroma row, and the next one.
                        let next =
                            if y.is_multiple_of(2) { (y / 2).saturating_sub(1) } else { y / 2 + 1 };
                        interpolate(plane.row(y / 2), plane.row(next), sums, wide);
                    });
                    self.wide.each_ref().map(|row| &row[columns.clone()])
                }
            };
            ROUTINES.ycbcr_to_rgb_row(luma, chroma[0], chroma[1], rgb, luma.len());
        }
    }

    fn widen(
        &mut self,
        colours: &[ComponentPlane; 2],
        widen: impl Fn(&ComponentPlane, &mut [u8], &mut [u16]),
    ) {
        for (plane, wide) in colours.iter().zip(&mut self.wide) {
            let samples = plane.x.len();
            wide.resize(wide.len().max(samples * 2), 0);
            self.sums.resize(self.sums.len().max(samples), 0);
            widen(plane, &mut wide[..samples * 2], &mut self.sums[..samples]);
        }
    }
}

/// Doubles the width of one row, between two rows at half resolution: libjpeg's triangle filter
/// (`h2v2_fancy_upsample`, jdsample.c). Needs at least two samples.
fn interpolate(near: &[u8], next: &[u8], sums: &mut [u16], wide: &mut [u8]) {
    struct Work<'a>(&'a [u8], &'a [u8], &'a mut [u16], &'a mut [u8]);
    impl pulp::NullaryFnOnce for Work<'_> {
        type Output = ();
        #[inline(always)]
        fn call(self) {
            let Work(near, next, sums, wide) = self;
            for ((sum, &near), &next) in sums.iter_mut().zip(near).zip(next) {
                *sum = u16::from(near) * 3 + u16::from(next);
            }
            let last = sums.len() - 1;
            let (pairs, _) = wide.as_chunks_mut::<2>();
            pairs[0] = [(sums[0] * 4 + 8) >> 4, (sums[0] * 3 + sums[1] + 7) >> 4].map(|v| v as u8);
            pairs[last] = [(sums[last] * 3 + sums[last - 1] + 8) >> 4, (sums[last] * 4 + 7) >> 4]
                .map(|v| v as u8);
            let inner = &mut pairs[1..last];
            let (left, this, right) = (&sums[..last - 1], &sums[1..last], &sums[2..]);
            for (((to, &this), &left), &right) in inner.iter_mut().zip(this).zip(left).zip(right) {
                *to = [(this * 3 + left + 8) >> 4, (this * 3 + right + 7) >> 4].map(|v| v as u8);
            }
        }
    }
    pulp::Arch::new().dispatch(Work(near, next, sums, wide));
}
