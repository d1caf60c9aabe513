//! Embedded stand-ins for AWS: a table, an object store and a function host.
//!
//! [`Service`] composes the three on loopback ports. Each speaks the protocol of its AWS service, checks signatures,
//! and is driven by the unmodified AWS SDK, so code above this crate is the same on a laptop and on AWS.
//! [`FunctionHost`] runs `lambda_runtime` binaries as separate processes.

mod credentials;
mod embedded_table;
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
pub use embedded_table::EmbeddedTable;
pub use error::LocalError;
pub use functions::{FunctionConfig, FunctionHost, HostConfig, Schedule, UrlAuth, UrlConfig};
pub use objects::{ObjectServer, ObjectServerBuilder, ObjectStats, Serving};
pub use service::{Endpoints, Mount, Others, Ports, Service, ServiceConfig};
pub use sigv4::{SignatureError, Verifier};
pub use table::{TableConfig, TableServer, TableStats};
