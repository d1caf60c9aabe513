//! Compares every pixel and every refusal with libjpeg-turbo-rs.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::{JpegDecoder, JpegHeaders};
use libjpeg_turbo_rs::{ColorSpace, DecodeWarning, Encoder, JpegError, PixelFormat, Subsampling};
use proptest::prelude::*;
use std::ops::Range;

#[derive(Clone, Debug)]
struct Picture {
    width: u16,
    height: u16,
    /// Colour, or grey.
    colour: bool,
    quality: u8,
    subsampling: Subsampling,
    restart: u16,
    optimised: bool,
    /// Amount of noise; 0 is a single colour.
    noise: u32,
    seed: u32,
}

impl Picture {
    fn jpeg(&self) -> Vec<u8> {
        let channels = if self.colour { 3 } else { 1 };
        let mut state = self.seed | 1;
        let pixels: Vec<u8> = (0..usize::from(self.width) * usize::from(self.height) * channels)
            .map(|i| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let noise = (state >> 16) * self.noise / 65_536;
                (i as u32 / 7 % 200 * self.noise.min(1) + noise % 256) as u8
            })
            .collect();
        let format = if self.colour { PixelFormat::Rgb } else { PixelFormat::Grayscale };
        let encoder = Encoder::new(&pixels, self.width.into(), self.height.into(), format)
            .quality(self.quality)
            .subsampling(self.subsampling)
            .restart_blocks(self.restart)
            .optimize_huffman(self.optimised);
        encoder.encode().unwrap()
    }
}

fn pictures() -> impl Strategy<Value = Picture> {
    let size = (1_u16..90, 1_u16..90);
    let subsampling =
        prop_oneof![Just(Subsampling::S444), Just(Subsampling::S422), Just(Subsampling::S420),];
    let coding = (1_u8..=100, subsampling, prop_oneof![Just(0), 1_u16..9], any::<bool>());
    let noise = prop_oneof![Just(0_u32), 1_u32..30, Just(256)];
    (size, any::<bool>(), coding, noise, any::<u32>()).prop_map(
        |((width, height), colour, (quality, subsampling, restart, optimised), noise, seed)| {
            Picture { width, height, colour, quality, subsampling, restart, optimised, noise, seed }
        },
    )
}

/// The whole image, if the library decodes it without warnings.
fn by_library(jpeg: &[u8]) -> Result<Vec<u8>, JpegError> {
    let mut decoder = libjpeg_turbo_rs::Decoder::new(jpeg)?;
    decoder.set_output_format(PixelFormat::Rgb);
    let image = decoder.decode_image()?;
    let harmless =
        |warning: &DecodeWarning| matches!(warning, DecodeWarning::ExtraneousData { .. });
    if image.warnings.iter().all(harmless) { Ok(image.data) } else { Err(JpegError::UnexpectedEof) }
}

fn by_us(decoder: &mut JpegDecoder, jpeg: &[u8]) -> Option<Vec<u8>> {
    let frame = JpegHeaders::find(jpeg)?;
    window(decoder, &frame, 0..frame.width, 0..frame.height)
}

fn window(
    decoder: &mut JpegDecoder,
    frame: &JpegHeaders<'_>,
    x: Range<usize>,
    y: Range<usize>,
) -> Option<Vec<u8>> {
    let mut rgb = vec![0; x.len() * y.len() * 3];
    decoder.decode(frame, x, y, &mut rgb).map(|()| rgb)
}

/// Part of `length`, from two numbers.
fn part(length: usize, [from, to]: [u16; 2]) -> Range<usize> {
    let start = usize::from(from) % length;
    start..start + 1 + usize::from(to) % (length - start)
}

proptest! {
    #[test]
    fn every_picture_is_what_the_library_makes_of_it(
        pictures in prop::collection::vec(pictures(), 1..4),
    ) {
        // One decoder for all, to expose state that leaks from one image into the next.
        let mut decoder = JpegDecoder::default();
        for picture in pictures {
            let jpeg = picture.jpeg();
            let expected = by_library(&jpeg);
            prop_assert!(expected.is_ok());
            let across = if picture.subsampling == Subsampling::S444 { 1 } else { 2 };
            if picture.colour && picture.width.div_ceil(across) < 3 {
                prop_assert!(JpegHeaders::find(&jpeg).is_none());
            } else {
                prop_assert_eq!(by_us(&mut decoder, &jpeg), expected.ok());
            }
        }
    }

    /// Adobe's marker decides the colours, also if more follows in it.
    #[test]
    fn a_picture_with_application_markers_is_what_the_library_makes_of_it(
        picture in pictures(),
        markers in prop::collection::vec((0_usize..20, 0_u8..3, any::<bool>()), 0..3),
        keeps_jfif in any::<bool>(),
    ) {
        let jpeg = picture.jpeg();
        // The encoder's first marker is JFIF's.
        let jfif = 4 + usize::from(jpeg[5]);
        let mut with = jpeg[..if keeps_jfif { jfif } else { 2 }].to_vec();
        for (length, transform, is_adobe) in markers {
            let mut body = [*b"Adobe", [0, 100, 0, 0, 0], [0, transform, 7, 7, 7], [7; 5]].concat();
            body.truncate(length);
            with.extend([0xff, if is_adobe { 0xee } else { 0xed }, 0, length as u8 + 2]);
            with.extend(body);
        }
        with.extend(&jpeg[jfif..]);
        if let Some(ours) = by_us(&mut JpegDecoder::default(), &with) {
            prop_assert_eq!(Some(ours), by_library(&with).ok());
        }
    }

    #[test]
    fn a_window_is_a_part_of_the_whole(
        picture in pictures(),
        windows in prop::collection::vec(any::<[[u16; 2]; 2]>(), 1..6),
    ) {
        let jpeg = picture.jpeg();
        let whole = by_library(&jpeg).unwrap();
        let mut decoder = JpegDecoder::default();
        let Some(frame) = JpegHeaders::find(&jpeg) else { return Ok(()) };
        for [x, y] in windows {
            let (x, y) = (part(frame.width, x), part(frame.height, y));
            let rows = whole.chunks(frame.width * 3);
            let rows = rows.skip(y.start).take(y.len());
            let expected: Vec<u8> =
                rows.flat_map(|row| &row[x.start * 3..x.end * 3]).copied().collect();
            prop_assert_eq!(window(&mut decoder, &frame, x, y), Some(expected));
        }
    }

    /// A damaged image is refused, or decoded exactly as the library does.
    #[test]
    fn a_damaged_picture_is_refused_or_what_the_library_makes_of_it(
        picture in pictures(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        in_scan in any::<bool>(),
    ) {
        let mut jpeg = picture.jpeg();
        let scan = JpegHeaders::find(&jpeg).map_or(0, |frame| jpeg.len() - frame.scan.len());
        for (at, byte) in damage {
            let start = if in_scan { scan } else { 0 };
            let at = start + at.index(jpeg.len() - start);
            jpeg[at] = byte;
        }
        if let Some(pixels) = by_us(&mut JpegDecoder::default(), &jpeg) {
            let expected = by_library(&jpeg);
            prop_assert!(expected.as_ref().is_ok_and(|expected| *expected == pixels), "{expected:?}");
        }
    }

    #[test]
    fn a_picture_that_is_cut_short_is_refused(picture in pictures(), at in any::<prop::sample::Index>()) {
        let jpeg = picture.jpeg();
        let cut = at.index(jpeg.len());
        prop_assert_eq!(by_us(&mut JpegDecoder::default(), &jpeg[..cut]), None);
    }
}

#[test]
fn unsupported_jpegs_are_left_to_the_library() {
    let pixels = vec![100; 40 * 40 * 4];
    let jpeg = |change: fn(Encoder<'_>) -> Encoder<'_>, format, bytes: usize| {
        change(Encoder::new(&pixels[..40 * 40 * bytes], 40, 40, format)).encode().unwrap()
    };
    let rgb = |change| jpeg(change, PixelFormat::Rgb, 3);
    assert!(JpegHeaders::find(&rgb(|encoder| encoder)).is_some());
    for jpeg in [
        rgb(|encoder| encoder.progressive(true)),
        rgb(|encoder| encoder.arithmetic(true)),
        rgb(|encoder| encoder.lossless(true)),
        rgb(|encoder| encoder.subsampling(Subsampling::S440)),
        rgb(|encoder| encoder.subsampling(Subsampling::S411)),
        rgb(|encoder| encoder.colorspace(ColorSpace::Rgb)),
        jpeg(|encoder| encoder, PixelFormat::Cmyk, 4),
        b"\x89PNG".to_vec(),
        Vec::new(),
    ] {
        assert!(JpegHeaders::find(&jpeg).is_none());
    }
}
