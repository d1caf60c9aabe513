//! Window decoding: selects the blocks that a window needs and decodes them.

use crate::{
    entropy::{BitReader, CoefficientBlock},
    frame::{JpegComponent, JpegHeaders, SIDE},
    huffman::{AcTable, DcTable, HuffmanSlot},
    pixels::{ColourConverter, ComponentPlane},
    segments::ScanSegments,
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
