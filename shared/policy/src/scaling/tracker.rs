//! A mean that notices when what it averages changes.
//!
//! Page's cumulative-sum test on the logarithm of (sample / mean), both ways. An allowance of 0.1 with a
//! threshold of 0.75 under noise of 10 % is one false alarm in millions of reports; a
//! value that doubles or halves (0.69) is noticed by its second sample (one alone may be a pause of the
//! trainer), one that moves by a third by its third or fourth.

use super::block::Typical;
use serde::{Deserialize, Serialize};

/// Moves of the mean up to this (in logarithm) are noise.
const ALLOWANCE: f64 = 0.1;
/// The sum at which a change is certain.
const THRESHOLD: f64 = 0.75;
/// Samples the mean remembers: more would make it blind to slow drift.
const MEMORY: u32 = 120;

/// Mean of positive samples since the last change.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Tracker {
    pub mean: f64,
    pub samples: u32,
    /// The sample before.
    previous: f64,
    /// Mean absolute deviation of the logarithm, over all samples so far.
    spread: f64,
    spread_samples: u32,
    above: Excursion,
    below: Excursion,
}

/// Evidence that the value has moved one way.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
struct Excursion {
    /// The cumulative sum; 0 at rest.
    sum: f64,
    /// Number of the samples since it left 0.
    samples: u32,
    /// The tracker's mean before it left 0.
    before: f64,
}

impl Excursion {
    fn add(&mut self, excess: f64, mean: f64, wide: f64) -> bool {
        self.sum += excess - ALLOWANCE * wide;
        if self.sum <= 0.0 {
            *self = Self::default();
            return false;
        }
        if self.samples == 0 {
            self.before = mean;
        }
        self.samples += 1;
        self.sum > THRESHOLD * wide && self.samples >= 2
    }
}

impl Tracker {
    /// Relative standard deviation of a sample; 10 % until there are enough to tell.
    pub fn sigma(&self) -> f64 {
        // The mean absolute deviation of a normal variable is 0.8 standard deviations.
        if self.spread_samples < 8 { 0.1 } else { (1.25 * self.spread).clamp(0.01, 0.4) }
    }

    /// The mean and its standard error.
    pub fn typical(&self) -> Typical {
        let error_s = self.mean * self.sigma() / f64::from(self.samples.max(1)).sqrt();
        Typical { mean_s: self.mean, error_s }
    }

    /// Forgets the mean, not how much samples vary.
    pub fn restart(&mut self) {
        let Self { spread, spread_samples, .. } = *self;
        *self = Self { spread, spread_samples, ..Self::default() };
    }

    /// Takes over how much samples vary.
    pub fn vary_like(&mut self, other: &Self) {
        self.spread = other.spread;
        self.spread_samples = other.spread_samples;
    }

    /// Takes a positive sample in. Where it shows a change the mean starts anew from the latest two,
    /// and the mean before is returned.
    pub fn add(&mut self, sample: f64) -> Option<f64> {
        if self.samples > 0 && self.mean > 0.0 {
            let moved = (sample / self.mean).ln();
            // What varies by more than 10 % needs as much more to be certain.
            let wide = (self.sigma() / 0.1).max(1.0);
            let rose = self.above.add(moved, self.mean, wide);
            let fell = self.below.add(-moved, self.mean, wide);
            if rose || fell {
                let before = if rose { self.above.before } else { self.below.before };
                // Earlier ones may be of before the change.
                let (mean, samples) = ((self.previous + sample) / 2.0, 2);
                let Self { spread, spread_samples, .. } = *self;
                *self = Self { mean, samples, spread, spread_samples, ..Self::default() };
                return Some(before);
            }
            // A change is not spread: no sample counts for more than half.
            self.previous = sample;
            self.spread_samples = (self.spread_samples + 1).min(MEMORY);
            self.spread += (moved.abs().min(0.5) - self.spread) / f64::from(self.spread_samples);
        }
        self.samples = (self.samples + 1).min(MEMORY);
        self.mean += (sample - self.mean) / f64::from(self.samples);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_value_is_averaged() {
        let mut tracker = Tracker::default();
        for i in 0..200 {
            let noise = if i % 2 == 0 { 1.1 } else { 0.9 };
            assert_eq!(tracker.add(2.0 * noise), None);
        }
        assert!((tracker.mean - 2.0).abs() < 0.01, "{}", tracker.mean);
    }

    #[test]
    fn a_change_is_noticed_and_starts_anew() {
        for (factor, reports) in [(2.0, 2), (0.5, 2), (1.4, 4), (0.7, 3), (1.25, 7)] {
            let mut tracker = Tracker::default();
            (0..50).for_each(|_| assert_eq!(tracker.add(3.0), None));
            let noticed = (1..=reports).find_map(|_| tracker.add(3.0 * factor));
            assert_eq!(noticed.map(|before| (before * 1e6).round()), Some(3e6), "{factor}");
            assert!((tracker.mean - 3.0 * factor).abs() < 1e-9);
        }
    }

    #[test]
    fn one_wild_sample_is_not_a_change() {
        let mut tracker = Tracker::default();
        (0..10).for_each(|_| assert_eq!(tracker.add(1.0), None));
        assert_eq!(tracker.add(1.7), None, "a pause of the trainer");
        (0..10).for_each(|_| assert_eq!(tracker.add(1.0), None));
        assert!((tracker.mean - 1.0).abs() < 0.05);
    }
}
