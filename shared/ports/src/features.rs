//! Parts that a small program leaves out.

/// The refusal of what only a program with the cargo feature `name` can do, with the remedy.
pub fn without_feature(name: &str) -> String {
    format!(
        "this gristmill was built without the feature `{name}`: build it without --no-default-features"
    )
}
