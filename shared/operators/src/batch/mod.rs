//! Operators that make batches of elements.

pub(crate) mod bucket_by_sequence_length;
pub(crate) mod padded_batch;
pub(crate) mod plain;
