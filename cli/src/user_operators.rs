//! The operators of users that this program was built with: known before anything else happens.

use gristmill_pipeline::Registry;
use std::sync::{Arc, OnceLock};

static BUILT_IN: OnceLock<Arc<Registry>> = OnceLock::new();

/// Says which there are. Once: later words change nothing.
pub fn set(operators: Registry) {
    // The first call counts: others have relied on it.
    let _ = BUILT_IN.set(Arc::new(operators));
}

/// Those there are.
pub fn get() -> Arc<Registry> {
    Arc::clone(BUILT_IN.get_or_init(|| Arc::new(gristmill_operators::registry().clone())))
}
