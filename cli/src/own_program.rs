//! The program that runs this code, for starting it again: as a function, a service or a fetcher.

use gristmill_client::{ProgramFailure, ServiceLauncher};
use std::sync::OnceLock;

static LAUNCHER: OnceLock<ServiceLauncher> = OnceLock::new();

/// Sets the launcher, where it is not this process's executable. Only the first call has an effect.
pub fn set(launcher: ServiceLauncher) {
    // Later calls are ignored: processes may have been started by the earlier one.
    let _ = LAUNCHER.set(launcher);
}

/// The launcher of this program.
///
/// # Errors
/// The system does not report the path of the executable.
pub fn get() -> Result<ServiceLauncher, ProgramFailure> {
    match LAUNCHER.get() {
        Some(launcher) => Ok(launcher.clone()),
        None => ServiceLauncher::current().map_err(ProgramFailure::failed),
    }
}
