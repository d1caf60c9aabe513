//! Tables of epochs, decisions and cost, and the advice.

use super::scene::{EpochSpan, TimelineScene, epochs, shown};
use crate::{
    EpochStalls, StallAdvice,
    units::{percent, show_count, show_dollars, show_percent, show_seconds},
};
use maud::{Markup, html};
use std::mem::{Discriminant, discriminant};

/// Longer tables omit their middle.
const ROWS_MAX: usize = 200;
/// Longer tables scroll in a window of their own.
const ROWS_IN_FULL: usize = 24;

/// Rows to show, in order, each with the number omitted before it.
fn rows<T>(all: &[T]) -> Vec<(usize, &T, usize)> {
    let each = |(index, row)| (index, row, 0);
    if all.len() <= ROWS_MAX {
        return all.iter().enumerate().map(each).collect();
    }
    let half = ROWS_MAX / 2;
    let out = all.len() - 2 * half;
    let first = all.iter().enumerate().take(half).map(each);
    let last = all.iter().enumerate().skip(all.len() - half).map(each);
    let mut kept: Vec<_> = first.chain(last).collect();
    kept[half].2 = out;
    kept
}

/// A table that scrolls by itself if the page has no room for it.
fn scrolling(name: &str, rows: usize, table: Markup) -> Markup {
    let class = if rows > ROWS_IN_FULL { "scroll tall" } else { "scroll" };
    html! { div class=(class) tabindex="0" role="region" aria-label=(name) { (table) } }
}

/// Every epoch in figures.
pub(super) fn epochs_table(scene: &TimelineScene<'_>) -> Markup {
    let spans = &scene.epochs;
    let skipped = spans.iter().any(|span| span.epoch.skipped > 0);
    let first = spans.iter().any(|span| span.epoch.first_batch_s.is_some());
    let stalls = spans.iter().any(|span| span.epoch.stalls.is_some());
    let cost = spans.iter().any(|span| span.epoch.cost_usd.is_some());
    let table = html! {
            table {
                thead { tr {
                    th { "epoch" } th class="words" { "mode" } th { "time" } th { "batches" } th { "records" }
                    @if skipped { th { "skipped" } }
                    @if first { th { "first batch" } }
                    @if stalls { th { "waited" } th class="words" { "mostly for" } }
                    @if cost { th { "cost" } }
                } }
                tbody { @for (_, span, out) in rows(spans) {
                    @let epoch = span.epoch;
                    @if out > 0 { (left_out(out, 10)) }
                    tr {
                        td { (epoch.epoch) }
                        td class="words" { (shown(&epoch.mode.to_string())) }
                        td { (show_seconds(span.to_s - span.from_s)) }
                        td { (show_count(epoch.batches)) }
                        td { (show_count(epoch.rows)) }
                        @if skipped { td { (show_count(epoch.skipped)) } }
                        @if first { td { (known(epoch.first_batch_s.map(show_seconds))) } }
                        @if stalls {
                            td { (known(epoch.stalls.as_ref().map(|stalls| show_percent(stalls.percent)))) }
                            td class="words" { (known(epoch.stalls.as_ref().map(mostly))) }
                        }
                        @if cost { td { (known(epoch.cost_usd.map(show_dollars))) } }
                    }
                } }
            }
    };
    scrolling("epochs", spans.len(), table)
}

fn known<T: std::fmt::Display>(value: Option<T>) -> Markup {
    html! { @if let Some(value) = value { (value) } @else { "\u{2013}" } }
}

fn left_out(rows: usize, columns: usize) -> Markup {
    html! { tr { td class="note words" colspan=(columns) { (rows) " more are left out here." } } }
}

fn mostly(stalls: &EpochStalls) -> String {
    let part = |part: &crate::StallPart| {
        format!("{} {}", shown(&part.cause.to_string()), show_seconds(part.seconds))
    };
    stalls.parts.iter().take(2).map(part).collect::<Vec<_>>().join(", ")
}

/// Consecutive epochs with the same advice, and the one that waited most.
struct Advised<'a> {
    first: u32,
    last: u32,
    kind: Discriminant<StallAdvice>,
    worst: u32,
    stalls: &'a EpochStalls,
}

/// Advice by epoch.
pub(super) fn advice(scene: &TimelineScene<'_>) -> Markup {
    let mut advised: Vec<Advised<'_>> = Vec::new();
    for EpochSpan { epoch, .. } in &scene.epochs {
        let Some(stalls) = &epoch.stalls else { continue };
        let kind = discriminant(&stalls.advice);
        let number = epoch.epoch;
        match advised.last_mut().filter(|group| group.kind == kind) {
            Some(group) => {
                group.last = number;
                if stalls.percent > group.stalls.percent {
                    (group.worst, group.stalls) = (number, stalls);
                }
            }
            None => {
                advised.push(Advised { first: number, last: number, kind, worst: number, stalls });
            }
        }
    }
    html! {
        @if !advised.is_empty() {
            h3 { "What would shorten the wait" }
            ul class="advice" {
                @for (_, group, out) in rows(&advised) {
                    @if out > 0 { li class="note" { (out) " more are left out here." } }
                    li {
                        b { (epochs(group.first, group.last)) }
                        @if group.first != group.last { " (epoch " (group.worst) " waited most)" }
                        ": " (group.stalls.advice)
                    }
                }
            }
        }
    }
}

/// Changes of the worker count.
pub(super) fn decisions(scene: &TimelineScene<'_>) -> Markup {
    let table = html! {
                    table {
                        thead { tr {
                            th { "no." } th { "at" } th { "batch" } th { "workers" } th class="words" { "why" }
                        } }
                        tbody { @for (index, (t_s, decision), out) in rows(&scene.decisions) {
                            @if out > 0 { (left_out(out, 5)) }
                            tr {
                                td { (index + 1) }
                                td { (show_seconds(*t_s)) }
                                td { (show_count(decision.batch)) }
                                td { (decision.workers) }
                                td class="words why" { (shown(&decision.reason)) }
                            }
                        } }
                    }
    };
    html! {
        @if !scene.decisions.is_empty() {
            section {
                h2 { "Decisions on the number of workers" }
                (scrolling("decisions", scene.decisions.len(), table))
            }
        }
    }
}

/// Cost of the run by item.
pub(super) fn cost(scene: &TimelineScene<'_>) -> Markup {
    let Some(cost) = &scene.timeline.cost else { return Markup::default() };
    let (items, total) = (cost.items(), cost.total_usd());
    let table = html! {
                table class="cost" {
                    thead { tr { th class="words" { "for" } th { "dollars" } th { "share" } } }
                    tbody { @for (name, usd) in &items {
                        tr {
                            td class="words" { (name) }
                            td { (show_dollars(*usd)) }
                            td { (show_percent(percent(*usd, total))) }
                        }
                    } }
                    tfoot { tr {
                        th class="words" { "total" } td { (show_dollars(total)) } td {}
                    } }
                }
    };
    html! {
        section {
            h2 { "Cost" }
            (scrolling("cost", items.len(), table))
            @if !cost.basis.is_empty() { p class="note" { (shown(&cost.basis)) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_table_loses_its_middle() {
        let all: Vec<usize> = (0..1_000).collect();
        let kept = rows(&all);
        assert_eq!(kept.len(), ROWS_MAX);
        assert_eq!(kept[99], (99, &99, 0));
        assert_eq!(kept[100], (900, &900, 800));
        assert_eq!(kept[199], (999, &999, 0));
        assert_eq!(rows(&all[..200]).len(), 200);
    }
}
