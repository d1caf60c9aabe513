//! Declarations and parameter parsers that several operators share.

use crate::prelude::*;
use gristmill_pipeline::{DefaultValue, OF_FIELDS, OF_FILLED_FIELDS};

/// A required parameter.
pub(crate) const fn required(name: &'static str, kind: Kind, doc: &'static str) -> Parameter {
    Parameter::new(name, kind, DefaultValue::Required, doc)
}

/// An optional parameter without a default.
pub(crate) const fn absent(name: &'static str, kind: Kind, doc: &'static str) -> Parameter {
    Parameter::new(name, kind, DefaultValue::Absent, doc)
}

/// A parameter with a default, written as in a pipeline file.
pub(crate) const fn or(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    doc: &'static str,
) -> Parameter {
    Parameter::new(name, kind, DefaultValue::Value(default), doc)
}

/// The field an operator works on.
pub(crate) const FIELD: Parameter = or("field", Kind::Field, "image", "The field.");
pub(crate) const IMAGE_SIZE: Kind = Kind::Other("a whole number, or [height, width]");
pub(crate) const SIDES: Kind = Kind::List(&Kind::Whole { min: 0, max: MAX_SIDE as u64 });
pub(crate) const SIZE: Parameter = required("size", IMAGE_SIZE, "Height and width in pixels.");
pub(crate) const ANTIALIAS: Parameter = or(
    "antialias",
    Kind::Bool,
    "true",
    "Whether shrinking averages over all pixels that it covers, and not over neighbours alone.",
);
pub(crate) const FILL: Parameter =
    or("fill", Kind::Number { min: -1e9, max: 1e9 }, "0.0", "Value of what was outside the image.");
pub(crate) const INTERPOLATION: Parameter = or(
    "interpolation",
    Kind::Choice(&["nearest", "bilinear"]),
    "nearest",
    "How pixels between pixels are taken.",
);
pub(crate) const DROP_REMAINDER: Parameter = or(
    "drop_remainder",
    Kind::Bool,
    "false",
    "Leave the last batch of an epoch out if it is short.",
);
pub(crate) const LENGTHS: Parameter = or(
    "lengths",
    Kind::Map(&Kind::Whole { min: 1, max: u32::MAX as u64 }),
    "{}",
    "Items each of these fields is padded to, such as `{ tokens: 128 }`.",
);
pub(crate) const VALUES: Parameter = or(
    "values",
    Kind::Map(&Kind::Number { min: f64::MIN, max: f64::MAX }),
    "{}",
    "What each of these fields is padded with.",
);

/// `size` of an operator that makes batches.
pub(crate) const fn batch_size_parameter() -> Parameter {
    let kind = Kind::Whole { min: 1, max: MAX_BATCH_SIZE as u64 };
    required("size", kind, "Elements of a batch.")
}

/// An operator's own parameters, followed by those of all operators on images with masks and boxes.
/// `filled` if the operator fills pixels that its input does not have. `N` is the total number.
pub(crate) const fn with_fields<const N: usize>(own: &[Parameter], filled: bool) -> [Parameter; N] {
    let shared = if filled { OF_FILLED_FIELDS } else { OF_FIELDS };
    assert!(own.len() + shared.len() == N, "N is the number of all parameters");
    let mut all = [FIELD; N];
    let mut i = 0;
    while i < N {
        all[i] = if i < own.len() { own[i] } else { shared[i - own.len()] };
        i += 1;
    }
    all
}

/// The declaration of a parameter. A test parses every operator, so none is missing.
fn declared<T: Define>(name: &str) -> &'static Parameter {
    let found = T::PARAMETERS.iter().find(|parameter| parameter.name == name);
    found.unwrap_or_else(|| panic!("`{}` does not declare `{name}`", T::DECLARATION.name))
}

/// The given value of a parameter; none if the default applies. An error if a required one is missing.
fn given<'a, T: Define>(
    params: &mut Table<'a>,
    name: &'static str,
) -> Result<(Option<&'a Node>, &'static Parameter), PipelineError> {
    let parameter = declared::<T>(name);
    let node = match parameter.default {
        DefaultValue::Required => Some(params.require(name)?),
        _ => params.get(name),
    };
    Ok((node, parameter))
}

/// The declared default of a parameter.
fn default<V: std::str::FromStr>(parameter: &Parameter) -> V {
    let text = match parameter.default {
        DefaultValue::Value(text) => text,
        DefaultValue::Required | DefaultValue::Absent => "",
    };
    let value = text.parse().ok();
    value.unwrap_or_else(|| panic!("the default of `{}` is no value of it", parameter.name))
}

/// Parses a whole number, with the range and default that `T` declares.
pub(crate) fn whole<T: Define>(
    params: &mut Table<'_>,
    name: &'static str,
) -> Result<u32, PipelineError> {
    let (node, parameter) = given::<T>(params, name)?;
    let Kind::Whole { min, max } = parameter.kind else { panic!("`{name}` is no whole number") };
    let [min, max] = [min, max].map(|bound| u32::try_from(bound).unwrap_or(u32::MAX));
    node.map_or_else(|| Ok(default(parameter)), |node| params.whole(name, node, min..=max))
}

/// Parses a number, with the range and default that `T` declares.
pub(crate) fn real<T: Define>(
    params: &mut Table<'_>,
    name: &'static str,
) -> Result<f64, PipelineError> {
    let (node, parameter) = given::<T>(params, name)?;
    let Kind::Number { min, max } = parameter.kind else { panic!("`{name}` is no number") };
    node.map_or_else(|| Ok(default(parameter)), |node| params.number(name, node, min..=max))
}

/// Parses true or false, with the default that `T` declares.
pub(crate) fn flag<T: Define>(
    params: &mut Table<'_>,
    name: &'static str,
) -> Result<bool, PipelineError> {
    params.bool(name, default(declared::<T>(name)))
}

/// The declaration of most operators: one element in, one out, movable, deterministic.
pub(crate) const fn element_wise(name: &'static str, version: u32) -> Declaration {
    Declaration::new(name, version)
}

/// As [`element_wise`], with a known effect.
pub(crate) const fn with_effect(name: &'static str, version: u32, effect: Effect) -> Declaration {
    Declaration { effect, ..element_wise(name, version) }
}

/// The declaration of operators on the sequence of records.
pub(crate) const fn of_dataset(name: &'static str, version: u32) -> Declaration {
    Declaration { scope: Scope::Global, pins_position: true, ..element_wise(name, version) }
}

/// Parses `count`: a number of records, at least `least`.
pub(crate) fn count(params: &mut Table<'_>, least: u64) -> Result<u64, PipelineError> {
    let node = params.require("count")?;
    let count = match node.value {
        Value::Int(count) => u64::try_from(count).ok().filter(|count| *count >= least),
        _ => None,
    };
    count.ok_or_else(|| params.wrong("count", node, &format!("a whole number from {least} on")))
}

/// Parses `size`: one number for a square, or `[height, width]`.
pub(crate) fn size(params: &mut Table<'_>) -> Result<[u32; 2], PipelineError> {
    params.require("size")?;
    // Required, so it is present.
    Ok(image_size(params, "size")?.unwrap_or([1, 1]))
}

/// Parses height and width under `key`, if present: one number for a square, or `[height, width]`.
pub(crate) fn image_size(
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

/// Parses `into`: the new field of an operator.
pub(crate) fn into(params: &mut Table<'_>, op: &str) -> Result<String, PipelineError> {
    let node = params.require("into")?;
    let name = params.text("into", node)?;
    check_field_name(&name).map_err(|message| node.error(format!("`{op}` `into`: {message}")))?;
    Ok(name)
}

/// Parses `key`: `[low, high]` in `range` with low <= high, or one number that `spread` turns into both.
pub(crate) fn interval(
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

/// Parses `channels`: 1 or 3, `default` unless given.
pub(crate) fn channels(params: &mut Table<'_>, default: u32) -> Result<u32, PipelineError> {
    let Some(node) = params.get("channels") else { return Ok(default) };
    match node.value {
        Value::Int(1) => Ok(1),
        Value::Int(3) => Ok(3),
        _ => Err(node.error(format!("`channels` must be 1 or 3, not {}", node.shown()))),
    }
}

/// The schema with the full range of colours: 0 to 255 for u8, 0 to 1 for f32.
pub(crate) fn in_full_range(field: FieldSchema) -> FieldSchema {
    let range = field.range.map(|_| match field.dtype {
        DType::U8 => ValueRange::PIXELS,
        _ => ValueRange { min: 0.0, max: 1.0 },
    });
    FieldSchema { range, ..field }
}

/// Dtypes accepted by operators that move pixels without reading their values.
pub(crate) const MOVABLE: &[DType] = &[DType::U8, DType::F16, DType::BF16, DType::F32];

/// Checks that the image can hold `fill`.
pub(crate) fn check_fill(op: &str, image: &FieldSchema, fill: f64) -> Result<(), String> {
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

/// Parses `interpolation`: nearest unless given.
pub(crate) fn interpolation(params: &mut Table<'_>) -> Result<Interpolation, PipelineError> {
    let choices = [("nearest", Interpolation::Nearest), ("bilinear", Interpolation::Bilinear)];
    match params.get("interpolation") {
        Some(node) => params.choice("interpolation", node, &choices),
        None => Ok(Interpolation::Nearest),
    }
}

/// Parses `key`: pixels at left, top, right and bottom; one number for all, or two for the sides and for
/// top and bottom.
pub(crate) fn sides(
    params: &mut Table<'_>,
    key: &'static str,
) -> Result<Option<[u32; 4]>, PipelineError> {
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
