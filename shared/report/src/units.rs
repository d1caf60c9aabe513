//! Quantities for people: three digits and a unit.

/// Three significant digits; all digits before the point.
fn digits(value: f64) -> String {
    // Bounds at which rounding to three digits would carry into another digit.
    match value {
        x if x >= 99.95 => format!("{x:.0}"),
        x if x >= 9.995 => format!("{x:.1}"),
        x => format!("{x:.2}"),
    }
}

/// Seconds: "1.24 s", "37.1 ms", "12 min 40 s", "3 h 5 min".
pub(crate) fn show_seconds(seconds: f64) -> String {
    let whole = seconds.round();
    match seconds {
        s if !s.is_finite() || s > MOST => "unknown".to_owned(),
        s if s <= 0.0 => "0 s".to_owned(),
        s if s < 0.000_999_5 => format!("{} us", digits(s * 1e6)),
        s if s < 0.999_5 => format!("{} ms", digits(s * 1e3)),
        s if whole < 120.0 => format!("{} s", digits(s)),
        _ if whole < 7_200.0 => two(whole, 60.0, "min", "s"),
        _ => two((whole / 60.0).round(), 60.0, "h", "min"),
    }
}

fn two(of: f64, each: f64, big: &str, small: &str) -> String {
    let (high, low) = ((of / each).floor(), of % each);
    if low == 0.0 { format!("{high} {big}") } else { format!("{high} {big} {low} {small}") }
}

/// Dollars: cents above a dollar, three digits below, two below a cent.
pub(crate) fn show_dollars(usd: f64) -> String {
    match usd {
        x if !x.is_finite() || x > MOST => "unknown".to_owned(),
        x if x <= 0.0 => "$0".to_owned(),
        x if x >= 0.995 => {
            let cents = (x * 100.0).round();
            let (whole, rest) = ((cents / 100.0).floor(), cents % 100.0);
            format!("${}.{rest:02.0}", show_count(whole as u64))
        }
        // Less than a hundred-thousandth of a cent.
        x if x < 1e-7 => "< $0.0000001".to_owned(),
        x => {
            // Two digits suffice below a cent.
            let more = if x >= 0.01 { 2 } else { 1 };
            let first_digit = (-x.log10()).ceil() as usize;
            format!("${x:.*}", first_digit + more)
        }
    }
}

/// A count with thousands separators: "1,234,567".
pub(crate) fn show_count(count: u64) -> String {
    let digits = count.to_string();
    let mut apart = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            apart.push(',');
        }
        apart.push(digit);
    }
    apart
}

/// Percent: one decimal below ten.
pub(crate) fn show_percent(percent: f64) -> String {
    match percent {
        x if x >= 9.95 => format!("{x:.0} %"),
        x if x <= 0.0 => "0 %".to_owned(),
        x if x < 0.05 => "< 0.1 %".to_owned(),
        x => format!("{x:.1} %"),
    }
}

/// "1 worker", "2 workers", "2.5 workers".
pub(crate) fn show_workers(workers: f64) -> String {
    let tenths = (workers * 10.0).round() / 10.0;
    format!("{tenths} worker{}", if tenths == 1.0 { "" } else { "s" })
}

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
            assert_eq!(show_seconds(value), text, "{value}");
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
            assert_eq!(show_dollars(value), text, "{value}");
        }
        assert_eq!(show_count(0), "0");
        assert_eq!(show_count(999), "999");
        assert_eq!(show_count(1_234_567), "1,234,567");
        assert_eq!(show_percent(9.97), "10 %");
        assert_eq!(show_percent(0.01), "< 0.1 %");
        assert_eq!(show_percent(3.12), "3.1 %");
        assert_eq!(show_workers(1.0), "1 worker");
        assert_eq!(show_workers(2.46), "2.5 workers");
    }
}
