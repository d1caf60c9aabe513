//! Operators on whole elements.

pub(crate) mod autocache;
pub(crate) mod copy_field;
pub(crate) mod drop_fields;
pub(crate) mod duplicate;
pub(crate) mod filter;
pub(crate) mod flat_map;
pub(crate) mod inflate;
pub(crate) mod sleep;
