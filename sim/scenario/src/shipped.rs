//! The scenarios that are built in: those of `sim/scenarios`.

/// Name and text of each, in the order of the table.
pub fn shipped() -> &'static [(&'static str, &'static str)] {
    macro_rules! scenarios {
        ($($name:literal),* $(,)?) => {
            &[$(($name, include_str!(concat!("../../scenarios/", $name, ".toml")))),*]
        };
    }
    scenarios!["plain"]
}
