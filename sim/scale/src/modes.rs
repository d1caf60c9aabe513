//! The simulations behind each row: training, a scaler, leaving workers, indexing, a restart.

use crate::{
    args::ScaleArgs,
    deployment::{self, DeploymentParameters, SimulatedDeployment},
    figures::ScaleFigures,
    report::{self, FigureBar, FigureRow},
    training::{self, BoxedError},
};
use bytes::Bytes;
use gristmill_model::{stored::keys, wire::ScaleState};
use gristmill_ports::{
    ItemKey, Table as _,
    limits::{GROWTH, GROWTH_PERIOD},
};
use gristmill_runner::JobContext;
use std::{sync::Arc, time::Duration};

/// Splits of a job: bundles of eight per worker, with a minimum.
const SPLITS_A_WORKER: u32 = 64;
/// The fewest splits of a job.
pub const LEAST_SPLITS: u32 = 8_192;
/// With a scaler or deaths the job must last longer, to show their effect.
pub const SPLITS_A_STARTED_WORKER: u32 = 96;
const SPLITS_A_MORTAL_WORKER: u32 = 128;
/// Batches delivered before the trainer restarts, and left afterwards.
const RESTARTS_AFTER: u32 = 50_000;
/// A job that is this much slower than the ideal, plus a pause, is given up.
const GIVE_UP_FACTOR: f64 = 3.0;
const GIVE_UP: Duration = Duration::from_secs(20);
/// Time limit after the measured part.
const END: Duration = Duration::from_secs(900);
const INDEX_PATIENCE: Duration = Duration::from_secs(600);

/// Runs and prints the requested simulations. Returns whether every bar holds.
pub fn run(args: &ScaleArgs) -> Result<bool, BoxedError> {
    let mut rows = Vec::new();
    for workers in args.workers() {
        for row in rows_of(args, workers)? {
            if !args.json {
                print!("{}", report::row_text(&row, rows.is_empty(), args.calls));
            }
            rows.push(row);
        }
    }
    if args.json {
        println!("{}", report::as_json(args, &rows));
    } else {
        print!("{}", report::bars_text(&rows));
    }
    Ok(rows.iter().all(FigureRow::holds))
}

fn rows_of(args: &ScaleArgs, workers: u32) -> Result<Vec<FigureRow>, BoxedError> {
    let a_worker = match args {
        ScaleArgs { real: true, .. } => SPLITS_A_STARTED_WORKER,
        ScaleArgs { die_s: Some(_), .. } => SPLITS_A_MORTAL_WORKER,
        _ => SPLITS_A_WORKER,
    };
    let splits = workers.saturating_mul(a_worker).max(LEAST_SPLITS);
    let mut setting = DeploymentParameters {
        workers,
        split: args.split_s,
        splits: args.splits.unwrap_or(splits),
        split_batches: 1,
        files: 4,
        limits: args.limits,
        die: args.die_s,
        unreported: args.unreported,
        real: args.real,
        seed: args.seed,
        ..DeploymentParameters::default()
    };
    if args.deployed {
        let mut setting = deployment::with_stack(setting, args.room);
        setting.splits = args.splits.unwrap_or(setting.splits);
        return Ok(vec![trained(setting)?]);
    }
    if let Some(outstanding) = args.outstanding {
        return Ok(vec![leaves(setting, outstanding, args.leaves_ms)?]);
    }
    if args.index {
        (setting.files, setting.splits) = (args.files, args.files);
        return Ok(vec![index(setting)?]);
    }
    if args.restart {
        let after = args.splits.unwrap_or(RESTARTS_AFTER);
        setting.splits = after + after / 5;
        return Ok(vec![restart(setting, after)?]);
    }
    if args.real {
        let killed = DeploymentParameters { kill_scaler_at: Some(workers / 2), ..setting.clone() };
        return Ok(vec![trained(setting)?, trained(killed)?]);
    }
    Ok(vec![trained(setting)?])
}

/// Builds a simulation and runs `work` in it.
pub fn in_deployment<T>(
    setting: DeploymentParameters,
    work: impl AsyncFnOnce(&Arc<SimulatedDeployment>) -> Result<T, BoxedError>,
) -> Result<(T, ScaleFigures, Arc<SimulatedDeployment>), BoxedError> {
    let deployment = SimulatedDeployment::new(setting, "scale".parse()?, "job".parse()?);
    let runtime = deployment.time.runtime()?;
    let outcome = runtime.block_on(async {
        training::register(&deployment).await?;
        work(&deployment).await
    });
    let outcome = outcome?;
    // Tasks that still wait end with the runtime.
    drop(runtime);
    let mut figures = std::mem::take(&mut *deployment.figures());
    figures.ended = figures.ended.or(Some(deployment.now()));
    Ok((outcome, figures, deployment))
}

/// Loads the job's context and starts the workers of the setting, unless a scaler starts them.
pub async fn start_workers(deployment: &Arc<SimulatedDeployment>) -> Result<(), BoxedError> {
    let context = JobContext::load(training::runner(deployment), &deployment.job).await?;
    let _ = deployment.context.set(context.clone());
    if !deployment.setting.real {
        for number in 0..deployment.setting.workers {
            tokio::spawn(training::worker(Arc::clone(deployment), number, context.clone()));
        }
    }
    Ok(())
}

/// Completes when the measured part can no longer meet its bars, or the job does not end.
async fn give_up(deployment: &SimulatedDeployment) {
    let DeploymentParameters { splits, split, .. } = &deployment.setting;
    let ideal = split.mul_f64(f64::from(*splits) / f64::from(deployment.setting.runnable()));
    if deployment.stack.is_some() {
        // Time for the workers to begin.
        deployment.time.sleep(GROWTH_PERIOD * (deployment.setting.runnable() / GROWTH)).await;
    }
    // A job that does not get going is measured where it is.
    deployment.time.sleep(ideal.mul_f64(0.5) + GIVE_UP / 4).await;
    if deployment.figures().began.is_none() {
        training::begin(&mut deployment.figures(), deployment);
    }
    deployment.time.sleep(ideal.mul_f64(GIVE_UP_FACTOR - 0.5) + GIVE_UP * 3 / 4).await;
    if deployment.figures().is_measuring() {
        deployment.figures().ended = Some(deployment.now());
        return;
    }
    deployment.time.sleep(END).await;
}

/// A whole job, at its workers' speed.
pub fn trained(setting: DeploymentParameters) -> Result<FigureRow, BoxedError> {
    let (delivered, figures, deployment) = in_deployment(setting, async |deployment| {
        start_workers(deployment).await?;
        let training = training::train(deployment, u64::MAX, true);
        tokio::select! {
            biased;
            delivered = training => delivered.map(Some).or_else(|error| {
                deployment.trouble(&format!("trainer: {error}"));
                Ok(None)
            }),
            () = give_up(deployment) => Ok(None),
        }
    })?;
    Ok(report::training_row(&deployment, &figures, delivered))
}

/// Workers that leave almost simultaneously.
fn leaves(
    setting: DeploymentParameters,
    outstanding: u32,
    within_ms: u64,
) -> Result<FigureRow, BoxedError> {
    let setting = DeploymentParameters { workers: outstanding, ..setting };
    let (reported, figures, deployment) = in_deployment(setting, async |deployment| {
        let key = scale_key(deployment);
        let mut scale_state =
            ScaleState { target: outstanding, next_worker: outstanding, ..ScaleState::default() };
        scale_state.outstanding.add(0..outstanding, deployment.clock().now_ms());
        let table = crate::table::MeteredTable::new(deployment);
        let body = Bytes::from(serde_json::to_vec(&scale_state)?);
        let version = deployment.items.stored(&key).map_or(0, |(item, _)| item.version);
        table.write(&key, version, body, None).await?;
        training::begin(&mut deployment.figures(), deployment);
        let runner = training::runner(deployment);
        let mut leaving = tokio::task::JoinSet::new();
        for worker in 0..outstanding {
            let (deployment, runner) = (Arc::clone(deployment), runner.clone());
            leaving.spawn(async move {
                let ms = (within_ms as f64 * deployment.uniform()) as u64;
                deployment.time.sleep(Duration::from_millis(ms)).await;
                training::leave(&deployment, &runner, worker).await
            });
        }
        let mut reported = 0;
        while let Some(left) = leaving.join_next().await {
            reported += u32::from(left?);
        }
        deployment.figures().ended = Some(deployment.now());
        Ok(reported)
    })?;
    let key = scale_key(&deployment);
    let (body, most) = deployment
        .items
        .stored(&key)
        .map_or_else(Default::default, |(item, bytes)| (item.body, bytes));
    let mut scale_state = serde_json::from_slice::<ScaleState>(&body)?.outstanding;
    let shards = scale_state.shards(|_| true).into_iter().filter_map(|shard| {
        let (pk, sk) = keys::left(&deployment.ns, &deployment.job, shard);
        let (item, _) = deployment.items.stored(&ItemKey { pk, sk })?;
        Some((shard, serde_json::from_slice(&item.body).ok()?))
    });
    let shards = shards.collect();
    scale_state.settle(&shards);
    let left = scale_state.len();
    let mut row = report::plain_row(&deployment, &figures);
    row.facts.push(("leaves not reported", f64::from(outstanding - reported)));
    row.facts.push(("workers that stay outstanding", f64::from(left)));
    row.facts.push(("bytes of SCALE at most", most as f64));
    row.at_most("workers that stay outstanding", 0.0);
    row.at_most("leaves not reported", 0.0);
    row.bars.push(FigureBar::at_most("bytes of SCALE", most as f64, 2_048.0));
    Ok(row)
}

fn scale_key(deployment: &SimulatedDeployment) -> ItemKey {
    ItemKey { pk: keys::job_partition(&deployment.ns, &deployment.job), sk: keys::SCALE.into() }
}

/// Indexes a dataset until the job has a plan.
fn index(setting: DeploymentParameters) -> Result<FigureRow, BoxedError> {
    let files = f64::from(setting.files);
    let (indexed, figures, deployment) = in_deployment(setting, async |deployment| {
        training::begin(&mut deployment.figures(), deployment);
        start_workers(deployment).await?;
        let planned = async {
            // The trainer's polls are part of the cost of indexing.
            let fetcher = gristmill_stream::Fetcher::start(
                training::ports(deployment),
                training::fetcher_config(deployment),
            );
            let fetcher = fetcher.await?;
            while fetcher.view().is_none_or(|view| view.plan.is_none()) {
                deployment.time.sleep(Duration::from_millis(50)).await;
            }
            Ok::<_, BoxedError>(())
        };
        let indexed = tokio::select! {
            biased;
            planned = planned => planned.map(|()| true)?,
            () = deployment.time.sleep(INDEX_PATIENCE) => false,
        };
        deployment.figures().ended = Some(deployment.now());
        Ok(indexed)
    })?;
    let mut row = report::plain_row(&deployment, &figures);
    let units = figures.used().read_units as f64 / files;
    row.facts.push(("read units a file", units));
    row.facts.push(("indexed", f64::from(u8::from(indexed))));
    row.at_most("read units a file", 15.0);
    row.at_least("indexed", 1.0);
    Ok(row)
}

/// A trainer without checkpoints restarts after `after` batches.
fn restart(setting: DeploymentParameters, after: u32) -> Result<FigureRow, BoxedError> {
    let splits = setting.splits;
    let (delivered, figures, deployment) = in_deployment(setting, async |deployment| {
        start_workers(deployment).await?;
        let first = training::train(deployment, u64::from(after), false);
        tokio::select! {
            biased;
            first = first => { first?; }
            () = give_up(deployment) => return Ok(0),
        }
        let second = training::train(deployment, u64::MAX, true);
        tokio::select! {
            biased;
            second = second => second.or_else(|error| {
                deployment.trouble(&format!("trainer: {error}"));
                Ok(0)
            }),
            () = deployment.time.sleep(END) => Ok(0),
        }
    })?;
    let mut row = report::plain_row(&deployment, &figures);
    let largest = figures.largest.values().copied().max().unwrap_or(0) as f64;
    row.facts.push(("bytes of the largest answer", largest));
    row.facts.push(("delivered after the restart", delivered as f64));
    row.at_most("bytes of the largest answer", f64::from(1 << 20));
    row.at_least("delivered after the restart", f64::from(splits));
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::TableUsage;

    /// The calls of a job that one trainer reads, from its registration to its end, with the read and write units of
    /// each kind.
    fn cost(keeps: bool) -> Vec<(&'static str, u64, u64, u64)> {
        let setting = DeploymentParameters {
            workers: 8,
            split: Duration::from_millis(200),
            splits: 400,
            split_batches: 1,
            files: 4,
            limits: true,
            real: true,
            seed: 1,
            ..DeploymentParameters::default()
        };
        let (delivered, figures, _) = in_deployment(setting, async |deployment| {
            start_workers(deployment).await?;
            // Workers run before the trainer comes, so that their calls do not depend on its first ones.
            training::begin(&mut deployment.figures(), deployment);
            let delivered = training::train(deployment, u64::MAX, keeps).await?;
            let mut figures = deployment.figures();
            figures.ended = Some(deployment.now());
            Ok(delivered)
        })
        .unwrap();
        assert_eq!((delivered, figures.troubles.len()), (400, 0), "{:?}", figures.troubles);
        let kinds = figures.calls.iter().map(|(kind, call)| {
            let TableUsage { read_units, write_units, .. } = call.used;
            (*kind, call.calls, read_units, write_units)
        });
        kinds.collect()
    }

    /// Recorded when one trainer was not yet a run of one rank, again when the workers got the names that the platform gives
    /// them, and when they claimed beside their last commits.
    #[test]
    fn a_job_of_one_trainer_costs_what_it_did() {
        let recorded = [
            ("claim", 193, 1046, 218),
            ("claim, all claimed", 8, 33, 0),
            ("claim, window full", 5, 16, 0),
            ("describe", 23, 23, 0),
            ("flush", 340, 375, 343),
            ("leave", 13, 13, 16),
            ("poll", 161, 3023, 180),
            ("scaler", 4, 7, 4),
        ];
        assert_eq!(cost(false), recorded);
        let recorded_with_checkpoints = [
            ("claim", 191, 1029, 205),
            ("claim, all claimed", 8, 33, 0),
            ("describe", 18, 18, 0),
            ("flush", 342, 376, 343),
            ("leave", 8, 8, 11),
            ("poll", 153, 3116, 196),
            ("scaler", 3, 5, 3),
        ];
        assert_eq!(cost(true), recorded_with_checkpoints);
    }
}
