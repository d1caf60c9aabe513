//! The plots of docs/placement.md: the headline figures of four papers beside ours. They are computed here, and the files
//! must be as computed: `GRISTMILL_WRITE_PLOTS=1` writes them.

#![allow(clippy::unwrap_used, reason = "tests")]

use gristmill_policy::cost::{EpochWork, FunctionShape, PriceList, SplitWork, TrainerDemand};
use gristmill_policy::placement::{HostWork, PlacedEpoch, PlacedHost, PlacementTerms, place_epoch};
use gristmill_policy::plan::PlanLimits;
use gristmill_policy::scaling::PolicyName;
use gristmill_scaling::{ScalingScenario, shipped, simulate};
use std::fmt::Write;

/// One pair of bars.
struct PlotRow {
    name: String,
    paper: f64,
    ours: f64,
}

fn row(name: &str, paper: f64, ours: f64) -> PlotRow {
    PlotRow { name: name.to_owned(), paper, ours }
}

/// Horizontal bars: the paper's figure above ours.
fn plot(title: &str, unit: &str, rows: &[PlotRow]) -> String {
    const LEFT: f64 = 200.0;
    const WIDTH: f64 = 320.0;
    const PAIR: f64 = 46.0;
    let most = rows.iter().map(|row| row.paper.max(row.ours)).fold(0.0, f64::max);
    let height = 60.0 + PAIR * rows.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 620 {height:.0}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"620\" height=\"{height:.0}\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"15\" font-weight=\"bold\">{title}</text>\n\
         <rect x=\"430\" y=\"34\" width=\"12\" height=\"10\" fill=\"#9aa5b1\"/><text x=\"447\" y=\"44\">paper</text>\n\
         <rect x=\"505\" y=\"34\" width=\"12\" height=\"10\" fill=\"#1f6feb\"/><text x=\"522\" y=\"44\">gristmill</text>\n"
    );
    for (at, PlotRow { name, paper, ours }) in rows.iter().enumerate() {
        let y = 54.0 + PAIR * at as f64;
        let _ = writeln!(svg, "<text x=\"12\" y=\"{:.0}\">{name}</text>", y + 23.0);
        for (offset, value, colour) in [(4.0, paper, "#9aa5b1"), (21.0, ours, "#1f6feb")] {
            let width = WIDTH * value / most;
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{:.0}\" width=\"{width:.1}\" height=\"15\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{:.0}\">{value:.1}{unit}</text>",
                y + offset,
                LEFT + width + 6.0,
                y + offset + 12.0,
            );
        }
    }
    svg + "</svg>\n"
}

fn scenario(name: &str) -> ScalingScenario {
    let (_, text) = shipped().iter().find(|(shipped, _)| *shipped == name).unwrap();
    ScalingScenario::parse(text, name).unwrap()
}

/// Seconds and dollars of a batch at the end of a run.
fn at_end(scenario: &ScalingScenario, policy: &str) -> (f64, f64) {
    let run = simulate(scenario, 1, policy.parse::<PolicyName>().unwrap());
    let late: Vec<_> = run.ticks[run.ticks.len() / 3 * 2..].iter().collect();
    let batch_s = late.iter().map(|tick| tick.batch_time_s).sum::<f64>() / late.len() as f64;
    (batch_s, run.usd_at_end(0, &scenario.prices))
}

fn cachew() -> String {
    // As the built-in scenario, but three quarters of a worker's time are waits (fitted): Kubernetes sees processors alone.
    let text = "name = 'resnet'\n[trainer]\nstep = '350ms'\n[worker]\ncompute = '330ms'\n[data]\nsource_batch = '71MB'\n";
    let scenario = ScalingScenario::parse(text, "resnet").unwrap();
    let ((hpa_s, hpa_usd), (ours_s, ours_usd)) =
        (at_end(&scenario, "hpa"), at_end(&scenario, "coverage"));
    let rows =
        [row("training time", 4.1, hpa_s / ours_s), row("training cost", 3.8, hpa_usd / ours_usd)];
    plot("Kubernetes HPA beside Cachew and beside gristmill (ResNet-50)", "x", &rows)
}

fn tfdata() -> String {
    // Batches a second with the data made on the trainer's host, and with remote workers (section 4.2).
    let m2 = "name = 'm2'\n[trainer]\nstep = '1.775ms'\n[worker]\ncompute = '700ms'\n[data]\nsplit_batches = 8\n\
              [run]\nbatches = 200000\n";
    let m2 = ScalingScenario::parse(m2, "m2").unwrap();
    let speed_up = |scenario: &ScalingScenario, colocated: f64| {
        1.0 / (at_end(scenario, "coverage").0 * colocated)
    };
    let mut rows = vec![
        row("M1", 11.7, speed_up(&scenario("tfdata-fig9-m1"), 0.55)),
        row("M2", 110.3, speed_up(&m2, 4.7)),
        row("M3", 2.9, speed_up(&scenario("tfdata-fig8-m3"), 22.2)),
        row("ResNet-50", 2.57, speed_up(&scenario("tfdata-fig8-resnet"), 1.75)),
    ];
    let mean = rows.iter().map(|row| row.ours).sum::<f64>() / rows.len() as f64;
    rows.push(row("mean", 31.7, mean));
    plot("Speed of training with remote workers, beside none (tf.data service)", "x", &rows)
}

/// An epoch whose batches take `need` workers, on a host that has room for `idle`.
fn placed(need: f64, idle: f64, most_remote: u32) -> PlacedEpoch {
    let (splits, batches, step_s) = (1_000, 10_000, 0.1);
    let cpu_s = need * step_s * batches as f64 / splits as f64;
    let split = SplitWork { cpu_s, ..SplitWork::default() };
    let work = EpochWork { splits, batches, split, ..EpochWork::default() };
    let limits = PlanLimits { max_workers: most_remote, ..PlanLimits::default() };
    let prices = PriceList::default();
    let terms = PlacementTerms {
        shape: FunctionShape::default(),
        trainer: TrainerDemand { step_s, ingest_bytes_per_s: 0.0 },
        host: PlacedHost::with_idle(idle),
        limits: &limits,
        prices: &prices,
    };
    let host_work = HostWork { local_s: need * step_s, remote_s: 0.0 };
    place_epoch(&work, &host_work, idle.ceil() as u32, &terms)
}

fn fastflow() -> String {
    // Speaker Recognition needs 30 vCPUs (inferred from Fig. 7b); 7 are local.
    let alone_s = placed(30.0, 7.0, 1).batch_time_s * 8.0 / 7.0;
    let speed = |remote| alone_s / placed(30.0, 7.0, remote).batch_time_s;
    let offloaded = |remote| 100.0 * (1.0 - placed(30.0, 7.0, remote).share_local);
    let rows = [
        row("7 + 28 vCPUs: times faster", 4.34, speed(28)),
        row("7 + 7: offloaded, in tenths", 5.0, offloaded(7) / 10.0),
        row("7 + 21: offloaded, in tenths", 8.0, offloaded(21) / 10.0),
    ];
    plot("FastFlow: Speaker Recognition beside local processors alone", "", &rows)
}

fn pecan() -> String {
    // Remote workers under Cachew, and with Pecan's AutoPlacement; their share of the bytes (Table 2); the effect of
    // AutoOrder on the cost of remote workers (6.3); Pecan's remote workers in the end, and its time (6.4).
    let models = [
        ("ResNet50, v2-8", 19.0, 5.0, 8.91 / 18.0, 0.37, 1.0, 1.0),
        ("SimCLR, v2-8", 12.0, 5.0, 19.42 / 36.13, 0.48, 1.0, 1.05),
        ("RetinaNet, v2-8", 2.6, 0.2, 8.51 / 155.15, 0.0, 0.0, 1.0),
        ("ASRTrans, v3-8", 3.8, 0.0, 0.0, 0.17, 0.0, 1.0),
        ("ResNet50, v3-8", 30.0, 27.2, 13.96 / 17.92, 0.26, 17.0, 0.923),
    ];
    let row_of = |(name, cachew, remote, share, cheaper, pecan, time): (
        &str,
        f64,
        f64,
        f64,
        f64,
        f64,
        f64,
    )| {
        // Without a remote worker the host has room for all.
        let need = if share > 0.0 { remote / share } else { cachew };
        let ordered = need * (1.0 - cheaper);
        // A function is paid for while it works.
        let busy = ordered * (1.0 - placed(ordered, need * (1.0 - share), 1_000).share_local);
        let saved = |workers: f64| 100.0 * (1.0 - workers / cachew);
        row(name, saved(pecan * time), saved(busy))
    };
    let mut rows: Vec<PlotRow> = models.into_iter().map(row_of).collect();
    let mean = |of: fn(&PlotRow) -> f64| rows.iter().map(of).sum::<f64>() / rows.len() as f64;
    let mean = row("mean", mean(|row| row.paper), mean(|row| row.ours));
    rows.push(mean);
    plot("Cost of preprocessing saved beside remote workers alone (Pecan)", " %", &rows)
}

#[test]
fn plots_are_as_computed() {
    let write = std::env::var_os("GRISTMILL_WRITE_PLOTS").is_some();
    let images = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images");
    for (name, svg) in
        [("cachew", cachew()), ("pecan", pecan()), ("fastflow", fastflow()), ("tfdata", tfdata())]
    {
        let path = format!("{images}/paper-{name}.svg");
        if write {
            std::fs::write(&path, &svg).unwrap();
        }
        let stored = std::fs::read_to_string(&path).unwrap();
        assert!(
            stored == svg,
            "{path} is not as computed: run this test with GRISTMILL_WRITE_PLOTS=1"
        );
    }
}
