//! `parse_example`: fields of the `tf.train.Example` in a byte string.

use crate::{parse::parsing::parsing_operator, prelude::*};
use gristmill_sources::tfrecord::TfRecord;
use std::collections::BTreeMap;

/// bytes (one serialised `tf.train.Example`) -> a field for each of `features`, read as by the source
/// `tfrecord`: with a `shape` as TensorFlow's `FixedLenFeature`, with `[-1]` as its `RaggedFeature`. A
/// missing feature, or one of another type, is an error of its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParseExample {
    pub field: String,
    /// By the name of the new field: `{ key, dtype, shape }`, as the `features` of a source.
    pub features: BTreeMap<String, Feature>,
    /// Whether the byte string stays a field of the element.
    pub keep: bool,
}

parsing_operator!(
    ParseExample,
    "parse_example",
    TfRecord,
    gristmill_sources::tfrecord::example::ExampleExtractor
);
