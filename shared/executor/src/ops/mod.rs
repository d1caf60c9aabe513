//! The operators' effects, one file each. Their parameters and schemas are the pipeline's.

mod cast;
mod copy_field;
mod decode;
mod decode_crop;
mod filter;
mod flip;
mod inflate;
mod length;
mod normalise;
mod random_resized_crop;
pub(crate) mod resize;
mod sleep;

pub(crate) use sleep::sleep;

use crate::{
    ExecError,
    step::{Action, InPlace, Transform},
};
use gristmill_pipeline::{DType, FieldSchema, Op, Schema};
use std::time::Duration;

/// The action of `op` on elements of schema `input`; `cell` finds the cell of a field.
pub(crate) fn compile(
    op: &Op,
    input: &Schema,
    cell: impl Fn(&str) -> Option<usize>,
) -> Result<Action, ExecError> {
    let (field, schema) = match op.field() {
        Some(name) => match (cell(name), input.field(name)) {
            (Some(field), Some(schema)) => (field, schema),
            _ => return Err(cannot(op, "its field is missing")),
        },
        None => return without_field(op),
    };
    let output = op.output().and_then(cell).unwrap_or(field);
    let item_bytes = schema.item_bytes().map_or(1, |bytes| bytes.max(1) as usize);
    let transform = |kernel: Box<dyn Transform>| Action::Transform {
        input: field,
        output,
        kernel,
        to_row: false,
    };
    let in_place = |kernel: Box<dyn InPlace>| Action::InPlace { field, kernel };
    Ok(match op {
        Op::Decode(_) => transform(Box::new(decode::DecodeJpeg)),
        Op::Resize(op) => transform(Box::new(resize::ResizeImage::new(op.size, op.antialias))),
        Op::RandomResizedCrop(op) => {
            transform(Box::new(random_resized_crop::CropAndResize::new(op)))
        }
        Op::Flip(flip) => in_place(Box::new(flip::Mirror::new(flip, pixel_bytes(schema)))),
        Op::Normalise(op) => transform(Box::new(normalise::Affine::new(op, schema.dtype))),
        Op::Cast(cast) if cast.dtype.dtype() == schema.dtype => Action::Nothing,
        Op::Cast(cast) => transform(Box::new(cast::Convert::new(schema.dtype, cast.dtype))),
        Op::Inflate(op) => transform(Box::new(inflate::Repeat::new(op))),
        Op::Length(_) => transform(Box::new(length::CountItems { item_bytes })),
        Op::CopyField(_) => transform(Box::new(copy_field::CopyValue)),
        Op::Truncate(op) => {
            Action::Shorten { field, most_bytes: (op.length as usize).saturating_mul(item_bytes) }
        }
        Op::Filter(op) => Action::Filter { field, kernel: Box::new(filter::Test::new(op, schema)) },
        Op::FlatMap(_) => Action::FlatMap { field, item_bytes },
        other => return Err(cannot(other, "this build does not have it")),
    })
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

/// One step that does what `first` and then `second` do, cheaper than both, if there is such a one.
/// Nobody else reads what is in between.
pub(crate) fn fuse(first: &Op, second: &Op) -> Option<(&'static str, Box<dyn Transform>)> {
    match (first, second) {
        (Op::Decode(_), Op::RandomResizedCrop(crop)) => {
            let crop = random_resized_crop::CropAndResize::new(crop);
            let fused = decode_crop::DecodeAndCrop::new(crop);
            Some(("decode+random_resized_crop", Box::new(fused)))
        }
        _ => None,
    }
}

fn cannot(op: &Op, why: &str) -> ExecError {
    ExecError::Pipeline(format!("`{}` cannot be compiled: {why}", op.name()))
}

/// Bytes of one pixel of an `[h, w, c]` image.
fn pixel_bytes(schema: &FieldSchema) -> usize {
    let channels = schema.shape.last().copied().flatten().unwrap_or(1);
    channels as usize * dtype_bytes(schema.dtype)
}

/// Bytes of one value; 1 for byte strings.
pub(crate) fn dtype_bytes(dtype: DType) -> usize {
    dtype.size_bytes().map_or(1, |bytes| bytes as usize)
}
