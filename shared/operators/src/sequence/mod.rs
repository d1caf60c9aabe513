//! Operators on sequences.

pub(crate) mod length;
pub(crate) mod pad_sequence;
pub(crate) mod tokenise;
pub(crate) mod truncate;
