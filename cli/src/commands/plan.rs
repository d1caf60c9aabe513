//! `gristmill plan`: predicts workers, time, cost and alternatives after running only a few hundred
//! records.

use crate::{
    output::say,
    read_pipeline,
    sample::{self, ProfiledSample},
};
use gristmill_client::{
    AuthoredPipeline, OrderOptions, ProgramFailure, folder_of, parse_budget, read_user_text,
    report::DatasetDivision, sample::SampledDatasets,
};
use gristmill_model::wire::WorkProfile;
use gristmill_policy::{
    cost::{FunctionArchitecture, FunctionShape, PriceList},
    placement::{PlacedHost, PlacedOrder, PlacementInput, PlacementPlan, search},
    plan::{
        self, LocalCosts, LocalJob, MeasuredSample, PlanLimits, PlannedCachePoint, PlannedJob,
        predict_local,
    },
};
use gristmill_trainer_sim::parse_duration;
use serde_json::json;
use std::{num::NonZero, path::PathBuf, thread::available_parallelism, time::Duration};

/// Predict the workers, time and cost of a job before running it
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Runs a few hundred records on one core here, and works out the rest from prices.\n\nExamples:\n  gristmill plan examples/resnet50.yaml --data 'shards/train-*' --step-time 120ms --accelerator-usd-per-hour 4.96\n  gristmill plan p.yaml --data one-shard.tfrecord --records 1281167 --step-time 120ms --json"
)]
pub struct PlanArgs {
    /// Pipeline file (YAML)
    pub pipeline: PathBuf,
    /// The trainer's time for a batch without waiting, for example 120ms
    #[arg(long, value_parser = parse_duration)]
    pub step_time: Duration,
    /// Price of the trainer's host, to compute the cost of waiting
    #[arg(long, value_name = "USD", value_parser = parse_amount)]
    pub accelerator_usd_per_hour: Option<f64>,
    /// Dataset to profile: a directory, file or glob, or s3://bucket/prefix [default: the pipeline's]
    #[arg(long)]
    pub data: Option<String>,
    /// Records to measure
    #[arg(long, default_value_t = sample::ELEMENTS, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sample: u32,
    /// Records per epoch [default: estimated from the bytes of the files]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub records: Option<u64>,
    /// Records per batch [default: the pipeline's]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch_size: Option<u32>,
    /// Passes over the dataset
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub epochs: u32,
    /// Memory of a worker function; 1769 is one processor
    #[arg(long, default_value_t = 1769, value_name = "MB", value_parser = clap::value_parser!(u32).range(128..=10_240))]
    pub memory_mb: u32,
    /// Processor time of a function per second of this machine's
    #[arg(long, default_value_t = 1.0, value_name = "RATIO", value_parser = parse_ratio)]
    pub function_slowdown: f64,
    /// Idle processors of the trainer's host
    #[arg(long, default_value_t = 0.0, value_name = "CORES", value_parser = parse_amount)]
    pub spare_cores: f64,
    /// Limit of concurrent workers
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_workers: u32,
    /// Dollars per hour for workers [default: no limit]
    #[arg(long, value_name = "USD", value_parser = parse_budget)]
    pub budget_usd_per_hour: Option<f64>,
    /// Workers in the prediction for this machine
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub local_workers: u32,
    /// Prices that differ from those of us-east-1 (TOML; docs/cost.md)
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,
    #[command(flatten)]
    pub order: OrderOptions,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio: &f64| ratio.is_finite() && *ratio > 0.0);
    ratio.ok_or_else(|| "give a number above 0, such as 1.5".to_owned())
}

fn parse_amount(text: &str) -> Result<f64, String> {
    let amount = text.parse().ok().filter(|amount: &f64| amount.is_finite() && *amount >= 0.0);
    amount.ok_or_else(|| "give a number of 0 or more".to_owned())
}

/// Largest file of prices, in bytes.
const MAX_PRICES_BYTES: u64 = 1 << 20;

impl PlanArgs {
    pub async fn run(self) -> Result<(), ProgramFailure> {
        let authored = read_pipeline(&self.pipeline)?.with_batch_size(self.batch_size)?;
        let dir = folder_of(&self.pipeline);
        let place = sample::place(&authored.pipeline, self.data.as_deref(), dir)?;
        let author = authored.clone();
        let ordered = authored.ordered(&place, &self.order).await?;
        let author = ordered.is_changed().then_some(author);
        let AuthoredPipeline { pipeline, assets } = ordered.authored;
        let data = sample::listed(&pipeline, place).await?;
        let sample = sample::profile(&pipeline, &assets, &data, self.sample).await?;
        let (profile, division) = (&sample.profile, &sample.division);
        let measured = self.measured(profile);
        let stored_bytes = measured.source_bytes_per_record() as u64;
        let division = match self.records {
            Some(records) => {
                sample::chosen_division(&pipeline, records, division.files, stored_bytes)
            }
            None => *division,
        };
        let million = sample::chosen_division(&pipeline, 1_000_000, 1, stored_bytes);
        let DatasetDivision { records, .. } = division;
        let idle_buckets = division.idle_buckets(&pipeline);
        let job = PlannedJob {
            records,
            batch_size: pipeline.batch_size(),
            epochs: self.epochs,
            step_s: self.step_time.as_secs_f64(),
            spare_cores: self.spare_cores,
            splits: Some(division.splits(&pipeline)),
            million_splits: Some(million.splits(&pipeline)),
            points: PlannedCachePoint::all(&pipeline, profile),
            shape: FunctionShape { memory_mb: self.memory_mb, ..FunctionShape::default() },
            prices: prices(&self)?,
            ..PlannedJob::default()
        };
        let limits = self.limits(&job)?;
        let plan = plan::plan(&measured, &job, &limits);
        let placement = self.placed(&sample, author, &data, &job, limits).await?;
        let cores = available_parallelism().map_or(1, NonZero::get) as f64;
        let here = LocalJob::from_measured(&measured, &job, cores, self.local_workers);
        let here = predict_local(&here, &LocalCosts::default());
        if self.json {
            say!(
                "{}",
                json!({
                    "plan": plan,
                    "placement": placement,
                    "local": here,
                    "profile": measured,
                    "files_left_out": data.left_out.as_json(),
                    "idle_buckets": idle_buckets,
                })
            );
            return Ok(());
        }
        say!("{plan}");
        say!("{placement}");
        say!(
            "on this machine ({cores:.0} cores, {} workers): {:.1} s an epoch, the first {:.1} s",
            self.local_workers,
            here.seconds,
            here.first_seconds
        );
        if let Some(why) = idle_buckets {
            say!("{why}");
        }
        say!("profiled {:.0} of {records} records of {data}", measured.records);
        Ok(())
    }
}

impl PlanArgs {
    /// The cheapest placement, by the same measurements. `author` is the author's order, where a job has another.
    async fn placed(
        &self,
        sample: &ProfiledSample,
        author: Option<AuthoredPipeline>,
        data: &SampledDatasets,
        job: &PlannedJob,
        limits: PlanLimits,
    ) -> Result<PlacementPlan, ProgramFailure> {
        let mut orders = vec![PlacedOrder {
            name: if author.is_some() { "AutoOrder" } else { "author" },
            measured: self.measured(&sample.profile),
            points: job.points.clone(),
            packed: Some(sample.packed()?),
        }];
        if let Some(AuthoredPipeline { pipeline, assets }) = author {
            let sample = sample::profile(&pipeline, &assets, data, self.sample).await?;
            orders.push(PlacedOrder {
                name: "author",
                measured: self.measured(&sample.profile),
                points: PlannedCachePoint::all(&pipeline, &sample.profile),
                packed: orders[0].packed,
            });
        }
        let architecture = if cfg!(target_arch = "x86_64") {
            FunctionArchitecture::X86_64
        } else {
            FunctionArchitecture::Arm64
        };
        let host = PlacedHost { architecture, ..PlacedHost::with_idle(self.spare_cores) };
        Ok(search(&PlacementInput { orders, job: job.clone(), limits, host }))
    }

    fn measured(&self, profile: &WorkProfile) -> MeasuredSample {
        let function_slowdown = self.function_slowdown;
        MeasuredSample { function_slowdown, ..MeasuredSample::from(profile) }
    }

    fn limits(&self, job: &PlannedJob) -> Result<PlanLimits, ProgramFailure> {
        let PlanArgs { max_workers, budget_usd_per_hour, .. } = *self;
        let pays = |usd: f64| job.shape.affordable(usd, &job.prices) > 0;
        match budget_usd_per_hour.filter(|usd| !pays(*usd)) {
            Some(usd) => Err(ProgramFailure::usage(format!(
                "`--budget-usd-per-hour {usd}` is less than one worker costs in an hour"
            ))),
            None => Ok(PlanLimits { max_workers, budget_usd_per_hour }),
        }
    }
}

fn prices(args: &PlanArgs) -> Result<PriceList, ProgramFailure> {
    let mut prices = PriceList::default();
    if let Some(path) = &args.prices {
        let named = |error: &dyn std::fmt::Display| {
            ProgramFailure::usage(format!("{}: {}", path.display(), error.to_string().trim_end()))
        };
        let text = read_user_text(path, MAX_PRICES_BYTES).map_err(|why| named(&why))?;
        prices = toml::from_str(&text).map_err(|error| named(&error.message()))?;
    }
    if let Some(usd) = args.accelerator_usd_per_hour {
        prices.accelerator_usd_per_hour = usd;
    }
    prices.check().map_err(ProgramFailure::usage)?;
    Ok(prices)
}
