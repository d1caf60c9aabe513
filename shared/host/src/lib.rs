//! The ports on one machine: objects as files, folders as sources, calls over a socket.
//!
//! Everything that assumes one host lies here and in the crate `local`; code above the ports does not.

mod objects;

pub use objects::{FileObjects, FolderRegistry};
