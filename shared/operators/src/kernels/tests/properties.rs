//! Properties of image operators on random images: the declared shape, no panic, and identities.

use gristmill_kernel::{
    DrawKey, Kernel, KernelOutput, KernelScratch, NoAssets, OperatorDraws, OutputSize, ValueView,
};
use gristmill_model::RecordKey;
use gristmill_pipeline::{FieldDType, FieldSchema, KernelInput};
use proptest::prelude::*;

/// One operator on an image of unknown size, as a worker runs it.
struct Alone {
    kernel: Kernel,
    output: FieldSchema,
}

impl Alone {
    /// `before` holds the operators between `decode` and `op`, such as a change of dtype.
    fn new(before: &str, op: &str) -> Self {
        let yaml = format!(
            "source: {{ tfrecord: x, features: {{ image: {{ dtype: bytes }}, id: {{ dtype: i64 }} }} }}\n\
             ops:\n  - decode\n{before}  \
             - {op}\n  - batch: {{ size: 1, ragged: true }}\n"
        );
        // Images of unknown size cannot be batched; dropping the field lets such a pipeline pass its checks.
        let sized = yaml.replace("  - batch", "  - drop: { fields: [image] }\n  - batch");
        let pipeline = crate::parse(&yaml).or_else(|_| crate::parse(&sized));
        let pipeline = pipeline.unwrap_or_else(|error| panic!("{op}: {error}"));
        let place = 1 + before.lines().count();
        let stage = &pipeline.stages()[place];
        let schema = |i: usize| pipeline.schemas()[i].field("image").unwrap().clone();
        let kernel = stage.op.kernel(&KernelInput::new(Some(&schema(place)), &NoAssets)).unwrap();
        Alone { kernel, output: schema(place + 1) }
    }

    fn run(
        &self,
        bytes: &[u8],
        size: [usize; 2],
        record: u32,
    ) -> Result<(Vec<u8>, OutputSize), String> {
        let (mut tools, mut draw) = (KernelScratch::default(), draw(record));
        let mut out = bytes.to_vec();
        let made = match &self.kernel {
            Kernel::Transform(kernel) => {
                out.clear();
                kernel.run(
                    ValueView { bytes, size },
                    KernelOutput::Buffer(&mut out),
                    &mut tools,
                    &mut draw,
                )?
            }
            Kernel::InPlace(kernel) => {
                kernel.run(&mut out, size, &mut tools, &mut draw)?;
                OutputSize { bytes: bytes.len(), size }
            }
            _ => OutputSize { bytes: bytes.len(), size },
        };
        Ok((out, made))
    }
}

fn draw(record: u32) -> OperatorDraws {
    let record = RecordKey { file: 0, record };
    DrawKey { seed: 3, epoch: 0, record, repeat: 0, copy: 0, ordinal: 0 }.draw()
}

fn image([height, width]: [usize; 2], seed: usize) -> Vec<u8> {
    (0..height * width * 3)
        .map(|i| ((i * (7 + seed) + i / 5 * 31 + seed * 90) % 256) as u8)
        .collect()
}

/// Operators that accept every image, as u8 and, after `scale`, as f32.
const BOTH: &[&str] = &[
    "center_crop: { size: [7, 21] }",
    "random_crop: { size: [9, 5], padding: 2, pad_if_needed: true }",
    "pad: { padding: [1, 0, 3, 2], fill: 1 }",
    "pad: { size: 40 }",
    "flip",
    "vertical_flip",
    "rotate: { degrees: 180, interpolation: bilinear }",
    "rotate: { degrees: 30, fill: 1 }",
    "shear: { degrees: [-40, 40, -40, 40], interpolation: bilinear }",
    "color_jitter: { brightness: 0.8, contrast: 0.8, saturation: 0.8, hue: 0.5 }",
    "grayscale",
    "grayscale: { channels: 1 }",
    "gaussian_blur: { kernel_size: 23 }",
    "gaussian_blur: { kernel_size: 101, sigma: 30 }",
    "solarize: { threshold: 1, p: 1 }",
    "random_erasing: { p: 1 }",
    "clip: { min: 0, max: 1 }",
    "scale",
    "standardise",
    "layout: { to: nchw }",
    "cast: { dtype: bf16 }",
    "cast: { dtype: i32 }",
];

const OF_U8: &[&str] =
    &["resize: { size: [3, 9] }", "resize_shorter: { size: 6 }", "posterize: { bits: 2, p: 1 }"];

/// Runs an operator on an image of `size` and checks its declared schema.
fn check(before: &str, op: &str, size: [usize; 2], seed: usize) -> Result<(), TestCaseError> {
    let alone = Alone::new(before, op);
    let mut bytes = image(size, seed);
    if !before.is_empty() {
        bytes = bytes.iter().flat_map(|x| (f32::from(*x) / 255.0).to_le_bytes()).collect();
    }
    let (out, made) = alone.run(&bytes, size, seed as u32).map_err(TestCaseError::fail)?;
    prop_assert_eq!(out.len().max(made.bytes), out.len(), "{}", op);
    let FieldSchema { dtype, shape, .. } = &alone.output;
    let channels_first = op.starts_with("layout");
    let (height, width, channels) = match shape[..] {
        [c, h, w] if channels_first => (h, w, c),
        [h, w, c] => (h, w, c),
        _ => return Err(TestCaseError::fail("not an image")),
    };
    let [out_height, out_width] = made.size;
    prop_assert!(height.is_none_or(|height| height as usize == out_height), "{}", op);
    prop_assert!(width.is_none_or(|width| width as usize == out_width), "{}", op);
    let value_bytes = dtype.size_bytes().unwrap() as usize;
    let channels = channels.unwrap() as usize;
    prop_assert_eq!(made.bytes, out_height * out_width * channels * value_bytes, "{}", op);
    if *dtype == FieldDType::F32 {
        let real = |x: &[u8; 4]| f32::from_le_bytes(*x).is_finite();
        prop_assert!(out.as_chunks().0.iter().all(real), "{}", op);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_image_has_the_declared_shape(
        size in [1..=40_usize, 1..=40_usize],
        seed in 0..1000_usize,
        op in 0..BOTH.len() + OF_U8.len(),
    ) {
        match BOTH.get(op) {
            Some(op) => {
                check("", op, size, seed)?;
                check("  - scale\n", op, size, seed)?;
            }
            None => check("", OF_U8[op - BOTH.len()], size, seed)?,
        }
    }

    #[test]
    fn twice_or_nothing_is_the_same(size in [1..=40_usize, 1..=40_usize], seed in 0..1000_usize) {
        let bytes = image(size, seed);
        for op in ["flip: { p: 1 }", "vertical_flip: { p: 1 }"] {
            let alone = Alone::new("", op);
            let (once, _) = alone.run(&bytes, size, 0).unwrap();
            let (twice, _) = alone.run(&once, size, 1).unwrap();
            prop_assert_eq!(&twice, &bytes, "{}", op);
        }
        for op in [
            "rotate: { degrees: 0 }",
            "rotate: { degrees: 0, interpolation: bilinear }",
            "rotate: { degrees: [360, 360], interpolation: bilinear }",
            "shear: { degrees: 0, interpolation: bilinear }",
            "color_jitter: { brightness: 1, contrast: 1, saturation: 1, hue: 0.5, p: 0 }",
            "color_jitter",
            "gaussian_blur: { kernel_size: 5, sigma: 0.01 }",
            "grayscale: { p: 0 }",
            "solarize: { threshold: 0, p: 0 }",
            "posterize: { bits: 8, p: 1 }",
            "random_erasing: { p: 0 }",
            "pad: { padding: 0 }",
            "clip: { min: 0, max: 255 }",
        ] {
            let (same, _) = Alone::new("", op).run(&bytes, size, 0).unwrap();
            prop_assert_eq!(&same, &bytes, "{}", op);
        }
        let nchw = Alone::new("", "layout: { to: nchw }").run(&bytes, size, 0).unwrap().0;
        let back = Alone::new("  - layout: { to: nchw }\n", "layout: { to: nhwc }");
        prop_assert_eq!(back.run(&nchw, size, 0).unwrap().0, bytes);
    }
}

#[test]
fn images_that_do_not_fit_are_the_records_error() {
    let refused = |op: &str, size: [usize; 2]| {
        let error = Alone::new("", op).run(&image(size, 1), size, 0).unwrap_err();
        assert!(!error.contains('\n'));
        error
    };
    assert!(refused("random_crop: { size: 9 }", [8, 20]).contains("pad_if_needed"));
    assert!(refused("crop: { height: 9, width: 2 }", [8, 20]).contains("has no rows"));
    assert!(refused("pad: { size: 9 }", [8, 20]).contains("larger"));
    assert!(refused("resize_shorter: { size: 16384 }", [8, 20]).contains("longer"));
}

#[test]
fn random_operators_draw_by_record() {
    let (size, bytes) = ([17, 19], image([17, 19], 4));
    for op in BOTH.iter().filter(|op| {
        ["random_crop", "rotate", "shear", "color", "gaussian_blur: { kernel_size: 23", "random_er"]
            .iter()
            .any(|random| op.starts_with(random))
    }) {
        let alone = Alone::new("", op);
        let of = |record: u32| alone.run(&bytes, size, record).unwrap().0;
        assert_eq!(of(1), of(1), "{op}");
        assert!((2..9).any(|record| of(record) != of(1)), "{op}");
    }
}

#[test]
fn grey_is_as_three_equal_channels() {
    let grey_of = |size: [usize; 2]| image(size, 5).into_iter().step_by(3).collect::<Vec<u8>>();
    for op in [
        "resize: { size: [7, 31] }",
        "resize: { size: [40, 9], antialias: false }",
        "resize: { size: [9, 40], interpolation: bicubic }",
        "resize: { size: [40, 9], antialias: false, interpolation: bicubic }",
        "resize_shorter: { size: 12 }",
        "random_resized_crop: { size: [8, 13] }",
        "normalise: { mean: MEAN, std: STD }",
    ] {
        let rgb =
            Alone::new("", &op.replace("MEAN", "[0.5, 0.5, 0.5]").replace("STD", "[2, 2, 2]"));
        let one = op.replace("MEAN", "0.5").replace("STD", "[2]");
        let grey = Alone::new("  - grayscale: { channels: 1 }\n", &one);
        assert_eq!(grey.output.shape[2], Some(1), "{op}");
        for (record, size) in [[17, 23], [64, 5], [33, 33], [1, 9]].into_iter().enumerate() {
            let bytes = grey_of(size);
            let three: Vec<u8> = bytes.iter().flat_map(|x| [*x; 3]).collect();
            let (one, made) = grey.run(&bytes, size, record as u32).unwrap();
            let (all, of) = rgb.run(&three, size, record as u32).unwrap();
            assert_eq!(made.size, of.size, "{op}");
            let value_bytes = made.bytes / (made.size[0] * made.size[1]);
            let pixels = all[..of.bytes].chunks(3 * value_bytes);
            let first: Vec<u8> = pixels.flat_map(|pixel| pixel[..value_bytes].to_vec()).collect();
            assert_eq!(one[..made.bytes], first, "{op} {size:?}");
        }
    }
}
