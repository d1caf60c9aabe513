//! `gristmill plan`: how many workers, how long, how much, and what else could be done, before anything
//! is run but a few hundred records.

use crate::output::say;
use crate::{args::PlanArgs, buckets::Division, failure::Failure, job::read_pipeline, sample};
use gristmill_client::{Authored, read_user_text};
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
    let (mut measured, division) =
        sample::profile((&pipeline, &assets), &data, args.sample).await?;
    measured.function_slowdown = args.function_slowdown;
    let stored_bytes = measured.source_bytes_per_record() as u64;
    let division = match args.records {
        Some(records) => Division::chosen(&pipeline, records, division.files, stored_bytes),
        None => division,
    };
    let Division { records, split_records, .. } = division;
    let idle_buckets = division.idle_buckets(&pipeline);
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
                "idle_buckets": idle_buckets,
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
    if let Some(why) = idle_buckets {
        say!("{why}");
    }
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
