//! JPEGs that the library refuses, rewritten by their coefficients as ones that it reads.

use libjpeg_turbo_rs::{
    ComponentCoefficients, Decoder, JpegCoefficients, JpegError, PixelFormat,
    decode::{
        marker::{JpegMetadata, MarkerReader},
        toggles::{compute_coef_bits, smoothing_useful_for_component},
    },
    read_coefficients, write_coefficients_optimized,
};

/// Largest image, in pixels: 100 MB of coefficients, of which copies are made.
pub(super) const MAX_PIXELS: usize = super::MAX_PIXELS as usize / 8;

/// Most components of an image that is read, and so its most sequential scans.
const MAX_COMPONENTS: usize = 4;

/// An error if a progressive image lacks scans: what libjpeg puts in their place is not made here.
fn refuse_missing_scans(jpeg: &[u8]) -> Result<(), JpegError> {
    let JpegMetadata { frame, scans, .. } = MarkerReader::new(jpeg).read_markers()?;
    let lacking = compute_coef_bits(&scans, &frame);
    if frame.is_progressive && lacking.iter().any(smoothing_useful_for_component) {
        return Err(JpegError::Unsupported("a CMYK or arithmetic image that lacks scans".into()));
    }
    Ok(())
}

/// As [`refuse_missing_scans`], of an image of progressive arithmetic coding alone.
pub(super) fn check_arithmetic(jpeg: &[u8]) -> Result<(), JpegError> {
    let is_arithmetic = segments(jpeg, false).any(|(code, _)| code == 0xca);
    if is_arithmetic { refuse_missing_scans(jpeg) } else { Ok(()) }
}

/// The samples of each component of an image with at least three, one per pixel.
pub(super) fn planes(jpeg: &[u8]) -> Result<Vec<Vec<u8>>, JpegError> {
    refuse_missing_scans(jpeg)?;
    let all = read_coefficients(jpeg)?;
    let count = all.components.len();
    let most = |factor: fn(&ComponentCoefficients) -> u8| {
        (0..count).max_by_key(|at| factor(&all.components[*at])).unwrap_or_default()
    };
    let largest = [most(|component| component.h_sampling), most(|component| component.v_sampling)];
    let plane = |at| {
        // As red of an RGB image. Two other components keep its size.
        let mut chosen = vec![at];
        for other in largest.into_iter().chain(0..count) {
            if chosen.len() < 3 && !chosen.contains(&other) {
                chosen.push(other);
            }
        }
        let mut rgb = JpegCoefficients {
            components: chosen.into_iter().map(|at| all.components[at].clone()).collect(),
            quant_tables: all.quant_tables.clone(),
            saw_jfif_marker: false,
            adobe_transform: Some(0),
            ..all
        };
        for (component, id) in rgb.components.iter_mut().zip(1..) {
            component.component_id = id;
        }
        let rgb = write_coefficients_optimized(&rgb)?;
        let pixels = Decoder::new(&rgb)?.with_output_format(PixelFormat::Rgb).decode_image()?.data;
        Ok(pixels.into_iter().step_by(3).collect())
    };
    (0..count).map(plane).collect()
}

/// A segment of a file: its marker's code, and itself with that marker.
type Segment<'a> = (u8, &'a [u8]);

/// The segments up to the end of the image, or to its first scan. A scan has its data.
pub(super) fn segments(jpeg: &[u8], with_scans: bool) -> impl Iterator<Item = Segment<'_>> {
    let mut at = 2;
    std::iter::from_fn(move || {
        while jpeg.get(at..at + 2)? == [0xff, 0xff] {
            at += 1;
        }
        let [0xff, code, high, low] = *jpeg.get(at..)?.first_chunk()? else { return None };
        let mut end = at + 2 + usize::from(u16::from_be_bytes([high, low]));
        if code == 0xda && !with_scans {
            return None;
        } else if code == 0xda {
            let marker =
                |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 0xd0..=0xd7 | 0xff);
            end += jpeg.get(end..)?.windows(2).position(marker)?;
        }
        let segment = jpeg.get(at..end)?;
        at = end;
        (code != 0xd9).then_some((code, segment))
    })
}

/// A file of one scan that equals this one of several sequential scans. None for other files, and for
/// damaged ones.
pub(super) fn in_one_scan(jpeg: &[u8]) -> Option<Vec<u8>> {
    let (_, frame) = segments(jpeg, false).find(|(code, _)| matches!(code, 0xc0 | 0xc1))?;
    let all: Vec<Segment<'_>> = segments(jpeg, true).collect();
    let scans = (0..all.len()).filter(|at| all[*at].0 == 0xda);
    let [_, _, _, _, _, h1, h0, w1, w0, _, components @ ..] = frame else { return None };
    let [height, width] = [[*h1, *h0], [*w1, *w0]].map(u16::from_be_bytes);
    let pixels = usize::from(width) * usize::from(height);
    let is_small = (1..=MAX_PIXELS).contains(&pixels) && components.len() <= 3 * MAX_COMPONENTS;
    if scans.clone().count() < 2 || !is_small {
        return None;
    }
    let parts: Vec<JpegCoefficients> = scans
        .take(MAX_COMPONENTS)
        .map(|scan| scan_alone(&all, scan, frame))
        .collect::<Option<_>>()?;
    let unit = largest_factors(components).map(|factor| factor * 8);
    let across = usize::from(width).div_ceil(unit[0]);
    let down = usize::from(height).div_ceil(unit[1]);
    let whole = |&[id, factors, _]: &[u8; 3]| {
        let mut parts = parts.iter().flat_map(|part| &part.components);
        let part = parts.find(|part| part.component_id == id)?;
        let blocks_x = across * usize::from(factors >> 4);
        let blocks_y = down * usize::from(factors & 15);
        let mut blocks = vec![[0; 64]; blocks_x * blocks_y];
        let rows = blocks.chunks_exact_mut(blocks_x).zip(part.blocks.chunks_exact(part.blocks_x));
        rows.for_each(|(to, from)| to[..part.blocks_x].copy_from_slice(from));
        Some(ComponentCoefficients { blocks, blocks_x, blocks_y, ..part.clone() })
    };
    let components = components.as_chunks().0.iter().map(whole).collect::<Option<_>>()?;
    let first = parts.first()?.clone();
    let whole = JpegCoefficients { width, height, components, restart_interval: 0, ..first };
    write_coefficients_optimized(&whole).ok()
}

/// The largest sampling factors, across and down, of a frame's components.
fn largest_factors(components: &[u8]) -> [usize; 2] {
    let factors = components.as_chunks::<3>().0.iter().map(|component| component[1]);
    factors.fold([1, 1], |[across, down], factors| {
        [across.max(usize::from(factors >> 4)), down.max(usize::from(factors & 15))]
    })
}

/// The coefficients of one scan, read from a file of its components alone.
fn scan_alone(all: &[Segment<'_>], scan: usize, frame: &[u8]) -> Option<JpegCoefficients> {
    let [_, _, _, _, precision, h1, h0, w1, w0, _, components @ ..] = frame else { return None };
    let count = usize::from(*all[scan].1.get(4)?);
    let ids = all[scan].1.get(5..)?.as_chunks::<2>().0.iter().take(count).map(|[id, _]| *id);
    let ids: Vec<u8> = ids.collect();
    let chosen = components.as_chunks::<3>().0.iter().filter(|[id, ..]| ids.contains(id));
    let chosen: Vec<u8> = chosen.flatten().copied().collect();
    let (most, ours) = (largest_factors(components), largest_factors(&chosen));
    let side = |bytes, at: usize| {
        let side = usize::from(u16::from_be_bytes(bytes)) * ours[at];
        (side.div_ceil(most[at]) as u16).to_be_bytes()
    };
    let ([height, width], chosen_count) = ([side([*h1, *h0], 1), side([*w1, *w0], 0)], ids.len());
    let mut file = vec![0xff, 0xd8];
    for (at, (code, segment)) in all.iter().enumerate() {
        // Quantisation tables of later scans too, so that their numbers agree.
        if *code == 0xdb || at < scan && matches!(code, 0xc4 | 0xdd | 0xe0 | 0xee) {
            file.extend(*segment);
        }
    }
    file.extend([0xff, 0xc1, 0, 8 + chosen.len() as u8, *precision]);
    file.extend([height, width].as_flattened());
    file.push(chosen_count as u8);
    file.extend(chosen);
    file.extend(all[scan].1);
    file.extend([0xff, 0xd9]);
    read_coefficients(&file).ok()
}
