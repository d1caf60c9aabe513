//! Quantities for people: three digits and a unit.

use std::fmt;

/// Three significant digits; all digits before the point.
struct Digits(f64);

impl fmt::Display for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Bounds at which rounding to three digits would carry into another digit.
        match self.0 {
            x if x >= 99.95 => write!(f, "{x:.0}"),
            x if x >= 9.995 => write!(f, "{x:.1}"),
            x => write!(f, "{x:.2}"),
        }
    }
}

/// Seconds: "1.24 s", "37.1 ms", "12 min 40 s", "3 h 5 min".
pub(crate) struct DisplaySeconds(pub f64);

impl fmt::Display for DisplaySeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0.round();
        match self.0 {
            s if !s.is_finite() || s > MOST => f.write_str("unknown"),
            s if s <= 0.0 => f.write_str("0 s"),
            s if s < 0.000_999_5 => write!(f, "{} us", Digits(s * 1e6)),
            s if s < 0.999_5 => write!(f, "{} ms", Digits(s * 1e3)),
            _ if whole < 120.0 => write!(f, "{} s", Digits(self.0)),
            _ if whole < 7_200.0 => two(f, whole, 60.0, "min", "s"),
            _ => two(f, (whole / 60.0).round(), 60.0, "h", "min"),
        }
    }
}

fn two(f: &mut fmt::Formatter<'_>, of: f64, each: f64, big: &str, small: &str) -> fmt::Result {
    let (high, low) = ((of / each).floor(), of % each);
    if low == 0.0 { write!(f, "{high} {big}") } else { write!(f, "{high} {big} {low} {small}") }
}

/// Dollars: cents above a dollar, three digits below, two below a cent.
pub(crate) struct DisplayDollars(pub f64);

impl fmt::Display for DisplayDollars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            x if !x.is_finite() || x > MOST => f.write_str("unknown"),
            x if x <= 0.0 => f.write_str("$0"),
            x if x >= 0.995 => write!(f, "${}", Count2(x)),
            // Less than a hundred-thousandth of a cent.
            x if x < 1e-7 => f.write_str("< $0.0000001"),
            x => {
                // Two digits suffice below a cent.
                let more = if x >= 0.01 { 2 } else { 1 };
                let first_digit = (-x.log10()).ceil() as usize;
                write!(f, "${x:.*}", first_digit + more)
            }
        }
    }
}

/// Two decimals with thousands separators.
struct Count2(f64);

impl fmt::Display for Count2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cents = (self.0 * 100.0).round();
        let (whole, rest) = ((cents / 100.0).floor(), cents % 100.0);
        write!(f, "{}.{rest:02.0}", DisplayCount(whole as u64))
    }
}

/// A count with thousands separators: "1,234,567".
pub(crate) struct DisplayCount(pub u64);

impl fmt::Display for DisplayCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut apart = String::with_capacity(digits.len() + digits.len() / 3);
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                apart.push(',');
            }
            apart.push(digit);
        }
        f.write_str(&apart)
    }
}

/// Percent: one decimal below ten.
pub(crate) struct DisplayPercent(pub f64);

impl fmt::Display for DisplayPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            x if x >= 9.95 => write!(f, "{x:.0} %"),
            x if x <= 0.0 => f.write_str("0 %"),
            x if x < 0.05 => f.write_str("< 0.1 %"),
            x => write!(f, "{x:.1} %"),
        }
    }
}

/// "1 worker", "2 workers", "2.5 workers".
pub(crate) struct DisplayWorkers(pub f64);

impl fmt::Display for DisplayWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 * 10.0).round() / 10.0;
        write!(f, "{tenths} worker{}", if tenths == 1.0 { "" } else { "s" })
    }
}

// Quantities made sound: measurements may be anything.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_well() {
        let seconds = [
            (f64::NAN, "unknown"),
            (0.0, "0 s"),
            (0.000_04, "40.0 us"),
            (0.003_2, "3.20 ms"),
            (0.12, "120 ms"),
            (0.999_9, "1.00 s"),
            (9.999, "10.0 s"),
            (42.06, "42.1 s"),
            (119.4, "119 s"),
            (119.6, "2 min"),
            (760.0, "12 min 40 s"),
            (7_199.6, "2 h"),
            (11_100.0, "3 h 5 min"),
        ];
        for (value, text) in seconds {
            assert_eq!(DisplaySeconds(value).to_string(), text, "{value}");
        }
        let dollars = [
            (0.0, "$0"),
            (1e-9, "< $0.0000001"),
            (0.000_012_34, "$0.000012"),
            (0.05, "$0.0500"),
            (0.1, "$0.100"),
            (0.5, "$0.500"),
            (0.999, "$1.00"),
            (1.999, "$2.00"),
            (12_345.678, "$12,345.68"),
        ];
        for (value, text) in dollars {
            assert_eq!(DisplayDollars(value).to_string(), text, "{value}");
        }
        assert_eq!(DisplayCount(0).to_string(), "0");
        assert_eq!(DisplayCount(999).to_string(), "999");
        assert_eq!(DisplayCount(1_234_567).to_string(), "1,234,567");
        assert_eq!(DisplayPercent(9.97).to_string(), "10 %");
        assert_eq!(DisplayPercent(0.01).to_string(), "< 0.1 %");
        assert_eq!(DisplayPercent(3.12).to_string(), "3.1 %");
        assert_eq!(DisplayWorkers(1.0).to_string(), "1 worker");
        assert_eq!(DisplayWorkers(2.46).to_string(), "2.5 workers");
    }
}
