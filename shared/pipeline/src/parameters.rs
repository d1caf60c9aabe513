//! Forms of parameters that several operators take.

use crate::{Node, PipelineError, Table, node::Value};
use std::ops::RangeInclusive;

/// `key`: a number in `range`, `default` unless given.
///
/// # Errors
/// If it is no such number.
pub fn number(
    params: &mut Table<'_>,
    key: &'static str,
    default: f64,
    range: RangeInclusive<f64>,
) -> Result<f64, PipelineError> {
    params.get(key).map_or(Ok(default), |node| params.number(key, node, range))
}

/// The value of `key`, if it is there and is not null, as the canonical form writes what is not there.
pub fn optional<'a>(params: &mut Table<'a>, key: &'static str) -> Option<&'a Node> {
    params.get(key).filter(|node| node.value != Value::Null)
}
