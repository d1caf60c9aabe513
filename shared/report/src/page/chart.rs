//! Renders a panel as SVG. Every chart is drawn once for each of [`WIDTHS`], and the style sheet shows
//! the one that fits, so that text has the same size on all screens.

use super::{
    bars::{ModeBand, tint},
    panels::{ChartPanel, SeriesStyle},
    scene::{SampleSpread, TimelineScene, ranges, shown, width_px},
};
use crate::units::{show_count, show_seconds, show_workers};
use maud::{Markup, html};
use std::{fmt::Write, ops::Range};

/// (class, pixels): a narrow page, a medium one, a wide one. The style sheet selects by class.
pub(super) const WIDTHS: [(&str, f64); 3] =
    [("narrow", 360.0), ("middle", 700.0), ("wide", 1_080.0)];

/// Geometry common to the charts over time: equal times are aligned.
pub(super) struct ChartGeometry {
    pub width: f64,
    pub left: f64,
    pub right: f64,
    pub end_s: f64,
    pub time: Axis,
}

/// Fits labels of seven digits at 12 px.
const LEFT_PX: f64 = 52.0;
const RIGHT_PX: f64 = 10.0;
/// Fits the numbers of decisions, or half of the highest label.
const TOP_PX: f64 = 18.0;
const PLOT_PX: f64 = 150.0;
const BELOW_PX: f64 = 22.0;
/// Width of a label of the time axis with its gap.
const TIME_LABEL_PX: f64 = 56.0;
/// Finer steps in time are invisible.
pub(super) const BUCKET_PX: f64 = 3.0;
/// Closer marks overlap.
const MARK_PX: f64 = 7.0;
/// Width of a digit at 12 px.
const DIGIT_PX: f64 = 7.7;

impl ChartGeometry {
    /// The geometry of a chart `width` pixels wide, of `end_s` seconds.
    pub fn new(width: f64, end_s: f64) -> ChartGeometry {
        let (left, right) = (LEFT_PX, width - RIGHT_PX);
        let intervals = ((right - left) / TIME_LABEL_PX).floor().clamp(2.0, 12.0) as usize;
        ChartGeometry { width, left, right, end_s, time: time_axis(end_s, intervals) }
    }

    /// The horizontal position, in pixels, of a time in seconds.
    pub fn x(&self, t_s: f64) -> f64 {
        self.left + (t_s / self.end_s).clamp(0.0, 1.0) * (self.right - self.left)
    }
}

/// One panel: heading, legend, and the drawing at each width.
pub(super) fn figure(scene: &TimelineScene<'_>, panel: &ChartPanel, bands: &[ModeBand]) -> Markup {
    html! {
        figure class="chart" {
            figcaption {
                h3 {
                    (panel.title)
                    @if !panel.axis.unit.is_empty() { " " span class="unit" { "in " (panel.axis.unit) } }
                }
                ul class="legend" {
                    @for series in &panel.series {
                        li {
                            span class={ "swatch " (look(series.look)) " s-" (series.key) } {}
                            (series.name)
                            output data-series=(series.key) {}
                        }
                    }
                    @if panel.marked && !scene.decisions.is_empty() {
                        li { span class="swatch mark" {} "decision, numbered as in the table" }
                    }
                }
            }
            @for (class, width) in WIDTHS {
                (drawing(scene, panel, bands, class, &ChartGeometry::new(width, scene.end_s)))
            }
            @if let Some((above, highest)) = panel.above {
                p class="note" {
                    (show_count(above as u64)) " of " (show_count(panel.times.len() as u64))
                    " samples lie above the axis, the highest at " (show_seconds(highest)) "."
                }
            }
        }
    }
}

fn look(look: SeriesStyle) -> &'static str {
    match look {
        SeriesStyle::Line | SeriesStyle::Steps => "line",
        SeriesStyle::Area | SeriesStyle::Stacked => "area",
    }
}

fn drawing(
    scene: &TimelineScene<'_>,
    panel: &ChartPanel,
    bands: &[ModeBand],
    class: &str,
    frame: &ChartGeometry,
) -> Markup {
    let (top, bottom) = (TOP_PX, TOP_PX + PLOT_PX);
    let y = |of: f64| bottom - (of / panel.axis.end).clamp(0.0, 1.0) * PLOT_PX;
    let buckets = ((frame.right - frame.left) / BUCKET_PX) as usize;
    let ranges = ranges(&panel.times, frame.end_s, buckets);
    let many = ranges.len() < panel.times.len();
    let spreads: Vec<_> =
        (0..panel.series.len()).map(|series| panel.spreads(series, &ranges)).collect();
    let x = |t_s: f64| frame.x(t_s);
    html! {
        svg class={ (class) " plot" } viewBox={ "0 0 " (px(frame.width)) " " (px(bottom + BELOW_PX)) }
            role="img" aria-label={ (panel.title) " over time" }
            data-left=(px(frame.left)) data-right=(px(frame.right)) {
            (tint(frame, bands, top, bottom))
            (grid(frame, &panel.axis, top, bottom, &y))
            @for (index, series) in panel.series.iter().enumerate() {
                @let spreads_here = &spreads[index];
                @if many && series.look != SeriesStyle::Stacked {
                    path class={ "range s-" (series.key) }
                        d=(between(spreads_here, |of| of.high, |of| of.low, x, y)) {}
                }
                @match series.look {
                    SeriesStyle::Area => path class={ "area s-" (series.key) }
                        d=(between(spreads_here, |of| of.mean, |_| 0.0, x, y)) {},
                    SeriesStyle::Stacked => path class={ "area s-" (series.key) }
                        d=(above(spreads_here, &spreads[index - 1], x, y)) {},
                    SeriesStyle::Line => path class={ "line s-" (series.key) }
                        d=(line(spreads_here.iter().map(|(t_s, of)| (x(*t_s), y(of.mean))), false)) {},
                    SeriesStyle::Steps => path class={ "line s-" (series.key) }
                        d=(line(spreads_here.iter().map(|(t_s, of)| (x(*t_s), y(of.last))), true)) {},
                }
            }
            @if panel.marked { (marks(scene, frame, top, bottom, &y)) }
            line class="cross" x1="0" x2="0" y1=(px(top)) y2=(px(bottom)) visibility="hidden" {}
        }
    }
}

fn grid(
    frame: &ChartGeometry,
    value: &Axis,
    top: f64,
    bottom: f64,
    y: &dyn Fn(f64) -> f64,
) -> Markup {
    html! {
        @for (at, label) in &value.ticks {
            @let at = y(*at);
            line class="grid" x1=(px(frame.left)) x2=(px(frame.right)) y1=(px(at)) y2=(px(at)) {}
            text class="tick" x=(px(frame.left - 6.0)) y=(px(at + 4.0)) text-anchor="end" { (label) }
        }
        @for (at, label) in &frame.time.ticks {
            @let at = frame.x(*at);
            line class="tick" x1=(px(at)) x2=(px(at)) y1=(px(bottom)) y2=(px(bottom + 4.0)) {}
            // Keeps the last label, with the unit, on the page.
            text class="tick" x=(px(at.min(frame.width - width_px(label) / 2.0))) y=(px(bottom + 16.0))
                text-anchor="middle" { (label) }
        }
        line class="axis" x1=(px(frame.left)) x2=(px(frame.left)) y1=(px(top)) y2=(px(bottom)) {}
        line class="axis" x1=(px(frame.left)) x2=(px(frame.right)) y1=(px(bottom)) y2=(px(bottom)) {}
    }
}

/// A path through points in pixels.
fn line(points: impl Iterator<Item = (f64, f64)>, steps: bool) -> String {
    let mut path = String::new();
    let (mut count, mut before) = (0, f64::NAN);
    for (x, y) in points {
        let (to_x, to_y) = (px(x), px(y));
        let _ = match (count, steps) {
            (0, _) => write!(path, "M{to_x} {to_y}"),
            // A constant level needs no corner.
            (_, true) if y == before => write!(path, "H{to_x}"),
            (_, true) => write!(path, "H{to_x}V{to_y}"),
            (_, false) => write!(path, "L{to_x} {to_y}"),
        };
        (count, before) = (count + 1, y);
    }
    if count == 1 {
        // A single point has no length and would be invisible.
        path.push_str("h2");
    }
    path
}

/// The area between the low and high value of each spread.
fn between(
    spreads: &[(f64, SampleSpread)],
    upper: impl Fn(&SampleSpread) -> f64,
    lower: impl Fn(&SampleSpread) -> f64,
    x: impl Fn(f64) -> f64,
    y: impl Fn(f64) -> f64,
) -> String {
    let over = spreads.iter().map(|(t_s, of)| (x(*t_s), y(upper(of))));
    let under = spreads.iter().rev().map(|(t_s, of)| (x(*t_s), y(lower(of))));
    closed(over, under)
}

/// The area between the means of two series; from the axis if the lower has no value.
fn above(
    spreads: &[(f64, SampleSpread)],
    lower: &[(f64, SampleSpread)],
    x: impl Fn(f64) -> f64,
    y: impl Fn(f64) -> f64,
) -> String {
    let over = spreads.iter().map(|(t_s, of)| (x(*t_s), y(of.mean)));
    let mut below = lower.iter().rev().peekable();
    let under = spreads.iter().rev().map(|(t_s, _)| {
        while below.next_if(|(other_s, _)| other_s > t_s).is_some() {}
        let base = below.peek().filter(|(other_s, _)| other_s == t_s);
        (x(*t_s), y(base.map_or(0.0, |(_, of)| of.mean)))
    });
    closed(over, under)
}

fn closed(
    over: impl Iterator<Item = (f64, f64)>,
    under: impl Iterator<Item = (f64, f64)>,
) -> String {
    let mut path = line(over, false);
    for (x, y) in under {
        let _ = write!(path, "L{} {}", px(x), px(y));
    }
    if !path.is_empty() {
        path.push('Z');
    }
    path
}

/// Marks of worker count changes, numbered as in the table if there is room.
fn marks(
    scene: &TimelineScene<'_>,
    frame: &ChartGeometry,
    top: f64,
    bottom: f64,
    y: &dyn Fn(f64) -> f64,
) -> Markup {
    html! {
        @for (index, x, number) in marked(scene, frame) {
            @let (t_s, decision) = scene.decisions[index];
            line class="mark" x1=(px(x)) x2=(px(x)) y1=(px(top)) y2=(px(bottom)) {}
            circle class="mark" cx=(px(x)) cy=(px(y(f64::from(decision.workers)))) r="3" {
                title {
                    "decision " (index + 1) " at " (show_seconds(t_s)) ": "
                    (show_workers(decision.workers.into())) "; " (shown(&decision.reason))
                }
            }
            @if let Some(number) = number {
                text class="number" x=(px(x.max(frame.left + DIGIT_PX / 2.0))) y=(px(top - 6.0)) text-anchor="middle" { (number) }
            }
        }
    }
}

/// Decisions with room for a mark: index, position, and the number if it fits.
fn marked(scene: &TimelineScene<'_>, frame: &ChartGeometry) -> Vec<(usize, f64, Option<String>)> {
    let (mut mark_px, mut number_px) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
    let mut order: Vec<(usize, f64)> =
        scene.decisions.iter().map(|(t_s, _)| frame.x(*t_s)).enumerate().collect();
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut marks = Vec::new();
    for (index, x) in order {
        if x < mark_px + MARK_PX {
            continue;
        }
        mark_px = x;
        let number = (index + 1).to_string();
        let half = number.len() as f64 * DIGIT_PX / 2.0;
        let room = x - half >= number_px;
        if room {
            number_px = x + half + 4.0;
        }
        marks.push((index, x, room.then_some(number)));
    }
    marks
}

/// Values for the pointer's readout, as JSON: times and numbers only.
pub(super) fn readings(scene: &TimelineScene<'_>, panels: &[ChartPanel]) -> String {
    /// Positions that can be pointed at on a wide screen.
    const BUCKETS: usize = 500;
    let mut text = String::new();
    let _ = write!(text, "{{\"end\":{},\"panels\":[", scene.end_s);
    for (number, panel) in panels.iter().enumerate() {
        let ranges = ranges(&panel.times, scene.end_s, BUCKETS);
        let times = ranges.iter().map(|range| digits(Some(panel.middle_s(range))));
        let comma = if number == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{{\"t\":[{}],\"series\":{{", list(times));
        for (number, series) in panel.series.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            let (unit, scale) = (panel.axis.unit, panel.axis.scale);
            let mean = |range: &Range<usize>| {
                let spread = SampleSpread::from_values(
                    series.values[range.clone()].iter().copied().flatten(),
                );
                spread.map(|spread| spread.mean * scale)
            };
            let values = ranges.iter().map(|range| digits(mean(range)));
            let _ = write!(
                text,
                "{comma}\"{}\":{{\"unit\":\"{unit}\",\"v\":[{}]}}",
                series.key,
                list(values)
            );
        }
        text.push_str("}}");
    }
    text.push_str("]}");
    text
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(",")
}

/// Four significant digits; null for missing values.
fn digits(value: Option<f64>) -> String {
    let Some(value) = value.filter(|value| value.is_finite()) else { return "null".to_owned() };
    if value == 0.0 {
        return "0".to_owned();
    }
    let decimals = (3.0 - value.abs().log10().floor()).clamp(0.0, 12.0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

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
pub(super) fn value_axis(quantity: AxisQuantity, most: f64, intervals: usize) -> Axis {
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
pub(super) fn time_axis(end_s: f64, intervals: usize) -> Axis {
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
        None if value >= 10_000.0 => show_count(value as u64),
        _ => text,
    }
}

/// A coordinate in pixels with one decimal, which is finer than any screen.
pub(super) fn px(coordinate: f64) -> f64 {
    (coordinate * 10.0).round() / 10.0
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
            let axis = value_axis(quantity, most, 4);
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
            let axis = time_axis(end_s, 6);
            assert_eq!((labels(&axis).as_str(), axis.unit), (expected, unit), "{end_s}");
        }
    }

    proptest! {
        #[test]
        fn axes_hold_their_values(most in 1e-7..1e9_f64, intervals in 2_usize..10) {
            for quantity in [AxisQuantity::Seconds, AxisQuantity::Dollars, AxisQuantity::Count("workers")] {
                let axis = value_axis(quantity, most, intervals);
                prop_assert!(axis.end >= most * 0.999_999);
                prop_assert!(axis.ticks.len() <= intervals + 2, "{}", labels(&axis));
            }
            let axis = time_axis(most, intervals);
            prop_assert!(axis.ticks.len() <= intervals + 2, "{}", labels(&axis));
            prop_assert!(axis.ticks.iter().all(|(at, _)| *at <= most * 1.000_001));
        }
    }
}
