//! The charts over time: which quantities share a panel, and their styles.

use super::{
    chart::{self, Axis, AxisQuantity},
    scene::{SampleSpread, TimelineScene},
};
use crate::TimelineSample;
use std::ops::Range;

/// One chart over time.
pub(super) struct ChartPanel {
    pub title: &'static str,
    pub quantity: AxisQuantity,
    pub times: Vec<f64>,
    pub series: Vec<ChartSeries>,
    /// Whether changes of the worker count are marked.
    pub marked: bool,
    /// Axis of the values.
    pub axis: Axis,
    /// Number of samples above the axis, and the highest.
    pub above: Option<(usize, f64)>,
}

/// One quantity over the panel's times.
pub(super) struct ChartSeries {
    /// Short and unique on the page: class of its colour, and key of the readout.
    pub key: &'static str,
    pub name: &'static str,
    pub look: SeriesStyle,
    pub values: Vec<Option<f64>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeriesStyle {
    Line,
    /// A line that holds its value until the next.
    Steps,
    /// The area below the line.
    Area,
    /// An area stacked on the one before.
    Stacked,
}

/// The panels with data.
pub(super) fn panels(scene: &TimelineScene<'_>) -> Vec<ChartPanel> {
    let mut all = vec![batch_time(scene), workers(scene), queue(scene), cost(scene)];
    all.retain(|panel| !panel.series.is_empty());
    all.iter_mut().for_each(ChartPanel::scale);
    all
}

fn batch_time(scene: &TimelineScene<'_>) -> ChartPanel {
    // Either part follows from the other.
    let other = |of: &TimelineSample, part: Option<f64>| Some((of.batch_time_s? - part?).max(0.0));
    let step = |of: &TimelineSample| of.step_s.or_else(|| other(of, of.stall_s));
    let stall = |of: &TimelineSample| of.stall_s.or_else(|| other(of, of.step_s));
    let series = vec![
        sampled(scene, "step", "trainer's step", SeriesStyle::Area, step),
        sampled(scene, "stall", "waited for data", SeriesStyle::Stacked, stall),
        sampled(scene, "batch", "batch time", SeriesStyle::Line, |of| of.batch_time_s),
    ];
    panel("Batch time", AxisQuantity::Seconds, scene, series)
}

fn workers(scene: &TimelineScene<'_>) -> ChartPanel {
    let count = |of: Option<u32>| of.map(f64::from);
    let series = vec![
        sampled(scene, "outstanding", "invoked, not ended", SeriesStyle::Steps, |of| {
            count(of.outstanding)
        }),
        sampled(scene, "working", "at work", SeriesStyle::Line, |of| of.workers),
        sampled(scene, "target", "target", SeriesStyle::Steps, |of| count(of.target)),
    ];
    let panel = panel("Workers", AxisQuantity::Count(""), scene, series);
    ChartPanel { marked: true, ..panel }
}

fn queue(scene: &TimelineScene<'_>) -> ChartPanel {
    let ready =
        sampled(scene, "queue", "ready, not taken", SeriesStyle::Area, |of| of.queue_batches);
    panel("Queue", AxisQuantity::Count("batches"), scene, vec![ready])
}

fn cost(scene: &TimelineScene<'_>) -> ChartPanel {
    let points = scene.cost_so_far();
    let (times, values) = points.iter().map(|(t_s, usd)| (*t_s, Some(*usd))).unzip();
    let so_far = ChartSeries { key: "cost", name: "cost so far", look: SeriesStyle::Area, values };
    let panel = panel("Cost so far", AxisQuantity::Dollars, scene, vec![so_far]);
    ChartPanel { times, ..panel }
}

fn sampled(
    scene: &TimelineScene<'_>,
    key: &'static str,
    name: &'static str,
    look: SeriesStyle,
    of: impl Fn(&TimelineSample) -> Option<f64>,
) -> ChartSeries {
    ChartSeries { key, name, look, values: scene.samples.iter().map(of).collect() }
}

fn panel(
    title: &'static str,
    quantity: AxisQuantity,
    scene: &TimelineScene<'_>,
    mut series: Vec<ChartSeries>,
) -> ChartPanel {
    series.retain(|series| series.values.iter().any(Option::is_some));
    // The lowest series stands on the axis.
    if let Some(first) = series.first_mut().filter(|first| first.look == SeriesStyle::Stacked) {
        first.look = SeriesStyle::Area;
    }
    let times = scene.samples.iter().map(|sample| sample.t_s).collect();
    let axis = chart::value_axis(quantity, 1.0, AXIS_INTERVALS);
    ChartPanel { title, quantity, times, series, marked: false, axis, above: None }
}

impl ChartPanel {
    /// Height of a series at `index`: its value plus those it is stacked on.
    fn top(&self, series: usize, index: usize) -> Option<f64> {
        let of = &self.series[series];
        let value = of.values[index]?;
        match of.look {
            SeriesStyle::Stacked => Some(value + self.top(series - 1, index).unwrap_or(0.0)),
            _ => Some(value),
        }
    }

    /// Spread of a series over each range with values, at the middle of the range.
    pub fn spreads(&self, series: usize, ranges: &[Range<usize>]) -> Vec<(f64, SampleSpread)> {
        let spread = |range: &Range<usize>| {
            let spread =
                SampleSpread::from_values(range.clone().filter_map(|at| self.top(series, at)))?;
            Some((self.middle_s(range), spread))
        };
        ranges.iter().filter_map(spread).collect()
    }

    /// The middle of the samples in `range`, in seconds since the start.
    pub fn middle_s(&self, range: &Range<usize>) -> f64 {
        (self.times[range.start] + self.times[range.end - 1]) / 2.0
    }

    /// Chooses the axis. A start that took a hundred times as long must not flatten the rest.
    fn scale(&mut self) {
        let mut tops: Vec<f64> = (0..self.times.len())
            .filter_map(|at| {
                let tops = (0..self.series.len()).filter_map(|series| self.top(series, at));
                tops.reduce(f64::max)
            })
            .collect();
        let highest = tops.iter().copied().fold(0.0, f64::max);
        let most = match usual(&mut tops) * ROOM_ABOVE {
            usual if self.quantity == AxisQuantity::Seconds && highest > CUT_FROM * usual => usual,
            _ => highest,
        };
        self.axis = chart::value_axis(self.quantity, most, AXIS_INTERVALS);
        let above = tops.iter().filter(|top| **top > self.axis.end).count();
        self.above = (above > 0).then_some((above, highest));
    }
}

/// Intervals of a value axis: more than five lines distract.
const AXIS_INTERVALS: usize = 4;
/// Room above the usual values on an axis that cuts off others.
const ROOM_ABOVE: f64 = 1.15;
/// Ratio of the highest value to the usual ones up to which everything is shown.
const CUT_FROM: f64 = 2.5;

/// The 98th percentile; infinite if it is 0.
fn usual(values: &mut [f64]) -> f64 {
    let at = values.len() * 98 / 100;
    if at >= values.len() {
        return f64::INFINITY;
    }
    let (_, usual, _) = values.select_nth_unstable_by(at, f64::total_cmp);
    if *usual > 0.0 { *usual } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timeline;

    fn timeline(samples: Vec<TimelineSample>) -> Timeline {
        Timeline { samples, ..Timeline::default() }
    }

    #[test]
    fn nothing_measured_is_nothing_drawn() {
        let timeline = timeline(vec![TimelineSample { t_s: 1.0, ..TimelineSample::default() }]);
        assert!(panels(&TimelineScene::from_timeline(&timeline)).is_empty());
    }

    #[test]
    fn a_stall_stands_on_the_step() {
        let sample = |t_s, batch_time_s, stall_s| TimelineSample {
            t_s,
            batch_time_s: Some(batch_time_s),
            stall_s: Some(stall_s),
            ..TimelineSample::default()
        };
        let timeline = timeline(vec![sample(1.0, 0.5, 0.125)]);
        let panels = panels(&TimelineScene::from_timeline(&timeline));
        let keys: Vec<_> = panels[0].series.iter().map(|series| series.key).collect();
        assert_eq!(keys, ["step", "stall", "batch"]);
        assert_eq!((panels[0].top(0, 0), panels[0].top(1, 0)), (Some(0.375), Some(0.5)));
    }

    #[test]
    fn a_slow_start_does_not_flatten_the_rest() {
        let sample = |index: u32| TimelineSample {
            t_s: f64::from(index),
            batch_time_s: Some(if index == 0 { 60.0 } else { 0.1 }),
            ..TimelineSample::default()
        };
        let timeline = timeline((0..100).map(sample).collect());
        let panel = &panels(&TimelineScene::from_timeline(&timeline))[0];
        assert!(panel.axis.end <= 0.2);
        assert_eq!(panel.above, Some((1, 60.0)));
    }
}
