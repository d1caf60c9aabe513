//! Tests the operator in a whole pipeline: parsed, compiled, run, and refused if invalid.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use bytes::Bytes;
use gristmill_chunk::{Chunk, ChunkLimits};
use gristmill_executor::{CompiledPipeline, ExecError, InputRange, SplitInput};
use gristmill_kernel::{
    Kernel, KernelOutput, KernelScratch, OperatorDraws, OutputSize, TransformKernel, ValueView,
};
use gristmill_model::{Fingerprint, RecordKey};
use gristmill_pipeline::{
    KernelInput, MappingReader, Operator, OperatorDeclaration, OperatorDefinition, Parameter,
    ParameterKind, Pipeline, PipelineError, SchemaFlow, TouchedFields, table::required,
};
use gristmill_sources::{IndexBuilder, jsonl::Jsonl};
use gristmill_user_operator::operators;

const SIDE: usize = 6;

fn yaml(op: &str) -> String {
    format!(
        "source: {{ jsonl: x, features: {{ image: {{ dtype: f32, shape: [{SIDE}, {SIDE}, 2] }} }} }}\n\
         ops:\n  - {op}\n  - batch: {{ size: 4 }}\n"
    )
}

fn parse(op: &str) -> Result<Pipeline, String> {
    Pipeline::parse(&yaml(op), &operators().unwrap()).map_err(|error| error.to_string())
}

fn run(program: &CompiledPipeline, seed: u64) -> Vec<Vec<f32>> {
    try_run(program, seed).unwrap()
}

/// Runs four records of ones; returns the images.
fn try_run(program: &CompiledPipeline, seed: u64) -> Result<Vec<Vec<f32>>, ExecError> {
    let line = format!("{{\"image\": {:?}}}\n", vec![1.0; SIDE * SIDE * 2]);
    let file = Bytes::from(line.repeat(4));
    let mut builder = IndexBuilder::new(&Jsonl.into()).unwrap();
    builder.push(&file).unwrap();
    let index = builder.finish().unwrap();
    let first = RecordKey { file: 0, record: 0 };
    let part = InputRange { first, n_records: 4, data: file, index: &index };
    let input = SplitInput { seed, ..SplitInput::whole(part) };
    let output = program.run_split(&mut program.scratch(), &input, &|| false)?;
    let chunk = Chunk::open(Bytes::from(output.object), &ChunkLimits::default()).unwrap();
    let frame = chunk.tensors(0).unwrap();
    let values = frame.get("image").unwrap().values();
    let values: Vec<f32> = values.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
    Ok(values.chunks(SIDE * SIDE * 2).map(<[f32]>::to_vec).collect())
}

fn compile(pipeline: &Pipeline) -> Result<CompiledPipeline, String> {
    CompiledPipeline::compile(pipeline).map_err(|error| error.to_string())
}

#[test]
fn squares_are_cut_by_seed_and_record() {
    let pipeline = parse("user_operator.cutout: { size: 3 }").unwrap();
    let program = compile(&pipeline).unwrap();
    assert_eq!(program.steps().collect::<Vec<_>>(), ["user_operator.cutout"]);
    let images = run(&program, 7);
    for image in &images {
        let pixels: Vec<usize> = (0..SIDE * SIDE).filter(|i| image[i * 2] == 0.0).collect();
        // Both channels are blanked alike; at a corner two by two pixels of the square remain.
        assert!((0..SIDE * SIDE).all(|i| image[i * 2] == image[i * 2 + 1]));
        let columns = pixels.iter().map(|i| i % SIDE).max().unwrap() - pixels[0] % SIDE + 1;
        let rows = pixels[pixels.len() - 1] / SIDE - pixels[0] / SIDE + 1;
        assert_eq!(pixels.len(), rows * columns);
        assert!((2..=3).contains(&rows) && (2..=3).contains(&columns), "{rows} x {columns}");
    }
    assert!(images.iter().any(|image| *image != images[0]));
    assert_eq!(run(&program, 7), images);
    assert_ne!(run(&program, 8), images);
    let all = compile(&parse("user_operator.cutout: { size: 12, holes: 2 }").unwrap()).unwrap();
    assert!(run(&all, 7).iter().flatten().all(|value| *value == 0.0));
}

#[test]
fn a_job_keeps_what_only_workers_must_have() {
    let pipeline = parse("user_operator.cutout: { size: 3, into: cut }").unwrap();
    let json = pipeline.canonical_json();
    // The rest of the system parses it without the operator.
    let planned = gristmill_operators::from_canonical(&json).unwrap();
    assert_eq!(planned.canonical_json(), json);
    assert_eq!(planned.output_schema(), pipeline.output_schema());
    let dataset = Fingerprint([1; 32]);
    assert_eq!(planned.fingerprint(&dataset, "x"), pipeline.fingerprint(&dataset, "x"));
    assert_eq!(
        planned.prefix_fingerprints(&dataset, "x", 1, 1),
        pipeline.prefix_fingerprints(&dataset, "x", 1, 1)
    );
    let other = parse("user_operator.cutout: { size: 4, into: cut }").unwrap();
    assert_ne!(planned.fingerprint(&dataset, "x"), other.fingerprint(&dataset, "x"));
    // A worker with the operator compiles it; one without reports that it is missing.
    let operators = operators().unwrap();
    compile(&Pipeline::from_canonical(&json, &operators).unwrap()).unwrap();
    let error = CompiledPipeline::compile(&planned).err().unwrap().to_string();
    assert!(
        error.starts_with("`user_operator.cutout` version 1 is an operator of a user"),
        "{error}"
    );
    for (from, to, why) in [
        (
            "cutout\",\"version\":1",
            "cutout\",\"version\":2",
            "is needed in version 2, this program has 1",
        ),
        ("\"shape\":[6,6,2]", "\"shape\":[6,6,3]", "makes f32 [6, 6, 2] in this program"),
    ] {
        let (source, ops) = json.split_once("\"ops\"").unwrap();
        assert!(ops.contains(from), "{ops}");
        let changed = format!("{source}\"ops\"{}", ops.replace(from, to));
        let error =
            compile(&Pipeline::from_canonical(&changed, &operators).unwrap()).err().unwrap();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn mistakes_are_said_with_their_line() {
    for (op, why) in [
        ("user_operator.cutout", "needs `size`"),
        ("user_operator.cutout: { sise: 3 }", "did you mean `size`"),
        ("user_operator.cutout: { size: 0 }", "a whole number from 1"),
        ("user_operator.cutout: { size: -1 }", "a whole number from 1"),
        ("user_operator.cutout: { size: 1, field: picture }", "the element has `image`"),
        ("user_operator.cutaut: { size: 1 }", "did you mean `user_operator.cutout`"),
        ("acme.other: { size: 1 }", "the workers that were built with it"),
    ] {
        let error = parse(op).unwrap_err();
        assert!(error.starts_with("line 3: ") && error.contains(why), "{op}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
    let error = gristmill_operators::parse(&yaml("user_operator.cutout: { size: 1 }")).unwrap_err();
    assert!(error.message.contains("the workers that were built with it"), "{error}");
}

/// Breaks the promise that its parameter names.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
struct Broken(String, String);

impl OperatorDefinition for Broken {
    const DECLARATION: OperatorDeclaration = OperatorDeclaration::new("user_operator.broken", 1);

    const PARAMETERS: &'static [Parameter] =
        &[required("how", ParameterKind::Text, "How it is broken.")];

    fn parse(params: &mut MappingReader<'_>) -> Result<Self, PipelineError> {
        let how = params.require("how")?;
        Ok(Broken(params.field()?, params.text("how", how)?))
    }
}

impl Operator for Broken {
    fn infer(&self, flow: &mut SchemaFlow) -> Result<(), String> {
        let same = flow.field("user_operator.broken", &self.0)?.clone();
        flow.write("user_operator.broken", &self.0, same);
        Ok(())
    }

    fn fields(&self) -> TouchedFields<'_> {
        TouchedFields::Replaces(&self.0)
    }

    fn kernel(&self, _: &KernelInput<'_>) -> Result<Kernel, String> {
        Ok(Kernel::transform(BrokenKernel(self.1.clone())))
    }
}

struct BrokenKernel(String);

impl TransformKernel for BrokenKernel {
    fn run(
        &self,
        input: ValueView<'_>,
        output: KernelOutput<'_>,
        _: &mut KernelScratch,
        draw: &mut OperatorDraws,
    ) -> Result<OutputSize, String> {
        let (bytes, size) = (input.bytes.len(), [0, 0]);
        match self.0.as_str() {
            "silent" => return Ok(OutputSize { bytes: 0, size }),
            "boastful" => return Ok(OutputSize { bytes, size }),
            "short" => {
                output.take(3)?;
                return Ok(OutputSize { bytes: 3, size });
            }
            "panics" => panic!("on\npurpose"),
            // Declared deterministic: draws are the same for every record and seed.
            _ => {
                let value = (draw.unit() as f32).to_le_bytes();
                let made = output.take(bytes)?;
                made.as_chunks_mut().0.iter_mut().for_each(|to| *to = value);
            }
        }
        Ok(OutputSize { bytes, size })
    }
}

#[test]
fn a_broken_operator_costs_its_records_and_no_more() {
    let operators = gristmill_operators::registry().clone().with::<Broken>().unwrap();
    assert!(operators.clone().with::<Broken>().is_err());
    let program = |how: &str| {
        let yaml = yaml(&format!("user_operator.broken: {{ how: {how} }}").replace("} }", "}"));
        CompiledPipeline::compile(&Pipeline::parse(&yaml, &operators).unwrap()).unwrap()
    };
    for (how, why) in [
        ("silent", "the operator made 0 bytes"),
        // Straight into its batch, and to another operator.
        ("short }", "a row of 288 bytes was given 3"),
        ("short }\n  - cast: { dtype: bf16 }\n  - scale: { factor: 2", "the operator made 3 bytes"),
        // It claims more output than it made.
        (
            "boastful }\n  - cast: { dtype: bf16 }\n  - scale: { factor: 2",
            "it made 288 bytes, not 0",
        ),
        ("panics", "the operator panicked: on purpose"),
    ] {
        let text = try_run(&program(how), 1).unwrap_err().to_string();
        assert!(text.contains(why) && text.contains("user_operator.broken"), "{how}: {text}");
    }
    let draws = program("draws");
    let images = run(&draws, 1);
    assert!(images.iter().all(|image| *image == images[0]));
    assert_eq!(run(&draws, 2), images);
}
