//! How long a GET of so many bytes takes, fitted to our own: Cachew's throughput model of its store
//! (4.4), for an object store that differs by region, size and hour.

use crate::cost::{NETWORK_BYTES_PER_S, quantity, ratio};
use serde::{Deserialize, Serialize};

/// Time to the first byte where nothing says otherwise: what S3 Standard is known for. Also what is
/// taken for latency when all samples have one size, which cannot tell latency from bandwidth.
const TYPICAL_LATENCY_S: f64 = 0.03;
/// Samples a knot needs, so that a stray one makes no knot of its own.
const MIN_KNOT_SAMPLES: usize = 3;
/// Sizes within this factor share a knot: objects of one kind are about as large as each other, and a
/// median over more would mix what is slow with what is large.
const KNOT_SPAN: f64 = 1.25;
/// Up to here a read is latency (at 71 MB/s this takes 4 ms of some 30): all of them share a knot.
const SMALL_READ_BYTES: f64 = 262_144.0;
/// A sample counts for at most this many medians of its knot. A tail is part of the time that reads
/// take; one read that stalled for a minute says nothing about the next.
const MAX_MEDIANS: f64 = 3.0;
/// Reads without a tail that are taken as seen beforehand: with the usual ten or so samples, one slow
/// read is no reason to think every tenth slow.
const PRIOR_SAMPLES: f64 = 20.0;

/// Seconds of a GET by its bytes: piecewise linear, never falling, never negative.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ReadTime {
    /// (bytes, seconds), ascending in both.
    knots: Vec<(f64, f64)>,
    /// GETs it was fitted to; 0: a guess.
    samples: u32,
}

impl ReadTime {
    /// Fits (bytes, seconds) of GETs. Samples that cannot be (negative, not finite) are left out; of
    /// none at all it is what is typical of S3 from a function.
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
        let knots = never_falling(knots.collect());
        let samples = u32::try_from(samples.len()).unwrap_or(u32::MAX);
        ReadTime { knots, samples }
    }

    /// GETs it was fitted to; 0 if it is a guess.
    pub fn samples(&self) -> u32 {
        self.samples
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

    /// Where the curve meets no bytes at all.
    fn latency_s(&self, first: (f64, f64)) -> f64 {
        match self.knots.get(1) {
            Some(second) => {
                let slope = ratio(second.1 - first.1, second.0 - first.0);
                (first.1 - slope * first.0).max(0.0)
            }
            None => first.1.min(TYPICAL_LATENCY_S),
        }
    }

    /// Seconds a byte beyond the last knot: the chord of the upper half, which one noisy knot does
    /// not make flat; or the last knot's own bandwidth.
    fn last_slope(&self, last: (f64, f64)) -> f64 {
        let middle = self.knots[(self.knots.len() - 1) / 2];
        let chord = ratio(last.1 - middle.1, last.0 - middle.0);
        if chord > 0.0 {
            return chord;
        }
        match last.0 > 0.0 {
            true => (last.1 - self.latency_s(self.knots[0])).max(0.0) / last.0,
            false => 1.0 / NETWORK_BYTES_PER_S,
        }
    }
}

/// Runs of samples of about one size. Runs of too few are left out, unless there are no others.
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

/// Mean bytes of a run, and the median of its seconds.
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

/// How much longer reads take on average than in the median: their tail, of all sizes together.
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

/// Pools neighbours until seconds never fall with bytes: isotonic regression by pooling adjacent
/// violators, each knot with its number of samples.
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
        assert_eq!(model.samples(), 16);
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
        // Two stalls, each counted as two medians more, of 42 reads and 20 before: 4 / 62 = 6.5 %.
        assert_within(&ReadTime::fit(&samples), 0.066, &[1e6, 2.1e7, 4.1e7, 6.1e7]);
        assert_within(&ReadTime::fit(&samples[..40]), 0.01, &[1e6, 2.1e7, 4.1e7, 6.1e7]);
    }

    #[test]
    fn a_tail_counts_and_a_stray_size_makes_no_knot() {
        // Every fifth read takes twice as long: the mean is 1.2 medians; 60 / (20 + 60) of it is seen.
        let mut samples: Vec<_> =
            (0..60).map(|i| (1e7, if i % 5 == 0 { 0.4 } else { 0.2 })).collect();
        assert!((ReadTime::fit(&samples).seconds(1e7) - 0.2 * 1.15).abs() < 1e-9);
        samples.push((1e8, 500.0));
        assert!(ReadTime::fit(&samples).seconds(1e8) < 3.0);
        // But it is better than nothing.
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
            assert_eq!((model.samples(), model.seconds(0.0)), (0, 0.03));
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
