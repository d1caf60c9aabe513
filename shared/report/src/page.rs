//! The page: one self-contained HTML file that makes no network requests.
//!
//! The template escapes every text. The page's content security policy names style and script by their
//! hashes, so that injected ones would not run.

mod bars;
mod chart;
mod panels;
mod scene;
mod tables;

use crate::{
    Timeline,
    units::{percent, show_count, show_dollars, show_percent, show_seconds, show_workers},
};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use scene::TimelineScene;
use scene::shown;

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");
/// Hashes of the two files for the policy; a test verifies them.
const STYLE_SHA256: &str = "1MR58B4Z5wOwprfOlBz3+tMhOx/a+Txwc3GGq+jB5fw=";
const SCRIPT_SHA256: &str = "VmvtrR3lUvhVfW/2jfOQEhet8Vvh2Kbbp44KZDmZqYk=";

/// Renders the page of a run. Parts missing from the timeline are omitted.
pub fn render(timeline: &Timeline) -> String {
    let scene = TimelineScene::from_timeline(timeline);
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{STYLE_SHA256}'; script-src 'sha256-{SCRIPT_SHA256}'; \
         base-uri 'none'; form-action 'none'"
    );
    let title = match timeline.job.name.as_str() {
        "" => "A run".to_owned(),
        name => shown(name),
    };
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " \u{2013} gristmill" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    (head(&scene, &title))
                    (over_time(&scene))
                    (by_epoch(&scene))
                    (tables::decisions(&scene))
                    (tables::cost(&scene))
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

const OPS_MAX: usize = 60;

fn head(scene: &TimelineScene<'_>, title: &str) -> Markup {
    let job = &scene.timeline.job;
    let text = |name, value: &str| (!value.is_empty()).then(|| (name, shown(value)));
    let facts = [
        text("pipeline", &job.pipeline),
        text("dataset", &job.dataset),
        job.batch_size.map(|size| ("batch", format!("{} records", show_count(size.into())))),
        job.batches_per_epoch.map(|batches| ("epoch", format!("{} batches", show_count(batches)))),
        job.seed.map(|seed| ("seed", seed.to_string())),
    ];
    html! {
        header {
            h1 { (title) }
            dl class="facts" {
                @for (name, value) in facts.into_iter().flatten() { div { dt { (name) } dd { (value) } } }
                @if !job.ops.is_empty() {
                    div class="ops" { dt { "operators" } dd { ol {
                        @for op in job.ops.iter().take(OPS_MAX) { li { (shown(op)) } }
                        @if job.ops.len() > OPS_MAX { li { (job.ops.len() - OPS_MAX) " more" } }
                    } } }
                }
            }
            (tiles(scene))
        }
    }
}

fn tiles(scene: &TimelineScene<'_>) -> Markup {
    let run_s = scene.end_s;
    let batches = scene.batches();
    let pace = batches as f64 / run_s;
    let decimals = if pace >= 10.0 { 0 } else { 2 };
    let peak = scene.samples.iter().filter_map(|sample| sample.workers).reduce(f64::max);
    let target = scene.samples.iter().filter_map(|sample| sample.target).max();
    let epochs = scene.epochs.len();
    let known = !scene.samples.is_empty() || epochs > 0;
    let tile = |name: &str, value: String, more: String| {
        html! { div { dt { (name) } dd { (value) } dd class="note" { (more) } } }
    };
    html! {
        @if known {
            dl class="tiles" {
                (tile("the run took", show_seconds(run_s), match epochs {
                    0 => String::new(),
                    1 => "one epoch".to_owned(),
                    _ => format!("{epochs} epochs"),
                }))
                @if batches > 0 {
                    (tile("batches", show_count(batches),
                        format!("{pace:.decimals$} a second")))
                }
                @if let Some((waited_s, of_s)) = scene.waited() {
                    (tile("the trainer waited", show_percent(percent(waited_s, of_s)),
                        format!("{} for data", show_seconds(waited_s))))
                }
                @if let Some(peak) = peak {
                    (tile("most workers at work", format!("{}", (peak * 10.0).round() / 10.0),
                        target.map_or(String::new(), |target| {
                            format!("target at most {}", show_workers(target.into()))
                        })))
                }
                @if let Some(cost) = &scene.timeline.cost {
                    (tile("cost", show_dollars(cost.total_usd()), match batches {
                        0 => String::new(),
                        _ => format!("{} for 1,000 batches",
                            show_dollars(cost.total_usd() * 1e3 / batches as f64)),
                    }))
                }
            }
        } @else {
            p class="note" { "Nothing of this run was recorded." }
        }
    }
}

fn over_time(scene: &TimelineScene<'_>) -> Markup {
    let (bands, panels) = (bars::bands(scene), panels::panels(scene));
    html! {
        @if !bands.is_empty() || !panels.is_empty() {
            section class="over-time" {
                h2 {
                    "Over time " span class="unit" {
                        "in " (chart::time_axis(scene.end_s, 10).unit) " since the start"
                    }
                    output data-time="" {}
                }
                @if scene.samples.len() as f64 > chart::WIDTHS[0].1 / chart::BUCKET_PX {
                    p class="note" {
                        "Where samples lie closer than the screen can show, lines are means, with a shade \
                         from the lowest to the highest."
                    }
                }
                (bars::strip(scene, &bands))
                @for panel in &panels { (chart::figure(scene, panel, &bands)) }
                script type="application/json" id="readings" {
                    (PreEscaped(chart::readings(scene, &panels)))
                }
            }
        }
    }
}

fn by_epoch(scene: &TimelineScene<'_>) -> Markup {
    let figures = bars::figures(scene, &scene::CauseOrder::from_scene(scene));
    html! {
        @if !scene.epochs.is_empty() {
            section {
                h2 { "By epoch" }
                @if !figures.is_empty() { div class="beside" { @for figure in &figures { (figure) } } }
                (tables::advice(scene))
                (tables::epochs_table(scene))
            }
        }
    }
}

#[cfg(test)]
mod tests;
