//! Files on web servers as read-only objects.
//!
//! The bucket of such an object is the server's origin (`https://host` or `https://host:port`); its key is the path
//! and query. Its etag names a version: the length, and the strong ETag or else the date of the last change. Every
//! response is compared with it, so a file that changes during a job is detected even if the server ignores
//! conditional requests.
//!
//! Without the feature `client` every request is refused: a small program says in one line that it was built so.

mod address;
#[cfg(feature = "client")]
mod client;
#[cfg(not(feature = "client"))]
#[path = "without_client.rs"]
mod client;
mod routed;

pub use address::{AllowedServers, is_web, origin_and_key};
pub use client::WebObjects;
pub use routed::WebRoutedStore;
