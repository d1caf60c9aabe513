//! `copy`: a field twice.

use crate::{
    cell::Sink,
    random::Draw,
    step::{Made, Tools, Transform, View},
};

/// Any value -> the same.
#[derive(Debug)]
pub(crate) struct CopyValue;

impl Transform for CopyValue {
    fn run(
        &self,
        input: View<'_>,
        output: Sink<'_>,
        _: &mut Tools,
        _: &mut Draw,
    ) -> Result<Made, String> {
        let View { bytes, size } = input;
        output.take(bytes.len())?.copy_from_slice(bytes);
        Ok(Made { bytes: bytes.len(), size })
    }
}
