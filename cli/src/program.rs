//! The program that runs this code, for starting it again: as a function, a service or a fetcher.

use gristmill_client::{ProgramFailure, ServiceLauncher};
use gristmill_pipeline::OperatorRegistry;
use std::sync::{Arc, OnceLock};
use tokio::io::AsyncReadExt;

static LAUNCHER: OnceLock<ServiceLauncher> = OnceLock::new();

/// Sets the launcher, where it is not this process's executable. Only the first call has an effect.
pub fn set_launcher(launcher: ServiceLauncher) {
    // Later calls are ignored: processes may have been started by the earlier one.
    let _ = LAUNCHER.set(launcher);
}

/// The launcher of this program.
pub fn launcher() -> Result<ServiceLauncher, ProgramFailure> {
    match LAUNCHER.get() {
        Some(launcher) => Ok(launcher.clone()),
        None => ServiceLauncher::current().map_err(ProgramFailure::failed),
    }
}

static BUILT_IN: OnceLock<Arc<OperatorRegistry>> = OnceLock::new();

/// Sets the operators. Only the first call has an effect.
pub fn set_operators(operators: OperatorRegistry) {
    // Later calls are ignored: earlier ones may have been relied on.
    let _ = BUILT_IN.set(Arc::new(operators));
}

/// Returns the operators of this program.
pub fn operators() -> Arc<OperatorRegistry> {
    Arc::clone(BUILT_IN.get_or_init(|| Arc::new(gristmill_operators::registry().clone())))
}

/// Resolves once standard input closes: its owner has ended, however it did.
pub async fn owner_ended() {
    let mut byte = [0];
    while matches!(tokio::io::stdin().read(&mut byte).await, Ok(1)) {}
}
