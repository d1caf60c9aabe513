//! Readers for parameters that several operators have.

use crate::{Node, PipelineError, Table, node::Value};
use std::ops::RangeInclusive;

/// Reads `key`: a number in `range`, `default` unless given.
///
/// # Errors
/// If the value is not such a number.
pub fn number(
    params: &mut Table<'_>,
    key: &'static str,
    default: f64,
    range: RangeInclusive<f64>,
) -> Result<f64, PipelineError> {
    params.get(key).map_or(Ok(default), |node| params.number(key, node, range))
}

/// The value of `key`. `None` if it is absent or null, which the canonical form writes for absent
/// values.
pub fn optional<'a>(params: &mut Table<'a>, key: &'static str) -> Option<&'a Node> {
    params.get(key).filter(|node| node.value != Value::Null)
}
