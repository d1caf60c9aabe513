//! Parses quantities such as `120ms`, `64MiB`, `71MB/s`.

/// Seconds of a duration such as `120ms`, `2.5s`, `15min`.
pub fn seconds(text: &str) -> Result<f64, String> {
    const UNITS: &[(&str, f64)] =
        &[("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3_600.0)];
    parse(text, UNITS, "a duration such as \"120ms\" (ns, us, ms, s, min, h)")
}

/// Bytes of a size such as `64MiB`, `9.6MB`.
pub fn bytes(text: &str) -> Result<f64, String> {
    parse(text, BYTES, "a size such as \"64MiB\" (B, KB, MB, GB, KiB, MiB, GiB)")
}

/// Bytes per second of a rate such as `71MB/s`.
pub fn bytes_per_second(text: &str) -> Result<f64, String> {
    const EXPECTED: &str = "a rate such as \"71MB/s\" (B, KB, MB, GB, KiB, MiB, GiB per s)";
    let size = text.trim().strip_suffix("/s").ok_or_else(|| wrong(text, EXPECTED))?;
    parse(size, BYTES, EXPECTED)
}

const BYTES: &[(&str, f64)] = &[
    ("B", 1.0),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
];

fn parse(text: &str, units: &[(&str, f64)], expected: &str) -> Result<f64, String> {
    let (number, unit) = number_and_unit(text.trim());
    let number: f64 = number.parse().map_err(|_| wrong(text, expected))?;
    let (_, factor) =
        units.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(|| wrong(text, expected))?;
    Ok(number * factor)
}

/// Splits at the start of the unit; the number may be empty.
pub fn number_and_unit(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    text.split_at(end.unwrap_or(text.len()))
}

fn wrong(text: &str, expected: &str) -> String {
    format!("`{text}` is not {expected}")
}

/// A duration for people, three digits.
pub fn show_seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.01 => format!("{:.1} ms", s * 1e3),
        s if s >= 0.001 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.0} us", s * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read() {
        assert_eq!(seconds("120ms"), Ok(0.12));
        assert_eq!(seconds("2.5 s"), Ok(2.5));
        assert_eq!(seconds("15min"), Ok(900.0));
        assert_eq!(bytes("64MiB"), Ok(67_108_864.0));
        assert_eq!(bytes_per_second("71MB/s"), Ok(71e6));
        for wrong in ["", "ms", "12", "12 parsecs", "1.2.3s", "-1s", "NaNs", "1e3s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert!(bytes_per_second("71MB").is_err());
    }
}
