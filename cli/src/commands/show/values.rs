//! A value of an element, as people and programs look at it.

use gristmill_chunk::{TensorDType, TensorSpec};
use gristmill_pipeline::{FieldDType, FieldSchema};
use serde_json::{Value, json};

/// Most characters of a text, and numbers of a tensor, that are shown.
const TEXT_CHARS: usize = 60;
const NUMBERS: usize = 8;
/// Longest side of a picture that is drawn, in pixels; larger ones lose rows and columns.
const PICTURE_SIDE: usize = 256;

/// A value of a field.
pub(super) struct ShownValue {
    pub(super) name: String,
    dtype: FieldDType,
    /// The dimensions; the length of a byte string.
    shape: Vec<usize>,
    stored: TensorDType,
    bytes: Vec<u8>,
}

/// A picture of 8 bit, row by row.
pub(super) struct ShownPicture {
    pub(super) width: usize,
    pub(super) height: usize,
    /// 1 or 3.
    pub(super) channels: usize,
    pub(super) pixels: Vec<u8>,
}

impl ShownValue {
    /// The value `bytes` of a field, as a row of its tensor; `size` is height and width of an image that is stored flat.
    pub(super) fn new(
        (name, field): (&String, &FieldSchema),
        spec: &TensorSpec,
        bytes: &[u8],
        size: Option<[usize; 2]>,
    ) -> Self {
        let items = bytes.len() / spec.dtype.size_bytes();
        let mut shape = spec.shape.clone();
        if let Some([height, width]) = size {
            let channels = items.checked_div(height * width).unwrap_or_default();
            shape = vec![height, width, channels];
        } else if spec.ragged {
            let inner: usize = spec.shape.iter().product();
            shape.insert(0, items.checked_div(inner).unwrap_or_default());
        }
        if field.dtype == FieldDType::Bytes {
            shape = vec![bytes.len()];
        }
        let (dtype, stored, bytes) = (field.dtype, spec.dtype, bytes.to_vec());
        ShownValue { name: name.clone(), dtype, shape, stored, bytes }
    }

    /// The numbers; none of a byte string.
    fn numbers(&self) -> Option<Vec<f64>> {
        (self.dtype != FieldDType::Bytes).then(|| numbers(self.stored, &self.bytes))
    }

    /// Dtype and shape, such as `u8 [375, 500, 3]`.
    pub(super) fn kind(&self) -> String {
        match self.shape.as_slice() {
            [] => self.dtype.to_string(),
            shape => format!("{} {shape:?}", self.dtype),
        }
    }

    /// The value itself if it is short, else its range.
    pub(super) fn summary(&self) -> String {
        let Some(numbers) = self.numbers() else { return shown_bytes(&self.bytes) };
        if numbers.len() <= NUMBERS {
            let shown: Vec<String> = numbers.iter().map(|x| short(*x)).collect();
            return shown.join(" ");
        }
        let [min, mean, max] = range(&numbers).map(short);
        format!("{min} .. {max}, mean {mean}")
    }

    pub(super) fn as_json(&self) -> Value {
        let mut value =
            json!({ "dtype": self.dtype, "shape": self.shape, "shown": self.summary() });
        if let Some(numbers) = self.numbers() {
            let [min, mean, max] = range(&numbers);
            value["min"] = json!(min);
            value["mean"] = json!(mean);
            value["max"] = json!(max);
            if numbers.len() <= NUMBERS {
                value["values"] = json!(numbers);
            }
        }
        value
    }

    /// The value as a picture, if it looks like one: `[height, width, channels]` or `[channels, height, width]` with 1 or 3
    /// channels. Floats, and classes of a mask, are stretched from their least to their largest value.
    pub(super) fn picture(&self) -> Option<ShownPicture> {
        let (height, width, channels, is_planar) = match *self.shape.as_slice() {
            [height, width, channels @ (1 | 3)] => (height, width, channels, false),
            [channels @ (1 | 3), height, width] => (height, width, channels, true),
            _ => return None,
        };
        if height < 4 || width < 4 {
            return None;
        }
        let numbers = self.numbers()?;
        let is_plain = self.dtype == FieldDType::U8 && channels == 3;
        let [min, _, max] = range(&numbers);
        let level = |x: f64| {
            if is_plain {
                x as u8
            } else if max > min {
                ((x - min) / (max - min) * 255.0) as u8
            } else {
                0
            }
        };
        let step = height.max(width).div_ceil(PICTURE_SIDE);
        let mut pixels = Vec::new();
        for y in (0..height).step_by(step) {
            for x in (0..width).step_by(step) {
                for channel in 0..channels {
                    let at = if is_planar {
                        (channel * height + y) * width + x
                    } else {
                        (y * width + x) * channels + channel
                    };
                    pixels.push(level(numbers.get(at).copied().unwrap_or_default()));
                }
            }
        }
        let (width, height) = (width.div_ceil(step), height.div_ceil(step));
        Some(ShownPicture { width, height, channels, pixels })
    }
}

/// A text in quotes, or the first bytes in hexadecimal.
fn shown_bytes(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|c| c.is_control() && !c.is_whitespace()) => {
            let shown: String = text.chars().take(TEXT_CHARS).collect();
            let more = if shown.len() < text.len() { " .." } else { "" };
            format!("{shown:?}{more}")
        }
        _ => {
            let shown: Vec<String> = bytes.iter().take(12).map(|b| format!("{b:02x}")).collect();
            let more = if bytes.len() > 12 { " .." } else { "" };
            format!("{}{more}", shown.join(" "))
        }
    }
}

/// Least, mean and largest of the finite numbers; zeros if there are none.
fn range(numbers: &[f64]) -> [f64; 3] {
    let finite = || numbers.iter().copied().filter(|x| x.is_finite());
    let n = finite().count();
    if n == 0 {
        return [0.0; 3];
    }
    let sum: f64 = finite().sum();
    [
        finite().fold(f64::INFINITY, f64::min),
        sum / n as f64,
        finite().fold(f64::NEG_INFINITY, f64::max),
    ]
}

/// A number with four digits behind the point at most.
fn short(x: f64) -> String {
    let text = format!("{x:.4}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// The values of a tensor. Those of 64 bit beyond 2^53 are rounded.
fn numbers(dtype: TensorDType, bytes: &[u8]) -> Vec<f64> {
    fn read<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|bytes| value(*bytes)).collect()
    }
    match dtype {
        TensorDType::Bool | TensorDType::U8 => read(bytes, |[x]: [u8; 1]| f64::from(x)),
        TensorDType::I8 => read(bytes, |x: [u8; 1]| f64::from(i8::from_le_bytes(x))),
        TensorDType::U16 => read(bytes, |x| f64::from(u16::from_le_bytes(x))),
        TensorDType::I16 => read(bytes, |x| f64::from(i16::from_le_bytes(x))),
        TensorDType::F16 => read(bytes, |x| half::f16::from_le_bytes(x).to_f64()),
        TensorDType::BF16 => read(bytes, |x| half::bf16::from_le_bytes(x).to_f64()),
        TensorDType::U32 => read(bytes, |x| f64::from(u32::from_le_bytes(x))),
        TensorDType::I32 => read(bytes, |x| f64::from(i32::from_le_bytes(x))),
        TensorDType::F32 => read(bytes, |x| f64::from(f32::from_le_bytes(x))),
        TensorDType::U64 => read(bytes, |x| u64::from_le_bytes(x) as f64),
        TensorDType::I64 => read(bytes, |x| i64::from_le_bytes(x) as f64),
        TensorDType::F64 => read(bytes, f64::from_le_bytes),
    }
}
