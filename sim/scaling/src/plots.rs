//! Draws a run as one self-contained SVG: batch time, workers, queue, mode and cost by batch.

use crate::{Run, Scenario};
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 24.0;
const PANEL: f64 = 150.0;
const GAP: f64 = 34.0;
const TOP: f64 = 60.0;

/// One line of a panel.
struct Series {
    label: &'static str,
    colour: &'static str,
    points: Vec<(f64, f64)>,
    /// Holds its value until the next point.
    steps: bool,
}

struct Panel {
    title: &'static str,
    unit: &'static str,
    series: Vec<Series>,
}

/// Draws a run.
pub fn plots(scenario: &Scenario, run: &Run) -> String {
    let panels = panels(scenario, run);
    let most_x = run.ticks.last().map_or(1.0, |tick| tick.batches as f64).max(1.0);
    let height = TOP + panels.len() as f64 * (PANEL + GAP) + 30.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"26\" font-size=\"16\" fill=\"#111827\">{}</text>\n\
         <text x=\"{LEFT}\" y=\"44\" fill=\"#6b7280\">{} batches, seed {}, workers ${:.3}, accelerator ${:.3}</text>\n",
        escaped(&scenario.name),
        run.batches,
        run.seed,
        run.cost.workers_usd,
        run.cost.accelerator_usd
    );
    for (index, panel) in panels.iter().enumerate() {
        let top = TOP + index as f64 * (PANEL + GAP) + 14.0;
        draw(&mut svg, panel, top, most_x);
    }
    let foot = height - 10.0;
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let _ = writeln!(
        svg,
        "<text x=\"{middle}\" y=\"{foot}\" text-anchor=\"middle\" fill=\"#374151\">batches delivered</text>\n</svg>"
    );
    svg
}

fn panels(scenario: &Scenario, run: &Run) -> Vec<Panel> {
    let line = |label, colour, steps, value: &dyn Fn(&crate::Tick) -> f64| Series {
        label,
        colour,
        steps,
        points: run.ticks.iter().map(|tick| (tick.batches as f64, value(tick))).collect(),
    };
    let (worker_usd, gpu_usd) =
        (scenario.prices.usd_per_worker_hour, scenario.prices.accelerator_usd_per_hour);
    vec![
        Panel {
            title: "batch time",
            unit: "ms",
            series: vec![
                line("batch time", "#2563eb", false, &|tick| tick.batch_time_s * 1e3),
                line("waited for data", "#dc2626", false, &|tick| tick.stall_s * 1e3),
            ],
        },
        Panel {
            title: "workers",
            unit: "",
            series: vec![
                line("at work", "#9ca3af", false, &|tick| tick.workers),
                line("target", "#059669", true, &|tick| f64::from(tick.target)),
            ],
        },
        Panel {
            title: "queue",
            unit: "batches",
            series: vec![line("ready, unread", "#7c3aed", false, &|tick| tick.queue_batches)],
        },
        Panel {
            title: "execution mode",
            unit: "",
            series: vec![line("mode", "#b45309", true, &|tick| f64::from(tick.mode))],
        },
        Panel {
            title: "cost so far",
            unit: "$",
            series: vec![
                line("workers", "#059669", false, &|tick| tick.worker_s / 3_600.0 * worker_usd),
                line("accelerator", "#2563eb", false, &|tick| tick.at_s / 3_600.0 * gpu_usd),
            ],
        },
    ]
}

fn draw(svg: &mut String, panel: &Panel, top: f64, most_x: f64) {
    let points = panel.series.iter().flat_map(|series| &series.points);
    let mut values: Vec<f64> = points.map(|&(_, y)| y).filter(|y| y.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    // The first reports at one worker would flatten the rest.
    let usual = values.get(values.len() * 98 / 100).copied().unwrap_or(1.0);
    let most_y = round_up((usual * 1.15).max(1e-9));
    let (right, bottom) = (WIDTH - RIGHT, top + PANEL);
    let x = |at: f64| LEFT + at / most_x * (right - LEFT);
    let y = |value: f64| bottom - (value / most_y).clamp(0.0, 1.0) * PANEL;
    let unit = if panel.unit.is_empty() { String::new() } else { format!(" ({})", panel.unit) };
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.1}\" fill=\"#111827\" font-weight=\"600\">{}{unit}</text>",
        top - 6.0,
        panel.title
    );
    for tick in 0..=4 {
        let value = most_y * f64::from(tick) / 4.0;
        let (at, low) = (y(value), y(value) + 4.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#e5e7eb\"/>\
             <text x=\"{}\" y=\"{low:.1}\" text-anchor=\"end\" fill=\"#6b7280\">{}</text>",
            LEFT - 8.0,
            number(value)
        );
        let batches = most_x * f64::from(tick) / 4.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#9ca3af\" font-size=\"10\">{}</text>",
            x(batches),
            bottom + 13.0,
            number(batches)
        );
    }
    for (index, series) in panel.series.iter().enumerate() {
        let mut path = String::new();
        let mut last = None;
        for &(at, value) in &series.points {
            let (px, py) = (x(at), y(value));
            match last {
                None => path += &format!("M{px:.1} {py:.1}"),
                Some(before) if series.steps => {
                    path += &format!("L{px:.1} {before:.1}L{px:.1} {py:.1}");
                }
                Some(_) => path += &format!("L{px:.1} {py:.1}"),
            }
            last = Some(py);
        }
        let legend = right - 130.0 * (panel.series.len() - 1 - index) as f64;
        let _ = writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{0}\" stroke-width=\"1.5\"/>\
             <text x=\"{legend:.1}\" y=\"{1:.1}\" text-anchor=\"end\" fill=\"{0}\">{2}</text>",
            series.colour,
            top - 6.0,
            series.label
        );
    }
}

/// The smallest of 1, 2, 2.5 or 5 times a power of ten that is at least `value`.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0].into_iter().find(|factor| factor * power >= value);
    factor.unwrap_or(10.0) * power
}

fn number(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1}M", v / 1e6),
        v if v >= 1e4 => format!("{:.0}k", v / 1e3),
        v if v >= 10.0 || v == 0.0 => format!("{v:.0}"),
        v if v >= 0.1 => format!("{v:.2}"),
        v => format!("{v:.4}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
