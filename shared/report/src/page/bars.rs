//! Stacked bars, one for each epoch: causes of the trainer's wait, and activities of the workers.

use super::{
    chart::{self, Axis, AxisQuantity, ChartGeometry, px},
    scene::{CauseOrder, DrawnCause, EpochSpan, TimelineScene, epochs, shown, width_px},
};
use crate::{
    StallCause, WorkerShares,
    units::{amount, show_percent, show_seconds},
};
use maud::{Markup, html};
use std::collections::{BTreeMap, BTreeSet};

/// (class, pixels): alone on a narrow page, else beside another chart. The style sheet selects by class.
const WIDTHS: [(&str, f64); 2] = [("bars-narrow", 360.0), ("bars-wide", 530.0)];
const LEFT_PX: f64 = 46.0;
const RIGHT_PX: f64 = 8.0;
const TOP_PX: f64 = 10.0;
const PLOT_PX: f64 = 170.0;
const BELOW_PX: f64 = 22.0;
/// Narrower bars are merged into one, the mean of their epochs.
const SLOT_MIN_PX: f64 = 5.0;
const BAR_MAX_PX: f64 = 56.0;
/// Least range of the axis, so that negligible stalls do not fill the chart.
const STALL_AXIS_MIN: f64 = 10.0;

struct Stack {
    title: &'static str,
    quantity: AxisQuantity,
    /// Least end of its axis.
    least: f64,
    /// Epochs and their parts.
    bars: Vec<(u32, BTreeMap<DrawnCause, f64>)>,
}

/// The charts with data.
pub(super) fn figures(scene: &TimelineScene<'_>, causes: &CauseOrder) -> Vec<Markup> {
    let stacks = [stalls(scene, causes), worker_time(scene, causes)];
    stacks.iter().filter(|stack| !stack.bars.is_empty()).map(figure).collect()
}

fn stalls(scene: &TimelineScene<'_>, causes: &CauseOrder) -> Stack {
    let bar = |span: &EpochSpan<'_>| {
        let stalls = span.epoch.stalls.as_ref()?;
        let mut bar = BTreeMap::new();
        for part in &stalls.parts {
            *bar.entry(causes.drawn(&part.cause)).or_default() += amount(part.percent);
        }
        Some((span.epoch.epoch, bar))
    };
    Stack {
        title: "What the trainer waited for",
        quantity: AxisQuantity::Percent,
        least: STALL_AXIS_MIN,
        bars: scene.epochs.iter().filter_map(bar).collect(),
    }
}

fn worker_time(scene: &TimelineScene<'_>, causes: &CauseOrder) -> Stack {
    let bars: Vec<_> = scene
        .epochs
        .iter()
        .map(|span| (span.epoch.epoch, worked(&span.epoch.workers, causes)))
        .collect();
    let any = bars.iter().any(|(_, bar)| !bar.is_empty());
    Stack {
        title: "What workers spent their time on",
        quantity: AxisQuantity::WorkerSeconds,
        least: 0.0,
        bars: if any { bars } else { Vec::new() },
    }
}

fn worked(shares: &WorkerShares, causes: &CauseOrder) -> BTreeMap<DrawnCause, f64> {
    let mut bar = BTreeMap::new();
    let ops = shares.ops.iter().map(|op| (StallCause::Op(op.name.clone()), op.seconds));
    let all = [(StallCause::Source, shares.source_s), (StallCause::Put, shares.put_s)]
        .into_iter()
        .chain(ops);
    for (cause, seconds) in all.filter(|(_, seconds)| amount(*seconds) > 0.0) {
        *bar.entry(causes.drawn(&cause)).or_default() += amount(seconds);
    }
    bar
}

fn figure(stack: &Stack) -> Markup {
    let legend: BTreeSet<&DrawnCause> = stack.bars.iter().flat_map(|(_, bar)| bar.keys()).collect();
    let total = |(_, bar): &(u32, BTreeMap<DrawnCause, f64>)| bar.values().sum::<f64>();
    let most = stack.bars.iter().map(total).fold(stack.least, f64::max);
    let value = chart::value_axis(stack.quantity, most, 4);
    let of = match stack.quantity {
        AxisQuantity::Percent => "in % of the epoch's time".to_owned(),
        _ => format!("in {} of all workers", value.unit),
    };
    html! {
        figure class="chart" {
            figcaption {
                h3 { (stack.title) " " span class="unit" { (of) } }
                ul class="legend" {
                    @for drawn in &legend { li { span class={ "swatch area " (drawn.class) } {} (drawn.name) } }
                    @if legend.is_empty() { li { "nothing: no epoch waited" } }
                }
            }
            @for (class, width) in WIDTHS { (drawing(stack, &value, class, width)) }
        }
    }
}

fn drawing(stack: &Stack, value: &Axis, class: &str, width: f64) -> Markup {
    let (left, right, bottom) = (LEFT_PX, width - RIGHT_PX, TOP_PX + PLOT_PX);
    let y = |of: f64| bottom - (of / value.end).clamp(0.0, 1.0) * PLOT_PX;
    let each = (stack.bars.len() as f64 * SLOT_MIN_PX / (right - left)).ceil().max(1.0) as usize;
    let groups: Vec<_> = stack.bars.chunks(each).map(mean).collect();
    let slot = (right - left) / groups.len() as f64;
    let bar = (slot * 0.72).min(BAR_MAX_PX);
    let widest = groups.iter().map(|group| width_px(&group.0.to_string())).fold(0.0, f64::max);
    let labelled = ((widest + 6.0) / slot).ceil().max(1.0) as usize;
    html! {
        svg class=(class) viewBox={ "0 0 " (px(width)) " " (px(bottom + BELOW_PX)) }
            role="img" aria-label={ (stack.title) ", by epoch" } {
            @for (at, label) in &value.ticks {
                @let at = y(*at);
                line class="grid" x1=(px(left)) x2=(px(right)) y1=(px(at)) y2=(px(at)) {}
                text class="tick" x=(px(left - 6.0)) y=(px(at + 4.0)) text-anchor="end" { (label) }
            }
            @for (index, (first, last, parts)) in groups.iter().enumerate() {
                @let middle = left + (index as f64 + 0.5) * slot;
                (column(stack.quantity, *first, *last, parts, middle - bar / 2.0, bar, &y))
                @if index.is_multiple_of(labelled) {
                    text class="tick" x=(px(middle)) y=(px(bottom + 16.0)) text-anchor="middle" { (first) }
                }
            }
            line class="axis" x1=(px(left)) x2=(px(right)) y1=(px(bottom)) y2=(px(bottom)) {}
        }
    }
}

/// First epoch, last epoch, mean of each part.
type Group<'a> = (u32, u32, BTreeMap<&'a DrawnCause, f64>);

fn mean(bars: &[(u32, BTreeMap<DrawnCause, f64>)]) -> Group<'_> {
    let mut parts: BTreeMap<&DrawnCause, f64> = BTreeMap::new();
    for (drawn, value) in bars.iter().flat_map(|(_, bar)| bar) {
        *parts.entry(drawn).or_default() += value / bars.len() as f64;
    }
    let number = |bar: Option<&(u32, _)>| bar.map_or(0, |(epoch, _)| *epoch);
    (number(bars.first()), number(bars.last()), parts)
}

fn column(
    quantity: AxisQuantity,
    first: u32,
    last: u32,
    parts: &BTreeMap<&DrawnCause, f64>,
    x: f64,
    width: f64,
    y: &dyn Fn(f64) -> f64,
) -> Markup {
    let stacked = parts.iter().scan(0.0, |below, (drawn, value)| {
        let (from, to) = (*below, *below + value);
        *below = to;
        Some((drawn, value, y(from), y(to)))
    });
    html! {
        @for (drawn, value, from, to) in stacked {
            rect class=(drawn.class) x=(px(x)) width=(px(width)) y=(px(to)) height=(px(from - to)) {
                title {
                    (epochs(first, last)) ": " (drawn.name) " "
                    @if quantity == AxisQuantity::Percent { (show_percent(*value)) }
                    @else { (show_seconds(*value)) }
                }
            }
        }
    }
}

/// Consecutive epochs in one mode.
pub(super) struct ModeBand {
    first: u32,
    last: u32,
    word: &'static str,
    mode: String,
    /// Reasons as (first epoch, last epoch, text).
    reasons: Vec<(u32, u32, String)>,
    from_s: f64,
    to_s: f64,
}

const MODES_PX: f64 = 24.0;
/// Height of the strip; the epochs' numbers are below the modes.
const STRIP_PX: f64 = 42.0;
/// Least width of an epoch with separators.
const EPOCH_MIN_PX: f64 = 5.0;
/// Distance between two epoch numbers.
const NUMBER_APART_PX: f64 = 8.0;
/// Narrower bands are invisible.
const BAND_MIN_PX: f64 = 0.5;

/// Groups the epochs by mode.
pub(super) fn bands(scene: &TimelineScene<'_>) -> Vec<ModeBand> {
    let mut bands: Vec<ModeBand> = Vec::new();
    for EpochSpan { epoch, from_s, to_s } in &scene.epochs {
        let number = epoch.epoch;
        let mode = shown(&epoch.mode.to_string());
        match bands.last_mut() {
            Some(band) if band.mode == mode => {
                band.last = number;
                band.to_s = *to_s;
            }
            _ => bands.push(ModeBand {
                first: number,
                last: number,
                word: epoch.mode.name(),
                mode,
                reasons: Vec::new(),
                from_s: *from_s,
                to_s: *to_s,
            }),
        }
        let Some(band) = bands.last_mut().filter(|_| !epoch.reason.is_empty()) else { continue };
        let reason = shown(&epoch.reason);
        match band.reasons.last_mut() {
            Some((_, last, before)) if *before == reason => *last = number,
            _ => band.reasons.push((number, number, reason)),
        }
    }
    bands
}

/// The strip, with a label in every band wide enough.
pub(super) fn strip(scene: &TimelineScene<'_>, bands: &[ModeBand]) -> Markup {
    html! {
        @if !bands.is_empty() {
            figure class="chart strip" {
                figcaption { h3 { "Epochs and their modes" } }
                @for (class, width) in WIDTHS {
                    @let frame = ChartGeometry::new(width, scene.end_s);
                    svg class={ (class) " plot" } viewBox={ "0 0 " (px(width)) " " (px(STRIP_PX)) }
                        role="img" aria-label="epochs and their modes over time"
                        data-left=(px(frame.left)) data-right=(px(frame.right)) {
                        text class="tick" x=(px(frame.left - 6.0)) y="16" text-anchor="end" { "mode" }
                        text class="tick" x=(px(frame.left - 6.0)) y="38" text-anchor="end" { "epoch" }
                        @for band in bands { (in_strip(&frame, band)) }
                        (numbers(scene, &frame))
                        line class="cross" x1="0" x2="0" y1="0" y2=(px(STRIP_PX)) visibility="hidden" {}
                    }
                }
                (reasons(bands))
            }
        }
    }
}

fn in_strip(frame: &ChartGeometry, band: &ModeBand) -> Markup {
    let (from, to) = (frame.x(band.from_s), frame.x(band.to_s));
    let labels = [band.mode.as_str(), band.word];
    let label = labels.into_iter().find(|label| width_px(label) <= to - from - 6.0);
    html! {
        @if to - from >= BAND_MIN_PX {
            rect class={ "m-" (band.word) } x=(px(from)) y="0" width=(px(to - from))
                height=(px(MODES_PX)) {
                title {
                    (epochs(band.first, band.last)) ": " (band.mode)
                    @if let Some((_, _, reason)) = band.reasons.first() { "; " (reason) }
                }
            }
        }
        @if to - from >= EPOCH_MIN_PX {
            line class="apart" x1=(px(from)) x2=(px(from)) y1="0" y2=(px(MODES_PX)) {}
        }
        @if let Some(label) = label {
            text class="band" x=(px((from + to) / 2.0)) y="16" text-anchor="middle" { (label) }
        }
    }
}

/// Separators and numbers of the epochs. Narrow epochs are numbered at intervals, without separators.
fn numbers(scene: &TimelineScene<'_>, frame: &ChartGeometry) -> Markup {
    let widest = scene.epochs.iter().map(|span| width_px(&span.epoch.epoch.to_string()));
    let slot = (frame.right - frame.left) / scene.epochs.len().max(1) as f64;
    let apart = slot >= widest.fold(0.0, f64::max) + NUMBER_APART_PX;
    let mut free_px = frame.left;
    let mut places = Vec::new();
    for span in &scene.epochs {
        let (from, to) = (frame.x(span.from_s), frame.x(span.to_s));
        let number = span.epoch.epoch.to_string();
        let (middle, half) = ((from + to) / 2.0, width_px(&number) / 2.0);
        let inside = !apart || to - from >= 2.0 * half + NUMBER_APART_PX / 2.0;
        let room = inside && middle - half >= free_px && middle + half <= frame.width;
        if room {
            free_px = middle + half + NUMBER_APART_PX;
        }
        let line = apart && to - from >= EPOCH_MIN_PX;
        places.push((line.then_some(from), room.then_some((middle, number))));
    }
    html! {
        @for (from, number) in places {
            @if let Some(from) = from {
                line class="tick" x1=(px(from)) x2=(px(from)) y1=(px(MODES_PX + 2.0)) y2=(px(STRIP_PX)) {}
            }
            @if let Some((middle, number)) = number {
                text class="tick" x=(px(middle)) y="38" text-anchor="middle" { (number) }
            }
        }
    }
}

/// The modes' colours behind a chart.
pub(super) fn tint(frame: &ChartGeometry, bands: &[ModeBand], top: f64, bottom: f64) -> Markup {
    html! {
        @for band in bands {
            @let (from, to) = (frame.x(band.from_s), frame.x(band.to_s));
            @if to - from >= BAND_MIN_PX {
            rect class={ "tint m-" (band.word) } x=(px(from)) y=(px(top)) width=(px(to - from))
                height=(px(bottom - top)) {}
            }
        }
    }
}

/// Bands and reasons listed; further reasons of one band differ only in their numbers.
const BANDS_MAX: usize = 30;
const REASONS_MAX: usize = 4;

fn reasons(bands: &[ModeBand]) -> Markup {
    html! {
        ul class="modes" {
            @for band in bands.iter().take(BANDS_MAX) {
                li {
                    span class={ "swatch area m-" (band.word) } {}
                    b { (epochs(band.first, band.last)) ": " (band.mode) }
                    @match band.reasons.as_slice() {
                        [] => {},
                        // A single reason applies to the whole band.
                        [(_, _, reason)] => { " \u{2013} " (reason) },
                        several => {
                            @for (first, last, reason) in several.iter().take(REASONS_MAX) {
                                br; span class="note" { (epochs(*first, *last)) ": " } (reason)
                            }
                            @if several.len() > REASONS_MAX {
                                br; span class="note" {
                                    (several.len() - REASONS_MAX) " more reasons are left out."
                                }
                            }
                        },
                    }
                }
            }
            @if bands.len() > BANDS_MAX {
                li class="note" { (bands.len() - BANDS_MAX) " more changes of mode are left out." }
            }
        }
    }
}
