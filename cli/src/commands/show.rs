//! `gristmill show`: the first elements of a dataset after each operator of a pipeline.

use self::values::ShownPicture;
use crate::{
    output::{say, say_all},
    read_pipeline, sample,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::BytesMut;
use gristmill_chunk::{Chunk, ChunkFrame, ChunkLimits};
use gristmill_client::{
    AuthoredPipeline, ProgramFailure, folder_of,
    sample::{SampledDraws, first_files, run_from},
};
use gristmill_executor::{
    BatchFinisher, CompiledPipeline, IMAGE_SIZES, PipelineCompiler, REFUSED_OP, SplitOutput,
    has_image_size,
};
use gristmill_pipeline::{ElementSchema, MAX_OPS, Pipeline, PipelineStage};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fmt::Write, fs, path::PathBuf};
use values::ShownValue;

mod values;

/// Show the first elements of a dataset after each operator
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gristmill show examples/resnet50.yaml -n 2\n  gristmill show p.yaml --data shards --html p.html\n  gristmill show p.yaml --json"
)]
pub struct ShowArgs {
    /// Pipeline file (YAML)
    pub pipeline: PathBuf,
    /// Dataset: a directory, file or glob, or s3://bucket/prefix; by default the pipeline's
    #[arg(long)]
    pub data: Option<String>,
    /// Records to run from the start of the dataset's first file
    #[arg(short = 'n', long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub records: u32,
    /// Seed of random operators, which draw as in epoch 0
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Write a page with pictures to this file; `-` writes it to standard output
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub html: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// An operator, or the source, and what comes out of it.
struct ShownStep {
    op: String,
    line: Option<u32>,
    /// One line beside the name, such as the size of a whole batch.
    note: String,
    schema: ElementSchema,
    /// Elements, or rows of a batch.
    elements: Vec<Vec<ShownValue>>,
}

impl ShowArgs {
    /// Runs the command.
    pub async fn run(self) -> Result<(), ProgramFailure> {
        let AuthoredPipeline { pipeline, assets } = read_pipeline(&self.pipeline)?;
        let observed = observed(&pipeline)?;
        let compiler = PipelineCompiler { assets: &assets, fuse: true };
        let program = compiler.compile(&observed).map_err(ProgramFailure::usage)?;
        let dir = folder_of(&self.pipeline);
        let data =
            sample::listed(&pipeline, sample::place(&pipeline, self.data.as_deref(), dir)?).await?;
        let files = first_files(&pipeline, &data, self.records).await?;
        let run = |put| {
            let draws = SampledDraws { most: self.records, seed: self.seed, put };
            run_from(&program, &observed, &files, draws).map(|sample| sample.output)
        };
        let mut steps = Vec::new();
        for (point, observed_point) in (0..).zip(observed.cache_points()) {
            if observed_point.whole {
                break;
            }
            let before = observed_point.stage.checked_sub(1).map(|at| &observed.stages()[at]);
            let schema = &observed.schemas()[observed_point.stage];
            let output = run(Some(point))?;
            steps.push(captured(&pipeline, before, schema, &output)?);
        }
        let output = run(None)?;
        let batch = first_batch(&program, &output.object)?;
        steps.push(batched(&pipeline, batch.as_ref()));
        steps.extend(delivered(&pipeline, batch.as_ref())?);
        let skipped = skipped(&output);
        let title = self.pipeline.display().to_string();
        match &self.html {
            Some(path) => {
                let page = render(&title, &steps, &skipped);
                if path.as_os_str() == "-" {
                    say_all!("{page}");
                } else {
                    let written = fs::write(path, page);
                    written.map_err(|error| {
                        ProgramFailure::failed(format!("{}: {error}", path.display()))
                    })?;
                    say!("{}", path.display());
                }
            }
            None if self.json => {
                let steps: Vec<Value> = steps.iter().map(ShownStep::as_json).collect();
                say!("{}", json!({ "pipeline": title, "steps": steps, "skipped": skipped }));
            }
            None => say_all!("{}", text(&steps, &skipped)),
        }
        Ok(())
    }
}

/// The pipeline with a cache point after the source and after each operator on elements: what passes there can be
/// captured. Cache points of the author are left out.
fn observed(pipeline: &Pipeline) -> Result<Pipeline, ProgramFailure> {
    let failed = |error: &dyn std::fmt::Display| ProgramFailure::usage(error.to_string());
    let mut canonical: Value =
        serde_json::from_str(&pipeline.canonical_json()).map_err(|error| failed(&error))?;
    let written = canonical["ops"].take();
    let written = written.as_array().into_iter().flatten();
    // Operators on the dataset choose records before any is read.
    let is_late = |stage: &PipelineStage| stage.op.dataset().is_none();
    let stages = pipeline.stages();
    let first = stages.iter().rposition(|stage| !is_late(stage)).map_or(0, |at| at + 1);
    let taken: BTreeSet<u32> = stages.iter().map(|stage| stage.ordinal).collect();
    let mut free = (0..=MAX_OPS as u32).rev().filter(|ordinal| !taken.contains(ordinal));
    let mut ops = Vec::new();
    for (at, (op, stage)) in written.zip(stages).enumerate() {
        if stage.op.cache_point().is_some() {
            continue;
        }
        if at >= first && at <= pipeline.batch_stage() {
            ops.push(json!({
                "op": "autocache", "version": 1, "ordinal": free.next(),
                "keep_position": false, "params": { "reuse_random": true },
            }));
        }
        ops.push(op.clone());
    }
    canonical["ops"] = ops.into();
    gristmill_operators::from_canonical(&canonical.to_string()).map_err(|error| failed(&error))
}

/// Elements that were captured behind `before`, of which each frame holds some.
fn captured(
    pipeline: &Pipeline,
    before: Option<&PipelineStage>,
    schema: &ElementSchema,
    output: &SplitOutput,
) -> Result<ShownStep, ProgramFailure> {
    let mut elements = Vec::new();
    for object in output.cached_before.iter().chain(&output.cached) {
        for frame in frames(object)? {
            if frame.schema().index_of(REFUSED_OP).is_none() {
                elements.extend(rows(&frame, schema));
            }
        }
    }
    let before = before.filter(|stage| stage.op.dataset().is_none());
    // Operators on the dataset choose records, and so are a part of the source.
    let dataset = pipeline.stages().iter().filter(|stage| stage.op.dataset().is_some());
    let dataset: Vec<&str> = dataset.map(|stage| stage.op.name()).collect();
    let is_chosen = before.is_none() && !dataset.is_empty();
    let author = |stage: &PipelineStage| {
        pipeline.stages().iter().find(|own| own.ordinal == stage.ordinal)?.line
    };
    Ok(ShownStep {
        op: before.map_or("source".to_owned(), |stage| stage.op.name().to_owned()),
        line: before.and_then(author),
        note: if is_chosen { format!("without {}", dataset.join(", ")) } else { String::new() },
        schema: schema.clone(),
        elements,
    })
}

/// The frames of a chunk object.
fn frames(object: &[u8]) -> Result<Vec<ChunkFrame>, ProgramFailure> {
    if object.is_empty() {
        return Ok(Vec::new());
    }
    let failed = |error| ProgramFailure::failed(format!("what was captured: {error}"));
    let chunk = Chunk::open(object.to_vec().into(), &ChunkLimits::default()).map_err(failed)?;
    (0..chunk.frames().len()).map(|i| chunk.tensors(i).map_err(failed)).collect()
}

/// The rows of a frame, each with the fields of `schema`.
fn rows(frame: &ChunkFrame, schema: &ElementSchema) -> Vec<Vec<ShownValue>> {
    let of_row = |row: usize| {
        let sizes = frame.get(IMAGE_SIZES).and_then(|tensor| tensor.row(row)).unwrap_or_default();
        let mut sizes = sizes.as_chunks::<4>().0.iter().map(|n| u32::from_le_bytes(*n) as usize);
        let fields = schema.fields.iter().filter(|(name, _)| !name.starts_with("__"));
        let shown = fields.filter_map(|field| {
            let side = has_image_size(field.1).then(|| [sizes.next(), sizes.next()]);
            let tensor = frame.get(field.0)?;
            let bytes = tensor.row(row)?;
            let size = match side {
                Some([Some(height), Some(width)]) => Some([height, width]),
                _ => None,
            };
            Some(ShownValue::new(field, tensor.spec(), bytes, size))
        });
        shown.collect()
    };
    (0..frame.rows()).map(of_row).collect()
}

/// The first batch, padded as trainers get it.
fn first_batch(
    program: &CompiledPipeline,
    object: &[u8],
) -> Result<Option<ChunkFrame>, ProgramFailure> {
    let failed = |error| ProgramFailure::failed(format!("the first batch: {error}"));
    let Some(frame) = frames(object)?.into_iter().next() else { return Ok(None) };
    if !program.pads() || !frame.schema().has_ragged() {
        return Ok(Some(frame));
    }
    let limits = ChunkLimits::default();
    let padded = program.pad(&frame, &limits, BytesMut::with_capacity).map_err(failed)?;
    ChunkFrame::parse(padded.freeze(), &limits).map(Some).map_err(failed)
}

/// The first batch as workers make it.
fn batched(pipeline: &Pipeline, batch: Option<&ChunkFrame>) -> ShownStep {
    let stage = &pipeline.stages()[pipeline.batch_stage()];
    let schema = pipeline.output_schema();
    let rows = batch.map(|frame| rows(frame, schema)).unwrap_or_default();
    ShownStep {
        op: stage.op.name().to_owned(),
        line: stage.line,
        note: format!("{} of the {} rows of a batch", rows.len(), pipeline.batch_size()),
        schema: schema.clone(),
        elements: rows,
    }
}

/// The first batch as trainers get it, if the fetcher changes it.
fn delivered(
    pipeline: &Pipeline,
    batch: Option<&ChunkFrame>,
) -> Result<Option<ShownStep>, ProgramFailure> {
    let Some(mut finisher) = BatchFinisher::compile(pipeline).map_err(ProgramFailure::usage)?
    else {
        return Ok(None);
    };
    let (schema, mut elements) = (pipeline.delivered_schema(), Vec::new());
    if let Some(frame) = batch {
        let failed = |error| ProgramFailure::failed(format!("delivery: {error}"));
        let limits = ChunkLimits::default();
        let made = finisher.finish(frame, &limits, BytesMut::with_capacity).map_err(failed)?;
        elements = rows(&ChunkFrame::parse(made.freeze(), &limits).map_err(failed)?, schema);
    }
    let stages = &pipeline.deliver().stages;
    let names: Vec<&str> = stages.iter().map(|stage| stage.op.name()).collect();
    Ok(Some(ShownStep {
        op: names.join(" and "),
        line: stages.first().and_then(|stage| stage.line),
        note: "in the fetcher".to_owned(),
        schema: schema.clone(),
        elements,
    }))
}

/// Records that an operator refused, a sentence each.
fn skipped(output: &SplitOutput) -> Vec<String> {
    let sentence = |record: &gristmill_model::SkippedRecord| {
        format!("record {} is refused by `{}`: {}", record.key, record.op, record.reason)
    };
    output.skipped.iter().map(sentence).collect()
}

impl ShownStep {
    /// The name of the operator, its place and the note.
    fn title(&self) -> String {
        let place = self.line.map_or(String::new(), |line| format!(" (line {line})"));
        let note = if self.note.is_empty() { String::new() } else { format!(": {}", self.note) };
        format!("{}{place}{note}", self.op)
    }

    fn as_json(&self) -> Value {
        let element = |values: &Vec<ShownValue>| -> Value {
            values.iter().map(|value| (value.name.clone(), value.as_json())).collect()
        };
        let elements: Vec<Value> = self.elements.iter().map(element).collect();
        json!({
            "op": self.op, "line": self.line, "note": self.note, "schema": self.schema,
            "elements": elements,
        })
    }
}

/// One line for each value; columns are aligned within a step.
fn text(steps: &[ShownStep], skipped: &[String]) -> String {
    let mut out = String::new();
    for step in steps {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{}", step.title());
        let values = || step.elements.iter().flatten();
        let names = values().map(|value| value.name.len()).max().unwrap_or_default();
        let kinds = values().map(|value| value.kind().len()).max().unwrap_or_default();
        for (number, element) in step.elements.iter().enumerate() {
            for (at, value) in element.iter().enumerate() {
                let number = if at == 0 { number.to_string() } else { String::new() };
                let (name, kind) = (&value.name, value.kind());
                let _ = writeln!(
                    out,
                    "  {number:>2}  {name:<names$}  {kind:<kinds$}  {}",
                    value.summary()
                );
            }
        }
        if step.elements.is_empty() {
            let _ = writeln!(out, "      no element of these records comes this far");
        }
    }
    for sentence in skipped {
        let _ = writeln!(out, "{sentence}");
    }
    out
}

const STYLE: &str = "
.gristmill-show { font: 14px system-ui, sans-serif; color: #222; background: #fff; padding: 8px }
.gristmill-show h3 { margin: 16px 0 4px; font-size: 15px }
.gristmill-show td { padding: 2px 12px 2px 0; vertical-align: top; text-align: left }
.gristmill-show code { font-size: 12px; color: #555 }
.gristmill-show img { display: block; image-rendering: pixelated; max-width: 256px; border: 1px solid #ddd }
";

/// A page, or a part of one: it is valid as both.
fn render(title: &str, steps: &[ShownStep], skipped: &[String]) -> String {
    // Writing to a string does not fail.
    let mut out = String::new();
    let _ =
        write!(out, "<meta charset=\"utf-8\"><div class=\"gristmill-show\"><style>{STYLE}</style>");
    let _ = write!(out, "<h2>{}</h2>", escaped(title));
    for step in steps {
        let _ = write!(out, "<h3>{}</h3><table>", escaped(&step.title()));
        let names = step.elements.first().into_iter().flatten();
        let names: String =
            names.map(|value| format!("<td><code>{}</code></td>", escaped(&value.name))).collect();
        let _ = write!(out, "<tr><td></td>{names}</tr>");
        for (number, element) in step.elements.iter().enumerate() {
            let _ = write!(out, "<tr><td>{number}</td>");
            for value in element {
                let picture = value.picture().and_then(|picture| image(&picture));
                let (kind, summary) = (escaped(&value.kind()), escaped(&value.summary()));
                let _ = write!(
                    out,
                    "<td>{}<code>{kind}</code><br>{summary}</td>",
                    picture.unwrap_or_default()
                );
            }
            out.push_str("</tr>");
        }
        out.push_str("</table>");
        if step.elements.is_empty() {
            out.push_str("<p>no element of these records comes this far</p>");
        }
    }
    for sentence in skipped {
        let _ = write!(out, "<p>{}</p>", escaped(sentence));
    }
    out.push_str("</div>\n");
    out
}

/// An `img` that holds its PNG.
fn image(picture: &ShownPicture) -> Option<String> {
    let mut png = Vec::new();
    // In range: sides of pictures are small.
    let mut encoder = png::Encoder::new(&mut png, picture.width as u32, picture.height as u32);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_color(if picture.channels == 3 {
        png::ColorType::Rgb
    } else {
        png::ColorType::Grayscale
    });
    encoder.write_header().ok()?.write_image_data(&picture.pixels).ok()?;
    Some(format!("<img alt=\"\" src=\"data:image/png;base64,{}\">", STANDARD.encode(png)))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
