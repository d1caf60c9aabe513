//! `gristmill explain`: how passes change a pipeline before it runs, and why.

use crate::{output::say, read_pipeline, sample};
use gristmill_client::{
    AuthoredPipeline, DatasetLocation, LeftOutFiles, ORDER_ELEMENTS, OrderOptions, OrderedPipeline,
    ProgramFailure, folder_of, sample::measure,
};
use gristmill_executor::PipelineCompiler;
use gristmill_pipeline::{
    ElementSchema, FieldSchema, Pipeline, PipelineSource, PipelineStage,
    passes::{FactorBasis, InflationFactor, MeasuredBytes, PassChange, PassNote},
};
use serde_json::{Value, json};
use std::{fmt::Write, path::PathBuf};

/// Show the order in which a pipeline's operators run, and why
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gristmill explain examples/resnet50.yaml\n  gristmill explain examples/resnet50.yaml --data 'shards/train-*' --json\n  gristmill explain zipped.yaml --sample 100"
)]
pub struct ExplainArgs {
    /// Pipeline file (YAML)
    pub pipeline: PathBuf,
    /// Measure elements of this dataset: a directory, file or glob, or s3://bucket/prefix
    #[arg(long)]
    pub data: Option<String>,
    /// Elements to measure for the figures [default: 64]; without --data, those of the pipeline's dataset. The order is
    /// that of a run, whose sample is always the first 64
    #[arg(long, value_name = "ELEMENTS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sample: Option<u32>,
    #[command(flatten)]
    pub order: OrderOptions,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl ExplainArgs {
    pub async fn run(self) -> Result<(), ProgramFailure> {
        let authored = read_pipeline(&self.pipeline)?;
        let (pipeline, dir) = (&authored.pipeline, folder_of(&self.pipeline));
        let place = sample::place(pipeline, self.data.as_deref(), dir);
        let mut figures = DatasetFigures::default();
        if self.is_measured() {
            let data = sample::listed(pipeline, place.clone()?).await?;
            let most = self.sample.unwrap_or(ORDER_ELEMENTS);
            let (bytes, run) = measure(pipeline, &authored.assets, &data, most).await?;
            let run = run.with_elements()?;
            let idle_buckets = sample::division(pipeline, &data, &run).idle_buckets(pipeline);
            let left_out = data.left_out;
            figures = DatasetFigures { bytes, elements: run.n_records, left_out, idle_buckets };
        }
        let (OrderedPipeline { authored: after, mut notes }, unmeasured) =
            self.ordered(&authored, place).await?;
        let AuthoredPipeline { pipeline: after, assets } = after;
        let compiler = PipelineCompiler { assets: &assets, fuse: true };
        let program = compiler.compile(&after).map_err(ProgramFailure::usage)?;
        let steps: Vec<&str> = program.steps().collect();
        notes.sort_by_key(|note| note.pass != "dead_ops");
        if self.json {
            let result = json!({
                "name": pipeline.name(),
                "pipeline": after.operator_names(),
                "not_measured": unmeasured,
                "sampled_elements": figures.elements,
                "files_left_out": figures.left_out.as_json(),
                "idle_buckets": figures.idle_buckets,
                "before": edges(pipeline, &figures.bytes),
                "after": edges(&after, &figures.bytes),
                "passes": passes(&notes, &steps),
                "steps": steps,
                "batch_size": after.batch_size(),
                "output": after.delivered_schema(),
            });
            say!("{result}");
            return Ok(());
        }
        say!("as written:\n{}", table(pipeline, &figures.bytes));
        let is_changed =
            notes.iter().any(|note| !matches!(note.change, PassChange::Refused { .. }));
        match (&unmeasured, is_changed) {
            (None, true) => say!("as it runs:\n{}", table(&after, &figures.bytes)),
            (None, false) => say!("It runs in this order."),
            (Some(_), true) => say!("by declared sizes:\n{}", table(&after, &figures.bytes)),
            (Some(_), false) => say!("By declared sizes it runs in this order."),
        }
        for note in &notes {
            say!("{}", sentence(note));
        }
        for fused in steps.iter().filter(|step| step.contains('+')) {
            say!("fusion: {} run as one step", fused.replace('+', " and "));
        }
        if let Some(why) = figures.idle_buckets.as_ref().or(unmeasured.as_ref()) {
            say!("{why}");
        } else if figures.elements == 0 && has_unknown_sizes(&after) {
            say!(
                "Some sizes are unknown until elements are measured: --data or --sample measures them, \
                 `decode: {{ typical_size: [height, width] }}` states them."
            );
        }
        Ok(())
    }

    /// Whether a dataset is to be measured for the figures.
    fn is_measured(&self) -> bool {
        self.data.is_some() || self.sample.is_some()
    }

    /// The order in which `gristmill run` runs the operators. By declared sizes, with the reason, if the order needs
    /// those of a dataset that is not there; one that was asked for must be.
    async fn ordered(
        &self,
        authored: &AuthoredPipeline,
        place: Result<DatasetLocation, ProgramFailure>,
    ) -> Result<(OrderedPipeline, Option<String>), ProgramFailure> {
        let authored = authored.clone();
        if !self.order.measures(&authored.pipeline) {
            return Ok((authored.ordered_as_declared(), None));
        }
        let ordered = match place {
            Ok(place) => authored.clone().ordered(&place, &self.order).await,
            Err(why) => Err(why),
        };
        match ordered {
            Err(why) if !self.is_measured() => {
                let why = why.line().unwrap_or_default();
                let why = format!("A run measures sizes first, which may change the order: {why}");
                Ok((authored.ordered_as_declared(), Some(why)))
            }
            ordered => Ok((ordered?, None)),
        }
    }
}

/// Figures of a dataset, if one was measured.
#[derive(Default)]
struct DatasetFigures {
    bytes: MeasuredBytes,
    /// Elements that were measured.
    elements: u32,
    left_out: LeftOutFiles,
    idle_buckets: Option<String>,
}

fn has_unknown_sizes(pipeline: &Pipeline) -> bool {
    let factors = pipeline.factors(&MeasuredBytes::new());
    factors.iter().zip(pipeline.stages()).any(|(factor, stage)| {
        factor.basis == FactorBasis::Unknown
            && stage.op.field().is_some()
            && stage.op.batching().is_none()
    })
}

/// An operator, with the data on the edge after it.
struct Edge<'a> {
    stage: &'a PipelineStage,
    schema: &'a ElementSchema,
    factor: InflationFactor,
    /// `worker` or `fetcher`.
    runs_in: &'static str,
}

/// All operators: first those of workers, then those that the fetcher applies.
fn operators_of<'a>(pipeline: &'a Pipeline, measured: &MeasuredBytes) -> Vec<Edge<'a>> {
    let edges = |(((stage, schema), factor), runs_in)| Edge { stage, schema, factor, runs_in };
    let in_workers = pipeline.stages().iter().zip(&pipeline.schemas()[1..]);
    let in_workers = in_workers.zip(pipeline.factors(measured)).zip(std::iter::repeat("worker"));
    let after = pipeline.deliver().stages.iter().zip(&pipeline.finishing_schemas()[1..]);
    let after = after.zip(pipeline.finishing_factors()).zip(std::iter::repeat("fetcher"));
    in_workers.map(edges).chain(after.map(edges)).collect()
}

/// The source and all operators, each with the data on the edge after it.
fn edges(pipeline: &Pipeline, measured: &MeasuredBytes) -> Vec<Value> {
    let mut source = json!({ "op": "source", "schema": pipeline.schemas()[0] });
    if pipeline.source().is_zip() {
        let member = |source: &PipelineSource| {
            let fields: Vec<&String> = source.features.keys().collect();
            json!({ "format": source.format.name(), "repeat": source.repeat, "fields": fields })
        };
        source["zip"] = pipeline.source().members().map(member).collect();
    }
    let ops = operators_of(pipeline, measured).into_iter().map(|edge| {
        let Edge { stage, schema, factor: InflationFactor { inflation_factor, basis }, runs_in } =
            edge;
        let declared = stage.op.declaration();
        json!({
            "op": stage.op.name(),
            "ordinal": stage.ordinal,
            "line": stage.line,
            "keep_position": stage.keep_position,
            "params": stage.op,
            "field": stage.op.field(),
            "scope": declared.scope,
            "cardinality": declared.cardinality,
            "randomness": declared.randomness,
            "runs_in": runs_in,
            "schema": schema,
            "inflation_factor": inflation_factor,
            "basis": basis,
        })
    });
    [source].into_iter().chain(ops).collect()
}

fn passes(notes: &[PassNote], steps: &[&str]) -> Vec<Value> {
    let notes = notes.iter().map(|note| json!(note));
    let fused = steps.iter().filter(|step| step.contains('+'));
    let fused = fused.map(|step| {
        json!({
            "pass": "fusion",
            "op": step,
            "change": "fused",
            "reason": "as one step they decode or process less, and produce the same bytes",
        })
    });
    notes.chain(fused).collect()
}

fn table(pipeline: &Pipeline, measured: &MeasuredBytes) -> String {
    let mut text = String::new();
    let shown = |(name, field): (&String, &FieldSchema)| format!("{name}: {field}");
    let fields =
        |schema: &ElementSchema| schema.fields.iter().map(shown).collect::<Vec<_>>().join(", ");
    let records = &pipeline.schemas()[0];
    // Writing to a string does not fail.
    let _ = if pipeline.source().is_zip() {
        writeln!(text, "  zip of")
    } else {
        writeln!(text, "  {:<28} {:>9}  {}", "source", "", fields(records))
    };
    for source in pipeline.source().members().filter(|_| pipeline.source().is_zip()) {
        let own = records.fields.iter().filter(|(name, _)| source.features.contains_key(*name));
        let own = own.map(shown).collect::<Vec<_>>().join(", ");
        let times =
            if source.repeat == 1 { String::new() } else { format!(", {} times", source.repeat) };
        let name = format!("  {}{times}", source.format.name());
        let _ = writeln!(text, "  {name:<28} {:>9}  {own}", "");
    }
    for Edge { stage, schema, factor, runs_in } in operators_of(pipeline, measured) {
        let mark = match factor.basis {
            FactorBasis::Static | FactorBasis::Unknown => "",
            FactorBasis::Typical => "~",
            FactorBasis::Sampled => "*",
        };
        let factor = factor.inflation_factor.map_or(String::new(), |f| format!("x{f:.2}{mark}"));
        let name = match runs_in {
            "fetcher" => format!("{} (in the fetcher)", stage.op.name()),
            _ => stage.op.name().to_owned(),
        };
        let _ = writeln!(text, "  {name:<28} {factor:>9}  {}", fields(schema));
    }
    text
}

fn sentence(note: &PassNote) -> String {
    let PassNote { pass, op, line, change, reason, .. } = note;
    let place = line.map_or(String::new(), |line| format!(" (line {line})"));
    match change {
        PassChange::Removed => format!("{pass}: `{op}`{place} is removed: {reason}"),
        PassChange::Moved { from, to, changes_results } => {
            let marked = if *changes_results { ", which changes results" } else { "" };
            format!("{pass}: `{op}`{place} moves from place {from} to {to}{marked}: {reason}")
        }
        PassChange::Refused { across } => {
            format!("{pass}: `{op}`{place} stays behind `{across}`: {reason}")
        }
        PassChange::ToFetcher { .. } => {
            format!("{pass}: `{op}`{place} is left to the fetcher: {reason}")
        }
    }
}
