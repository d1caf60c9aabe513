//! Declarations and parameter parsers that several operators share.

use crate::prelude::*;
use gristmill_pipeline::{OF_FIELDS, OF_FILLED_FIELDS};

/// Largest number of items of a sequence.
pub(crate) const MAX_LENGTH: u32 = 1 << 24;

/// Any finite number.
pub(crate) const ANY_NUMBER: ParameterKind = ParameterKind::Number { min: f64::MIN, max: f64::MAX };
/// A whole number of 64 bits.
pub(crate) const ANY_COUNT: ParameterKind = ParameterKind::Whole { min: 0, max: u64::MAX };

/// A whole number, both ends included.
pub(crate) const fn from_to(min: u32, max: u32) -> ParameterKind {
    ParameterKind::Whole { min: min as u64, max: max as u64 }
}

/// A parameter that is false by default.
pub(crate) const fn switch(name: &'static str, doc: &'static str) -> Parameter {
    or(name, ParameterKind::Bool, "false", doc)
}

/// `p`, with its default.
pub(crate) const fn probability(default: &'static str) -> Parameter {
    let kind = ParameterKind::Number { min: 0.0, max: 1.0 };
    or("p", kind, default, "Probability, 0 to 1.")
}

/// The field an operator works on.
pub(crate) const FIELD: Parameter = or("field", ParameterKind::Field, "image", "The field.");
pub(crate) const IMAGE_SIZE: ParameterKind = ParameterKind::Size { max: MAX_SIDE as u64 };
pub(crate) const SIDES: ParameterKind = ParameterKind::List(&from_to(0, MAX_SIDE));
pub(crate) const SIZE: Parameter = required("size", IMAGE_SIZE, "Height and width in pixels.");
pub(crate) const ANTIALIAS: Parameter = or(
    "antialias",
    ParameterKind::Bool,
    "true",
    "Whether shrinking averages over all pixels that it covers, and not over neighbours alone.",
);
pub(crate) const FILL: Parameter = or(
    "fill",
    ParameterKind::Number { min: -1e9, max: 1e9 },
    "0.0",
    "Value of what was outside the image.",
);
pub(crate) const INTERPOLATION: Parameter = or(
    "interpolation",
    ParameterKind::Choice(&["nearest", "bilinear"]),
    "nearest",
    "How pixels between pixels are taken.",
);
pub(crate) const DROP_REMAINDER: Parameter =
    switch("drop_remainder", "Leave the last batch of an epoch out if it is short.");
pub(crate) const LENGTHS: Parameter = or(
    "lengths",
    ParameterKind::Map(&from_to(1, MAX_LENGTH)),
    "{}",
    "Items each of these fields is padded to, such as `{ tokens: 128 }`.",
);
pub(crate) const VALUES: Parameter = or(
    "values",
    ParameterKind::Map(&ANY_NUMBER),
    "{}",
    "What each of these fields is padded with; floats also with `.nan`, `.inf` and `-.inf`.",
);

/// `size` of an operator that makes batches.
pub(crate) const fn batch_size_parameter() -> Parameter {
    let kind = from_to(1, MAX_BATCH_SIZE);
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

/// The declaration of most operators: one element in, one out, movable, deterministic.
pub(crate) const fn element_wise(name: &'static str, version: u32) -> OperatorDeclaration {
    OperatorDeclaration::new(name, version)
}

/// As [`element_wise`], with a known effect.
pub(crate) const fn with_effect(
    name: &'static str,
    version: u32,
    effect: OperatorEffect,
) -> OperatorDeclaration {
    OperatorDeclaration { effect, ..element_wise(name, version) }
}

/// The declaration of operators on the sequence of records.
pub(crate) const fn dataset_declaration(name: &'static str, version: u32) -> OperatorDeclaration {
    OperatorDeclaration {
        scope: OperatorScope::Global,
        pins_position: true,
        ..element_wise(name, version).costs(0, 0)
    }
}

/// Parses a whole number of 64 bits from `min` on.
pub(crate) fn large(
    params: &mut MappingReader<'_>,
    name: &str,
    min: u64,
) -> Result<u64, PipelineError> {
    let node = params.present(name)?;
    let number = match node.value {
        NodeValue::Int(number) => u64::try_from(number).ok().filter(|number| *number >= min),
        _ => None,
    };
    number.ok_or_else(|| params.wrong(name, &node, &format!("a whole number from {min} on")))
}

/// Parses height and width: one number for a square, or `[height, width]`.
pub(crate) fn size(params: &mut MappingReader<'_>, name: &str) -> Result<[u32; 2], PipelineError> {
    let node = params.present(name)?;
    let range = params.wholes_of(name);
    let side = |node: &SyntaxNode| params.whole(name, node, range.clone());
    match &node.value {
        NodeValue::Seq(items) if items.len() == 2 => Ok([side(&items[0])?, side(&items[1])?]),
        _ => side(&node).map(|side| [side, side]),
    }
}

/// As [`size`]; none if the parameter is left out.
pub(crate) fn optional_size(
    params: &mut MappingReader<'_>,
    name: &'static str,
) -> Result<Option<[u32; 2]>, PipelineError> {
    params.get(name).is_some().then(|| size(params, name)).transpose()
}

/// Parses `field` of an operator without a usual one.
pub(crate) fn required_field(params: &mut MappingReader<'_>) -> Result<String, PipelineError> {
    let node = params.require("field")?;
    params.text("field", node)
}

/// Parses `into`: the new field of an operator.
pub(crate) fn into(params: &mut MappingReader<'_>, op: &str) -> Result<String, PipelineError> {
    let node = params.require("into")?;
    let name = params.text("into", node)?;
    check_field_name(&name).map_err(|message| node.error(format!("`{op}` `into`: {message}")))?;
    Ok(name)
}

/// Checks that some number lies between `min` and `max`.
pub(crate) fn check_bounds(
    params: &MappingReader<'_>,
    op: &str,
    min: Option<AuthoredNumber>,
    max: Option<AuthoredNumber>,
) -> Result<(), PipelineError> {
    match (min, max) {
        (Some(min), Some(max)) if min > max => {
            Err(params.error(format!("`{op}` `min` must be at most `max`, not {min} and {max}")))
        }
        _ => Ok(()),
    }
}

/// Parses `[low, high]` with low <= high, or one number that `spread` turns into both, with the declared
/// range and default. The one number is not negative.
pub(crate) fn interval(
    params: &mut MappingReader<'_>,
    name: &str,
    spread: impl Fn(f64) -> [f64; 2],
) -> Result<[f64; 2], PipelineError> {
    let (min, max) = params.numbers_of(name).into_inner();
    let node = params.present(name)?;
    let bounds = match &node.value {
        NodeValue::Seq(_) => params.numbers(name, &node, min.min(0.0)..=max)?,
        _ => spread(params.number(name, &node, 0.0..=max)?),
    };
    let [low, high] = bounds;
    if low > high {
        return Err(
            node.error(format!("`{name}` must be [low, high] with low <= high, not {bounds:?}"))
        );
    }
    if low < min {
        let op = params.name();
        return Err(node.error(format!("{op} `{name}` must be at least {min}")));
    }
    Ok(bounds.map(|bound| bound + 0.0))
}

/// The number of channels of an operator's output.
pub(crate) const CHANNELS: ParameterKind = ParameterKind::Choice(&["1", "3"]);

/// Parses `channels`, which is of the kind [`CHANNELS`].
pub(crate) fn channels(params: &mut MappingReader<'_>) -> Result<u32, PipelineError> {
    let node = params.present("channels")?;
    match node.value {
        NodeValue::Int(number @ (1 | 3)) => Ok(number as u32),
        _ => Err(node.error(format!("`channels` must be 1 or 3, not {}", node.shown()))),
    }
}

/// The schema with the full range of colours: 0 to 255 for u8, 0 to 1 for f32.
pub(crate) fn in_full_range(field: FieldSchema) -> FieldSchema {
    let range = field.range.map(|_| match field.dtype {
        FieldDType::U8 => ValueRange::PIXELS,
        _ => ValueRange { min: 0.0, max: 1.0 },
    });
    FieldSchema { range, ..field }
}

/// The exact effect of an operator that combines the channels of each pixel. Of floats it depends on
/// the place of a pixel: which of two NaN a sum keeps is up to the instruction.
pub(crate) fn each_pixel_of_u8(input: &FieldSchema) -> ExactEffect {
    if input.dtype == FieldDType::U8 { ExactEffect::EachPixel } else { ExactEffect::Unknown }
}

/// Implements the method of an operator that replaces its `field`.
macro_rules! replaces_field {
    () => {
        fn fields(&self) -> TouchedFields<'_> {
            TouchedFields::Replaces(&self.field)
        }
    };
}
pub(crate) use replaces_field;

/// Implements the methods of an operator on images whose `fields` move together, by its geometry.
macro_rules! moves_fields {
    ($op:ident => $geometry:expr) => {
        fn fields(&self) -> TouchedFields<'_> {
            TouchedFields::Together(&self.fields)
        }

        fn fields_mut(&mut self) -> Option<&mut ImageFields> {
            Some(&mut self.fields)
        }

        #[cfg(feature = "kernels")]
        fn boxes_kernel(&self) -> Option<Box<dyn gristmill_kernel::MoveBoxes>> {
            let $op = self;
            boxes::mover(&self.fields, $geometry)
        }
    };
}
pub(crate) use moves_fields;

/// Dtypes accepted by operators that move pixels without reading their values.
pub(crate) const MOVABLE: &[FieldDType] =
    &[FieldDType::U8, FieldDType::F16, FieldDType::BF16, FieldDType::F32];

/// Checks that the image can hold `fill`.
pub(crate) fn check_fill(op: &str, image: &FieldSchema, fill: f64) -> Result<(), String> {
    let (low, high) = match image.dtype {
        FieldDType::U8 => (0.0, 255.0),
        FieldDType::U16 => (0.0, 65_535.0),
        FieldDType::U32 | FieldDType::U64 => (0.0, 1e9),
        FieldDType::I32 | FieldDType::I64 => (-1e9, 1e9),
        FieldDType::Bytes
        | FieldDType::F16
        | FieldDType::BF16
        | FieldDType::F32
        | FieldDType::F64 => return Ok(()),
    };
    if fill.fract() == 0.0 && (low..=high).contains(&fill) {
        Ok(())
    } else {
        Err(format!(
            "`{op}` fills {} with a whole number from {low} to {high}, not {fill}",
            image.dtype
        ))
    }
}

/// Parses pixels at left, top, right and bottom; one number for all, or two for the sides and for
/// top and bottom. None if the parameter is left out and has no default.
pub(crate) fn sides(
    params: &mut MappingReader<'_>,
    name: &str,
) -> Result<Option<[u32; 4]>, PipelineError> {
    let Some(node) = params.value(name)? else { return Ok(None) };
    let range = params.wholes_of(name);
    let sides = match &node.value {
        NodeValue::Seq(_) => params.wholes(name, &node, range)?,
        _ => vec![params.whole(name, &node, range)?],
    };
    match sides[..] {
        [all] => Ok(Some([all; 4])),
        [x, y] => Ok(Some([x, y, x, y])),
        [left, top, right, bottom] => Ok(Some([left, top, right, bottom])),
        _ => Err(node.error(format!(
            "`{name}` must be one number, [left and right, top and bottom], or [left, top, right, bottom]"
        ))),
    }
}
