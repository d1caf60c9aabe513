//! Operators on the sequence of records.

pub(crate) mod in_order;
pub(crate) mod interleave;
pub(crate) mod repeat;
pub(crate) mod shuffle;
pub(crate) mod skip;
pub(crate) mod take;
