//! The operators that this program was built with. They are set before anything else runs.

use gristmill_pipeline::OperatorRegistry;
use std::sync::{Arc, OnceLock};

static BUILT_IN: OnceLock<Arc<OperatorRegistry>> = OnceLock::new();

/// Sets the operators. Only the first call has an effect.
pub fn set(operators: OperatorRegistry) {
    // Later calls are ignored: earlier ones may have been relied on.
    let _ = BUILT_IN.set(Arc::new(operators));
}

/// Returns the operators of this program.
pub fn get() -> Arc<OperatorRegistry> {
    Arc::clone(BUILT_IN.get_or_init(|| Arc::new(gristmill_operators::registry().clone())))
}
