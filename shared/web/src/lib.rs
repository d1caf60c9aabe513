//! Files on web servers as objects that are only read.
//!
//! The bucket of such an object is the server's origin (`https://host` or `https://host:port`), its key the path and
//! query of its address. Its tag names a version: the length, and the strong ETag or else the date of the last change.
//! Every answer is compared with it, so a file that changes while a job runs is noticed, whether or not the server
//! understands conditions.

mod address;
mod answer;
mod client;
mod reach;
mod read;

pub use address::{is_web, origin_and_key};
pub use client::{WebObjects, WithWeb};
pub use reach::Reach;

#[cfg(test)]
mod tests;
