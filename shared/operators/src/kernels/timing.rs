//! Times of kernels, printed and not asserted: `taskset -c 0 cargo test --release -p gristmill-operators
//! timing -- --ignored --nocapture --test-threads 1`.

use crate::{
    image::{
        color_jitter::kernel::{self as color_jitter, Change},
        gaussian_blur::kernel::Blur,
        grayscale::kernel::Grey,
    },
    number::scale::kernel::ScaleBy,
    prelude::*,
};
use gristmill_kernel::{Draw, DrawKey, InPlace, Sink, Tools, Transform, View};
use gristmill_model::RecordKey;
use std::time::Instant;

const SIDE: usize = 224;

fn picture() -> Vec<u8> {
    let at = |i: usize| ((i * 7 + i / 672 * 13 + (i * i) % 31) % 256) as u8;
    (0..SIDE * SIDE * 3).map(at).collect()
}

fn floats() -> Vec<u8> {
    picture().iter().flat_map(|x| (f32::from(*x) / 255.0).to_le_bytes()).collect()
}

fn draw() -> Draw {
    let record = RecordKey { file: 0, record: 0 };
    DrawKey { seed: 0, epoch: 0, record, repeat: 0, copy: 0, ordinal: 0 }.draw()
}

/// Prints the best time of 200 rounds, in microseconds.
fn time(what: &str, mut work: impl FnMut()) {
    let mut best = f64::INFINITY;
    for _ in 0..200 {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64() * 1e6);
    }
    println!("{what:40} {best:8.1} us");
}

fn transform(what: &str, kernel: &dyn Transform, bytes: &[u8]) {
    let (mut out, mut tools) = (Vec::new(), Tools::default());
    let view = View { bytes, size: [SIDE, SIDE] };
    time(what, || {
        kernel.run(view, Sink::Buffer(&mut out), &mut tools, &mut draw()).unwrap();
    });
}

fn in_place(what: &str, kernel: &dyn InPlace, bytes: &[u8]) {
    let (mut value, mut tools) = (bytes.to_vec(), Tools::default());
    time(what, || kernel.run(&mut value, [SIDE, SIDE], &mut tools, &mut draw()).unwrap());
}

#[test]
#[ignore = "to be read"]
fn timing_of_colours() {
    use Change::{Brightness, Contrast, Hue, Saturation};
    let all = [Brightness(1.1), Contrast(0.8), Saturation(1.2), Hue(0.1)];
    let other = [Hue(0.1), Saturation(1.2), Contrast(0.8), Brightness(1.1)];
    let nothing = Hue(0.0);
    for (dtype, pixels) in [(DType::U8, picture()), (DType::F32, floats())] {
        let mut value = pixels.clone();
        let mut jitter = |what: &str, changes: [Change; 4]| {
            time(&format!("color_jitter {what} {dtype}"), || {
                color_jitter::apply(&changes, dtype, &mut value);
            });
        };
        jitter("b c s h", all);
        jitter("h s c b", other);
        jitter("b", [all[0], nothing, nothing, nothing]);
        jitter("c", [all[1], nothing, nothing, nothing]);
        jitter("s", [all[2], nothing, nothing, nothing]);
        jitter("h", [all[3], nothing, nothing, nothing]);
        in_place(&format!("grayscale {dtype}"), &Grey { p: 1.0, dtype }, &pixels);
    }
}

#[test]
#[ignore = "to be read"]
fn timing_of_blur_and_scale() {
    for (dtype, pixels) in [(DType::U8, picture()), (DType::F32, floats())] {
        for sigma in [0.3, 0.5, 1.0, 1.5, 2.0, 5.0] {
            let (field, bounds) = ("image".into(), [sigma, sigma]);
            let op = GaussianBlur { field, kernel_size: 23, sigma: bounds, p: 1.0 };
            let blur = Blur::new(&op, dtype, 3);
            in_place(&format!("gaussian_blur 23, sigma {sigma} {dtype}"), &blur, &pixels);
        }
        let op = Scale { field: "image".into(), factor: 1.0 / 255.0, offset: 0.0 };
        transform(&format!("scale {dtype}"), &ScaleBy::new(&op, dtype), &pixels);
    }
}
