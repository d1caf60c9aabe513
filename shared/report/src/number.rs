//! Quantities made sound: measurements may be anything.

/// Exceeds the seconds or dollars of any run (30,000 years); sums stay finite.
pub(crate) const MOST: f64 = 1e12;

/// A non-negative quantity: 0 for negative values and NaN.
pub(crate) fn amount(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, MOST) }
}

/// `part` of `whole` in percent; 0 if `whole` is 0.
pub(crate) fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (100.0 * part / whole).clamp(0.0, 100.0) } else { 0.0 }
}
