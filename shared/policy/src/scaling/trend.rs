//! A running mean that notices when the averaged value changes.

use super::tuning::TUNING;
use serde::{Deserialize, Serialize};

/// Mean of the logarithms of positive samples since the last change.
///
/// A change is noticed by Page's cumulative sums of the standardised residuals, one for each direction.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LoadTrend {
    mean: f64,
    samples: u32,
    variance: f64,
    /// The cumulative sums, above and below.
    sums: [f64; 2],
    /// The latest sample.
    latest: f64,
    /// The part of the next sample that was seen, and the value times it.
    pending: [f64; 2],
}

impl LoadTrend {
    /// A mean of so many earlier samples.
    pub fn known(mean: f64, samples: u32) -> Self {
        Self { mean: mean.max(f64::MIN_POSITIVE).ln(), samples, ..Self::default() }
    }

    /// The mean; none before the first sample.
    pub fn mean(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.mean.exp())
    }

    /// Takes a value that is `part` of a sample; one sample has parts of 1 or more. Returns the means before and after,
    /// if the value has changed.
    pub fn add(&mut self, value: f64, part: f64) -> Option<(f64, f64)> {
        self.pending = [self.pending[0] + part, self.pending[1] + part * value];
        let [parts, sum] = self.pending;
        if parts < 1.0 {
            return None;
        }
        let sample = (sum / parts).max(f64::MIN_POSITIVE).ln();
        if self.samples == 0 {
            self.mean = sample;
        }
        let residual = sample - self.mean;
        let z = (residual / self.sigma()).clamp(-TUNING.outlier, TUNING.outlier);
        let [above, below] = self.sums;
        self.sums = [above + z - TUNING.drift, below - z - TUNING.drift].map(|sum| sum.max(0.0));
        let previous = std::mem::replace(&mut self.latest, sample);
        self.pending = [0.0; 2];
        if self.sums.iter().any(|sum| *sum > TUNING.alarm) {
            let (before, variance) = (self.mean, self.variance);
            // Two samples are enough for an alarm.
            let mean = (previous + sample) / 2.0;
            *self = Self { mean, samples: 2, variance, ..Self::default() };
            let is_large = (mean - before).abs() > TUNING.change;
            return is_large.then(|| (before.exp(), mean.exp()));
        }
        self.samples = (self.samples + 1).min(TUNING.memory);
        self.mean += residual / f64::from(self.samples);
        // A residual of few samples holds the error of their mean.
        if self.samples > 2 {
            self.variance += (residual * residual - self.variance) / f64::from(self.samples);
        }
        None
    }

    fn sigma(&self) -> f64 {
        let [least, unknown, most] = TUNING.sigma;
        let known = if self.samples < 8 { unknown } else { self.variance.sqrt() };
        // The mean of few samples is uncertain too.
        let error = (1.0 + 1.0 / f64::from(self.samples.max(1))).sqrt();
        known.clamp(least, most) * error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noisy(random: &mut fastrand::Rng, value: f64) -> f64 {
        let normal: f64 = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        value * (0.1 * normal).exp()
    }

    #[test]
    fn a_value_that_doubles_or_halves_is_noticed_at_its_second_report() {
        for factor in [0.5, 2.0] {
            let mut trend = LoadTrend::default();
            assert!((0..20).all(|_| trend.add(0.1, 1.0).is_none()));
            assert_eq!(trend.add(0.1 * factor, 1.0), None, "one pause is no change");
            let (before, _) = trend.add(0.1 * factor, 1.0).unwrap();
            assert!((before / 0.1 - 1.0).abs() < 0.2, "{before}");
            assert!((trend.mean().unwrap() / (0.1 * factor) - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn workers_of_different_speed_that_report_in_turn_are_no_change() {
        let (mut trend, mut parts) = (LoadTrend::default(), LoadTrend::default());
        let times = |n: u32| if n % 10 < 5 { 0.1 } else { 0.23 };
        assert!((0..200).any(|n| trend.add(times(n), 1.0).is_some()), "one report is no fair sample");
        assert!((0..200).all(|n| parts.add(times(n), 0.1).is_none()));
        let changed = (0..40).find(|n| parts.add(2.0 * times(*n), 0.1).is_some());
        assert_eq!(changed, Some(19), "the second generation");
    }

    #[test]
    fn noise_of_ten_percent_gives_few_alarms_and_the_mean() {
        let (mut trend, mut random) = (LoadTrend::default(), fastrand::Rng::with_seed(1));
        let alarms = (0..10_000).filter(|_| trend.add(noisy(&mut random, 3.0), 1.0).is_some()).count();
        assert!(alarms <= 10, "{alarms}");
        let mean = trend.mean().unwrap();
        assert!((mean / 3.0 - 1.0).abs() < 0.15, "{mean}, after {alarms} alarms");
    }
}
