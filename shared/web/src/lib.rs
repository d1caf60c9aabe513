//! Files on web servers as read-only objects.
//!
//! The bucket of such an object is the server's origin (`https://host` or `https://host:port`); its key is the path
//! and query. Its etag names a version: the length, and the strong ETag or else the date of the last change. Every
//! response is compared with it, so a file that changes during a job is detected even if the server ignores
//! conditional requests.

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
