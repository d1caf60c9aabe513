//! The ports on one machine: objects as files, folders as sources, calls over a socket.
//!
//! Everything that assumes one host lies here and in the crate `local`; code above the ports does not.

mod calls;
mod error;
pub mod folder;
mod objects;
mod places;
mod private;
mod routed;
mod service_file;
mod state_dir;

pub use calls::{DiskUse, HostServiceClient, READ_HEADER, ServiceStatus};
pub use error::HostError;
pub use objects::{FileObjects, FolderRegistry};
pub use places::credentials_id;
pub use places::process_cpu_ms;
pub use places::{default_state_dir, state_of_before};
pub use places::{free_bytes, free_space};
pub use private::{open_private, private_dir, read_private, write_private};
pub use routed::{ChunkByteCounter, HostObjects, own_files};
pub use service_file::{AttachError, ForeignS3, ServiceFile, registered};
pub use service_file::{WorkerAnswer, WorkerOrder, WorkerSetup};
pub use state_dir::{
    ClientLock, NoClientsLock, StartLock, StateDir, checked, is_alive, is_state_dir,
};
