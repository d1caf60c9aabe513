//! Operators that extract several fields from one byte string.

pub(crate) mod parse_csv;
pub(crate) mod parse_example;
pub(crate) mod parse_json;
pub(crate) mod parsing;
