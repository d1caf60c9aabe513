//! Downsampling: each pixel or so of the time axis represents a range of samples, drawn as their mean
//! with a shade from the lowest to the highest, so that peaks stay visible.

use std::ops::Range;

/// Statistics of a series over a range of samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SampleSpread {
    pub low: f64,
    pub mean: f64,
    pub high: f64,
    pub last: f64,
}

impl SampleSpread {
    /// `None` if there are no values.
    pub fn from_values(values: impl Iterator<Item = f64>) -> Option<SampleSpread> {
        let mut count = 0.0;
        let mut all: Option<SampleSpread> = None;
        for value in values {
            count += 1.0;
            let spread = all.get_or_insert(SampleSpread {
                low: value,
                mean: value,
                high: value,
                last: value,
            });
            spread.low = spread.low.min(value);
            spread.high = spread.high.max(value);
            spread.mean += (value - spread.mean) / count;
            spread.last = value;
        }
        all
    }
}

/// At most `count` ranges of samples, in order; one per sample if there are no more. `times` ascend from
/// 0 to `end_s`.
pub(super) fn ranges(times: &[f64], end_s: f64, count: usize) -> Vec<Range<usize>> {
    if times.len() <= count {
        return (0..times.len()).map(|index| index..index + 1).collect();
    }
    let bucket = |t_s: f64| ((t_s / end_s * count as f64) as usize).min(count - 1);
    times
        .chunk_by(|a, b| bucket(*a) == bucket(*b))
        .scan(0, |from, chunk| {
            let range = *from..*from + chunk.len();
            *from = range.end;
            Some(range)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_spread_holds_its_values() {
        let spread = SampleSpread::from_values([2.0, 6.0, 1.0].into_iter());
        assert_eq!(spread, Some(SampleSpread { low: 1.0, mean: 3.0, high: 6.0, last: 1.0 }));
        assert_eq!(SampleSpread::from_values([].into_iter()), None);
    }

    proptest! {
        #[test]
        fn every_sample_is_in_one_range(
            mut times in proptest::collection::vec(0.0..100.0_f64, 0..2_000),
            count in 1_usize..300,
        ) {
            times.sort_by(f64::total_cmp);
            let ranges = ranges(&times, 100.0, count);
            prop_assert!(ranges.len() <= count);
            let all: Vec<usize> = ranges.into_iter().flatten().collect();
            prop_assert_eq!(all, (0..times.len()).collect::<Vec<_>>());
        }
    }
}
