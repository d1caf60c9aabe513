//! Window decoding: selects the blocks that a window needs and decodes them.

use crate::{
    entropy::{BitReader, CoefficientBlock, ScanSegments},
    frame::{JpegComponent, JpegHeaders, SIDE},
    huffman::{AcTable, DcTable, HuffmanSlot},
};

use libjpeg_turbo_rs::simd::{SimdRoutines, detect};
use std::{fmt, ops::Range, sync::LazyLock};

/// Transforms for this machine's vector unit.
pub(crate) static ROUTINES: LazyLock<SimdRoutines> = LazyLock::new(detect);

/// Columns decoded around a window for chroma interpolation. Two would do, but libjpeg treats rows of
/// fewer than three samples as a special case.
const AROUND: usize = 8;

/// Decodes images one after the other, reusing memory. Results do not depend on earlier images.
#[derive(Default)]
pub struct JpegDecoder {
    dc: [HuffmanSlot<DcTable>; 4],
    ac: [HuffmanSlot<AcTable>; 4],
    segments: ScanSegments,
    planes: [ComponentPlane; 3],
    colour: ColourConverter,
}

impl fmt::Debug for JpegDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").finish_non_exhaustive()
    }
}

/// Most blocks in a unit.
const MOST_BLOCKS: usize = 6;

/// Tables and position of one block of a unit.
#[derive(Clone, Copy)]
struct BlockPlan<'a> {
    component: usize,
    dc: &'a DcTable,
    ac: &'a AcTable,
    quantisation: &'a [u16; 64],
    /// Position of this block among the component's blocks in a unit, across and down, and their number.
    place: [usize; 2],
    places: [usize; 2],
}

/// The units that a window needs.
struct Units {
    x: Range<usize>,
    y: Range<usize>,
    /// Units per row of the image.
    across: usize,
}

impl Units {
    fn new(frame: &JpegHeaders<'_>, x: &Range<usize>, y: &Range<usize>) -> Units {
        let [height, width] = frame.unit();
        let [rows, across] = [frame.height.div_ceil(height), frame.width.div_ceil(width)];
        let around = |pixels: &Range<usize>, unit: usize, units: usize| {
            let end = (pixels.end + AROUND).div_ceil(unit).min(units);
            pixels.start.saturating_sub(AROUND) / unit..end
        };
        Units { x: around(x, width, across), y: around(y, height, rows), across }
    }
}

impl JpegDecoder {
    /// Decodes columns `x` and rows `y` to RGB: `rgb` is u8 `[y.len(), x.len(), 3]`. `None` if the image
    /// is damaged; `rgb` is then undefined. Damage below the window is not detected, truncation is.
    ///
    /// # Panics
    /// If the window is not inside the image, or `rgb` not of its size.
    pub fn decode(
        &mut self,
        frame: &JpegHeaders<'_>,
        x: Range<usize>,
        y: Range<usize>,
        rgb: &mut [u8],
    ) -> Option<()> {
        assert!(x.start < x.end && x.end <= frame.width, "columns {x:?} of {}", frame.width);
        assert!(y.start < y.end && y.end <= frame.height, "rows {y:?} of {}", frame.height);
        assert_eq!(rgb.len(), x.len() * y.len() * 3, "a window of {x:?} and {y:?}");
        self.segments.fill(frame.scan, frame.restart > 0)?;
        for component in frame.components() {
            self.dc.get_mut(component.dc)?.define(frame.dc[component.dc]?);
            self.ac.get_mut(component.ac)?.define(frame.ac[component.ac]?);
        }
        let units = Units::new(frame, &x, &y);
        for (plane, component) in self.planes.iter_mut().zip(frame.components()) {
            plane.cover(frame, component, &units.x, &units.y)?;
        }
        let mut plans = [None; MOST_BLOCKS];
        for (plan, to) in blocks(frame, &self.dc, &self.ac).zip(&mut plans) {
            *to = Some(plan?);
        }
        read_units(frame, &units, &plans, &self.segments, &mut self.planes)?;
        self.colour.rows(frame, &self.planes, x, y, rgb);
        Some(())
    }
}

/// The blocks of a unit, in coded order.
fn blocks<'a>(
    frame: &'a JpegHeaders<'_>,
    dc: &'a [HuffmanSlot<DcTable>; 4],
    ac: &'a [HuffmanSlot<AcTable>; 4],
) -> impl Iterator<Item = Option<BlockPlan<'a>>> {
    frame.components().iter().enumerate().flat_map(move |(index, component)| {
        let &JpegComponent { across, down, .. } = component;
        let plan = move |place| {
            Some(BlockPlan {
                component: index,
                dc: dc[component.dc].table()?,
                ac: ac[component.ac].table()?,
                quantisation: frame.quantisation(component)?,
                place,
                places: [across, down],
            })
        };
        (0..across * down).map(move |at| plan([at % across, at / across]))
    })
}

/// Parses units from the top to the window's last row; decodes those inside the window.
fn read_units(
    frame: &JpegHeaders<'_>,
    units: &Units,
    plans: &[Option<BlockPlan<'_>>; MOST_BLOCKS],
    segments: &ScanSegments,
    planes: &mut [ComponentPlane; 3],
) -> Option<()> {
    let mut ranges = segments.ranges();
    let mut bits = BitReader::new(segments.bytes(), ranges.next()?);
    let (mut means, mut until_restart) = ([0_i16; 3], frame.restart);
    let mut block: CoefficientBlock = [0; 128];
    for y in 0..units.y.end {
        for x in 0..units.across {
            if frame.restart > 0 {
                if until_restart == 0 {
                    bits.sufficed().then_some(())?;
                    bits = BitReader::new(segments.bytes(), ranges.next()?);
                    (means, until_restart) = ([0; 3], frame.restart);
                }
                until_restart -= 1;
            }
            let inside = y >= units.y.start && units.x.contains(&x);
            for plan in plans.iter().flatten() {
                let mean = &mut means[plan.component];
                *mean = mean.wrapping_add(bits.difference(plan.dc)?);
                if !inside {
                    bits.coefficients::<false>(plan.ac, &mut block)?;
                    continue;
                }
                block[..64].fill(0);
                block[0] = *mean;
                bits.coefficients::<true>(plan.ac, &mut block)?;
                let mut samples = [0; SIDE * SIDE];
                let coefficients = block.first_chunk::<64>()?;
                (ROUTINES.idct_islow)(coefficients, plan.quantisation, &mut samples);
                let ([across, down], [column, row]) = (plan.places, plan.place);
                let column = (x - units.x.start) * across + column;
                let row = (y - units.y.start) * down + row;
                planes[plan.component].put([column, row], &samples);
            }
        }
    }
    bits.sufficed().then_some(())
}

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
