//! Writes pages of made-up runs into a directory, for viewing and for `scripts/check-report`:
//! `cargo run -p gristmill-report --example sample -- DIR`.

use gristmill_report::{
    Cost, Decision, Epoch, Job, Mode, OpSeconds, Sample, Timeline, Waits, WorkerShares, attribute,
    render,
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

fn job(name: &str, ops: &[&str]) -> Job {
    Job {
        name: name.to_owned(),
        pipeline: "resnet50".to_owned(),
        ops: ops.iter().map(|op| (*op).to_owned()).collect(),
        dataset: "shards/train-*".to_owned(),
        seed: Some(17),
        batch_size: Some(64),
        batches_per_epoch: Some(31),
        started: Some("2026-03-02 09:14 UTC".to_owned()),
    }
}

fn op(name: &str, seconds: f64) -> OpSeconds {
    OpSeconds { name: name.to_owned(), seconds }
}

fn short_epoch(
    epoch: u32,
    mode: Mode,
    reason: &str,
    seconds: f64,
    waits: [f64; 4],
    work: [f64; 4],
) -> Epoch {
    let [unclaimed_s, working_s, fetch_s, decode_s] = waits;
    let total_s = waits.iter().sum::<f64>() + 0.05;
    let first_batch_s = Some(if epoch == 0 { 0.9 } else { 0.06 });
    let waits = Waits { total_s, unclaimed_s, working_s, fetch_s, decode_s, first_batch_s };
    let workers = WorkerShares {
        source_s: work[0],
        ops: if work[1] > 0.0 {
            vec![op("decode", work[1]), op("random_resized_crop", work[2]), op("flip", 0.05)]
        } else {
            Vec::new()
        },
        put_s: work[3],
        workers: Some(2.0),
        max_workers: Some(8),
        source_growth: None,
    };
    Epoch {
        epoch,
        mode,
        reason: reason.to_owned(),
        seconds,
        batches: 32,
        rows: 2_000,
        first_batch_s,
        stalls: Some(attribute(&waits, &workers, seconds)),
        workers,
        cost_usd: Some(2e-5 * (work.iter().sum::<f64>() + 0.4)),
        ..Epoch::default()
    }
}

/// A demo of four epochs that profiles, stores, and reads the cache.
fn short() -> Timeline {
    let epoch = short_epoch;
    let read = "point 0 is stored completely";
    let epochs = vec![
        epoch(
            0,
            Mode::Profile,
            "no cached prefix fits: predicted 8.91 s of workers to compute an epoch, 1.10 s to read \
             it from point 0",
            6.4,
            [0.9, 1.6, 0.12, 0.05],
            [0.4, 6.2, 1.7, 0.6],
        ),
        epoch(1, Mode::Get { point: 0 }, read, 3.9, [0.02, 0.03, 0.2, 0.04], [0.0; 4]),
        epoch(2, Mode::Get { point: 0 }, read, 3.8, [0.0, 0.02, 0.02, 0.03], [0.0; 4]),
        epoch(3, Mode::Get { point: 0 }, read, 3.8, [0.0, 0.02, 0.01, 0.02], [0.0; 4]),
    ];
    let samples = (0..70).map(|index| {
        let t_s = 0.25 * f64::from(index) + 0.25;
        let slow = t_s < 6.4;
        let stall_s = if slow { 0.08 + 0.03 * noise(index as usize) } else { 0.004 };
        let first = if index < 3 { 0.6 } else { 0.0 };
        Sample {
            t_s,
            batches: (t_s * if slow { 5.0 } else { 8.3 }) as u64,
            batch_time_s: Some(0.12 + stall_s + first),
            stall_s: Some(stall_s + first),
            step_s: Some(0.12),
            workers: Some(if slow { 2.0 } else { 0.0 }),
            target: Some(if slow { 2 } else { 0 }),
            outstanding: Some(if t_s < 7.0 { 2 } else { 0 }),
            queue_batches: Some(if slow {
                (index % 3) as f64
            } else {
                24.0 + noise(index as usize)
            }),
            cost_usd: None,
        }
    });
    Timeline {
        job: job("demo", &["decode", "random_resized_crop: 224", "autocache", "flip", "batch: 64"]),
        seconds: Some(17.9),
        samples: samples.collect(),
        decisions: vec![Decision {
            t_s: Some(0.0),
            batch: 0,
            workers: 2,
            reason: "fixed: 2 workers".to_owned(),
        }],
        epochs,
        cost: Some(Cost {
            compute_usd: Some(0.000_182),
            requests_usd: Some(0.000_041),
            storage_usd: Some(0.000_000_9),
            basis: "list prices of us-east-1, had this run been on AWS".to_owned(),
            ..Cost::default()
        }),
    }
}

/// Workers needed at a time of the long run.
fn needed(t_s: f64) -> f64 {
    if t_s < 18_000.0 { 23.0 } else { 46.0 }
}

fn long_decisions() -> Vec<Decision> {
    (0..60)
        .map(|index: u32| {
            let (phase, at) = (index / 30, f64::from(index % 30));
            let t_s =
                f64::from(phase) * 18_000.0 + 30.0 + at * at * if phase == 0 { 18.0 } else { 12.0 };
            let goal = needed(t_s);
            let workers = (goal - (goal - 1.0) * (-at / 4.0).exp()).round() as u32;
            let reason = match index {
                0 => "start: 2 workers, nothing measured".to_owned(),
                30 => "load: the trainer's step went from 240 ms to 120 ms: 31 workers".to_owned(),
                _ => format!(
                    "stalled: {} workers cover 93 % of the demand: {workers} workers",
                    workers - 1
                ),
            };
            Decision { t_s: Some(t_s), batch: (t_s * 4.0) as u64, workers, reason }
        })
        .collect()
}

/// Eight hours with sixty decisions; the trainer's step halves after five.
fn long(samples: usize) -> Timeline {
    const RUN_S: f64 = 29_000.0;
    let decisions = long_decisions();
    let target_at = |t_s: f64| {
        let past = decisions.iter().rev().find(|decision| decision.t_s.unwrap_or(0.0) <= t_s);
        past.map_or(1, |decision| decision.workers)
    };
    let mut delivered = 0.0;
    let all = (0..samples).map(|index| {
        let t_s = RUN_S * (index as f64 + 1.0) / samples as f64;
        let step_s = if t_s < 18_000.0 { 0.24 } else { 0.12 };
        let target = target_at(t_s);
        let covered = f64::from(target) / needed(t_s) * (1.0 + 0.06 * noise(index));
        let cold = if index < 4 { 4.0 } else { 0.0 };
        let stall_s = (step_s / covered - step_s).max(0.002) + cold;
        delivered += RUN_S / samples as f64 / (step_s + stall_s);
        Sample {
            t_s,
            batches: delivered as u64,
            batch_time_s: Some(step_s + stall_s),
            stall_s: Some(stall_s),
            step_s: None,
            workers: Some((f64::from(target) - 0.8 + 0.8 * noise(index + 7)).max(0.0)),
            target: Some(target),
            outstanding: Some(target + u32::from(index % 90 < 12)),
            queue_batches: Some(if covered > 1.0 {
                40.0 + 12.0 * noise(index + 3)
            } else {
                4.0 + 3.0 * noise(index)
            }),
            cost_usd: Some(t_s * 4.1e-4),
        }
    });
    let samples: Vec<Sample> = all.collect();
    Timeline {
        job: Job {
            batches_per_epoch: Some(20_019),
            batch_size: Some(64),
            ..job(
                "imagenet-nightly",
                &[
                    "decode",
                    "random_resized_crop: 224",
                    "flip",
                    "colour_jitter",
                    "gaussian_blur",
                    "solarise",
                    "cast: u8",
                    "batch: 64",
                ],
            )
        },
        seconds: Some(RUN_S),
        samples,
        decisions,
        epochs: long_epochs(),
        cost: Some(Cost {
            compute_usd: Some(10.62),
            requests_usd: Some(1.13),
            storage_usd: Some(0.021),
            transfer_usd: Some(0.0),
            control_usd: Some(0.19),
            accelerator_usd: Some(39.96),
            basis: "list prices of us-east-1; the accelerator at $4.96 an hour".to_owned(),
        }),
    }
}

fn long_epochs() -> Vec<Epoch> {
    let modes = [
        (Mode::Profile, "profiling: what an epoch costs is not known yet", 5_400.0),
        (
            Mode::Put { point: 1 },
            "predicted 4.210 s for 1,000 elements computed, 1.380 s read from point 1: storing",
            4_900.0,
        ),
        (Mode::Get { point: 1 }, "point 1 is stored completely", 4_800.0),
        (Mode::Get { point: 1 }, "", 4_800.0),
        (Mode::Get { point: 1 }, "", 4_700.0),
        (Mode::Compute, "entries of point 1 were deleted: computing, then storing again", 4_400.0),
    ];
    let each = modes.into_iter().enumerate().map(|(index, (mode, reason, seconds))| {
        let computed = !matches!(mode, Mode::Get { .. });
        let scale: f64 = if computed { 1.0 } else { 0.25 };
        let workers = WorkerShares {
            source_s: 9_000.0 * scale.max(0.6),
            ops: vec![
                op("decode", 41_000.0 * scale),
                op("random_resized_crop", 12_000.0 * scale),
                op("colour_jitter", 17_000.0),
                op("gaussian_blur", 8_000.0),
                op("solarise", 900.0),
                op("flip", 700.0),
                op("cast", 400.0),
            ],
            put_s: if index == 1 { 6_000.0 } else { 2_200.0 },
            workers: Some(if index < 3 { 22.4 } else { 44.0 }),
            max_workers: Some(if index == 5 { 44 } else { 128 }),
            source_growth: None,
        };
        let part = [0.14, 0.03, 0.02, 0.12, 0.045, 0.21][index] * seconds;
        let network = index == 3;
        let waits = Waits {
            total_s: part,
            unclaimed_s: part * if network { 0.1 } else { 0.3 },
            working_s: part * if network { 0.1 } else { 0.5 },
            fetch_s: part * if network { 0.7 } else { 0.1 },
            decode_s: part * 0.04,
            first_batch_s: Some(6.0),
        };
        Epoch {
            epoch: index as u32,
            mode,
            reason: reason.to_owned(),
            seconds,
            batches: 20_019,
            rows: 1_281_167,
            skipped: if index == 0 { 3 } else { 0 },
            first_batch_s: Some(if index == 0 { 6.1 } else { 0.3 }),
            stalls: Some(attribute(&waits, &workers, seconds)),
            workers,
            cost_usd: Some(2.1),
            ..Epoch::default()
        }
    });
    each.collect()
}

/// A run that recorded nothing but its batches.
fn bare() -> Timeline {
    let samples = (0..300).map(|index| Sample {
        t_s: 0.4 * f64::from(index),
        batches: 2 * index as u64,
        batch_time_s: Some(0.2 + 0.02 * noise(index as usize)),
        ..Sample::default()
    });
    let epoch =
        |epoch| Epoch { epoch, seconds: 60.0, batches: 300, rows: 19_200, ..Epoch::default() };
    Timeline {
        job: Job { name: "j1".to_owned(), ..Job::default() },
        samples: samples.collect(),
        epochs: vec![epoch(0), epoch(1)],
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
        epoch.mode = Mode::Other(script.to_owned());
        epoch.workers.ops.iter_mut().for_each(|op| op.name = format!("{script}{}", op.name));
        let waits = Waits { total_s: 2.0, working_s: 2.0, ..Waits::default() };
        epoch.stalls = Some(attribute(&waits, &epoch.workers, epoch.seconds));
    }
    timeline.decisions.iter_mut().for_each(|decision| decision.reason = format!("{long}{script}"));
    timeline
}

/// More epochs than fit a chart.
fn many_epochs() -> Timeline {
    let epochs = (0..600).map(|epoch: u32| {
        let workers = WorkerShares {
            source_s: 3.0 + noise(epoch as usize),
            ops: vec![op("decode", 20.0), op("crop", 4.0 + noise(epoch as usize + 9))],
            put_s: 1.5,
            workers: Some(4.0),
            max_workers: Some(4),
            source_growth: None,
        };
        let working_s = 1.0 + noise(epoch as usize + 5).abs();
        let waits = Waits { total_s: working_s + 0.1, working_s, ..Waits::default() };
        Epoch {
            epoch,
            mode: if epoch < 2 { Mode::Profile } else { Mode::Compute },
            reason: format!("predicted {:.1} s", 9.0 + noise(epoch as usize)),
            seconds: 10.0,
            batches: 100,
            rows: 6_400,
            stalls: Some(attribute(&waits, &workers, 10.0)),
            workers,
            cost_usd: Some(0.01),
            ..Epoch::default()
        }
    });
    Timeline {
        job: job("sweep", &["decode", "crop", "batch: 64"]),
        epochs: epochs.collect(),
        ..Timeline::default()
    }
}
