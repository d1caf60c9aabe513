//! Writes pages of made-up runs into a directory, for viewing and for `scripts/check-report`:
//! `cargo run -p gristmill-report --example sample -- DIR`.

use gristmill_model::{CostBreakdown, Usd, wire::CacheMode};
use gristmill_report::{
    EpochWaits, OpSeconds, Timeline, TimelineCost, TimelineDecision, TimelineEpoch, TimelineJob,
    TimelineSample, WorkerShares, attribute, render,
};
use std::{env, fs, io, path::Path, process::ExitCode};

fn main() -> ExitCode {
    let Some(directory) = env::args().nth(1) else {
        eprintln!("sample: a directory is needed: sample DIR");
        return ExitCode::from(2);
    };
    let pages = [
        ("short", short()),
        ("long", long(4_000)),
        ("dense", long(100_000)),
        ("bare", bare()),
        ("empty", Timeline::default()),
        ("hostile", hostile()),
        ("many-epochs", many_epochs()),
    ];
    match write(Path::new(&directory), &pages) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sample: {directory}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn spent(compute: f64, requests: f64) -> CostBreakdown {
    CostBreakdown { compute: Usd(compute), requests: Usd(requests), ..CostBreakdown::default() }
}

fn write(directory: &Path, pages: &[(&str, Timeline)]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    pages.iter().try_for_each(|(name, timeline)| {
        fs::write(directory.join(format!("{name}.html")), render(timeline))
    })
}

/// A pseudo-random number between -1 and 1, determined by `at`.
fn noise(at: usize) -> f64 {
    let mixed = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}

fn job(name: &str, ops: &[&str]) -> TimelineJob {
    TimelineJob {
        name: name.to_owned(),
        pipeline: "resnet50".to_owned(),
        ops: ops.iter().map(|op| (*op).to_owned()).collect(),
        dataset: "shards/train-*".to_owned(),
        seed: Some(17),
        batch_size: Some(64),
        batches_per_epoch: Some(31),
    }
}

/// Seconds of workers: source, operators, puts.
fn work(source_s: f64, ops: &[(&str, f64)], put_s: f64, workers: f64) -> WorkerShares {
    let op = |&(name, seconds): &(&str, f64)| OpSeconds { name: name.to_owned(), seconds };
    WorkerShares {
        source_s,
        ops: ops.iter().map(op).collect(),
        put_s,
        workers: Some(workers),
        max_workers: Some(44),
    }
}

/// An epoch with a wait for each state of a split: unclaimed, working, fetched, decoded.
fn epoch(
    mode: (CacheMode, &str),
    seconds: f64,
    waits: [f64; 4],
    workers: WorkerShares,
) -> TimelineEpoch {
    let [unclaimed_s, working_s, fetch_s, decode_s] = waits;
    let total_s = waits.iter().sum::<f64>() * 1.02;
    let first_batch_s = Some(unclaimed_s.min(6.1));
    let waits = EpochWaits { total_s, unclaimed_s, working_s, fetch_s, decode_s, first_batch_s };
    TimelineEpoch {
        mode: mode.0,
        reason: mode.1.to_owned(),
        seconds,
        batches: 20_019,
        rows: 1_281_167,
        first_batch_s,
        stalls: Some(attribute(&waits, &workers, seconds)),
        workers,
        cost_usd: Some(4e-4 * seconds),
        ..TimelineEpoch::default()
    }
}

fn numbered(epochs: impl IntoIterator<Item = TimelineEpoch>) -> Vec<TimelineEpoch> {
    (0..).zip(epochs).map(|(epoch, of)| TimelineEpoch { epoch, ..of }).collect()
}

/// Samples of a run of `seconds`. `at` says the trainer's step, the target and the part of the demand that it covers.
fn samples(seconds: f64, count: usize, at: impl Fn(f64) -> (f64, u32, f64)) -> Vec<TimelineSample> {
    let mut delivered = 0.0;
    let sample = |index| {
        let t_s = seconds * (index as f64 + 1.0) / count as f64;
        let (step_s, target, covered) = at(t_s);
        let covered = covered * (1.0 + 0.06 * noise(index));
        let cold_s = if index < 4 { 0.6 } else { 0.0 };
        let stall_s = (step_s / covered - step_s).max(0.002) + cold_s;
        delivered += seconds / count as f64 / (step_s + stall_s);
        let queue = if covered > 1.0 { 40.0 } else { 4.0 };
        TimelineSample {
            t_s,
            batches: delivered as u64,
            batch_time_s: Some(step_s + stall_s),
            stall_s: Some(stall_s),
            step_s: (count < 100).then_some(step_s),
            workers: Some((f64::from(target) - 0.8 + 0.8 * noise(index + 7)).max(0.0)),
            target: Some(target),
            outstanding: Some(target + u32::from(index % 90 < 12)),
            queue_batches: Some(queue + 0.3 * queue * noise(index + 3)),
        }
    };
    (0..count).map(sample).collect()
}

/// A demo of four epochs that profiles, stores, and reads the cache.
fn short() -> Timeline {
    let profile = "no cached prefix fits: predicted 8.91 s of workers to compute an epoch, 1.10 s to read \
                   it from point 0";
    let ops = [("decode", 6.2), ("random_resized_crop", 1.7), ("flip", 0.05)];
    let get = |wait_s| {
        let mode = (CacheMode::Get { point: 0 }, "point 0 is stored completely");
        epoch(mode, 3.8, [0.0, 0.02, wait_s, 0.03], work(0.0, &[], 0.0, 2.0))
    };
    let first = work(0.4, &ops, 0.6, 2.0);
    let first = epoch((CacheMode::Profile, profile), 6.4, [0.9, 1.6, 0.12, 0.05], first);
    let reason = "fixed: 2 workers".to_owned();
    Timeline {
        job: job("demo", &["decode", "random_resized_crop: 224", "autocache", "flip", "batch: 64"]),
        samples: samples(17.75, 71, |t_s| if t_s < 6.4 { (0.12, 2, 0.6) } else { (0.12, 0, 1.2) }),
        decisions: vec![TimelineDecision { t_s: 0.0, batch: 0, workers: 2, reason }],
        epochs: numbered([first, get(0.2), get(0.02), get(0.01)]),
        cost: Some(TimelineCost {
            spent: spent(0.000_182, 0.000_041),
            basis: "list prices of us-east-1, had this run been on AWS".to_owned(),
        }),
    }
}

/// Workers needed at a time of the long run.
fn needed(t_s: f64) -> f64 {
    if t_s < 18_000.0 { 23.0 } else { 46.0 }
}

fn long_decisions() -> Vec<TimelineDecision> {
    let decision = |index: u32| {
        let (phase, at) = (index / 30, f64::from(index % 30));
        let t_s = f64::from(phase) * 18_000.0 + 30.0 + at * at * 18.0 * 0.67_f64.powi(phase as i32);
        let goal = needed(t_s);
        let workers = (goal - (goal - 1.0) * (-at / 4.0).exp()).round() as u32;
        let reason = match index {
            0 => "start: 2 workers, nothing measured".to_owned(),
            30 => "load: the trainer's step went from 240 ms to 120 ms: 31 workers".to_owned(),
            _ => format!("stalled: {} workers cover 93 % of the demand", workers - 1),
        };
        TimelineDecision { t_s, batch: (t_s * 4.0) as u64, workers, reason }
    };
    (0..60).map(decision).collect()
}

/// Eight hours with sixty decisions; the trainer's step halves after five.
fn long(count: usize) -> Timeline {
    const RUN_S: f64 = 29_000.0;
    let ops = ["decode", "crop: 224", "flip", "colour_jitter", "gaussian_blur", "batch: 64"];
    let decisions = long_decisions();
    let samples = samples(RUN_S, count, |t_s| {
        let past = decisions.iter().rev().find(|decision| decision.t_s <= t_s);
        let target = past.map_or(1, |decision| decision.workers);
        let step_s = if t_s < 18_000.0 { 0.24 } else { 0.12 };
        (step_s, target, f64::from(target) / needed(t_s))
    });
    Timeline {
        job: TimelineJob { batches_per_epoch: Some(20_019), ..job("imagenet-nightly", &ops) },
        samples,
        decisions,
        epochs: long_epochs(),
        cost: Some(TimelineCost {
            spent: spent(10.62, 1.13),
            basis: "list prices of us-east-1".to_owned(),
        }),
    }
}

fn long_epochs() -> Vec<TimelineEpoch> {
    let put = "predicted 4.210 s for 1,000 elements computed, 1.380 s read from point 1: storing";
    let deleted = "entries of point 1 were deleted: computing, then storing again";
    let get = |reason| (CacheMode::Get { point: 1 }, reason);
    let epochs = [
        (
            (CacheMode::Profile, "what an epoch costs is not known yet"),
            5_400.0,
            [230.0, 380.0, 76.0, 30.0],
        ),
        ((CacheMode::Put { point: 1 }, put), 4_900.0, [44.0, 73.0, 15.0, 6.0]),
        (get("point 1 is stored completely"), 4_800.0, [29.0, 48.0, 10.0, 4.0]),
        (get(""), 4_800.0, [58.0, 58.0, 400.0, 23.0]),
        (get(""), 4_700.0, [63.0, 105.0, 21.0, 8.0]),
        ((CacheMode::Compute, deleted), 4_400.0, [280.0, 460.0, 92.0, 37.0]),
    ];
    let ops = ["decode", "colour_jitter", "random_resized_crop", "gaussian_blur", "solarise"];
    numbered(epochs.map(|(mode, seconds, waits)| {
        let part = if matches!(mode.0, CacheMode::Get { .. }) { 0.25 } else { 1.0 };
        let ops = ops.iter().zip([41_000.0, 17_000.0, 12_000.0, 8_000.0, 900.0]);
        let ops: Vec<_> = ops.map(|(op, seconds)| (*op, part * seconds)).collect();
        TimelineEpoch {
            skipped: 3,
            ..epoch(mode, seconds, waits, work(5_400.0, &ops, 2_200.0, 22.4))
        }
    }))
}

/// A run that recorded nothing but its batches.
fn bare() -> Timeline {
    let samples = (0..300).map(|index| TimelineSample {
        t_s: 0.4 * f64::from(index),
        batches: 2 * index as u64,
        batch_time_s: Some(0.2 + 0.02 * noise(index as usize)),
        ..TimelineSample::default()
    });
    let epoch =
        || TimelineEpoch { seconds: 60.0, batches: 300, rows: 19_200, ..TimelineEpoch::default() };
    Timeline {
        job: TimelineJob { name: "j1".to_owned(), ..TimelineJob::default() },
        samples: samples.collect(),
        epochs: numbered([epoch(), epoch()]),
        ..Timeline::default()
    }
}

/// Names with markup and scripts.
fn hostile() -> Timeline {
    let script = "</script><script>document.title = 'owned'</script><img src=x onerror=alert(1)>";
    let long = "an-unbroken-name-".repeat(60);
    let mut timeline = short();
    timeline.job.name = format!("\"'><b>{script}");
    timeline.job.dataset = long.clone();
    timeline.job.ops = vec![script.to_owned(), long.clone(), "\u{202e}backwards".to_owned()];
    for epoch in &mut timeline.epochs {
        epoch.reason = format!("{script}{long}");
        epoch.workers.ops.iter_mut().for_each(|op| op.name = format!("{script}{}", op.name));
        let waits = EpochWaits { total_s: 2.0, working_s: 2.0, ..EpochWaits::default() };
        epoch.stalls = Some(attribute(&waits, &epoch.workers, epoch.seconds));
    }
    timeline.decisions.iter_mut().for_each(|decision| decision.reason = format!("{long}{script}"));
    timeline
}

/// More epochs than fit a chart.
fn many_epochs() -> Timeline {
    let epochs = (0..600).map(|index| {
        let ops = [("decode", 20.0), ("crop", 4.0 + noise(index + 9))];
        let mode = if index < 2 { CacheMode::Profile } else { CacheMode::Compute };
        let waits = [0.0, 1.0 + noise(index + 5).abs(), 0.0, 0.0];
        epoch((mode, "predicted 9.0 s"), 10.0, waits, work(3.0 + noise(index), &ops, 1.5, 4.0))
    });
    let ops = ["decode", "crop", "batch: 64"];
    Timeline { job: job("sweep", &ops), epochs: numbered(epochs), ..Timeline::default() }
}
