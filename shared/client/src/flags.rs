//! Values of flags.

use std::time::Duration;

/// A time such as `90s` or `10m`, of a second at least.
pub fn parse_patience(text: &str) -> Result<Duration, String> {
    let invalid = || format!("`{text}` is no time: write 90s or 10m");
    let number = text.trim_end_matches(['s', 'm']);
    let unit = match &text[number.len()..] {
        "s" => 1,
        "m" => 60,
        _ => return Err(invalid()),
    };
    let seconds: u64 = number.parse().map_err(|_| invalid())?;
    match seconds.saturating_mul(unit) {
        seconds @ 1..=604_800 => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("`{text}` is not between 1s and a week")),
    }
}
