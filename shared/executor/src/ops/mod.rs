//! The operators' effects, one file each. Their parameters and schemas are the pipeline's.

pub(crate) mod boxes;
mod canvas;
mod cast;
mod clip;
mod color_jitter;
mod colours;
mod copy_field;
mod decode;
mod decode_crop;
mod filter;
mod flip;
mod gaussian_blur;
#[cfg(test)]
mod golden;
mod grayscale;
mod inflate;
mod layout;
mod length;
mod masks;
mod normalise;
mod normalise_layout_cast;
mod one_hot;
mod pad_sequence;
mod parse_csv;
mod planes;
#[cfg(test)]
mod properties;
mod random_erasing;
mod random_resized_crop;
pub(crate) mod resize;
mod resize_shorter;
mod scale;
mod sleep;
mod standardise;
#[cfg(test)]
mod timing;
#[cfg(feature = "tokenise")]
mod tokenise;
mod tones;
mod vertical_flip;
mod warp;

pub(crate) use sleep::sleep;
#[cfg(feature = "tokenise")]
pub(crate) use tokenise::check as check_tokenizer;

use crate::{
    Compiler, ExecError,
    step::{Action, Extract, InPlace, Transform},
    user::Operators,
};
use gristmill_pipeline::{DType, FieldSchema, Number, Op, Schema};
use gristmill_sources::{jsonl, tfrecord};
use half::{bf16, f16};
use std::time::Duration;

/// The action of `op` on elements of schema `input`; `cell` finds the cell of a field, and `provided` is
/// what it may need beside them.
pub(crate) fn compile(
    op: &Op,
    input: &Schema,
    cell: impl Fn(&str) -> Option<usize>,
    provided: &Compiler<'_>,
) -> Result<Action, ExecError> {
    let (field, schema) = match op.field() {
        Some(name) => match (cell(name), input.field(name)) {
            (Some(field), Some(schema)) => (field, schema),
            _ => return Err(cannot(op, "its field is missing")),
        },
        None => return without_field(op),
    };
    let output = op.output().and_then(&cell).unwrap_or(field);
    let item_bytes = schema.item_bytes().map_or(1, |bytes| bytes.max(1) as usize);
    let cells = Cells { input: field, output };
    if let Some(action) = of_image(op, schema, &cells) {
        return Ok(action);
    }
    // Every field an operator writes has a cell.
    let outputs = || op.outputs().into_iter().filter_map(&cell).collect();
    let parse =
        |kernel: Box<dyn Extract>| Action::Parse { input: field, outputs: outputs(), kernel };
    Ok(match op {
        Op::Clip(op) => cells.in_place(Box::new(clip::Bounds::new(op, schema.dtype))),
        Op::OneHot(op) => cells.transform(Box::new(one_hot::Classes::new(op, schema.dtype))),
        Op::Scale(op) => cells.transform(Box::new(scale::ScaleBy::new(op, schema.dtype))),
        Op::Cast(cast) if cast.dtype.dtype() == schema.dtype => Action::Nothing,
        Op::Cast(cast) => cells.transform(Box::new(cast::Convert::new(schema.dtype, cast.dtype))),
        Op::Inflate(op) => cells.transform(Box::new(inflate::Repeat::new(op))),
        Op::Length(_) => cells.transform(Box::new(length::CountItems { item_bytes })),
        Op::CopyField(_) => cells.transform(Box::new(copy_field::CopyValue)),
        Op::PadSequence(op) => {
            cells.transform(Box::new(pad_sequence::FillUp::new(op, schema, item_bytes)))
        }
        Op::Truncate(op) => {
            Action::Shorten { field, most_bytes: (op.length as usize).saturating_mul(item_bytes) }
        }
        #[cfg(feature = "tokenise")]
        Op::Tokenise(op) => cells.transform(Box::new(tokenise::Tokens::new(op, provided.assets)?)),
        #[cfg(not(feature = "tokenise"))]
        Op::Tokenise(_) => return Err(cannot(op, "this build has no feature `tokenise`")),
        Op::Custom(op) => {
            let none = Operators::new();
            cells.transform(provided.operators.unwrap_or(&none).compile(op, schema)?)
        }
        Op::ParseJson(op) => parse(Box::new(jsonl::Extractor::new(&op.features))),
        Op::ParseCsv(op) => parse(Box::new(parse_csv::Columns::new(op))),
        Op::ParseExample(op) => parse(Box::new(tfrecord::example::Extractor::new(&op.features))),
        Op::Filter(op) => Action::Filter { field, kernel: Box::new(filter::Test::new(op, schema)) },
        Op::FlatMap(_) => Action::FlatMap { field, item_bytes },
        other => return Err(cannot(other, "this build does not have it")),
    })
}

/// The cells an operator reads and writes.
struct Cells {
    input: usize,
    output: usize,
}

impl Cells {
    fn transform(&self, kernel: Box<dyn Transform>) -> Action {
        Action::Transform { input: self.input, output: self.output, kernel, to_row: false }
    }

    fn in_place(&self, kernel: Box<dyn InPlace>) -> Action {
        Action::InPlace { field: self.input, kernel }
    }
}

/// The action of an operator on images; none of others.
fn of_image(op: &Op, schema: &FieldSchema, cells: &Cells) -> Option<Action> {
    if let Some(fields) = op.together().filter(|fields| fields.is_mask(&fields.field)) {
        return masks::action(op, fields, schema, cells);
    }
    Some(match op {
        Op::Decode(op) => cells.transform(Box::new(decode::DecodeImage::new(op))),
        Op::Resize(op) => {
            let channels = channels(schema);
            cells.transform(Box::new(resize::ResizeImage::new(op.size, channels, op.antialias)))
        }
        Op::RandomResizedCrop(op) => {
            cells.transform(Box::new(random_resized_crop::CropAndResize::new(op, channels(schema))))
        }
        Op::ResizeShorter(op) => {
            let (op, channels) = (op.clone(), channels(schema));
            cells.transform(Box::new(resize_shorter::KeepAspect { op, channels }))
        }
        Op::CenterCrop(op) => cells.transform(Box::new(canvas::Canvas::centre(op, schema, 0.0))),
        Op::Crop(op) => cells.transform(Box::new(canvas::Canvas::fixed(op, schema))),
        Op::RandomCrop(op) => {
            cells.transform(Box::new(canvas::Canvas::random(op, schema, op.fill)))
        }
        Op::Pad(op) => cells.transform(Box::new(canvas::Canvas::padded(op, schema, op.fill))),
        Op::VerticalFlip(op) => cells.in_place(Box::new(vertical_flip::UpsideDown { p: op.p })),
        Op::Rotate(op) => {
            cells.transform(Box::new(warp::Warp::rotate(op, schema.dtype, channels(schema))))
        }
        Op::Shear(op) => {
            cells.transform(Box::new(warp::Warp::shear(op, schema.dtype, channels(schema))))
        }
        Op::Solarize(op) => cells.in_place(Box::new(tones::Tones::solarize(op, schema.dtype))),
        Op::Posterize(op) => cells.in_place(Box::new(tones::Tones::posterize(op))),
        Op::RandomErasing(op) => cells.in_place(Box::new(random_erasing::Erase::new(op, schema))),
        Op::Standardise(_) => {
            cells.transform(Box::new(standardise::Standard { dtype: schema.dtype }))
        }
        Op::Layout(op) => cells.transform(Box::new(layout::Transpose::new(op.to, schema))),
        Op::Flip(flip) => cells.in_place(Box::new(flip::Mirror::new(flip, pixel_bytes(schema)))),
        Op::ColorJitter(op) => cells.in_place(Box::new(color_jitter::Jitter::new(op, schema))),
        Op::Grayscale(op) if op.channels == 1 => {
            cells.transform(Box::new(grayscale::OneChannel { dtype: schema.dtype }))
        }
        Op::Grayscale(op) => {
            cells.in_place(Box::new(grayscale::Grey { p: op.p, dtype: schema.dtype }))
        }
        Op::GaussianBlur(op) => {
            cells.in_place(Box::new(gaussian_blur::Blur::new(op, schema.dtype, channels(schema))))
        }
        Op::Normalise(op) => cells.transform(Box::new(normalise::Affine::new(op, schema.dtype))),
        _ => return None,
    })
}

/// The action of an operator on boxes that it moves beside its images, of schema `input`; `cell` finds
/// the cell of a field.
pub(crate) fn compile_boxes(
    op: &Op,
    name: &str,
    input: &Schema,
    cell: impl Fn(&str) -> Option<usize>,
) -> Result<Action, ExecError> {
    let missing = || cannot(op, "a field of its boxes is missing");
    let rules = op.together().and_then(|fields| fields.boxes.as_ref()).ok_or_else(missing)?;
    let kernel = boxes::MoveBoxes::new(op, rules).ok_or_else(missing)?;
    let labels = rules.labels.iter().map(|label| {
        let row_bytes = input.field(label)?.item_bytes()?.max(1) as usize;
        Some((label.clone(), cell(label)?, row_bytes))
    });
    let labels = labels.collect::<Option<Vec<_>>>().ok_or_else(missing)?;
    let kernel = Box::new(kernel);
    Ok(Action::Boxes { field: cell(name).ok_or_else(missing)?, labels, kernel })
}

fn without_field(op: &Op) -> Result<Action, ExecError> {
    match op {
        Op::Sleep(op) => Ok(Action::Wait(Duration::from_secs_f64(op.ms / 1e3))),
        Op::Duplicate(op) => Ok(Action::Duplicate { copies: op.copies }),
        // Its fields are not delivered, which the schema says.
        Op::DropFields(_) => Ok(Action::Nothing),
        other => Err(cannot(other, "this build does not have it")),
    }
}

/// One step that does what the operators of `chain` do one after the other, cheaper than all of them,
/// if there is such a one. The first is given `input`, and nobody else reads what is in between.
pub(crate) fn fuse(
    chain: &[&Op],
    input: &FieldSchema,
) -> Option<(&'static str, Box<dyn Transform>)> {
    match chain {
        [Op::Decode(decode), Op::RandomResizedCrop(crop)]
            if decode.channels == 3 && !crop.fields.is_mask(&crop.fields.field) =>
        {
            let crop = random_resized_crop::CropAndResize::new(crop, 3);
            let fused = decode_crop::DecodeAndCrop::new(crop);
            Some(("decode+random_resized_crop", Box::new(fused)))
        }
        [Op::Normalise(normalise), then @ ..] => {
            let name = match then {
                [Op::Layout(_)] => "normalise+layout",
                [Op::Cast(_)] => "normalise+cast",
                [Op::Layout(_), Op::Cast(_)] => "normalise+layout+cast",
                [Op::Cast(_), Op::Layout(_)] => "normalise+cast+layout",
                _ => return None,
            };
            let fused = normalise_layout_cast::NetworkInput::new(normalise, then, input)?;
            Some((name, Box::new(fused)))
        }
        _ => None,
    }
}

fn cannot(op: &Op, why: &str) -> ExecError {
    ExecError::Pipeline(format!("`{}` cannot be compiled: {why}", op.name()))
}

/// Channels of an `[h, w, c]` image.
fn channels(schema: &FieldSchema) -> usize {
    schema.shape.last().copied().flatten().unwrap_or(1) as usize
}

/// Bytes of one pixel of an `[h, w, c]` image.
fn pixel_bytes(schema: &FieldSchema) -> usize {
    channels(schema) * dtype_bytes(schema.dtype)
}

/// Bytes of one value; 1 for byte strings.
pub(crate) fn dtype_bytes(dtype: DType) -> usize {
    dtype.size_bytes().map_or(1, |bytes| bytes as usize)
}

/// `value` as it is stored in a field of `dtype`.
fn value_bytes(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::Bytes | DType::U8 => vec![value as u8],
        DType::U16 => (value as u16).to_le_bytes().to_vec(),
        DType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        DType::I32 => (value as i32).to_le_bytes().to_vec(),
        DType::U32 => (value as u32).to_le_bytes().to_vec(),
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F64 => value.to_le_bytes().to_vec(),
        DType::I64 => (value as i64).to_le_bytes().to_vec(),
        DType::U64 => (value as u64).to_le_bytes().to_vec(),
    }
}

/// As [`value_bytes`], of a number that `dtype` holds.
pub(crate) fn number_bytes(dtype: DType, number: Number) -> Vec<u8> {
    match (dtype, number) {
        (DType::I64, Number::Whole(number)) => (number as i64).to_le_bytes().to_vec(),
        (DType::U64, Number::Whole(number)) => (number as u64).to_le_bytes().to_vec(),
        (_, number) => value_bytes(dtype, number.real()),
    }
}

/// The whole number that `bytes` are.
fn integer(dtype: DType, bytes: &[u8]) -> Option<i128> {
    Some(match dtype {
        DType::U8 => u8::from_le_bytes(bytes.try_into().ok()?).into(),
        DType::U16 => u16::from_le_bytes(bytes.try_into().ok()?).into(),
        DType::I32 => i32::from_le_bytes(bytes.try_into().ok()?).into(),
        DType::U32 => u32::from_le_bytes(bytes.try_into().ok()?).into(),
        DType::I64 => i64::from_le_bytes(bytes.try_into().ok()?).into(),
        DType::U64 => u64::from_le_bytes(bytes.try_into().ok()?).into(),
        DType::Bytes | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => return None,
    })
}
