//! Operators that find several fields in one byte string.

pub(crate) mod parse_csv;
pub(crate) mod parse_example;
pub(crate) mod parse_json;
pub(crate) mod parsing;
