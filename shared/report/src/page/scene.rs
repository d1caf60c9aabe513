//! A timeline prepared for drawing: sorted, with every time known and every number finite.

use crate::{StallCause, Timeline, TimelineDecision, TimelineEpoch, TimelineSample, units::amount};
use std::{collections::BTreeMap, ops::Range};

/// A timeline with gaps filled where possible.
pub(super) struct TimelineScene<'a> {
    pub timeline: &'a Timeline,
    /// Length of the time axis, above 0.
    pub end_s: f64,
    /// Finite times, ascending.
    pub samples: Vec<TimelineSample>,
    pub epochs: Vec<EpochSpan<'a>>,
    /// Decisions in timeline order, each with its time.
    pub decisions: Vec<(f64, &'a TimelineDecision)>,
}

/// An epoch on the time axis.
pub(super) struct EpochSpan<'a> {
    pub epoch: &'a TimelineEpoch,
    pub from_s: f64,
    pub to_s: f64,
}

impl TimelineScene<'_> {
    /// Sorts `timeline`, and replaces times that are not known.
    pub fn from_timeline(timeline: &Timeline) -> TimelineScene<'_> {
        let mut samples: Vec<TimelineSample> =
            timeline.samples.iter().copied().map(finite).collect();
        samples.retain(|sample| sample.t_s.is_finite() && sample.t_s >= 0.0);
        samples.sort_by(|a, b| a.t_s.total_cmp(&b.t_s));
        let epochs = spans(&timeline.epochs);
        let time = |t_s: f64| if t_s.is_finite() { amount(t_s) } else { 0.0 };
        let decisions = timeline.decisions.iter();
        let decisions: Vec<_> = decisions.map(|decided| (time(decided.t_s), decided)).collect();
        let last_sample = samples.last().map(|sample| sample.t_s);
        let seen_s = last_sample
            .into_iter()
            .chain(epochs.iter().map(|span| span.to_s))
            .chain(decisions.iter().map(|(t_s, _)| *t_s))
            .map(amount)
            .fold(0.0, f64::max);
        // Shorter runs have no visible extent.
        let end_s = if seen_s > 1e-6 { seen_s } else { 1.0 };
        TimelineScene { timeline, end_s, samples, epochs, decisions }
    }

    /// Batches delivered.
    pub fn batches(&self) -> u64 {
        // A timeline from elsewhere may have any numbers.
        let by_epochs =
            self.epochs.iter().map(|span| span.epoch.batches).fold(0, u64::saturating_add);
        self.samples.last().map_or(0, |sample| sample.batches).max(by_epochs)
    }

    /// Seconds that the trainer waited, and the total they are part of.
    pub fn waited(&self) -> Option<(f64, f64)> {
        let by_epoch = self.epochs.iter().filter_map(|span| {
            Some((amount(span.epoch.stalls.as_ref()?.total_s), span.to_s - span.from_s))
        });
        let sum = |sum: (f64, f64), next: (f64, f64)| (sum.0 + next.0, sum.1 + next.1);
        let (waited_s, of_s) = by_epoch.fold((0.0, 0.0), sum);
        if of_s > 0.0 {
            return Some((waited_s, of_s));
        }
        let mut before = 0;
        let by_sample = self.samples.iter().filter_map(|sample| {
            let batches = sample.batches.saturating_sub(before) as f64;
            before = sample.batches;
            Some((sample.stall_s? * batches, sample.batch_time_s? * batches))
        });
        let (waited_s, of_s) = by_sample.fold((0.0, 0.0), sum);
        (of_s > 0.0).then_some((waited_s, of_s))
    }

    /// Cumulative dollars: the epochs' cost spread over their time.
    pub fn cost_so_far(&self) -> Vec<(f64, f64)> {
        let mut so_far = 0.0;
        let mut points = Vec::new();
        for span in &self.epochs {
            let Some(usd) = span.epoch.cost_usd else { continue };
            points.push((span.from_s, so_far));
            so_far += amount(usd);
            points.push((span.to_s, so_far));
        }
        points
    }
}

fn finite(sample: TimelineSample) -> TimelineSample {
    let kept = |value: Option<f64>| value.filter(|value| value.is_finite()).map(amount);
    TimelineSample {
        batch_time_s: kept(sample.batch_time_s),
        stall_s: kept(sample.stall_s),
        step_s: kept(sample.step_s),
        workers: kept(sample.workers),
        queue_batches: kept(sample.queue_batches),
        ..sample
    }
}

fn spans(epochs: &[TimelineEpoch]) -> Vec<EpochSpan<'_>> {
    let mut spans: Vec<EpochSpan<'_>> = Vec::with_capacity(epochs.len());
    for epoch in epochs {
        let before = spans.last().map_or(0.0, |span| span.to_s);
        let from_s = epoch.start_s.filter(|start| start.is_finite()).map_or(before, amount);
        spans.push(EpochSpan { epoch, from_s, to_s: from_s + amount(epoch.seconds) });
    }
    spans
}

/// Operators with a colour of their own; the others share one. More colours are hard to distinguish.
const OPS_MAX: usize = 4;

/// The operators that took longest, longest first.
pub(super) struct CauseOrder {
    ops: Vec<String>,
}

/// A cause as drawn: position in bars and legends, class, name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DrawnCause {
    place: usize,
    pub class: &'static str,
    pub name: String,
}

impl CauseOrder {
    /// The operators that take most seconds, in that order; the rest are one cause.
    pub fn from_scene(scene: &TimelineScene<'_>) -> CauseOrder {
        let mut seconds: BTreeMap<&str, f64> = BTreeMap::new();
        for span in &scene.epochs {
            for op in &span.epoch.workers.ops {
                *seconds.entry(&op.name).or_default() += amount(op.seconds);
            }
            for part in span.epoch.stalls.iter().flat_map(|stalls| &stalls.parts) {
                if let StallCause::Op(name) = &part.cause {
                    *seconds.entry(name).or_default() += amount(part.seconds);
                }
            }
        }
        let mut ops: Vec<(&str, f64)> = seconds.into_iter().collect();
        ops.sort_by(|a, b| b.1.total_cmp(&a.1));
        // A single remaining operator keeps its name instead of "other ops".
        let named = if ops.len() == OPS_MAX + 1 { OPS_MAX + 1 } else { OPS_MAX };
        CauseOrder { ops: ops.into_iter().take(named).map(|(name, _)| name.to_owned()).collect() }
    }

    /// The place in the order, the colour and the name of `cause`.
    pub fn drawn(&self, cause: &StallCause) -> DrawnCause {
        const OPS: [&str; OPS_MAX + 1] = ["q-op1", "q-op2", "q-op3", "q-op4", "q-op5"];
        const AFTER_OPS: usize = 1 + OPS.len();
        let after =
            |place, class| DrawnCause { place: AFTER_OPS + place, class, name: cause.to_string() };
        match cause {
            StallCause::Source => {
                DrawnCause { place: 0, class: "q-source", name: cause.to_string() }
            }
            StallCause::Op(name) => match self.ops.iter().position(|op| op == name) {
                Some(index) => DrawnCause {
                    place: 1 + index,
                    class: OPS[index],
                    name: shown(&cause.to_string()),
                },
                None => DrawnCause {
                    place: OPS.len(),
                    class: OPS[OPS_MAX],
                    name: "other ops".to_owned(),
                },
            },
            StallCause::Put => after(0, "q-put"),
            StallCause::Work => after(1, "q-work"),
            StallCause::Queue => after(2, "q-queue"),
            StallCause::Fetch => after(3, "q-fetch"),
            StallCause::Decode => after(4, "q-decode"),
            StallCause::Other => after(5, "q-other"),
        }
    }
}

// Text from outside, made displayable: bounded, on one line, in logical order. The template escapes
// it.

const CHARS_MAX: usize = 300;

/// `text` with at most 300 characters. Control characters, and those that change the text direction,
/// become U+FFFD.
pub(super) fn shown(text: &str) -> String {
    let plain = |c: char| if turns(c) || c.is_control() { '\u{fffd}' } else { c };
    let mut shown: String = text.chars().take(CHARS_MAX).map(plain).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        shown.push('\u{2026}');
    }
    shown
}

fn turns(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Upper bound of the width of `text` at 12 px in common fonts.
pub(super) fn width_px(text: &str) -> f64 {
    text.chars().map(|c| if c.is_ascii() { 7.2 } else { 13.0 }).sum()
}

/// "epoch 3", "epochs 3-9".
pub(super) fn epochs(first: u32, last: u32) -> String {
    if first == last { format!("epoch {first}") } else { format!("epochs {first}\u{2013}{last}") }
}

// Downsampling: each pixel or so of the time axis represents a range of samples, drawn as their mean
// with a shade from the lowest to the highest, so that peaks stay visible.

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

    fn sample(t_s: f64, batches: u64) -> TimelineSample {
        TimelineSample { t_s, batches, ..TimelineSample::default() }
    }

    #[test]
    fn missing_times_are_taken_from_other_parts() {
        let epoch =
            |seconds, cost_usd| TimelineEpoch { seconds, cost_usd, ..TimelineEpoch::default() };
        let decided = |t_s, batch| TimelineDecision { t_s, batch, ..TimelineDecision::default() };
        let timeline = Timeline {
            samples: vec![sample(4.0, 40), sample(f64::NAN, 7), sample(2.0, 20)],
            epochs: vec![epoch(3.0, Some(0.5)), epoch(f64::NAN, None), epoch(5.0, Some(1.0))],
            decisions: vec![decided(3.0, 30), decided(1.5, 90), decided(f64::NAN, 99)],
            ..Timeline::default()
        };
        let scene = TimelineScene::from_timeline(&timeline);
        assert_eq!(scene.end_s, 8.0);
        assert_eq!(scene.samples, [sample(2.0, 20), sample(4.0, 40)]);
        let spans: Vec<_> = scene.epochs.iter().map(|span| (span.from_s, span.to_s)).collect();
        assert_eq!(spans, [(0.0, 3.0), (3.0, 3.0), (3.0, 8.0)]);
        let times: Vec<_> = scene.decisions.iter().map(|(t_s, _)| *t_s).collect();
        assert_eq!(times, [3.0, 1.5, 0.0]);
        assert_eq!(scene.cost_so_far(), [(0.0, 0.0), (3.0, 0.5), (3.0, 0.5), (8.0, 1.5)]);
        assert_eq!(scene.waited(), None);
        assert_eq!(TimelineScene::from_timeline(&Timeline::default()).end_s, 1.0);
    }

    #[test]
    fn the_wait_is_that_of_the_batches() {
        let sample = |t_s, batches, batch_time_s, stall_s| TimelineSample {
            batch_time_s: Some(batch_time_s),
            stall_s: Some(stall_s),
            ..sample(t_s, batches)
        };
        let timeline = Timeline {
            samples: vec![sample(1.0, 10, 0.2, 0.1), sample(2.0, 40, 0.1, 0.0)],
            ..Timeline::default()
        };
        assert_eq!(TimelineScene::from_timeline(&timeline).waited(), Some((1.0, 5.0)));
    }

    #[test]
    fn text_is_bounded_and_on_one_line() {
        assert_eq!(shown("a\nb\u{202e}c"), "a\u{fffd}b\u{fffd}c");
        assert_eq!(shown(&"é".repeat(300)), "é".repeat(300));
        assert_eq!(shown(&"é".repeat(301)), "é".repeat(300) + "…");
    }

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
