//! A service on one machine: coordinator and scaler in one process, its table, and a pool of worker processes.
//!
//! Clients call it over a socket or a port of this machine ([`gristmill_host::HostServiceClient`]). Objects are files that
//! workers and fetchers open themselves, so no byte of a batch passes through the service.

mod counts;
mod embedded_table;
mod endpoint;
mod invoking;
mod pool;
mod service;

pub use embedded_table::EmbeddedTable;
pub use pool::WorkerProgram;
pub use service::{ExternalStores, MachineService, OWN_BUCKET, ServiceConfig, ServiceStartError};
