//! Strict reading of TOML: every key is read by name, and unknown keys are errors with a line and a suggestion. A value
//! may carry its provenance: `{ value = "120ms", published = "Cachew Fig. 6" }`.

use crate::ScenarioError;
use serde::Serialize;
use std::ops::RangeInclusive;
use toml::de::{DeTable, DeValue};

/// Provenance of a key's value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ValueProvenance {
    /// `trainer.step`
    pub key: String,
    pub origin: ValueOrigin,
    /// Figure, or description of the fit.
    pub source: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueOrigin {
    /// Printed in a paper or a vendor's documentation.
    Published,
    /// Chosen so that a published result is reproduced.
    Fitted,
    /// Our assumption.
    Assumed,
}

/// Text and path, for positions in errors.
#[derive(Clone, Copy)]
pub(crate) struct ScenarioText<'d> {
    pub text: &'d str,
    pub path: &'d str,
}

impl ScenarioText<'_> {
    /// An error at the line of byte `at`.
    pub fn error(&self, at: usize, message: String) -> ScenarioError {
        let line = 1 + self.text.bytes().take(at).filter(|&byte| byte == b'\n').count();
        ScenarioError(format!("{}:{line}: {message}", self.path))
    }
}

/// One table of the file.
pub(crate) struct TomlSection<'d> {
    source: ScenarioText<'d>,
    name: String,
    at: usize,
    table: Option<&'d DeTable<'d>>,
    /// Keys that are known.
    pub asked: Vec<&'static str>,
    pub provenance: Vec<ValueProvenance>,
    /// Keys without provenance.
    pub untagged: Vec<String>,
}

impl<'d> TomlSection<'d> {
    /// The section `name` of a document, or an absent one.
    pub fn new(
        source: ScenarioText<'d>,
        name: &str,
        at: usize,
        table: Option<&'d DeTable<'d>>,
    ) -> Self {
        let name = name.to_owned();
        let (asked, provenance, untagged) = Default::default();
        Self { source, name, at, table, asked, provenance, untagged }
    }

    /// Whether the file has the section.
    pub fn is_present(&self) -> bool {
        self.table.is_some()
    }

    /// Value of a key and its position; records its provenance.
    fn value(
        &mut self,
        key: &'static str,
    ) -> Result<Option<(&'d DeValue<'d>, usize)>, ScenarioError> {
        self.asked.push(key);
        let Some((_, value)) =
            self.table.and_then(|table| table.iter().find(|(name, _)| *name.get_ref() == key))
        else {
            return Ok(None);
        };
        let at = value.span().start;
        let full = self.full(key);
        let DeValue::Table(tagged) = value.get_ref() else {
            self.untagged.push(full);
            return Ok(Some((value.get_ref(), at)));
        };
        let mut inner = None;
        for (name, value) in tagged {
            let origin = match name.get_ref().as_ref() {
                "value" => {
                    inner = Some((value.get_ref(), at));
                    continue;
                }
                "published" => ValueOrigin::Published,
                "fitted" => ValueOrigin::Fitted,
                "assumed" => ValueOrigin::Assumed,
                other => {
                    let known = ["value", "published", "fitted", "assumed"];
                    return Err(self.source.error(at, unknown(&full, other, &known)));
                }
            };
            let Some(source) = value.get_ref().as_str().filter(|text| !text.is_empty()) else {
                let message = format!("`{full}`: say in a string where the value comes from");
                return Err(self.source.error(at, message));
            };
            self.provenance.push(ValueProvenance {
                key: full.clone(),
                origin,
                source: source.into(),
            });
        }
        match inner {
            Some(inner) => Ok(Some(inner)),
            None => Err(self.source.error(at, format!("`{full}` has no `value`; add one"))),
        }
    }

    /// The value of a key, read by `parse` as what is `expected`, and its position.
    fn read<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        parse: impl Fn(&'d DeValue<'d>) -> Option<T>,
    ) -> Result<Option<(T, usize)>, ScenarioError> {
        let Some((value, at)) = self.value(key)? else { return Ok(None) };
        parse(value).map(|parsed| Some((parsed, at))).ok_or_else(|| self.wrong(key, at, expected))
    }

    fn full(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    fn wrong(&self, key: &str, at: usize, expected: &str) -> ScenarioError {
        self.source.error(at, format!("`{}` must be {expected}", self.full(key)))
    }

    fn in_range(
        &self,
        key: &str,
        at: usize,
        number: f64,
        range: RangeInclusive<f64>,
    ) -> Result<f64, ScenarioError> {
        if range.contains(&number) {
            return Ok(number);
        }
        let expected = format!("from {} to {}, not {number}", range.start(), range.end());
        Err(self.wrong(key, at, &expected))
    }

    /// Reads a number in `range`. `None` without the key.
    pub fn number(
        &mut self,
        key: &'static str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, ScenarioError> {
        let Some((number, at)) = self.read(key, "a number", as_number)? else { return Ok(None) };
        self.in_range(key, at, number, range).map(Some)
    }

    /// Reads a whole number in `range`. `None` without the key.
    pub fn count(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, ScenarioError> {
        let whole = |value: &DeValue<'_>| {
            let int = value.as_integer()?;
            u64::from_str_radix(int.as_str().trim_start_matches('+'), int.radix()).ok()
        };
        let Some((whole, at)) = self.read(key, "a whole number", whole)? else { return Ok(None) };
        let bounds = *range.start() as f64..=*range.end() as f64;
        self.in_range(key, at, whole as f64, bounds)?;
        Ok(Some(whole))
    }

    /// Reads `true` or `false`. `None` without the key.
    pub fn flag(&mut self, key: &'static str) -> Result<Option<bool>, ScenarioError> {
        Ok(self.read(key, "true or false", DeValue::as_bool)?.map(|(flag, _)| flag))
    }

    /// Reads a string. `None` without the key.
    pub fn text(&mut self, key: &'static str) -> Result<Option<String>, ScenarioError> {
        Ok(self.read(key, "a string", DeValue::as_str)?.map(|(text, _)| text.to_owned()))
    }

    /// Reads a list of numbers. `None` without the key.
    pub fn numbers(
        &mut self,
        key: &'static str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<Vec<f64>>, ScenarioError> {
        let Some((value, at)) = self.value(key)? else { return Ok(None) };
        let list = value.as_array().filter(|list| (1..=64).contains(&list.len()));
        let list = list.ok_or_else(|| self.wrong(key, at, "a list of 1 to 64 numbers"))?;
        let mut numbers = Vec::with_capacity(list.len());
        for item in list {
            let number = as_number(item.get_ref())
                .ok_or_else(|| self.wrong(key, at, "a list of numbers"))?;
            numbers.push(self.in_range(key, at, number, range.clone())?);
        }
        Ok(Some(numbers))
    }

    fn quantity(
        &mut self,
        key: &'static str,
        parse: fn(&str) -> Result<f64, String>,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, ScenarioError> {
        let read = self.read(key, "a string with its unit", DeValue::as_str)?;
        let Some((text, at)) = read else { return Ok(None) };
        let number = parse(text)
            .map_err(|what| self.source.error(at, format!("`{}`: {what}", self.full(key))))?;
        self.in_range(key, at, number, range).map(Some)
    }

    /// A duration of at most a day, in seconds.
    pub fn seconds(&mut self, key: &'static str) -> Result<Option<f64>, ScenarioError> {
        self.quantity(key, seconds, 0.0..=86_400.0)
    }

    /// A positive duration, in seconds.
    pub fn positive_seconds(&mut self, key: &'static str) -> Result<Option<f64>, ScenarioError> {
        self.quantity(key, seconds, 1e-6..=86_400.0)
    }

    /// Reads a size, in bytes. `None` without the key.
    pub fn bytes(&mut self, key: &'static str) -> Result<Option<f64>, ScenarioError> {
        self.quantity(key, bytes, 0.0..=1e12)
    }

    /// Reads a rate, in bytes a second. `None` without the key.
    pub fn rate(&mut self, key: &'static str) -> Result<Option<f64>, ScenarioError> {
        self.quantity(key, bytes_per_second, 1.0..=1e15)
    }

    /// Error for a missing key.
    pub fn missing(&self, key: &str, why: &str) -> ScenarioError {
        self.source.error(self.at, format!("`{}` is missing: {why}", self.full(key)))
    }

    /// Error for the whole section.
    pub fn error(&self, message: String) -> ScenarioError {
        self.source.error(self.at, message)
    }

    /// Fails if a key was not read.
    pub fn finish(&self) -> Result<(), ScenarioError> {
        for (name, value) in self.table.into_iter().flatten() {
            let name_text = name.get_ref().as_ref();
            if !self.asked.contains(&name_text) {
                let at = name.span().start.min(value.span().start);
                return Err(self.source.error(at, unknown(&self.name, name_text, &self.asked)));
            }
        }
        Ok(())
    }
}

fn as_number(value: &DeValue<'_>) -> Option<f64> {
    let text = match value {
        DeValue::Integer(int) if int.radix() == 10 => int.as_str(),
        DeValue::Float(float) => float.as_str(),
        _ => return None,
    };
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Error text for an unknown key.
fn unknown(section: &str, key: &str, known: &[&str]) -> String {
    let place = if section.is_empty() { String::new() } else { format!(" in `{section}`") };
    let near = known
        .iter()
        .map(|name| (strsim::jaro_winkler(key, name), *name))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match near {
        // Less similar names are other words, not typing errors.
        Some((likeness, name)) if likeness > 0.75 => {
            format!("unknown key `{key}`{place}; did you mean `{name}`?")
        }
        _ => format!("unknown key `{key}`{place}; known are: {}", known.join(", ")),
    }
}

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
mod quantity_tests {
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
