//! `parse_json`: fields of the JSON object in a byte string.

use crate::{parse::parsing::parsing_operator, prelude::*};
use gristmill_sources::jsonl::Jsonl;
use std::collections::BTreeMap;

/// bytes (one JSON object, RFC 8259) -> a field for each of `features`, found and typed as by the source
/// `jsonl`: `a.b` is `b` of the object under `a`; whole numbers, `true` and `false` are i64, numbers f32,
/// and strings their UTF-8. A null, a missing value or one of another kind is an error of its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParseJson {
    pub field: String,
    /// By the name of the new field: `{ key, dtype, shape }`, as the `features` of a source.
    pub features: BTreeMap<String, Feature>,
    /// Whether the byte string stays a field of the element.
    pub keep: bool,
}

parsing_operator!(ParseJson, "parse_json", Jsonl, gristmill_sources::jsonl::JsonlRecordReader);
