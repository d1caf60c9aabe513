//! The operators' parameters, one file each. The executor gives them effect.

mod autocache;
mod batch;
mod bucket_by_sequence_length;
mod cast;
mod center_crop;
mod clip;
mod color_jitter;
mod copy_field;
mod crop;
mod custom;
mod decode;
mod drop_fields;
mod duplicate;
mod fields;
mod filter;
mod flat_map;
mod flip;
mod gaussian_blur;
mod grayscale;
mod in_order;
mod inflate;
mod interleave;
mod layout;
mod length;
mod normalise;
mod one_hot;
mod pad;
mod pad_sequence;
mod padded_batch;
mod parse_csv;
mod parse_example;
mod parse_json;
mod parsing;
mod posterize;
mod random_crop;
mod random_erasing;
mod random_resized_crop;
mod repeat;
mod resize;
mod resize_shorter;
mod rotate;
mod scale;
mod shear;
mod shuffle;
mod skip;
mod sleep;
mod solarize;
mod standardise;
mod take;
mod tokenise;
mod truncate;
mod vertical_flip;

pub use autocache::Autocache;
pub use batch::Batch;
pub(crate) use batch::MAX_BATCH_SIZE;
pub use bucket_by_sequence_length::BucketBySequenceLength;
pub use cast::{Cast, CastDType};
pub use center_crop::CenterCrop;
pub use clip::Clip;
pub use color_jitter::ColorJitter;
pub use copy_field::CopyField;
pub use crop::Crop;
pub use custom::Custom;
pub use decode::{Decode, DecodeMode};
pub use drop_fields::DropFields;
pub use duplicate::Duplicate;
pub(crate) use fields::Given;
pub use fields::{BoxFormat, Boxes, Fields};
pub use filter::Filter;
pub use flat_map::{FlatMap, MAX_ITEMS};
pub use flip::Flip;
pub use gaussian_blur::GaussianBlur;
pub use grayscale::Grayscale;
pub use in_order::InOrder;
pub use inflate::Inflate;
pub use interleave::Interleave;
pub use layout::{Layout, Order};
pub use length::Length;
pub use normalise::Normalise;
pub use one_hot::OneHot;
pub use pad::Pad;
pub use pad_sequence::PadSequence;
pub use padded_batch::PaddedBatch;
pub use parse_csv::ParseCsv;
pub use parse_example::ParseExample;
pub use parse_json::ParseJson;
pub use posterize::Posterize;
pub use random_crop::RandomCrop;
pub use random_erasing::RandomErasing;
pub use random_resized_crop::RandomResizedCrop;
pub use repeat::Repeat;
pub use resize::Resize;
pub use resize_shorter::ResizeShorter;
pub use rotate::{Interpolation, Rotate};
pub use scale::Scale;
pub use shear::Shear;
pub use shuffle::Shuffle;
pub use skip::Skip;
pub use sleep::{Sleep, SleepPer};
pub use solarize::Solarize;
pub use standardise::Standardise;
pub use take::Take;
pub use tokenise::{TokenDType, Tokenise};
pub use truncate::Truncate;
pub use vertical_flip::VerticalFlip;

use crate::{
    DType, Declaration, Effect, FieldSchema, PipelineError, Scope, ValueRange,
    node::{Node, Value},
    table::Table,
};
use std::ops::RangeInclusive;

/// Largest side of an image an operator may be asked to make.
pub const MAX_SIDE: u32 = 16_384;

/// The declaration most operators share: one element in, one out, movable, deterministic.
const fn element_wise(name: &'static str, version: u32) -> Declaration {
    Declaration::of_user(name, version)
}

/// As [`element_wise`], of known effect.
const fn with_effect(name: &'static str, version: u32, effect: Effect) -> Declaration {
    Declaration { effect, ..element_wise(name, version) }
}

/// The declaration of operators on the sequence of records.
const fn of_dataset(name: &'static str, version: u32) -> Declaration {
    Declaration { scope: Scope::Global, pins_position: true, ..element_wise(name, version) }
}

/// `count`: a number of records, at least `least`.
fn count(params: &mut Table<'_>, least: u64) -> Result<u64, PipelineError> {
    let node = params.require("count")?;
    let count = match node.value {
        Value::Int(count) => u64::try_from(count).ok().filter(|count| *count >= least),
        _ => None,
    };
    count.ok_or_else(|| params.wrong("count", node, &format!("a whole number from {least} on")))
}

/// `size`: one number for a square, or `[height, width]`.
fn size(params: &mut Table<'_>) -> Result<[u32; 2], PipelineError> {
    params.require("size")?;
    // It is there.
    Ok(image_size(params, "size")?.unwrap_or([1, 1]))
}

/// Height and width under `key`, if it is there: one number for a square, or `[height, width]`.
fn image_size(
    params: &mut Table<'_>,
    key: &'static str,
) -> Result<Option<[u32; 2]>, PipelineError> {
    let Some(node) = params.get(key) else { return Ok(None) };
    let side = |node: &Node| params.whole(key, node, 1..=MAX_SIDE);
    match &node.value {
        Value::Seq(items) if items.len() == 2 => Ok(Some([side(&items[0])?, side(&items[1])?])),
        _ => side(node).map(|side| Some([side, side])),
    }
}

/// `into`: the new field an operator makes.
fn into(params: &mut Table<'_>, op: &str) -> Result<String, PipelineError> {
    let node = params.require("into")?;
    let name = params.text("into", node)?;
    crate::source::check_name(&name)
        .map_err(|message| node.error(format!("`{op}` `into`: {message}")))?;
    Ok(name)
}

/// `key`: a number in `range`, `default` unless given.
fn number(
    params: &mut Table<'_>,
    key: &'static str,
    default: f64,
    range: RangeInclusive<f64>,
) -> Result<f64, PipelineError> {
    params.get(key).map_or(Ok(default), |node| params.number(key, node, range))
}

/// The value of `key`, if it is there and is not null, as the canonical form writes what is not there.
fn optional<'a>(params: &mut Table<'a>, key: &'static str) -> Option<&'a Node> {
    params.get(key).filter(|node| node.value != Value::Null)
}

/// `p`: the probability that a random operator changes its input; `default` unless given.
fn probability(params: &mut Table<'_>, default: f64) -> Result<f64, PipelineError> {
    number(params, "p", default, 0.0..=1.0)
}

/// `key`: `[low, high]` in `range` with low <= high, or one number, of which `spread` makes both.
fn interval(
    params: &mut Table<'_>,
    key: &'static str,
    default: Option<[f64; 2]>,
    range: RangeInclusive<f64>,
    spread: impl Fn(f64) -> [f64; 2],
) -> Result<[f64; 2], PipelineError> {
    let node = match (params.get(key), default) {
        (Some(node), _) => node,
        (None, Some(default)) => return Ok(default),
        (None, None) => params.require(key)?,
    };
    let bounds = match &node.value {
        Value::Seq(_) => params.numbers(key, node, range)?,
        _ => spread(params.number(key, node, 0.0..=*range.end())?),
    };
    let [low, high] = bounds;
    if low > high {
        return Err(
            node.error(format!("`{key}` must be [low, high] with low <= high, not {bounds:?}"))
        );
    }
    Ok(bounds.map(|bound| bound + 0.0))
}

/// `channels`: 1 or 3, `default` unless given.
fn channels(params: &mut Table<'_>, default: u32) -> Result<u32, PipelineError> {
    let Some(node) = params.get("channels") else { return Ok(default) };
    match node.value {
        Value::Int(1) => Ok(1),
        Value::Int(3) => Ok(3),
        _ => Err(node.error(format!("`channels` must be 1 or 3, not {}", node.shown()))),
    }
}

/// An image whose colours may now be any: 0 to 255 of u8, 0 to 1 of f32.
fn in_full_range(field: FieldSchema) -> FieldSchema {
    let range = field.range.map(|_| match field.dtype {
        DType::U8 => ValueRange::PIXELS,
        _ => ValueRange { min: 0.0, max: 1.0 },
    });
    FieldSchema { range, ..field }
}

/// The dtypes that operators take which move pixels without looking at them.
const MOVABLE: &[DType] = &[DType::U8, DType::F16, DType::BF16, DType::F32];

/// `fill`: the value of what was outside the image; 0 unless given.
fn fill(params: &mut Table<'_>) -> Result<f64, PipelineError> {
    number(params, "fill", 0.0, -1e9..=1e9)
}

/// Whether the image can hold `fill`.
fn check_fill(op: &str, image: &FieldSchema, fill: f64) -> Result<(), String> {
    let (low, high) = match image.dtype {
        DType::U8 => (0.0, 255.0),
        DType::U16 => (0.0, 65_535.0),
        DType::U32 | DType::U64 => (0.0, 1e9),
        DType::I32 | DType::I64 => (-1e9, 1e9),
        DType::Bytes | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => return Ok(()),
    };
    match fill.fract() == 0.0 && (low..=high).contains(&fill) {
        true => Ok(()),
        false => Err(format!(
            "`{op}` fills {} with a whole number from {low} to {high}, not {fill}",
            image.dtype
        )),
    }
}

/// `interpolation`: nearest unless given.
fn interpolation(params: &mut Table<'_>) -> Result<Interpolation, PipelineError> {
    let choices = [("nearest", Interpolation::Nearest), ("bilinear", Interpolation::Bilinear)];
    match params.get("interpolation") {
        Some(node) => params.choice("interpolation", node, &choices),
        None => Ok(Interpolation::Nearest),
    }
}

/// `key`: pixels left, top, right and below; one number for all, two for the sides and for top and
/// bottom.
fn sides(params: &mut Table<'_>, key: &'static str) -> Result<Option<[u32; 4]>, PipelineError> {
    let Some(node) = params.get(key) else { return Ok(None) };
    let sides = match &node.value {
        Value::Seq(_) => params.wholes(key, node, 0..=MAX_SIDE)?,
        _ => vec![params.whole(key, node, 0..=MAX_SIDE)?],
    };
    match sides[..] {
        [all] => Ok(Some([all; 4])),
        [x, y] => Ok(Some([x, y, x, y])),
        [left, top, right, bottom] => Ok(Some([left, top, right, bottom])),
        _ => Err(node.error(format!(
            "`{key}` must be one number, [left and right, top and bottom], or [left, top, right, bottom]"
        ))),
    }
}
