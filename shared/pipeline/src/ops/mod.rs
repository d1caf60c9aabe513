//! The operators' parameters, one file each. The executor gives them effect.

mod batch;
mod bucket_by_sequence_length;
mod cast;
mod copy_field;
mod decode;
mod drop_fields;
mod duplicate;
mod filter;
mod flat_map;
mod flip;
mod inflate;
mod length;
mod normalise;
mod padded_batch;
mod random_resized_crop;
mod resize;
mod sleep;
mod truncate;

pub use batch::Batch;
pub(crate) use batch::MAX_BATCH_SIZE;
pub use bucket_by_sequence_length::BucketBySequenceLength;
pub use cast::{Cast, CastDType};
pub use copy_field::CopyField;
pub use decode::Decode;
pub use drop_fields::DropFields;
pub use duplicate::Duplicate;
pub use filter::Filter;
pub use flat_map::{FlatMap, MAX_ITEMS};
pub use flip::Flip;
pub use inflate::Inflate;
pub use length::Length;
pub use normalise::Normalise;
pub use padded_batch::PaddedBatch;
pub use random_resized_crop::RandomResizedCrop;
pub use resize::Resize;
pub use sleep::{Sleep, SleepPer};
pub use truncate::Truncate;

use crate::{
    Cardinality, Declaration, Effect, PipelineError, Randomness, Scope,
    node::{Node, Value},
    table::Table,
};

/// Largest side of an image an operator may be asked to make.
pub const MAX_SIDE: u32 = 16_384;

/// The declaration most operators share: one element in, one out, movable, deterministic.
const fn element_wise(name: &'static str, version: u32) -> Declaration {
    Declaration {
        name,
        version,
        randomness: Randomness::Deterministic,
        cardinality: Cardinality::OneToOne,
        pins_position: false,
        scope: Scope::Element,
        effect: Effect::Opaque,
    }
}

/// As [`element_wise`], of known effect.
const fn with_effect(name: &'static str, version: u32, effect: Effect) -> Declaration {
    Declaration { effect, ..element_wise(name, version) }
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
