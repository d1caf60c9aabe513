//! Names of stored objects and items.

pub mod keys;
