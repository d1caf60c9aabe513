//! Compares operators with the outputs of torchvision, Pillow and TensorFlow for the same input, kept in
//! `tests/golden` and made by `scripts/make-golden`. The tolerances are those in each operator's
//! documentation.

use crate::kernels::warp::{ImageWarp, WarpMatrix};
use crate::{
    image::{
        color_jitter::kernel::{self as color_jitter, ColourChange},
        gaussian_blur::kernel::GaussianFilter,
    },
    prelude::*,
};
use gristmill_kernel::{
    DrawKey, Kernel, KernelOutput, KernelScratch, NoAssets, OperatorDraws, OutputSize, ValueView,
};
use gristmill_model::RecordKey;
use gristmill_pipeline::BoxedOperator;
use half::{bf16, f16};

type Json = serde_json::Value;

/// Allowed difference from the reference: the bound of a value, and the share of values that may exceed it.
struct Tolerance {
    most: f64,
    share: f64,
}

const EXACT: Tolerance = within(0.0);

const fn within(most: f64) -> Tolerance {
    Tolerance { most, share: 0.0 }
}

struct Tensor {
    dtype: FieldDType,
    shape: Vec<u32>,
    bytes: Vec<u8>,
}

impl Tensor {
    fn read(place: &Json, all: &[u8]) -> Tensor {
        let number = |key: &str| place[key].as_u64().unwrap() as usize;
        let dtype = match place["dtype"].as_str().unwrap() {
            "bytes" => FieldDType::Bytes,
            "u8" => FieldDType::U8,
            "f16" => FieldDType::F16,
            "bf16" => FieldDType::BF16,
            "f32" => FieldDType::F32,
            "i64" => FieldDType::I64,
            other => panic!("{other}"),
        };
        let shape = place["shape"].as_array().unwrap();
        let shape = shape.iter().map(|side| side.as_u64().unwrap() as u32).collect();
        let bytes = all[number("at")..][..number("bytes")].to_vec();
        Tensor { dtype, shape, bytes }
    }

    fn schema(&self) -> FieldSchema {
        let shape = self.shape.iter().copied().map(Some).collect();
        FieldSchema { dtype: self.dtype, shape, range: None }
    }

    fn size(&self) -> [usize; 2] {
        match self.shape[..] {
            [height, width, _] => [height as usize, width as usize],
            _ => [0, 0],
        }
    }

    fn numbers(&self) -> Vec<f64> {
        let two =
            |to: fn([u8; 2]) -> f64| self.bytes.as_chunks().0.iter().map(|x| to(*x)).collect();
        match self.dtype {
            FieldDType::F16 => two(|x| f16::from_le_bytes(x).into()),
            FieldDType::BF16 => two(|x| bf16::from_le_bytes(x).into()),
            FieldDType::F32 => {
                let read = |x: &[u8; 4]| f64::from(f32::from_le_bytes(*x));
                self.bytes.as_chunks().0.iter().map(read).collect()
            }
            FieldDType::I64 => {
                self.bytes.as_chunks().0.iter().map(|x| i64::from_le_bytes(*x) as f64).collect()
            }
            _ => self.bytes.iter().map(|x| f64::from(*x)).collect(),
        }
    }
}

fn draw() -> OperatorDraws {
    let record = RecordKey { file: 0, record: 0 };
    DrawKey { seed: 0, epoch: 0, record, repeat: 0, copy: 0, ordinal: 0 }.draw()
}

/// Parameters of a case.
struct Params<'a>(&'a Json);

impl Params<'_> {
    fn f64(&self, key: &str) -> f64 {
        self.0[key].as_f64().unwrap_or_else(|| panic!("{key}"))
    }

    fn u32(&self, key: &str) -> u32 {
        self.0[key].as_u64().unwrap_or_else(|| panic!("{key}")) as u32
    }

    fn list<const N: usize>(&self, key: &str) -> Option<[f64; N]> {
        let list = self.0[key].as_array()?;
        let numbers: Vec<f64> = list.iter().map(|x| x.as_f64().unwrap()).collect();
        Some(numbers.try_into().unwrap())
    }

    fn whole<const N: usize>(&self, key: &str) -> Option<[u32; N]> {
        Some(self.list::<N>(key)?.map(|x| x as u32))
    }

    fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap_or_default()
    }

    fn interpolation(&self) -> Interpolation {
        match self.text("interpolation") {
            "nearest" => Interpolation::Nearest,
            _ => Interpolation::Bilinear,
        }
    }

    fn filter(&self) -> ResizeFilter {
        let interpolation = match self.text("interpolation") {
            "bicubic" => PixelInterpolation::Bicubic,
            _ => PixelInterpolation::Bilinear,
        };
        ResizeFilter { antialias: self.0["antialias"] != false, interpolation }
    }

    fn cast(&self) -> FieldDType {
        match self.text("dtype") {
            "f16" => FieldDType::F16,
            "bf16" => FieldDType::BF16,
            "u8" => FieldDType::U8,
            _ => FieldDType::F32,
        }
    }
}

/// The operator of a case and its tolerance; none for operators that [`run_drawn`] runs with fixed draws.
fn operator(name: &str, params: &Params<'_>) -> Option<(BoxedOperator, Tolerance)> {
    let field = String::from("image");
    let fields = ImageFields::one("image");
    let p = 1.0;
    Some(match name {
        "grayscale" => {
            let channels = params.u32("channels");
            (BoxedOperator::new(Grayscale { field, p, channels }), within(1.0))
        }
        "center_crop" => {
            let size = params.whole("size").unwrap();
            (BoxedOperator::new(CenterCrop { fields, size }), EXACT)
        }
        "crop" => {
            let [top, left] = [params.u32("top"), params.u32("left")];
            let (height, width) = (params.u32("height"), params.u32("width"));
            (BoxedOperator::new(Crop { fields, top, left, height, width }), EXACT)
        }
        "pad" => {
            let (padding, size) = (params.whole("padding"), params.whole("size"));
            (BoxedOperator::new(Pad { fields, padding, size, fill: params.f64("fill") }), EXACT)
        }
        "flip" => (BoxedOperator::new(Flip { fields, p }), EXACT),
        "vertical_flip" => (BoxedOperator::new(VerticalFlip { fields, p }), EXACT),
        "solarize" => {
            let threshold = params.f64("threshold");
            (BoxedOperator::new(Solarize { field, threshold, p }), within(1e-7))
        }
        "posterize" => {
            (BoxedOperator::new(Posterize { field, bits: params.u32("bits"), p }), EXACT)
        }
        "resize" => {
            let size = params.whole("size").unwrap();
            let filter = params.filter();
            let exact = filter.interpolation == PixelInterpolation::Bicubic;
            let most = match (params.text("peer"), params.text("dtype")) {
                ("pillow", _) if exact => 0.0,
                (_, "f32") => 1e-5,
                _ => 1.0,
            };
            (BoxedOperator::new(Resize { fields, size, filter }), within(most))
        }
        "resize_shorter" => {
            let size = params.u32("size");
            (
                BoxedOperator::new(ResizeShorter { fields, size, filter: params.filter() }),
                within(1.0),
            )
        }
        "scale" => {
            (BoxedOperator::new(Scale { field, factor: 1.0 / 255.0, offset: 0.0 }), within(1e-6))
        }
        "normalise" => {
            let (mean, std) = (params.list::<3>("mean"), params.list::<3>("std"));
            let (mean, std) = (mean.unwrap().to_vec(), std.unwrap().to_vec());
            (BoxedOperator::new(Normalise { field, mean, std }), within(1e-6))
        }
        "standardise" => (BoxedOperator::new(Standardise { field }), within(1e-4)),
        "clip" => {
            let (min, max) = (Some(params.f64("min")), Some(params.f64("max")));
            (
                BoxedOperator::new(Clip {
                    field,
                    min: min.map(AuthoredNumber::Real),
                    max: max.map(AuthoredNumber::Real),
                }),
                EXACT,
            )
        }
        "cast" => (BoxedOperator::new(Cast { field, dtype: params.cast() }), EXACT),
        "layout" => (BoxedOperator::new(Layout { field, to: DimensionOrder::Nchw }), EXACT),
        "one_hot" => {
            let (classes, dtype) = (params.u32("classes"), params.cast());
            (BoxedOperator::new(OneHot { field, classes, dtype }), EXACT)
        }
        "decode" => {
            // Lossy WebP rounds differently and so differs more than JPEG.
            let most = match params.text("kind") {
                "webp" => 3.0,
                "exact" => 0.0,
                _ => 1.0,
            };
            (
                BoxedOperator::new(Decode {
                    field,
                    channels: 3,
                    typical_size: None,
                    mode: DecodeMode::Colours,
                    dtype: FieldDType::U8,
                    apply_exif_orientation: params.0["apply_exif_orientation"] == true,
                }),
                within(most),
            )
        }
        _ => return None,
    })
}

/// Runs an operator that draws nothing, or whose draws do not matter.
fn run_operator(op: &BoxedOperator, input: &Tensor) -> Tensor {
    let kernel = op.kernel(&KernelInput::new(Some(&input.schema()), &NoAssets)).unwrap();
    let (mut tools, size) = (KernelScratch::default(), input.size());
    let mut bytes = input.bytes.clone();
    match kernel {
        Kernel::Transform(kernel) => {
            let mut out = Vec::new();
            let view = ValueView { bytes: &bytes, size };
            let made = kernel.run(view, KernelOutput::Buffer(&mut out), &mut tools, &mut draw());
            let OutputSize { bytes: made, .. } =
                made.unwrap_or_else(|error| panic!("{op:?}: {error}"));
            assert_eq!(made, out.len());
            bytes = out;
        }
        Kernel::InPlace(kernel) => {
            kernel.run(&mut bytes, size, &mut tools, &mut draw()).unwrap();
        }
        Kernel::Nothing => {}
        _ => panic!("{op:?} is something else"),
    }
    Tensor { dtype: input.dtype, shape: Vec::new(), bytes }
}

/// Runs a random operator with the draws that the case gives.
fn run_drawn(name: &str, params: &Params<'_>, input: &Tensor) -> (Tensor, Tolerance) {
    let fields = ImageFields::one("image");
    let whole = input.dtype == FieldDType::U8;
    let channels = input.shape[2] as usize;
    let (mut tools, mut bytes) = (KernelScratch::default(), input.bytes.clone());
    let tolerance = match name {
        "color_jitter" => {
            let changes = changes(params);
            color_jitter::apply(&changes, input.dtype, &mut bytes);
            let alone = changes[1] == ColourChange::Hue(0.0);
            match (whole, alone) {
                (true, true) => within(1.0),
                (true, false) => Tolerance { most: 2.0, share: 0.01 },
                _ => within(1e-5),
            }
        }
        "gaussian_blur" => {
            let (kernel_size, sigma) = (params.u32("kernel_size"), params.f64("sigma"));
            let blur = GaussianFilter { kernel_size, dtype: input.dtype, channels };
            blur.apply(sigma, &mut bytes, input.size(), &mut tools).unwrap();
            within(if whole { 1.0 } else { 1e-3 })
        }
        "rotate" | "shear" => {
            let (interpolation, fill) = (params.interpolation(), params.f64("fill"));
            let (warp, matrix) = if name == "rotate" {
                let degrees = params.f64("degrees");
                let op = Rotate { fields, degrees: [degrees; 2], interpolation, fill };
                (ImageWarp::new(&op, input.dtype, channels), WarpMatrix::rotation(degrees))
            } else {
                let degrees: [f64; 2] = params.list("degrees").unwrap();
                let op = Shear { fields, degrees: [0.0; 4], interpolation, fill };
                (ImageWarp::new(&op, input.dtype, channels), WarpMatrix::shear(degrees))
            };
            let view = ValueView { bytes: &input.bytes, size: input.size() };
            warp.apply(&matrix, view, &mut bytes);
            match interpolation {
                Interpolation::Nearest => Tolerance { most: 0.0, share: 0.005 },
                Interpolation::Bilinear => within(if whole { 1.0 } else { 1e-3 }),
            }
        }
        other => panic!("{other} is not known"),
    };
    (Tensor { dtype: input.dtype, shape: Vec::new(), bytes }, tolerance)
}

fn changes(params: &Params<'_>) -> [ColourChange; 4] {
    let mut changes = [ColourChange::Hue(0.0); 4];
    for (to, change) in changes.iter_mut().zip(params.0["changes"].as_array().unwrap()) {
        let amount = change[1].as_f64().unwrap() as f32;
        *to = match change[0].as_str().unwrap() {
            "brightness" => ColourChange::Brightness(amount),
            "contrast" => ColourChange::Contrast(amount),
            "saturation" => ColourChange::Saturation(amount),
            _ => ColourChange::Hue(amount),
        };
    }
    changes
}

/// The differences in words; an error if they exceed the tolerance.
fn compare(made: &Tensor, wanted: &Tensor, tolerance: &Tolerance) -> Result<String, String> {
    let (made, wanted) = (made.numbers(), wanted.numbers());
    if made.len() != wanted.len() {
        return Err(format!("{} values, not {}", made.len(), wanted.len()));
    }
    let differences = made.iter().zip(&wanted).map(|(a, b)| (a - b).abs());
    let worst = differences.clone().fold(0.0, f64::max);
    let beyond = differences.filter(|difference| *difference > tolerance.most).count();
    let share = beyond as f64 / wanted.len() as f64;
    let text = format!("{worst:.2e} at most, {share:.5} beyond {:.0e}", tolerance.most);
    if share > tolerance.share { Err(text) } else { Ok(text) }
}

fn check(index: &str, values: &[u8]) {
    let index: Json = serde_json::from_str(index).unwrap();
    let mut wrong = Vec::new();
    for case in index["cases"].as_array().unwrap() {
        let (name, params) = (case["op"].as_str().unwrap(), Params(&case["params"]));
        let input = Tensor::read(&case["input"], values);
        let wanted = Tensor::read(&case["output"], values);
        let (mut made, tolerance) = match operator(name, &params) {
            Some((op, tolerance)) => (run_operator(&op, &input), tolerance),
            None => run_drawn(name, &params, &input),
        };
        made.dtype = wanted.dtype;
        let result = compare(&made, &wanted, &tolerance);
        println!("{name} {} of {}: {result:?}", params.0, input.schema());
        if let Err(why) = result {
            wrong.push(format!("{name} {}: {why}", params.0));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn operators_do_as_torchvision_and_pillow() {
    check(
        include_str!("../../../tests/golden/torch.json"),
        include_bytes!("../../../tests/golden/torch.bin"),
    );
}

#[test]
fn operators_do_as_tensorflow() {
    check(
        include_str!("../../../tests/golden/tf.json"),
        include_bytes!("../../../tests/golden/tf.bin"),
    );
}

#[test]
fn pictures_of_rare_kinds_are_decoded_as_by_pillow() {
    check(
        include_str!("../../../tests/golden/pictures.json"),
        include_bytes!("../../../tests/golden/pictures.bin"),
    );
}
