//! Runs the target named by `GRISTMILL_FUZZ` under libFuzzer.

#![no_main]

use gristmill_fuzz::{TARGETS, Target};
use std::sync::OnceLock;

static TARGET: OnceLock<Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(init: {
    let name = std::env::var("GRISTMILL_FUZZ").unwrap_or_default();
    let named = TARGETS.iter().find(|(known, _)| *known == name);
    let Some((_, target)) = named else {
        eprintln!("GRISTMILL_FUZZ names no target: {name:?}");
        std::process::exit(2);
    };
    TARGET.get_or_init(|| *target);
}, |bytes: &[u8]| {
    if let Some(target) = TARGET.get() {
        target(bytes);
    }
});
