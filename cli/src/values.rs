//! Parsers for flags that several commands share.

use std::time::Duration;

/// A number above 0.
pub fn parse_ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio: &f64| ratio.is_finite() && *ratio > 0.0);
    ratio.ok_or_else(|| "give a number above 0, such as 1.5".to_owned())
}

/// A number of 0 or more.
pub fn parse_amount(text: &str) -> Result<f64, String> {
    let amount = text.parse().ok().filter(|amount: &f64| amount.is_finite() && *amount >= 0.0);
    amount.ok_or_else(|| "give a number of 0 or more".to_owned())
}

/// A duration such as `50ms`, up to a day.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let parsed =
        humantime::parse_duration(text).map_err(|error| format!("{error}; say 50ms or 2s"));
    parsed.and_then(|duration| {
        if duration <= Duration::from_secs(86_400) {
            Ok(duration)
        } else {
            Err("longer than a day".to_owned())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_bounded() {
        assert_eq!(parse_duration("50ms"), Ok(Duration::from_millis(50)));
        assert!(parse_duration("50").is_err());
        assert!(parse_duration("9999d").is_err());
    }
}
