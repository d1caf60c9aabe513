//! The refusal of a program that is not built for AWS.

use gristmill_client::{Failure, needs_aws};

/// Refuses the function `name`.
pub fn run(name: &str) -> Result<(), Failure> {
    needs_aws(&format!("function {name}"))
}
