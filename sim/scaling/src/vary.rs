//! Variants of a scenario with randomly scaled numbers. Bars that hold for the built-in scenarios should hold nearby.

use crate::{ScenarioError, quantity::number_and_unit, random::ScenarioRandom};
use std::collections::BTreeMap;
use toml::{Table, Value};

/// Numbers are multiplied by between 1 / MOST and MOST.
const MOST: f64 = 1.6;

/// Keys that are varied; all occurrences of a key by the same factor, so that a step that doubles still does.
const VARIED: &[&str] = &[
    "batch",
    "budget_usd_per_hour",
    "cold_start",
    "compute",
    "concurrency",
    "gets_per_s",
    "ingest",
    "interference",
    "mean_life",
    "network",
    "others",
    "puts_per_s",
    "source",
    "source_batch",
    "step",
    "table_writes_per_s",
    "window_batches",
];

/// The text of variant `number` of a scenario.
///
/// # Errors
/// The text is not TOML.
pub fn vary(name: &str, text: &str, number: u64) -> Result<String, ScenarioError> {
    let invalid = |message: String| ScenarioError::Usage(format!("{name}: {message}"));
    let mut table: Table = text.parse().map_err(|error| invalid(format!("{error}")))?;
    // A paper's results apply to its own numbers only.
    table.remove("paper");
    table.insert("name".into(), Value::String(format!("{name} {number}")));
    let mix = |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte));
    let seed = name.bytes().fold(number, mix);
    let mut draw = ScenarioRandom::new(seed);
    let factors = VARIED.iter().map(|key| (*key, draw.log(1.0 / MOST, MOST))).collect();
    for value in table.iter_mut().map(|(_, value)| value) {
        vary_section(value, &factors);
    }
    toml::to_string(&table).map_err(|error| invalid(format!("{error}")))
}

/// Varies a section, or each of several.
fn vary_section(value: &mut Value, factors: &BTreeMap<&str, f64>) {
    match value {
        Value::Array(sections) => {
            sections.iter_mut().for_each(|section| vary_section(section, factors));
        }
        Value::Table(section) => {
            for (key, value) in section.iter_mut() {
                if let Some(said) = value.get("value") {
                    *value = said.clone();
                }
                if let Some(factor) = factors.get(key.as_str()) {
                    multiply(value, *factor);
                }
            }
        }
        _ => {}
    }
}

fn multiply(value: &mut Value, factor: f64) {
    match value {
        // At least one worker, request or batch.
        Value::Integer(whole) if *whole > 0 => {
            *whole = ((*whole as f64 * factor).round() as i64).max(1);
        }
        Value::Float(number) => *number *= factor,
        Value::String(quantity) => {
            let (number, unit) = number_and_unit(quantity);
            if let Ok(number) = number.parse::<f64>() {
                *quantity = format!("{:.4}{unit}", number * factor);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::{ScalingScenario, shipped};

    #[test]
    fn every_variant_is_a_scenario() {
        for (name, text) in shipped() {
            for number in 0..5 {
                let varied = vary(name, text, number).unwrap();
                if let Err(error) = ScalingScenario::parse(&varied, name) {
                    panic!("{error}\n{varied}");
                }
            }
        }
    }

    #[test]
    fn a_step_that_doubles_still_does() {
        let text = "name = 'w'\n[trainer]\nstep = '100ms'\n[worker]\ncompute = '1s'\n\
                    [[change]]\nat_batch = 20000\nstep = '200ms'\n";
        let of = |number| ScalingScenario::parse(&vary("w", text, number).unwrap(), "w").unwrap();
        let [before, after] = [0, 1].map(|phase| of(3).phases[phase].conditions.step_s);
        assert!((after / before - 2.0).abs() < 1e-3, "{before} {after}");
        assert!((0.0625..=0.16).contains(&before) && before != 0.1, "{before}");
        assert_ne!(before, of(4).phases[0].conditions.step_s);
    }
}
