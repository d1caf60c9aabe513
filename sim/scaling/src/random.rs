//! Random scenarios: combinations of everything in the format, and variants of a scenario with scaled numbers. Bars that
//! hold for the built-in scenarios should hold nearby.

use crate::{ScenarioError, read::number_and_unit};
use std::{collections::BTreeMap, fmt::Write};
use toml::{Table, Value};

/// The text of scenario number `number`.
pub fn random_scenario(number: u64) -> String {
    let mut draw = ScenarioRandom::new(number);
    let step_s = draw.log(0.005, 1.0);
    let need = draw.log(0.6, 300.0);
    let clients = if draw.chance(0.2) { draw.whole(2, 4) } else { 1 };
    // Workers x batches of a lease: one wave of arrivals. Bounded, because few jobs have waves of an hour.
    let lease_most = (3_000.0 / need).clamp(1.0, 32.0) as u64;
    let split_batches = draw.whole(1, lease_most);
    let lease_splits = if draw.chance(0.2) && lease_most >= 4 * split_batches { 4 } else { 1 };
    let generation = need.ceil() * (split_batches * lease_splits) as f64;
    let rate = clients as f64 / step_s;
    let compute_s = need / rate;
    let mut text = String::new();
    let mut put = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    put(format!("name = \"random {number}\""));
    put("[trainer]".into());
    put(format!("step = \"{:.6}s\"\nclients = {clients}", step_s));
    let source_s = if draw.chance(0.3) { Some(draw.real(0.1, 0.4)) } else { None };
    let batch_bytes = draw.log(1e5, 2e7).min(0.3 * compute_s * 71e6);
    if draw.chance(0.15) {
        put(format!("ingest = \"{:.3}B/s\"", batch_bytes * rate * draw.real(0.4, 2.0)));
    }
    put("[worker]".into());
    put(format!("compute = \"{compute_s:.6}s\""));
    if draw.chance(0.3) {
        put(format!("cold_start = \"{:.3}s\"", draw.log(0.05, 10.0)));
    }
    if draw.chance(0.2) {
        put(format!("slowness = [1.0, {:.2}]", draw.real(1.1, 2.5)));
    }
    if draw.chance(0.15) {
        let split_s = compute_s * split_batches as f64;
        put(format!(
            "mean_life = \"{:.3}s\"",
            (split_s * draw.log(15.0, 300.0)).clamp(1.0, 80_000.0)
        ));
    }
    if draw.chance(0.15) {
        put(format!("interference = {:.5}", draw.real(0.05, 0.5) / need.max(2.0)));
    }
    put(format!("[data]\nsplit_batches = {split_batches}\nlease_splits = {lease_splits}"));
    put(format!("batch = \"{batch_bytes:.0}B\""));
    if draw.chance(0.2) {
        put(format!(
            "window_batches = {}",
            (generation * draw.real(0.4, 3.0)).max(2.0 * (split_batches * lease_splits) as f64)
                as u64
        ));
    }
    if let Some(share) = source_s {
        let bytes = share * compute_s * 71e6;
        put(format!("source_batch = \"{bytes:.0}B\"\n[limits]"));
        put(format!("source = \"{:.3}B/s\"", bytes * rate * draw.real(0.3, 2.0)));
    }
    if draw.chance(0.1) {
        put(format!("[platform]\nconcurrency = {}", (need * draw.real(0.4, 2.0)).ceil().max(1.0)));
    }
    if draw.chance(0.1) {
        put(format!(
            "[policy]\nbudget_usd_per_hour = {:.4}",
            0.083 * (need * draw.real(0.4, 2.0)).ceil().max(1.0)
        ));
    }
    put(draw_run(&mut draw, step_s, compute_s, generation, clients));
    let _ = writeln!(text, "# drawn: need {need:.2}");
    text
}

/// Length of the run, and in a third of the scenarios a change of load halfway.
fn draw_run(
    draw: &mut ScenarioRandom,
    step_s: f64,
    compute_s: f64,
    generation: f64,
    clients: u64,
) -> String {
    // Long enough for a dozen waves and several hundred reports.
    let phase = (40_000.0f64.max(24.0 * generation) * clients as f64) as u64;
    if !draw.chance(0.35) {
        return format!("[run]\nbatches = {phase}");
    }
    let change = match draw.whole(0, 3) {
        0 => format!("step = \"{:.6}s\"", step_s * 2.0),
        1 => format!("step = \"{:.6}s\"", step_s / 2.0),
        2 => format!("compute = \"{:.6}s\"", compute_s * draw.real(1.5, 2.0)),
        _ => format!("compute = \"{:.6}s\"\nmode = 1", compute_s * draw.real(0.2, 0.6)),
    };
    format!("[run]\nbatches = {}\n[[change]]\nat_batch = {phase}\n{change}", 2 * phase)
}

/// Draws of a scenario's numbers.
pub(crate) struct ScenarioRandom(fastrand::Rng);

impl ScenarioRandom {
    pub fn new(number: u64) -> Self {
        Self(fastrand::Rng::with_seed(number.wrapping_mul(0x9e37_79b9).wrapping_add(17)))
    }

    fn real(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.0.f64()
    }

    /// Uniform on a logarithmic scale.
    pub fn log(&mut self, from: f64, to: f64) -> f64 {
        self.real(from.ln(), to.ln()).exp()
    }

    fn whole(&mut self, from: u64, to: u64) -> u64 {
        self.0.u64(from..=to.max(from))
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.0.f64() < probability
    }
}

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

/// The text of variant `number` of a scenario. Fails unless that is TOML.
pub fn vary(name: &str, text: &str, number: u64) -> Result<String, ScenarioError> {
    let invalid = |message: String| ScenarioError(format!("{name}: {message}"));
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
    use super::*;
    use crate::ScalingScenario;

    #[test]
    fn every_one_is_a_scenario() {
        for number in 0..300 {
            let text = random_scenario(number);
            if let Err(error) = ScalingScenario::parse(&text, &format!("random {number}")) {
                panic!("{error}\n{text}");
            }
        }
    }
}

#[cfg(test)]
mod vary_tests {
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
