//! `gristmill profile`: what each operator of a pipeline costs, measured on a sample.

use crate::{output::say, read_pipeline, sample};
use gristmill_client::{AuthoredPipeline, OrderOptions, ProgramFailure, folder_of};
use gristmill_policy::plan::{MeasuredSample, OpCost};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Measure the CPU time of each operator on a sample of records
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gristmill profile examples/resnet50.yaml\n  gristmill profile p.yaml --data shards --sample 1000 --json"
)]
pub struct ProfileArgs {
    /// Pipeline file (YAML)
    pub pipeline: PathBuf,
    /// Dataset: a directory, file or glob, or s3://bucket/prefix; by default the pipeline's
    #[arg(long)]
    pub data: Option<String>,
    /// Records to run from the start of the dataset's first file
    #[arg(long, value_name = "RECORDS", default_value_t = sample::ELEMENTS, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sample: u32,
    #[command(flatten)]
    pub order: OrderOptions,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl ProfileArgs {
    /// Runs the command.
    pub async fn run(self) -> Result<(), ProgramFailure> {
        let authored = read_pipeline(&self.pipeline)?;
        let dir = folder_of(&self.pipeline);
        let place = sample::place(&authored.pipeline, self.data.as_deref(), dir)?;
        let ordered = authored.ordered(&place, &self.order).await?;
        let AuthoredPipeline { pipeline, assets } = ordered.authored;
        let data = sample::listed(&pipeline, place).await?;
        let profiled = sample::profile(&pipeline, &assets, &data, self.sample).await?;
        let profile = profiled.profile;
        let measured = MeasuredSample::from(&profile);
        let records = measured.records.max(1.0);
        let us_a_record = |seconds: f64| seconds * 1e6 / records;
        let all: f64 = measured.ops.iter().map(|op| op.cpu_s).sum();
        if self.json {
            let op = |op: &OpCost| -> Value {
                json!({
                    "op": op.op,
                    "us_per_record": us_a_record(op.cpu_s),
                    "wait_us_per_record": us_a_record(op.wait_s),
                    "elements": op.elements,
                    "bytes_per_element": op.bytes / op.elements.max(1.0),
                })
            };
            let ops: Vec<Value> = measured.ops.iter().map(op).collect();
            say!(
                "{}",
                json!({ "records": measured.records, "us_per_record": us_a_record(all), "ops": ops })
            );
            return Ok(());
        }
        say!("{:<40} {:>12} {:>7} {:>14}", "operator", "us a record", "share", "bytes after it");
        for op in &measured.ops {
            let share = 100.0 * op.cpu_s / all.max(f64::MIN_POSITIVE);
            let bytes = op.bytes / op.elements.max(1.0);
            say!("{:<40} {:>12.2} {share:>6.1}% {bytes:>14.0}", op.op, us_a_record(op.cpu_s));
            if op.wait_s > 0.0 {
                say!("{:<40} {:>12.2} of waiting", "", us_a_record(op.wait_s));
            }
        }
        say!(
            "{:<40} {:>12.2}",
            format!("{} records of {data}", measured.records),
            us_a_record(all)
        );
        Ok(())
    }
}
