//! Operators on images and tokens: shapes, ranges, defaults, and errors with their advice.

use super::*;

/// The image's schema after these operators, without the batch.
fn image_after(ops: &str) -> FieldSchema {
    let yaml = with_ops(&format!("{ops}  - batch: {{ size: 2 }}\n"));
    let pipeline =
        gristmill_operators::parse(&yaml).unwrap_or_else(|error| panic!("{ops}: {error}"));
    let again = gristmill_operators::from_canonical(&pipeline.canonical_json()).unwrap();
    assert_eq!(again.canonical_json(), pipeline.canonical_json(), "{ops}");
    pipeline.schemas().last().unwrap().field("image").unwrap().clone()
}

const SMALL: &str = "  - decode\n  - resize: { size: [20, 30] }\n";

fn shape(op: &str) -> String {
    image_after(&format!("{SMALL}  - {op}\n")).to_string()
}

#[test]
fn shapes_follow_the_operators() {
    let same = "u8 [20, 30, 3]";
    for op in [
        "vertical_flip",
        "rotate: { degrees: 10 }",
        "rotate: { degrees: [0, 90], interpolation: bilinear, fill: 7 }",
        "shear: { degrees: 5 }",
        "shear: { degrees: [-5, 5, -1, 1] }",
        "color_jitter: { brightness: 0.8, contrast: [0.5, 1.5], saturation: 0.8, hue: 0.2, p: 0.8 }",
        "grayscale: { p: 0.2 }",
        "gaussian_blur: { kernel_size: 23, sigma: [0.1, 2.0], p: 0.5 }",
        "gaussian_blur: { kernel_size: 3, sigma: 1 }",
        "solarize",
        "posterize: { bits: 4 }",
        "random_erasing",
        "clip: { min: 3 }",
    ] {
        assert_eq!(shape(op), same, "{op}");
    }
    assert_eq!(shape("center_crop: { size: 16 }"), "u8 [16, 16, 3]");
    assert_eq!(shape("center_crop: { size: [40, 8] }"), "u8 [40, 8, 3]");
    assert_eq!(shape("crop: { top: 4, height: 16, width: 30 }"), "u8 [16, 30, 3]");
    assert_eq!(shape("random_crop: { size: 20, padding: 4 }"), "u8 [20, 20, 3]");
    assert_eq!(shape("random_crop: { size: 64, pad_if_needed: true }"), "u8 [64, 64, 3]");
    assert_eq!(shape("pad: { padding: [1, 2, 3, 4] }"), "u8 [26, 34, 3]");
    assert_eq!(shape("pad: { padding: [1, 2] }"), "u8 [24, 32, 3]");
    assert_eq!(shape("pad: { size: 32, fill: 255 }"), "u8 [32, 32, 3]");
    assert_eq!(shape("resize_shorter: { size: 10 }"), "u8 [10, 15, 3]");
    assert_eq!(shape("grayscale: { channels: 1 }"), "u8 [20, 30, 1]");
    assert_eq!(shape("scale"), "f32 [20, 30, 3]");
    assert_eq!(shape("standardise"), "f32 [20, 30, 3]");
    assert_eq!(shape("layout: { to: nchw }"), "u8 [3, 20, 30]");
    assert_eq!(shape("layout: { to: chw }\n  - layout: { to: hwc }"), same);
    assert_eq!(shape("cast: { dtype: i32 }"), "i32 [20, 30, 3]");
    let unknown = "  - decode\n  - resize_shorter: { size: 256 }\n  - center_crop: { size: 224 }\n";
    assert_eq!(image_after(unknown).to_string(), "u8 [224, 224, 3]");
    let grey = "  - decode: { channels: 1 }\n  - center_crop: { size: 8 }\n";
    assert_eq!(image_after(grey).to_string(), "u8 [8, 8, 1]");
}

#[test]
fn numbers_are_read_in_all_their_forms() {
    let stage = |op: &str| {
        let yaml = with_ops(&format!("{SMALL}  - {op}\n  - batch: {{ size: 2 }}\n"));
        gristmill_operators::parse(&yaml).unwrap().stages()[2].op.clone()
    };
    let op = stage("color_jitter: { brightness: 1.5, hue: 0.1 }");
    let op: &ColorJitter = op.downcast_ref().unwrap();
    assert_eq!((op.brightness, op.hue, op.p), ([0.0, 2.5], [-0.1, 0.1], 1.0));
    assert_eq!((op.contrast, op.saturation), ([1.0, 1.0], [1.0, 1.0]));
    let op = stage("random_crop: { size: 8, padding: [1, 2] }");
    let op: &RandomCrop = op.downcast_ref().unwrap();
    assert_eq!(op.padding, [1, 2, 1, 2]);
    let op = stage("shear: { degrees: 5 }");
    let op: &Shear = op.downcast_ref().unwrap();
    assert_eq!(op.degrees, [-5.0, 5.0, 0.0, 0.0]);
    let op = stage("gaussian_blur: { kernel_size: 5, sigma: 2 }");
    let op: &GaussianBlur = op.downcast_ref().unwrap();
    assert_eq!(op.sigma, [2.0, 2.0]);
}

#[test]
fn labels_become_one_hot() {
    let ops =
        format!("{SMALL}  - one_hot: {{ field: label, classes: 10 }}\n  - batch: {{ size: 2 }}\n");
    let pipeline = gristmill_operators::parse(&with_ops(&ops)).unwrap();
    let label = pipeline.output_schema().field("label").unwrap().to_string();
    assert_eq!(label, "f32 [10]");
    let error = ops_error(&format!("{SMALL}  - one_hot: {{ field: image, classes: 10 }}\n"));
    assert!(error.contains("one whole number"), "{error}");
}

#[test]
fn colours_of_f32_are_from_0_to_1() {
    let scaled = format!("{SMALL}  - scale\n  - color_jitter: {{ hue: 0.1 }}\n");
    let range = image_after(&scaled).range.unwrap();
    assert_eq!((range.min, range.max), (0.0, 1.0));
    for op in ["color_jitter", "grayscale", "gaussian_blur: { kernel_size: 3 }", "solarize"] {
        let error = ops_error(&format!("{SMALL}  - cast: {{ dtype: f32 }}\n  - {op}\n"));
        assert!(error.contains("f32 from 0 to 1") && error.contains("line 10"), "{error}");
    }
}

#[test]
fn impossible_pipelines_are_refused_with_advice() {
    for (op, advice) in [
        ("center_crop: { size: 0 }", "a whole number from 1"),
        ("crop: { height: 21, width: 5 }", "put a `pad` before it"),
        ("crop: { width: 5 }", "needs `height`"),
        ("random_crop: { size: 64 }", "pad_if_needed"),
        ("pad: {}", "either `padding`"),
        ("pad: { size: 64, padding: 3 }", "either `padding`"),
        ("pad: { size: 8 }", "must not shrink"),
        ("pad: { padding: [1, 2, 3] }", "[left, top, right, bottom]"),
        ("pad: { padding: 3, fill: 0.5 }", "from 0 to 255"),
        ("rotate", "needs `degrees`"),
        ("rotate: { degrees: [9, 3] }", "low <= high"),
        ("rotate: { degrees: 3, interpolation: cubic }", "nearest or bilinear"),
        ("shear: { degrees: 90 }", "0 to 89"),
        ("color_jitter: { hue: 0.6 }", "0 to 0.5"),
        ("color_jitter: { brightnes: 1 }", "did you mean `brightness`"),
        ("grayscale: { channels: 2 }", "1 or 3"),
        ("grayscale: { channels: 1, p: 0.5 }", "`p` must be 1"),
        ("gaussian_blur: { kernel_size: 4 }", "must be odd"),
        ("gaussian_blur: { kernel_size: 3, sigma: 0 }", "at least 0.001"),
        ("posterize: { bits: 9 }", "0 to 8"),
        ("clip", "needs `min` or `max`"),
        ("clip: { min: 0.5 }", "a whole number from 0 to 255, not 0.5"),
        ("clip: { max: 256 }", "a whole number from 0 to 255, not 256"),
        ("layout: { to: xyz }", "nchw"),
        ("layout: { to: nhwc }", "[c, h, w]"),
        ("scale: { field: label }", "cast"),
        ("cast: { dtype: f128 }", "u8, u16, i32, i64, u64, f16, bf16, f32 or f64"),
        (
            "grayscale: { channels: 1 }\n  - normalise: { mean: [1, 1, 1], std: [1, 1, 1] }",
            "[h, w, 3]",
        ),
        ("normalise: { mean: 0.5, std: 0.5 }", "[h, w, 1]"),
        ("normalise: { mean: [0.5], std: [1, 1, 1] }", "as many numbers in `std`"),
        ("normalise: { mean: [0.5, 0.5], std: [1, 1] }", "a list of 3 numbers"),
        ("layout: { to: nchw }\n  - center_crop: { size: 8 }", "[h, w, 1] or [h, w, 3]"),
    ] {
        let error = ops_error(&format!("{SMALL}  - {op}\n  - batch: {{ size: 2 }}\n"));
        assert!(error.contains(advice), "{op}: {error}");
        assert!(error.starts_with("line "), "{error}");
    }
}

#[test]
fn grey_images_have_one_channel_to_the_end() {
    for op in [
        "resize: { size: [8, 9] }",
        "random_resized_crop: { size: [8, 9] }",
        "resize_shorter: { size: 8 }",
        "normalise: { mean: 0.5, std: [0.25] }",
    ] {
        let grey = image_after(&format!(
            "  - decode: {{ channels: 1 }}\n  - resize: {{ size: [8, 9] }}\n  - {op}\n"
        ));
        assert_eq!(grey.shape, [Some(8), Some(9), Some(1)], "{op}");
    }
    let grey = image_after(&format!(
        "{SMALL}  - grayscale: {{ channels: 1 }}\n  - normalise: {{ mean: 0.5, std: 0.25 }}\n"
    ));
    let range = grey.range.unwrap();
    assert_eq!((range.min, range.max), (-2.0, 2.0));
}
