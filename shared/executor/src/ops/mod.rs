//! The operators' effects, one file each. Their parameters and schemas are the pipeline's.

mod cast;
mod decode;
mod flip;
mod inflate;
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

/// The action of `op` on elements of schema `input`; `field_index` finds the cell of a field.
pub(crate) fn compile(
    op: &Op,
    input: &Schema,
    field_index: impl Fn(&str) -> Option<usize>,
) -> Result<Action, ExecError> {
    let (field, schema) = match op.field() {
        Some(name) => match (field_index(name), input.field(name)) {
            (Some(field), Some(schema)) => (field, schema),
            _ => return Err(cannot(op, "its field is missing")),
        },
        None => return without_field(op),
    };
    let transform = |kernel: Box<dyn Transform>| Action::Transform { field, kernel, to_row: false };
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
        other => return Err(cannot(other, "this build does not have it")),
    })
}

fn without_field(op: &Op) -> Result<Action, ExecError> {
    match op {
        Op::Sleep(op) => Ok(Action::Wait(Duration::from_secs_f64(op.ms / 1e3))),
        other => Err(cannot(other, "this build does not have it")),
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
