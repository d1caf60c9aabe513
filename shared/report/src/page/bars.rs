//! Stacked bars, one for each epoch: causes of the trainer's wait, and activities of the workers.

use super::axis::{self, Axis, AxisQuantity, PixelCoordinate};
use super::causes::{CauseOrder, DrawnCause};
use super::scene::{EpochSpan, TimelineScene};
use super::words::{epochs, width_px};
use crate::number::amount;
use crate::units::{DisplayPercent, DisplaySeconds};
use crate::{StallCause, WorkerShares};
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

/// One chart of bars.
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
    let value = axis::values(stack.quantity, most, 4);
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
        svg class=(class) viewBox={ "0 0 " (PixelCoordinate(width)) " " (PixelCoordinate(bottom + BELOW_PX)) }
            role="img" aria-label={ (stack.title) ", by epoch" } {
            @for (at, label) in &value.ticks {
                @let at = y(*at);
                line class="grid" x1=(PixelCoordinate(left)) x2=(PixelCoordinate(right)) y1=(PixelCoordinate(at)) y2=(PixelCoordinate(at)) {}
                text class="tick" x=(PixelCoordinate(left - 6.0)) y=(PixelCoordinate(at + 4.0)) text-anchor="end" { (label) }
            }
            @for (index, (first, last, parts)) in groups.iter().enumerate() {
                @let middle = left + (index as f64 + 0.5) * slot;
                (column(stack.quantity, (*first, *last), parts, middle - bar / 2.0, bar, &y))
                @if index.is_multiple_of(labelled) {
                    text class="tick" x=(PixelCoordinate(middle)) y=(PixelCoordinate(bottom + 16.0)) text-anchor="middle" { (first) }
                }
            }
            line class="axis" x1=(PixelCoordinate(left)) x2=(PixelCoordinate(right)) y1=(PixelCoordinate(bottom)) y2=(PixelCoordinate(bottom)) {}
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
    (first, last): (u32, u32),
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
            rect class=(drawn.class) x=(PixelCoordinate(x)) width=(PixelCoordinate(width)) y=(PixelCoordinate(to)) height=(PixelCoordinate(from - to)) {
                title {
                    (epochs(first, last)) ": " (drawn.name) " "
                    @if quantity == AxisQuantity::Percent { (DisplayPercent(*value)) }
                    @else { (DisplaySeconds(*value)) }
                }
            }
        }
    }
}
