//! The service that a command uses: a running one, one that it shares with others, or one of its own.

use crate::program;
use gristmill_client::{
    ProgramFailure, ServiceBackend, ServiceConnection, ServiceOptions, connect, start_local,
};

/// Connects to the service that the options name. Otherwise to the one that all processes of this user share, or the
/// one on the state directory of the options; starts it if it does not run.
pub async fn open(options: &ServiceOptions) -> Result<ServiceConnection, ProgramFailure> {
    match (options.backend, &options.endpoint) {
        (ServiceBackend::Local, None) => {
            let dir = options.state_dir.as_deref();
            start_local(&program::launcher()?, dir, program::operators()).await
        }
        _ => connect(options, program::operators()).await,
    }
}

/// As [`open`], but a state directory must be there: a job or a cache of it is asked for.
pub async fn open_existing(options: &ServiceOptions) -> Result<ServiceConnection, ProgramFailure> {
    match &options.state_dir {
        Some(dir) if !gristmill_host::is_state_dir(dir) => {
            connect(options, program::operators()).await
        }
        _ => open(options).await,
    }
}
