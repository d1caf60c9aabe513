//! `gristmill plan`: how many workers, how long, how much, and what else could be done, before anything
//! is run but a few hundred records.

use crate::output::say;
use crate::{args::PlanArgs, failure::Failure, job::read_pipeline, sample};
use gristmill_coordinator::split_batches;
use gristmill_fetcher::{Authored, read_user_text};
use gristmill_pipeline::passes::{Measured, optimise};
use gristmill_policy::{
    cost::{FunctionShape, Prices},
    plan::{self, Job, Limits, LocalCosts, LocalRun, predict_local},
};
use serde_json::json;
use std::{num::NonZero, path::Path, thread::available_parallelism};

/// Most bytes of a file of prices.
const MAX_PRICES_BYTES: u64 = 1 << 20;

pub async fn run(args: &PlanArgs) -> Result<(), Failure> {
    let Authored { mut pipeline, assets } = read_pipeline(&args.pipeline)?;
    if let Some(size) = args.batch_size {
        pipeline = pipeline.with_batch_size(size).map_err(Failure::usage)?;
    }
    let pipeline = optimise(&pipeline, &Measured::new()).pipeline;
    let dir = args.pipeline.parent().unwrap_or(Path::new("."));
    let data = sample::data(&pipeline, args.data.as_deref(), dir).await?;
    let (mut measured, found) = sample::profile((&pipeline, &assets), &data, args.sample).await?;
    measured.function_slowdown = args.function_slowdown;
    let records = args.records.unwrap_or(found);
    let stored_bytes = measured.source_bytes_per_record() as u64;
    let record_bytes = pipeline.bytes_per_record(stored_bytes).max(stored_bytes);
    let split_batches = split_batches(records, record_bytes, pipeline.batching());
    let split_records = split_batches.saturating_mul(u64::from(pipeline.batch_size()));
    let job = Job {
        records,
        batch_size: pipeline.batch_size(),
        epochs: args.epochs,
        step_s: args.step_time.as_secs_f64(),
        spare_cores: args.spare_cores,
        split_records: u32::try_from(split_records).ok(),
        shape: FunctionShape { memory_mb: args.memory_mb, ..FunctionShape::default() },
        prices: prices(args)?,
        ..Job::default()
    };
    let limits =
        Limits { max_workers: args.max_workers, budget_usd_per_hour: args.budget_usd_per_hour };
    let plan = plan::plan(&measured, &job, &limits);
    let cores = available_parallelism().map_or(1, NonZero::get) as f64;
    let here = LocalRun::of(&measured, &job, cores, args.local_workers);
    let here = predict_local(&here, &LocalCosts::default());
    if args.json {
        say!(
            "{}",
            json!({
                "plan": plan,
                "local": here,
                "profile": measured,
                "files_left_out": data.left_out.as_json(),
            })
        );
        return Ok(());
    }
    say!("{plan}");
    say!(
        "on this machine ({cores:.0} cores, {} workers): {:.1} s an epoch, the first {:.1} s",
        args.local_workers,
        here.seconds,
        here.first_seconds
    );
    say!("profiled {:.0} of {records} records of {data}", measured.records);
    Ok(())
}

fn prices(args: &PlanArgs) -> Result<Prices, Failure> {
    let mut prices = Prices::default();
    if let Some(path) = &args.prices {
        let named = |error: &dyn std::fmt::Display| {
            Failure::usage(format!("{}: {}", path.display(), error.to_string().trim_end()))
        };
        let text = read_user_text(path, MAX_PRICES_BYTES).map_err(|why| named(&why))?;
        prices = toml::from_str(&text).map_err(|error| named(&error.message()))?;
    }
    if let Some(usd) = args.accelerator_usd_per_hour {
        prices.accelerator_usd_per_hour = usd;
    }
    prices.check().map_err(Failure::usage)?;
    Ok(prices)
}
