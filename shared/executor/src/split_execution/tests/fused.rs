//! A fused step produces the same bytes as its two operators.

use super::*;
use jpeg_encoder::SamplingFactor;

/// The operators of ResNet with this `decode` and its crop, fused, and without fusing: a step between them
/// does nothing.
fn assert_same_if_apart(decode: &str, records: &[Vec<u8>]) {
    for filter in ["", ", interpolation: bicubic"] {
        let resnet = RESNET.replace("size: 24 }", &format!("size: 24{filter} }}"));
        let yaml =
            |between: &str| resnet.replace("  - decode\n", &format!("  - {decode}\n{between}"));
        let fused = Bench::new(&yaml(""), records).all();
        let mut apart = Bench::new(&yaml("  - sleep: { ms: 0 }\n"), records);
        assert_eq!(fused.metrics[1].op, "decode+random_resized_crop");
        assert_eq!(rows(&fused).len(), records.len());
        // The step between shifts the ordinals that key the draws: shift them back.
        for step in &mut apart.program.steps {
            step.ordinal = step.ordinal.saturating_sub(1);
        }
        assert_eq!(apart.program.steps.len(), 4);
        assert!(rows(&apart.all()) == rows(&fused), "fused and apart differ{filter}");
    }
}

fn encoded(
    (width, height): (u16, u16),
    components: usize,
    sampling: SamplingFactor,
    restart: Option<u16>,
    progressive: bool,
) -> Vec<u8> {
    let pixels = picture(u32::from(width) + u32::from(height), width, height, components);
    let mut jpeg = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut jpeg, 85);
    encoder.set_sampling_factor(sampling);
    encoder.set_progressive(progressive);
    if let Some(interval) = restart {
        encoder.set_restart_interval(interval);
    }
    let kind = match components {
        1 => jpeg_encoder::ColorType::Luma,
        _ => jpeg_encoder::ColorType::Rgb,
    };
    encoder.encode(&pixels, width, height, kind).unwrap();
    jpeg
}

#[test]
fn a_window_decoded_alone_is_that_of_the_whole_image() {
    use SamplingFactor::{R_4_1_1, R_4_2_0, R_4_2_2, R_4_4_0, R_4_4_1, R_4_4_4};
    let mut images = Vec::new();
    for size in [(200, 150), (97, 61), (64, 64), (33, 170), (9, 7), (1, 1)] {
        for sampling in [R_4_4_4, R_4_2_2, R_4_4_0, R_4_2_0, R_4_1_1, R_4_4_1] {
            images.push(encoded(size, 3, sampling, None, false));
        }
        images.push(encoded(size, 1, R_4_4_4, None, false));
        images.push(encoded(size, 3, R_4_2_0, Some(3), false));
        images.push(encoded(size, 3, R_4_2_0, None, true));
        // Cameras append data to files.
        let appended = [encoded(size, 3, R_4_2_0, None, false), vec![0; 1000]].concat();
        images.push(appended);
    }
    // Six windows of each image.
    let records: Vec<Vec<u8>> =
        images.iter().flat_map(|image| vec![image_record(image, 1); 6]).collect();
    assert_same_if_apart("decode", &records);
}

#[test]
fn a_window_is_that_of_the_image_turned_upright() {
    let images = (1_u8..9).flat_map(|orientation| {
        // EXIF of a single entry.
        let exif = b"\xff\xe1\0\x22Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0";
        let jpeg = encoded((97, 61), 3, SamplingFactor::R_4_2_0, None, orientation == 4);
        let turned = [&jpeg[..2], exif, &[orientation], &[0; 7], &jpeg[2..]].concat();
        vec![image_record(&turned, 1); 6]
    });
    let records: Vec<Vec<u8>> = images.collect();
    assert_same_if_apart("decode: { apply_exif_orientation: true }", &records);
}

#[test]
fn grey_images_are_decoded_and_cropped_apart() {
    let yaml = RESNET.replace("  - decode\n", "  - decode: { channels: 1 }\n");
    let bench = Bench::new(&yaml, &image_records(4));
    assert_eq!(bench.program.steps().next(), Some("decode"));
    let frame = &frames(&bench.all())[0];
    assert_eq!(frame.get("image").unwrap().shape(), [4, 24, 24, 1]);
}

#[test]
fn a_bare_loop_runs_every_kernel_over_every_record() {
    let bench = Bench::new(RESNET, &image_records(5));
    let mut scratch = bench.program.scratch();
    let part = bench.input(0, 5).parts.remove(0);
    let copied = bench.program.run_kernels(&mut scratch, &part, 0).unwrap();
    assert_eq!(copied, 5 * (24 * 24 * 3 + 8));
    let twice =
        RESNET.replace("  - random_resized", "  - duplicate: { copies: 2 }\n  - random_resized");
    let twice = Bench::new(&twice, &image_records(5));
    let copied = twice.program.run_kernels(&mut twice.program.scratch(), &part, 0).unwrap();
    assert_eq!(copied, 2 * 5 * (24 * 24 * 3 + 8));
    let filtered = RESNET.replace("  - flip", "  - filter: { field: label, min: 1 }");
    let filtered = Bench::new(&filtered, &image_records(5));
    assert!(filtered.program.run_kernels(&mut filtered.program.scratch(), &part, 0).is_err());
}
