//! Everything AWS would provide, embedded: a table, an object store and a host for functions.
//!
//! [`Service`] composes the three on loopback ports. Each speaks the protocol of the service it stands in for, checks
//! signatures as that service does, and is driven by the unmodified AWS SDK, so nothing above this crate knows whether
//! it runs on a laptop. [`FunctionHost`] runs real `lambda_runtime` binaries as processes of their own.

mod credentials;
mod error;
pub mod functions;
mod http_server;
mod ids;
mod objects;
mod room;
pub mod service;
mod sigv4;
mod table;

pub use credentials::Credentials;
pub use error::LocalError;
pub use functions::{FunctionConfig, FunctionHost, HostConfig, Schedule, UrlAuth, UrlConfig};
pub use objects::{ObjectServer, ObjectServerBuilder, ObjectStats, Serving};
pub use service::{Endpoints, Mount, Others, Ports, Service, ServiceConfig};
pub use sigv4::{SignatureError, Verifier};
pub use table::{TableConfig, TableServer, TableStats};
