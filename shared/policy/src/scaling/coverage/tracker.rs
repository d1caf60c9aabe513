//! A running mean that detects changes of the averaged value.
//!
//! Page's cumulative-sum test on the logarithm of (sample / mean), in both directions. An allowance of 0.1 (plus the error
//! of a mean of few samples) with a threshold of 0.75 gives one false alarm in millions of reports under noise of 10 %. A
//! value that doubles or halves (0.69) is detected at its second sample (a single one may be a pause of the trainer), one
//! that changes by a third at its third or fourth.

use super::block::Typical;
use serde::{Deserialize, Serialize};

/// Deviations from the mean up to this (in logarithm) are noise.
const ALLOWANCE: f64 = 0.1;
/// Cumulative sum at which a change is certain.
const THRESHOLD: f64 = 0.75;
/// Cumulative sum from which one sample may be the first of a change.
const DOUBTFUL: f64 = 0.25;
/// Samples that the mean remembers: more would hide slow drift.
const MEMORY: u32 = 120;
/// Decay per sample of the extreme samples towards the mean.
const FADING: f32 = 0.01;

/// Mean of positive samples since the last change.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Tracker {
    pub mean: f64,
    pub samples: u32,
    /// The last sample.
    previous: f64,
    /// Mean absolute deviation of the logarithm, over all samples so far.
    spread: f64,
    spread_samples: u32,
    #[serde(skip_serializing_if = "Excursion::is_at_rest")]
    above: Excursion,
    #[serde(skip_serializing_if = "Excursion::is_at_rest")]
    below: Excursion,
    /// The highest and lowest recent samples.
    highest: f32,
    lowest: f32,
}

/// Evidence of a change in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
struct Excursion {
    /// The cumulative sum; 0 at rest.
    sum: f64,
    /// Samples since it left 0.
    samples: u32,
    /// The tracker's mean before it left 0, and the most extreme sample since.
    before: f64,
    extreme: f32,
}

impl Excursion {
    fn is_at_rest(&self) -> bool {
        *self == Self::default()
    }

    fn add(&mut self, excess: f64, mean: f64, extreme: f32, wide: f64) -> bool {
        // Bounded, so that it decays as soon as the samples are back to normal.
        self.sum = (self.sum + excess - ALLOWANCE * wide).min(2.0 * THRESHOLD * wide);
        if self.sum <= 0.0 {
            *self = Self::default();
            return false;
        }
        if self.samples == 0 {
            self.before = mean;
            self.extreme = extreme;
        }
        self.samples += 1;
        self.sum > THRESHOLD * wide && self.samples >= 2
    }
}

impl Tracker {
    /// Relative standard deviation of a sample; 10 % until there are enough samples.
    pub fn sigma(&self) -> f64 {
        // The mean absolute deviation of a normal variable is 0.8 standard deviations.
        if self.spread_samples < 8 { 0.1 } else { (1.25 * self.spread).clamp(0.01, 0.4) }
    }

    /// The mean and its standard error.
    pub fn typical(&self) -> Typical {
        let error_s = self.mean * self.sigma() / f64::from(self.samples.max(1)).sqrt();
        Typical { mean_s: self.mean, error_s }
    }

    /// Whether the last sample may be the first of a change.
    pub fn is_in_doubt(&self) -> bool {
        [self.above, self.below].iter().any(|way| way.samples == 1 && way.sum > DOUBTFUL)
    }

    /// Forgets the mean but not the spread.
    pub fn restart(&mut self) {
        let Self { spread, spread_samples, .. } = *self;
        *self = Self { spread, spread_samples, ..Self::default() };
    }

    /// Copies the spread of `other`.
    pub fn vary_like(&mut self, other: &Self) {
        self.spread = other.spread;
        self.spread_samples = other.spread_samples;
    }

    /// Adds a positive sample. On a change the mean restarts from the last two samples, and the former
    /// mean is returned.
    pub fn add(&mut self, sample: f64) -> Option<f64> {
        self.add_of_waves(sample, 0)
    }

    /// The same for samples that arrive in waves of `wave`, first of fast workers and then of slow ones: a value seen
    /// before is a change only if it lasts longer than a wave.
    pub fn add_of_waves(&mut self, sample: f64, wave: u32) -> Option<f64> {
        if self.samples > 0 && self.mean > 0.0 {
            let moved = (sample / self.mean).ln();
            // Larger spread needs proportionally more evidence.
            let wide = (self.sigma() / 0.1).max(1.0);
            // A mean of few samples has an error of its own.
            let doubt = self.sigma() / f64::from(self.samples).sqrt();
            // Earlier samples may precede the change.
            let (mean, samples) = ((self.previous + sample) / 2.0, 2);
            // Less than a wave does not show the whole range.
            let knows = |way: &Excursion| self.samples >= way.samples + wave.min(MEMORY / 2);
            let (knows_above, knows_below) = (knows(&self.above), knows(&self.below));
            let rose = self.above.add(moved - doubt, self.mean, self.highest, wide)
                && (self.above.samples > wave || knows_above && mean as f32 > self.above.extreme);
            let fell = self.below.add(-moved - doubt, self.mean, self.lowest, wide)
                && (self.below.samples > wave || knows_below && (mean as f32) < self.below.extreme);
            if rose || fell {
                let before = if rose { self.above.before } else { self.below.before };
                let Self { spread, spread_samples, .. } = *self;
                *self = Self { mean, samples, spread, spread_samples, ..Self::default() };
                (self.highest, self.lowest) = (mean as f32, mean as f32);
                return Some(before);
            }
            // A change is not spread: no sample counts for more than half.
            self.previous = sample;
            self.spread_samples = (self.spread_samples + 1).min(MEMORY);
            self.spread += (moved.abs().min(0.5) - self.spread) / f64::from(self.spread_samples);
        }
        if self.samples == 0 {
            (self.highest, self.lowest) = (sample as f32, sample as f32);
        }
        let (seen, mean) = (sample as f32, self.mean as f32);
        self.highest = seen.max(self.highest - FADING * (self.highest - mean));
        self.lowest = seen.min(self.lowest + FADING * (mean - self.lowest));
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
        for (factor, reports) in [(2.0, 2), (0.5, 2), (1.4, 4), (0.7, 4), (1.25, 9)] {
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

    /// Ten splits of fast workers, ten of slow ones, and so on: a wave is twenty.
    fn of_two_speeds(reports: u32) -> impl Iterator<Item = f64> {
        (0..reports).map(|i| if i / 10 % 2 == 0 { 1.0 } else { 1.8 })
    }

    #[test]
    fn waves_of_fast_and_slow_workers_are_no_change() {
        let mut tracker = Tracker::default();
        for sample in of_two_speeds(200) {
            assert_eq!(tracker.add_of_waves(sample, 20), None);
        }
        let mut tracker = Tracker::default();
        let seen = of_two_speeds(200).filter_map(|sample| tracker.add(sample)).count();
        assert!(seen > 0, "as if they were drawn one by one they would be");
    }

    #[test]
    fn what_was_never_seen_is_a_change_at_once_and_what_lasts_is_one_later() {
        for (sample, reports) in [(2.2, 2..=3), (1.5, 21..=25)] {
            let mut tracker = Tracker::default();
            for i in 0..40 {
                let seen = if (3..5).contains(&i) { 1.8 } else { 1.0 };
                assert_eq!(tracker.add_of_waves(seen, 20), None);
            }
            let noticed = (1..=60).find(|_| tracker.add_of_waves(sample, 20).is_some());
            assert!(noticed.is_some_and(|n| reports.contains(&n)), "{sample}: {noticed:?}");
        }
    }

    #[test]
    fn one_sample_far_off_is_in_doubt_until_the_next() {
        let mut tracker = Tracker::default();
        (0..10).for_each(|_| assert_eq!(tracker.add(1.0), None));
        assert!(!tracker.is_in_doubt());
        assert_eq!(tracker.add(1.7), None);
        assert!(tracker.is_in_doubt());
        assert_eq!(tracker.add(1.0), None);
        assert!(!tracker.is_in_doubt());
    }
}
