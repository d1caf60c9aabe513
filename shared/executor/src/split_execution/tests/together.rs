//! Images, masks and boxes that one operator moves. Results match torchvision's v2 transforms
//! (stored in `tests/golden`, made by `scripts/make-golden together`), share one draw, and do not
//! depend on fusing.

use super::*;
use crate::PipelineCompiler;
use serde_json::Value;

pub(super) fn source(ops: &str) -> String {
    format!(
        "source:\n  tfrecord: x\n  features:\n    image: {{ dtype: bytes }}\n    mask: {{ dtype: bytes }}\n    \
         bbox: {{ dtype: f32, shape: [-1, 4] }}\n    cls: {{ dtype: i64, shape: [-1] }}\nops:\n{ops}"
    )
}

fn record(image: &[u8], mask: &[u8], boxes: &[f32], labels: &[i64]) -> Vec<u8> {
    example([
        ("image", bytes(image)),
        ("mask", bytes(mask)),
        ("bbox", floats(boxes)),
        ("cls", ints(labels)),
    ])
}

fn reals(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

fn whole(bytes: &[u8]) -> Vec<i64> {
    bytes.as_chunks().0.iter().map(|x| i64::from_le_bytes(*x)).collect()
}

fn png(width: u32, height: u32, color: png::ColorType, pixels: &[u8]) -> Vec<u8> {
    png_of(width, height, (color, png::BitDepth::Eight), pixels)
}

fn png_of(
    width: u32,
    height: u32,
    (color, depth): (png::ColorType, png::BitDepth),
    pixels: &[u8],
) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    if color == png::ColorType::Indexed {
        // All colours are equal: only indices distinguish pixels.
        encoder.set_palette(vec![90; 768]);
    }
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
    file
}

/// Values of a case, at the place that the index gives.
fn stored<'a>(place: &Value, all: &'a [u8]) -> &'a [u8] {
    let number = |key: &str| place[key].as_u64().unwrap() as usize;
    &all[number("at")..][..number("bytes")]
}

/// Differences between output and golden, if any. The tolerance for images follows from the goldens
/// of the single operators.
fn differences(frame: &ChunkFrame, wanted: &Value, all: &[u8], ops: &str) -> Vec<String> {
    let made = |name: &str| frame.get(name).unwrap().values().to_vec();
    let wanted = |name: &str| stored(&wanted[name], all);
    let mut wrong = Vec::new();
    let image = made("image");
    let worst = image.iter().zip(wanted("image")).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0);
    let turned = ops.contains("rotate") || ops.contains("shear");
    // A second resampling rounds once more. Nearest may pick either of two equally near pixels.
    let most = 1 + u8::from(ops.matches("resize").count() > 1 || ops.contains("bilinear"));
    let nearest = turned && !ops.contains("bilinear");
    let beyond = image.iter().zip(wanted("image")).filter(|(a, b)| a.abs_diff(**b) > most).count();
    let share = if nearest { 0.005 } else { 0.0 };
    if image.len() != wanted("image").len() || beyond as f64 > share * image.len() as f64 {
        wrong.push(format!("image: {worst} off"));
    }
    let mask = made("mask");
    let other = mask.iter().zip(wanted("mask")).filter(|(a, b)| a != b).count();
    let share = if turned { 0.005 } else { 0.0 };
    if mask.len() != wanted("mask").len() || other as f64 > share * mask.len() as f64 {
        wrong.push(format!("mask: {other} of {} values differ", mask.len()));
    }
    let (boxes, others) = (reals(&made("bbox")), reals(wanted("bbox")));
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= if turned { 1e-4 } else { 1e-5 };
    if boxes.len() != others.len() || !boxes.iter().zip(&others).all(near) {
        wrong.push(format!("boxes: {boxes:?}, not {others:?}"));
    }
    if made("cls") != wanted("cls") {
        wrong.push(format!("labels: {:?}, not {:?}", whole(&made("cls")), whole(wanted("cls"))));
    }
    wrong
}

#[test]
fn fields_move_together_as_torchvision_moves_them() {
    let index: Value =
        serde_json::from_str(include_str!("../../../../operators/tests/golden/together.json"))
            .unwrap();
    let all: &[u8] = include_bytes!("../../../../operators/tests/golden/together.bin");
    let mut wrong = Vec::new();
    for case in index["cases"].as_array().unwrap() {
        let given = |name: &str| stored(&case["given"][name], all);
        let dtype = case["mask_dtype"].as_str().unwrap();
        let mut ops =
            format!("  - decode\n  - decode: {{ field: mask, mode: indices, dtype: {dtype} }}\n");
        for op in case["ops"].as_array().unwrap() {
            ops.push_str(&format!("  - {op}\n"));
        }
        ops.push_str("  - batch: { size: 1, ragged: true }\n");
        let labels = whole(given("cls"));
        let record = record(given("image"), given("mask"), &reals(given("bbox")), &labels);
        let output = Bench::new(&source(&ops), &[record]).all();
        let found = differences(&frames(&output)[0], &case["wanted"], all, &ops);
        wrong.extend(found.iter().map(|why| format!("{}: {why}", case["ops"])));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Records whose images and masks encode positions: red is the column, green the row, and each mask
/// value is derived from both.
pub(super) fn distinct_records(n: u32, as_jpeg: bool) -> Vec<Vec<u8>> {
    let one = |i: u32| {
        let (width, height) = (40 + i % 5 * 7, 30 + i % 3 * 9);
        let at = |y: u32, x: u32| [x as u8, y as u8, (x * 3 + y * 5 + i) as u8];
        let places = (0..height).flat_map(|y| (0..width).map(move |x| (y, x)));
        let pixels: Vec<u8> = places.clone().flat_map(|(y, x)| at(y, x)).collect();
        let mask: Vec<u8> = places.map(|(y, x)| (y * 7 + x) as u8).collect();
        let image = if as_jpeg {
            encode(&pixels, width as u16, height as u16, jpeg_encoder::ColorType::Rgb)
        } else {
            png(width, height, png::ColorType::Rgb, &pixels)
        };
        let mask = png(width, height, png::ColorType::Indexed, &mask);
        let (right, bottom) = (width as f32 - 1.5, height as f32 - 2.0);
        let boxes = [3.0, 4.0, right, bottom, 5.0, 5.0, 20.0, 15.5, 0.0, 0.0, 2.0, 2.0];
        record(&image, &mask, &boxes, &[1, 2, 3])
    };
    (0..n).map(one).collect()
}

const BOTH: &str = "fields: [image, mask], boxes: [bbox], labels: [cls], min_area: 4";

/// Every value of every element, field by field.
fn elements(output: &SplitOutput) -> Vec<Vec<u8>> {
    let fields = ["image", "mask", "bbox", "cls"];
    let of =
        |frame: &ChunkFrame| fields.map(|name| frame.get(name).map(|view| view.values().to_vec()));
    frames(output).iter().flat_map(of).flatten().collect()
}

#[test]
fn fields_that_move_together_share_a_draw() {
    let records = distinct_records(12, false);
    let ops = |op: &str, size: [usize; 2]| {
        let [height, width] = size;
        source(&format!(
            "  - decode\n  - decode: {{ field: mask, mode: indices }}\n  - {op}\n  \
             - crop: {{ height: {height}, width: {width}, fields: [image, mask] }}\n  \
             - batch: {{ size: 1, ragged: true }}\n"
        ))
    };
    let run = |yaml: &str, record: &[u8], key: u32| {
        // The record's key keys its draws.
        let records: Vec<Vec<u8>> = (0..=key).map(|_| record.to_vec()).collect();
        Bench::new(yaml, &records).run(key, 1).unwrap()
    };
    let mut distinct = std::collections::BTreeSet::new();
    for (i, record) in records.iter().enumerate() {
        let key = i as u32;
        // The output of a random operator equals that of a fixed one at the position that the image
        // reveals.
        let yaml = ops(&format!("random_crop: {{ size: [12, 17], {BOTH} }}"), [12, 17]);
        let drawn = run(&yaml, record, key);
        let corner = frames(&drawn)[0].get("image").unwrap().values()[..2].to_vec();
        let (left, top) = (corner[0], corner[1]);
        distinct.insert((left, top));
        let fixed = format!("crop: {{ top: {top}, left: {left}, height: 12, width: 17, {BOTH} }}");
        assert_eq!(elements(&drawn), elements(&run(&ops(&fixed, [12, 17]), record, key)));
        let (width, height) = (40 + i % 5 * 7, 30 + i % 3 * 9);
        for op in ["flip", "vertical_flip"] {
            let drawn =
                run(&ops(&format!("{op}: {{ p: 0.5, {BOTH} }}"), [height, width]), record, key);
            let fixed = [0, 1].map(|p| {
                let yaml = ops(&format!("{op}: {{ p: {p}, {BOTH} }}"), [height, width]);
                elements(&run(&yaml, record, key))
            });
            let found = fixed.iter().position(|fixed| *fixed == elements(&drawn));
            distinct.insert((200 + found.unwrap() as u8, op.len() as u8));
        }
    }
    assert!(distinct.len() > 12, "{distinct:?}");
}

#[test]
fn fields_beside_an_image_do_not_change_it_and_fused_steps_give_the_same() {
    let decode = "  - decode\n  - decode: { field: mask, mode: indices }\n";
    let tail = "  - batch: { size: 1, ragged: true }\n";
    for as_jpeg in [true, false] {
        let records = distinct_records(15, as_jpeg);
        let ops = format!("{decode}  - random_resized_crop: {{ size: [21, 24], {BOTH} }}\n{tail}");
        let yaml = source(&ops);
        let bench = Bench::new(&yaml, &records);
        let steps: Vec<&str> = bench.program.steps().collect();
        let crop = "random_resized_crop";
        assert_eq!(steps, ["decode", "decode+random_resized_crop", crop, crop]);
        let fused = bench.all();
        let mut apart = Bench::new(&yaml, &records);
        apart.program = PipelineCompiler { fuse: false, ..PipelineCompiler::default() }
            .compile(&gristmill_operators::parse(&yaml).unwrap())
            .unwrap();
        assert_eq!(
            apart.program.steps().collect::<Vec<_>>(),
            ["decode", "decode", crop, crop, crop]
        );
        assert!(elements(&apart.all()) == elements(&fused));
        let alone = yaml.replace(&format!(", {BOTH}"), "").replace(tail, "");
        let alone = format!("{alone}  - drop: {{ fields: [mask, bbox, cls] }}\n{tail}");
        assert!(rows(&Bench::new(&alone, &records).all()) == rows(&fused));
        // Boxes move with the mask's pixels, because one window is drawn for both.
        let moved =
            frames(&fused).iter().any(|frame| frame.get("cls").unwrap().values().len() < 24);
        assert!(moved, "no box was left out");
    }
}

#[test]
fn fields_of_other_sizes_are_the_records_error() {
    let image = png(8, 6, png::ColorType::Rgb, &[1; 144]);
    let mask = png(6, 8, png::ColorType::Grayscale, &[2; 48]);
    let reason = |decode: &str, record: Vec<u8>| {
        let ops = format!(
            "  - decode\n  - decode: {{ field: mask, {decode} }}\n  - flip: {{ {BOTH} }}\n  \
             - crop: {{ height: 2, width: 2, fields: [image, mask] }}\n  \
             - batch: {{ size: 1, ragged: true }}\n"
        );
        Bench::new(&source(&ops), &[record]).reason()
    };
    let (op, why) = reason("mode: indices", record(&image, &mask, &[], &[]));
    assert_eq!(op, "flip");
    assert!(why.contains("`mask` is 8 x 6") && why.contains("`image` is 6 x 8"), "{why}");
    let mask = png(8, 6, png::ColorType::Grayscale, &[2; 48]);
    let (op, why) = reason("mode: indices", record(&image, &mask, &[0.0, 0.0, 4.0, 4.0], &[1, 2]));
    assert_eq!((op.as_str(), why.as_str()), ("flip", "`cls` has 2 rows for 1 boxes"));
    let (op, why) = reason("mode: indices", record(&image, &image, &[], &[]));
    assert_eq!(op, "decode");
    assert!(why.contains("stores colours"), "{why}");
    let deep = (png::ColorType::Grayscale, png::BitDepth::Sixteen);
    let deep = png_of(8, 6, deep, &[2; 96]);
    let (_, why) = reason("mode: indices", record(&image, &deep, &[], &[]));
    assert!(why.contains("dtype: u16"), "{why}");
    let jpeg = encode(&[9; 48], 8, 6, jpeg_encoder::ColorType::Luma);
    let (_, why) = reason("mode: indices", record(&image, &jpeg, &[], &[]));
    assert!(why.contains("store masks as PNG"), "{why}");
}

#[test]
fn masks_keep_the_numbers_that_files_store() {
    use png::{BitDepth, ColorType};
    let image = png(3, 2, ColorType::Rgb, &[1; 18]);
    let of = |dtype: &str, kind: (ColorType, BitDepth), pixels: &[u8]| {
        let ops = format!(
            "  - decode\n  - decode: {{ field: mask, mode: indices, dtype: {dtype} }}\n  \
             - crop: {{ height: 2, width: 3, fields: [image, mask] }}\n  \
             - batch: {{ size: 1, ragged: true }}\n"
        );
        let mask = png_of(3, 2, kind, pixels);
        let output = Bench::new(&source(&ops), &[record(&image, &mask, &[], &[])]).all();
        frames(&output)[0].get("mask").unwrap().values().to_vec()
    };
    let eight = [0, 7, 255, 3, 1, 2];
    assert_eq!(of("u8", (ColorType::Indexed, BitDepth::Eight), &eight), eight);
    assert_eq!(of("u8", (ColorType::Grayscale, BitDepth::Eight), &eight), eight);
    let wide: Vec<u8> = eight.iter().flat_map(|x| [*x, 0]).collect();
    assert_eq!(of("u16", (ColorType::Indexed, BitDepth::Eight), &eight), wide);
    // Three pixels per row: 1, 0, 1 and 0, 1, 1; 3, 0, 2 and 1, 2, 3; 9, 15, 1 and 0, 7, 4.
    let one = of("u8", (ColorType::Indexed, BitDepth::One), &[0b1010_0000, 0b0110_0000]);
    assert_eq!(one, [1, 0, 1, 0, 1, 1]);
    let two = of("u8", (ColorType::Grayscale, BitDepth::Two), &[0b1100_1000, 0b0110_1100]);
    assert_eq!(two, [3, 0, 2, 1, 2, 3]);
    let four = of("u8", (ColorType::Indexed, BitDepth::Four), &[0x9f, 0x10, 0x07, 0x40]);
    assert_eq!(four, [9, 15, 1, 0, 7, 4]);
    let deep = [1, 2, 0, 255, 200, 0, 0, 0, 3, 4, 255, 255];
    let swapped: Vec<u8> = deep.as_chunks::<2>().0.iter().flat_map(|x| [x[1], x[0]]).collect();
    assert_eq!(of("u16", (ColorType::Grayscale, BitDepth::Sixteen), &deep), swapped);
    let alpha = [5, 1, 6, 2, 7, 3, 8, 4, 9, 5, 10, 6];
    let grey = of("u8", (ColorType::GrayscaleAlpha, BitDepth::Eight), &alpha);
    assert_eq!(grey, [5, 6, 7, 8, 9, 10]);
}

#[test]
fn images_of_different_sizes_are_batched_with_their_shapes() {
    let of = |width: u32, height: u32| {
        let pixels: Vec<u8> = (0..width * height).flat_map(|i| [i as u8, 7, 9]).collect();
        let image = png(width, height, png::ColorType::Rgb, &pixels);
        record(
            &image,
            &png(width, height, png::ColorType::Grayscale, &vec![2; pixels.len() / 3]),
            &[],
            &[],
        )
    };
    let records = [of(2, 3), of(4, 1), of(1, 1)];
    for (ops, shapes, first) in [
        ("", [3, 2, 3, 1, 4, 3], [0, 7, 9, 1, 7, 9]),
        ("  - layout: { to: nchw }\n", [3, 3, 2, 3, 1, 4], [0, 1, 2, 3, 4, 5]),
    ] {
        let ops = format!(
            "  - decode\n{ops}  - drop: {{ fields: [bbox, cls, mask] }}\n  \
                           - in_order\n  - batch: {{ size: 2, ragged: true }}\n"
        );
        let output = Bench::new(&source(&ops), &records).all();
        let frames = frames(&output);
        let frame = &frames[0];
        assert_eq!(whole(frame.get("image.shapes").unwrap().values()), shapes, "{ops}");
        let image = frame.get("image").unwrap();
        assert_eq!((image.shape(), &image.row(0).unwrap()[..6]), (vec![30], &first[..]));
        assert_eq!(image.row(1).unwrap().len(), 12);
        // The rest waits for the next split, as others do.
        assert_eq!(
            (frames[1].rows(), frames[1].get("image").unwrap().values()),
            (1, &[0, 7, 9][..])
        );
    }
}

#[test]
fn boxes_are_batched_padded_even_where_none_is_left() {
    let image = png(8, 6, png::ColorType::Rgb, &[1; 144]);
    let mask = png(8, 6, png::ColorType::Grayscale, &[2; 48]);
    let of = |boxes: &[f32], labels: &[i64]| record(&image, &mask, boxes, labels);
    let far = [5.0, 4.0, 8.0, 6.0];
    let records = [
        of(&far, &[9]),
        of(&[], &[]),
        of(&[[1.0, 1.0, 3.0, 3.0], far].concat(), &[4, 5]),
        of(&far, &[1]),
    ];
    let ops = "  - decode\n  - decode: { field: mask, mode: indices }\n  \
               - crop: { height: 4, width: 4, fields: [image, mask], boxes: bbox, labels: cls }\n  \
               - padded_batch: { size: 2, values: { cls: -1 } }\n";
    let output = Bench::new(&source(ops), &records).all();
    let frames = frames(&output);
    let shapes =
        |name: &str| frames.iter().map(|f| f.get(name).unwrap().shape().to_vec()).collect();
    let boxes: Vec<Vec<usize>> = shapes("bbox");
    // As by `tf.data`, a batch without boxes has none.
    assert_eq!(boxes, [vec![2, 0, 4], vec![2, 1, 4]]);
    assert_eq!(frames[0].get("cls").unwrap().shape(), [2, 0]);
    let of_boxes = frames[1].get("bbox").unwrap().values();
    assert_eq!(reals(of_boxes), [1.0, 1.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(whole(frames[1].get("cls").unwrap().values()), [4, -1]);
}
