//! The service that a command uses: a running one, or one that ends with this process.

use crate::{own_program, user_operators};
use gristmill_client::{Backend, Failure, Service, ServiceOptions, connect, start_local};
use std::path::Path;

/// Connects to the service that the options name. Without one, starts a service that keeps its
/// state in the state directory of the options.
pub async fn open(options: &ServiceOptions) -> Result<Service, Failure> {
    match (options.backend, &options.endpoint) {
        (Backend::Local, None) => own(options.state_dir.as_deref()).await,
        _ => connect(options, user_operators::get()).await,
    }
}

/// Connects to the running service that the options name. Without one, starts a service over the
/// cache of earlier runs.
pub async fn named_or_own(options: &ServiceOptions) -> Result<Service, Failure> {
    match (options.backend, &options.endpoint, &options.state_dir) {
        (Backend::Local, None, None) => own(None).await,
        _ => connect(options, user_operators::get()).await,
    }
}

async fn own(state_dir: Option<&Path>) -> Result<Service, Failure> {
    start_local(&own_program::get()?, state_dir, user_operators::get()).await
}
