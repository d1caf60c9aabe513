//! Numbers as JSON can carry them: what is not finite is written as null, and read back as NaN, so
//! that one odd measurement does not cost the whole timeline.

use serde::{Deserialize, Deserializer};

/// For `#[serde(deserialize_with)]`: null is NaN.
pub(crate) fn or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// More seconds, or dollars, than any run takes (30,000 years), and few enough that sums stay finite.
pub(crate) const MOST: f64 = 1e12;

/// A quantity that cannot be negative: 0 for what is, and for what is no number.
pub(crate) fn amount(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, MOST) }
}

/// `part` of `whole` in percent, 0 if there is no whole.
pub(crate) fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (100.0 * part / whole).clamp(0.0, 100.0) } else { 0.0 }
}
