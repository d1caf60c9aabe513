//! Axes: range, ticks and labels.

use std::fmt;

/// An axis from 0 with a round end and round steps.
pub(super) struct Axis {
    /// Value at its end, in the unit of the values.
    pub end: f64,
    /// (value, label).
    pub ticks: Vec<(f64, String)>,
    pub unit: &'static str,
    /// Factor from values to labels.
    pub scale: f64,
}

/// Kind of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AxisQuantity {
    /// Durations: shown in s, ms or us.
    Seconds,
    /// Worker seconds: shown in s, min or h.
    WorkerSeconds,
    Dollars,
    Percent,
    /// Counts of the named things; empty if the name appears elsewhere.
    Count(&'static str),
}

impl AxisQuantity {
    /// Unit for values up to `most`, and its scale.
    fn unit(self, most: f64) -> (&'static str, f64) {
        match self {
            AxisQuantity::Seconds if most < 1e-3 => ("us", 1e6),
            AxisQuantity::Seconds if most < 1.0 => ("ms", 1e3),
            AxisQuantity::WorkerSeconds if most >= 10_800.0 => ("h", 1.0 / 3_600.0),
            AxisQuantity::WorkerSeconds if most >= 180.0 => ("min", 1.0 / 60.0),
            AxisQuantity::Seconds | AxisQuantity::WorkerSeconds => ("s", 1.0),
            AxisQuantity::Dollars if most < 1e-4 => ("millionths of $", 1e6),
            AxisQuantity::Dollars if most < 1e-2 => ("cents", 1e2),
            AxisQuantity::Dollars => ("$", 1.0),
            AxisQuantity::Percent => ("%", 1.0),
            AxisQuantity::Count(name) => (name, 1.0),
        }
    }
}

/// An axis for values up to `most`, with about `intervals` intervals.
pub(super) fn values(quantity: AxisQuantity, most: f64, intervals: usize) -> Axis {
    // Smaller ranges are empty for every quantity, and have no round steps.
    let most = if most.is_finite() && most > 1e-9 { most } else { 1.0 };
    let (unit, scale) = quantity.unit(most);
    let mut step = round_step(most * scale / intervals as f64);
    if matches!(quantity, AxisQuantity::Count(_)) {
        step = step.max(1.0);
    }
    // Rounding errors must not add an interval.
    let count = (most * scale / step - 1e-9).ceil().max(1.0) as usize;
    let tick = |index: usize| (index as f64 * step / scale, label(index as f64 * step, step));
    let ticks = (0..=count).map(tick).collect();
    Axis { end: count as f64 * step / scale, ticks, unit, scale }
}

/// The time axis, which ends with the run. At most `intervals` intervals.
pub(super) fn time(end_s: f64, intervals: usize) -> Axis {
    const MINUTES: [f64; 7] = [1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0];
    const HOURS: [f64; 6] = [0.5, 1.0, 2.0, 3.0, 6.0, 12.0];
    let (unit, unit_s, steps): (_, _, &[f64]) = match end_s {
        s if s < 180.0 => ("s", 1.0, &[]),
        s if s < 10_800.0 => ("min", 60.0, &MINUTES),
        s if s < 259_200.0 => ("h", 3_600.0, &HOURS),
        _ => ("days", 86_400.0, &[]),
    };
    let least = end_s / unit_s / intervals as f64;
    let usual = steps.iter().copied().find(|step| *step >= least);
    let step = usual.unwrap_or_else(|| round_step(least));
    let count = (end_s / unit_s / step + 1e-9).floor() as usize;
    let tick = |index: usize| (index as f64 * step * unit_s, label(index as f64 * step, step));
    let mut ticks: Vec<(f64, String)> = (0..=count).map(tick).collect();
    // The unit is shown once, at the end.
    if let Some((_, last)) = ticks.last_mut().filter(|_| count > 0) {
        last.push(' ');
        last.push_str(unit);
    }
    Axis { end: end_s, ticks, unit, scale: 1.0 / unit_s }
}

/// The smallest of 1, 2, 5, 10, .. that is at least `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|of| of * power);
    step.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(step[3])
}

fn label(value: f64, step: f64) -> String {
    let decimals = (-(step * (1.0 + 1e-9)).log10().floor()).max(0.0) as usize;
    let text = format!("{value:.decimals$}");
    match text.find('.') {
        None if value >= 10_000.0 => crate::units::DisplayCount(value as u64).to_string(),
        _ => text,
    }
}

/// A coordinate in pixels, printed with one decimal, which is finer than any screen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PixelCoordinate(pub f64);

impl fmt::Display for PixelCoordinate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 * 10.0).round() / 10.0;
        write!(f, "{tenths}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(axis: &Axis) -> String {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ticks_are_round() {
        let table = [
            (AxisQuantity::Seconds, 0.37, "0 100 200 300 400", "ms"),
            (AxisQuantity::Seconds, 3.0, "0 1 2 3", "s"),
            (AxisQuantity::Seconds, 0.000_9, "0 500 1000", "us"),
            (AxisQuantity::WorkerSeconds, 900.0, "0 5 10 15", "min"),
            (AxisQuantity::Dollars, 0.4, "0.0 0.1 0.2 0.3 0.4", "$"),
            (AxisQuantity::Dollars, 0.000_4, "0.00 0.01 0.02 0.03 0.04", "cents"),
            (AxisQuantity::Count("workers"), 2.0, "0 1 2", "workers"),
            (AxisQuantity::Count("batches"), 35_000.0, "0 10,000 20,000 30,000 40,000", "batches"),
            (AxisQuantity::Percent, f64::NAN, "0.0 0.5 1.0", "%"),
        ];
        for (quantity, most, expected, unit) in table {
            let axis = values(quantity, most, 4);
            assert_eq!(
                (labels(&axis).as_str(), axis.unit),
                (expected, unit),
                "{quantity:?} {most}"
            );
        }
        let times = [
            (12.0, "0 2 4 6 8 10 12 s", "s"),
            (1_000.0, "0 5 10 15 min", "min"),
            (40_000.0, "0 2 4 6 8 10 h", "h"),
            (864_000.0, "0 2 4 6 8 10 days", "days"),
        ];
        for (end_s, expected, unit) in times {
            let axis = time(end_s, 6);
            assert_eq!((labels(&axis).as_str(), axis.unit), (expected, unit), "{end_s}");
        }
    }

    proptest! {
        #[test]
        fn axes_hold_their_values(most in 1e-7..1e9_f64, intervals in 2_usize..10) {
            for quantity in [AxisQuantity::Seconds, AxisQuantity::Dollars, AxisQuantity::Count("workers")] {
                let axis = values(quantity, most, intervals);
                prop_assert!(axis.end >= most * 0.999_999);
                prop_assert!(axis.ticks.len() <= intervals + 2, "{}", labels(&axis));
            }
            let axis = time(most, intervals);
            prop_assert!(axis.ticks.len() <= intervals + 2, "{}", labels(&axis));
            prop_assert!(axis.ticks.iter().all(|(at, _)| *at <= most * 1.000_001));
        }
    }
}
