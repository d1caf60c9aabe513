//! Operators on individual numbers.

pub(crate) mod cast;
pub(crate) mod clip;
pub(crate) mod layout;
pub(crate) mod normalise;
pub(crate) mod one_hot;
pub(crate) mod scale;
pub(crate) mod standardise;
