//! Streams committed batches into the training loop: in order, exactly once, with bounded memory.
//!
//! [`Fetcher::start`] joins a job; [`Fetcher::next`] hands out batches; [`Fetcher::checkpointed`]
//! says what is safe. Everything else (polling, prefetching, joining splits, local workers)
//! runs behind these three.

mod assembler;
mod authored;
mod cached;
pub mod cursor;
mod dataset;
mod downloader;
mod error;
mod fetcher;
mod flags;
mod folders;
pub mod framing;
mod images;
mod ledger;
mod listing;
mod local;
mod log;
mod memory;
mod pace;
mod poller;
mod progress;
mod rows;
mod selection;
pub mod server;
mod service;
mod service_file;
pub mod signals;
mod stream;
mod trouble;
mod user_file;
pub mod waiting;
mod waits;

pub use assembler::Batch;
pub use authored::Authored;
pub use dataset::{Found, ListError, Listing, Source};
pub use error::FetchError;
pub use fetcher::{Delivery, EpochTotals, Fetcher, FetcherConfig, FetcherPorts, Snapshot};
pub use flags::parse_patience;
pub use folders::Folders;
pub use gristmill_executor::NUMERICS;
pub use log::log_to_stderr;
pub use memory::return_large_buffers;
pub use selection::LeftOut;
pub use service::aws_of;
pub use service_file::{AttachError, ServiceFile};
pub use trouble::give_up;
pub use user_file::{read_user_file, read_user_text};
pub use waits::Waits;
