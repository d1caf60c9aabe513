//! How records are stored, one file per format.

pub(crate) mod example;
mod file_index;
pub mod tfrecord;
