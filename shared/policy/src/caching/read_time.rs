//! Time of a GET by size, fitted to our own GETs: Cachew's throughput model of its store (4.4), for an
//! object store that differs by region, size and hour.

use crate::cost::{NETWORK_BYTES_PER_S, quantity, ratio};
use serde::{Deserialize, Serialize};

/// Default time to the first byte, typical of S3 Standard. Also used when all samples have one size,
/// which cannot separate latency from bandwidth.
const TYPICAL_LATENCY_S: f64 = 0.03;
/// Least samples of a knot, so that an outlier makes no knot of its own.
const MIN_KNOT_SAMPLES: usize = 3;
/// Sizes within this factor share a knot. Objects of one kind have similar sizes, and a median over a
/// wider range would confuse slow with large.
const KNOT_SPAN: f64 = 1.25;
/// Reads up to this size share a knot: they are mostly latency (4 of some 30 ms at 71 MB/s).
const SMALL_READ_BYTES: f64 = 262_144.0;
/// A sample counts as at most this many medians of its knot. A tail is part of the time that reads
/// take; one read that stalled for a minute does not predict the next.
const MAX_MEDIANS: f64 = 3.0;
/// Prior: this many reads without a tail. With about ten samples, one slow read is no reason to expect
/// every tenth to be slow.
const PRIOR_SAMPLES: f64 = 20.0;

/// Seconds of a GET by its bytes: piecewise linear, non-decreasing, non-negative.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ReadTime {
    /// (bytes, seconds), ascending in both.
    knots: Vec<(f64, f64)>,
}

impl ReadTime {
    /// Fits (bytes, seconds) of GETs. Ignores samples that are negative or not finite. Without samples,
    /// assumes what is typical of S3 from a function.
    pub fn fit(samples: &[(f64, f64)]) -> ReadTime {
        let sane = |&(bytes, seconds): &(f64, f64)| {
            bytes.is_finite() && seconds.is_finite() && bytes >= 0.0 && seconds >= 0.0
        };
        let mut samples: Vec<(f64, f64)> = samples.iter().copied().filter(sane).collect();
        samples.sort_by(|a, b| a.0.total_cmp(&b.0));
        let groups = by_size(&samples);
        let tail = mean_to_median(&groups);
        let knots = groups.into_iter().map(|group| {
            let (bytes, median_s) = centre(group);
            ((bytes, median_s * tail), group.len() as f64)
        });
        ReadTime { knots: never_falling(knots.collect()) }
    }

    /// Seconds of one GET of `bytes`.
    pub fn seconds(&self, bytes: f64) -> f64 {
        let bytes = quantity(bytes);
        let (Some(&first), Some(&last)) = (self.knots.first(), self.knots.last()) else {
            return TYPICAL_LATENCY_S + bytes / NETWORK_BYTES_PER_S;
        };
        if bytes <= first.0 {
            let latency_s = self.latency_s(first);
            return latency_s + (first.1 - latency_s) * ratio(bytes, first.0);
        }
        if bytes >= last.0 {
            return last.1 + (bytes - last.0) * self.last_slope(last);
        }
        let above = self.knots.partition_point(|knot| knot.0 <= bytes);
        let (low, high) = (self.knots[above - 1], self.knots[above]);
        low.1 + (high.1 - low.1) * ratio(bytes - low.0, high.0 - low.0)
    }

    /// The curve's value at zero bytes.
    fn latency_s(&self, first: (f64, f64)) -> f64 {
        match self.knots.get(1) {
            Some(second) => {
                let slope = ratio(second.1 - first.1, second.0 - first.0);
                (first.1 - slope * first.0).max(0.0)
            }
            None => first.1.min(TYPICAL_LATENCY_S),
        }
    }

    /// Seconds per byte beyond the last knot: the chord of the upper half, which is robust against one
    /// noisy knot, or the last knot's own bandwidth.
    fn last_slope(&self, last: (f64, f64)) -> f64 {
        let middle = self.knots[(self.knots.len() - 1) / 2];
        let chord = ratio(last.1 - middle.1, last.0 - middle.0);
        if chord > 0.0 {
            return chord;
        }
        if last.0 > 0.0 {
            (last.1 - self.latency_s(self.knots[0])).max(0.0) / last.0
        } else {
            1.0 / NETWORK_BYTES_PER_S
        }
    }
}

/// Groups of samples of similar size. Drops small groups unless there are no others.
fn by_size(sorted: &[(f64, f64)]) -> Vec<&[(f64, f64)]> {
    let mut runs: Vec<&[(f64, f64)]> = Vec::new();
    let mut rest = sorted;
    while let Some(first) = rest.first() {
        let most = first.0.max(SMALL_READ_BYTES) * KNOT_SPAN;
        let (run, larger) = rest.split_at(rest.partition_point(|sample| sample.0 <= most));
        runs.push(run);
        rest = larger;
    }
    let enough = |run: &&[(f64, f64)]| run.len() >= MIN_KNOT_SAMPLES;
    if runs.iter().any(enough) {
        runs.retain(enough);
    }
    runs
}

/// Mean bytes of a group, and the median of its seconds.
fn centre(run: &[(f64, f64)]) -> (f64, f64) {
    let mut seconds: Vec<f64> = run.iter().map(|sample| sample.1).collect();
    seconds.sort_by(f64::total_cmp);
    let median_s = match seconds.len() {
        0 => 0.0,
        n => f64::midpoint(seconds[(n - 1) / 2], seconds[n / 2]),
    };
    let bytes: f64 = run.iter().map(|sample| sample.0).sum();
    (ratio(bytes, run.len() as f64), median_s)
}

/// Ratio of the mean to the median of read times, over all sizes.
fn mean_to_median(runs: &[&[(f64, f64)]]) -> f64 {
    let (mut extra, mut count) = (0.0, PRIOR_SAMPLES);
    for run in runs {
        let (_, median_s) = centre(run);
        let medians = |s: f64| if median_s > 0.0 { (s / median_s).min(MAX_MEDIANS) } else { 1.0 };
        extra += run.iter().map(|sample| medians(sample.1) - 1.0).sum::<f64>();
        count += run.len() as f64;
    }
    1.0 + (extra / count).max(0.0)
}

/// Merges neighbours until seconds do not decrease with bytes: isotonic regression by pooling adjacent
/// violators. Each knot carries its number of samples.
fn never_falling(knots: Vec<((f64, f64), f64)>) -> Vec<(f64, f64)> {
    let mut pooled: Vec<((f64, f64), f64)> = Vec::with_capacity(knots.len());
    for knot in knots {
        pooled.push(knot);
        while let [.., (low, low_weight), (high, high_weight)] = pooled[..] {
            if low.1 <= high.1 && low.0 < high.0 {
                break;
            }
            let weight = low_weight + high_weight;
            let mean = |a: f64, b: f64| (a * low_weight + b * high_weight) / weight;
            pooled.truncate(pooled.len() - 2);
            pooled.push(((mean(low.0, high.0), mean(low.1, high.1)), weight));
        }
    }
    pooled.into_iter().map(|(knot, _)| knot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 40 ms, then 80 MB/s.
    fn line(bytes: f64) -> f64 {
        0.04 + bytes / 80e6
    }

    fn assert_within(model: &ReadTime, tolerance: f64, sizes: &[f64]) {
        for &bytes in sizes {
            let (got, expected) = (model.seconds(bytes), line(bytes));
            assert!((got / expected - 1.0).abs() <= tolerance, "{bytes}: {got}, not {expected}");
        }
    }

    #[test]
    fn a_line_is_found_again_between_and_beyond_its_samples() {
        let sizes = [1e5, 1e6, 1e7, 6.4e7];
        let samples: Vec<_> = sizes.iter().flat_map(|&bytes| [(bytes, line(bytes)); 4]).collect();
        let model = ReadTime::fit(&samples);
        assert_within(&model, 1e-9, &[0.0, 5e4, 1e5, 3e5, 3e7, 6.4e7, 1e9]);
    }

    #[test]
    fn stalls_do_not_move_it() {
        let mut samples: Vec<_> = (0..40)
            .map(|i| f64::from(i % 4) * 2e7 + 1e6)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|bytes| (bytes, line(bytes)))
            .collect();
        samples.push((1e6, 60.0));
        samples.push((4.1e7, 120.0));
        samples.push((f64::NAN, 1.0));
        samples.push((1e6, -5.0));
        // Two stalls, each counted as two extra medians, among 42 reads and a prior of 20: 4 / 62 = 6.5 %.
        assert_within(&ReadTime::fit(&samples), 0.066, &[1e6, 2.1e7, 4.1e7, 6.1e7]);
        assert_within(&ReadTime::fit(&samples[..40]), 0.01, &[1e6, 2.1e7, 4.1e7, 6.1e7]);
    }

    #[test]
    fn a_tail_counts_and_a_stray_size_makes_no_knot() {
        // Every fifth read takes twice as long: the mean is 1.2 medians, of which 60 / (20 + 60) is seen.
        let mut samples: Vec<_> =
            (0..60).map(|i| (1e7, if i % 5 == 0 { 0.4 } else { 0.2 })).collect();
        assert!((ReadTime::fit(&samples).seconds(1e7) - 0.2 * 1.15).abs() < 1e-9);
        samples.push((1e8, 500.0));
        assert!(ReadTime::fit(&samples).seconds(1e8) < 3.0);
        // A single sample is better than none.
        assert_eq!(ReadTime::fit(&[(1e8, 2.0)]).seconds(1e8), 2.0);
    }

    #[test]
    fn samples_of_one_size_are_split_into_latency_and_bandwidth_as_is_typical() {
        // 0.83 s for 64 MB: 30 ms and 80 MB/s
        let model = ReadTime::fit(&[(6.4e7, 0.83); 5]);
        assert!((model.seconds(6.4e7) - 0.83).abs() < 1e-12);
        assert!((model.seconds(3.2e7) - 0.43).abs() < 1e-9);
        assert!((model.seconds(12.8e7) - 1.63).abs() < 1e-9);
    }

    #[test]
    fn without_samples_it_is_what_is_typical() {
        for none in [&[][..], &[(f64::INFINITY, 1.0)][..]] {
            let model = ReadTime::fit(none);
            assert_eq!(model.seconds(0.0), 0.03);
            assert_eq!(model.seconds(71e6), 1.03);
        }
    }

    proptest! {
        #[test]
        fn it_never_falls_and_is_never_negative(
            samples in prop::collection::vec((0.0f64..1e9, 0.0f64..100.0), 0..60),
            sizes in prop::collection::vec(0.0f64..1e10, 2..20),
            rubbish in prop::collection::vec((any::<f64>(), any::<f64>()), 0..5),
        ) {
            let mut samples = samples;
            samples.extend(rubbish.into_iter().filter(|(bytes, s)| *bytes < 1e12 && *s < 1e6));
            let model = ReadTime::fit(&samples);
            let mut sizes = sizes;
            sizes.sort_by(f64::total_cmp);
            let seconds: Vec<f64> = sizes.iter().map(|&bytes| model.seconds(bytes)).collect();
            prop_assert!(seconds.iter().all(|s| s.is_finite() && *s >= 0.0), "{seconds:?}");
            let falls = seconds.windows(2).any(|pair| pair[1] < pair[0] * (1.0 - 1e-9) - 1e-12);
            prop_assert!(!falls, "{sizes:?} {seconds:?}");
        }
    }
}
