//! Batches that the fetcher finishes equal those that workers would have made.

use super::*;
use crate::{BatchFinisher, PipelineCompiler};
use bytes::BytesMut;
use gristmill_chunk::join_rows;
use gristmill_pipeline::passes::{MeasuredBytes, optimise};

const NORMALISE: &str = "normalise: { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]";

/// A pipeline with an image size that no block or vector size divides.
fn pipeline(ops: &str) -> Pipeline {
    let text = RESNET.replace("size: 24 }", "size: [23, 29] }");
    gristmill_operators::parse(&text.replace("  - batch", &format!("{ops}  - batch"))).unwrap()
}

/// Every batch, with the remainder, of a bench over these records.
fn batches(pipeline: &Pipeline, fused: bool) -> Vec<Bytes> {
    let mut bench = Bench::new(RESNET, &image_records(10));
    bench.program = if fused {
        CompiledPipeline::compile(pipeline).unwrap()
    } else {
        PipelineCompiler { fuse: false, ..PipelineCompiler::default() }.compile(pipeline).unwrap()
    };
    frames(&bench.all()).iter().map(|frame| frame.bytes().clone()).collect()
}

fn finished(pipeline: &Pipeline) -> Vec<Bytes> {
    let pipeline = optimise(pipeline, &MeasuredBytes::new()).pipeline;
    let mut finisher = BatchFinisher::compile(&pipeline).unwrap().unwrap();
    let batches = batches(&pipeline, true);
    let finish = |batch: Bytes| {
        let frame = ChunkFrame::parse(batch, &ChunkLimits::default()).unwrap();
        let made = finisher.finish(&frame, &ChunkLimits::default(), BytesMut::with_capacity);
        made.unwrap().freeze()
    };
    batches.into_iter().map(finish).collect()
}

#[test]
fn finished_batches_equal_those_of_workers() {
    for ops in [
        format!("  - {NORMALISE} }}\n"),
        format!("  - {NORMALISE} }}\n  - layout: {{ to: nchw }}\n"),
        format!("  - {NORMALISE} }}\n  - cast: {{ dtype: f16 }}\n  - layout: {{ to: nchw }}\n"),
        format!("  - {NORMALISE} }}\n  - layout: {{ to: nchw }}\n  - cast: {{ dtype: bf16 }}\n"),
        "  - scale\n  - clip: { min: 0.1, max: 0.7 }\n  - cast: { field: label, dtype: i32 }\n"
            .into(),
        "  - cast: { dtype: f32 }\n  - layout: { to: nchw }\n".into(),
    ] {
        let pipeline = pipeline(&ops);
        assert!(finished(&pipeline) == batches(&pipeline, true), "{ops}");
    }
}

#[test]
fn normalised_laid_out_and_cast_at_once_is_the_same_as_one_by_one() {
    let grey = "  - grayscale: { channels: 1 }\n  - normalise: { mean: 0.4, std: 0.2 }\n";
    for (start, colours) in [
        (grey.to_owned(), "grey"),
        (format!("  - {NORMALISE} }}\n"), "of u8"),
        (format!("  - cast: {{ dtype: f32 }}\n  - {NORMALISE} }}\n"), "of f32"),
    ] {
        for (then, name) in [
            ("  - layout: { to: nchw }\n", "normalise+layout"),
            ("  - cast: { dtype: f16 }\n", "normalise+cast"),
            ("  - cast: { dtype: bf16 }\n  - layout: { to: nchw }\n", "normalise+cast+layout"),
            ("  - layout: { to: nchw }\n  - cast: { dtype: f16 }\n", "normalise+layout+cast"),
            ("  - cast: { dtype: i32 }\n", "normalise"),
        ] {
            let pipeline = pipeline(&format!("{start}{then}"));
            let program = CompiledPipeline::compile(&pipeline).unwrap();
            let steps: Vec<_> = program.steps().collect();
            assert!(steps.contains(&name), "{name} {steps:?}");
            assert!(batches(&pipeline, true) == batches(&pipeline, false), "{name} {colours}");
        }
    }
}

#[test]
fn a_batch_of_another_pipeline_is_refused() {
    let pipeline = pipeline(&format!("  - {NORMALISE} }}\n"));
    let pipeline = optimise(&pipeline, &MeasuredBytes::new()).pipeline;
    let mut finisher = BatchFinisher::compile(&pipeline).unwrap().unwrap();
    // Frames of joined rows, such as joined remainders, can be finished too.
    let frame =
        ChunkFrame::parse(batches(&pipeline, true)[0].clone(), &ChunkLimits::default()).unwrap();
    let joined =
        join_rows(&[(&frame, 1..2)], &ChunkLimits::default(), BytesMut::with_capacity).unwrap();
    let joined = ChunkFrame::parse(joined.freeze(), &ChunkLimits::default()).unwrap();
    assert!(finisher.finish(&joined, &ChunkLimits::default(), BytesMut::with_capacity).is_ok());
    // Frames of another size or without the field are refused.
    let other = Bench::new(RESNET, &image_records(4));
    let other = frames(&other.all()).remove(0);
    assert!(finisher.finish(&other, &ChunkLimits::default(), BytesMut::with_capacity).is_err());
    let without = RESNET.replace("  - batch", "  - drop: { fields: [image] }\n  - batch");
    let without = frames(&Bench::new(&without, &image_records(4)).all()).remove(0);
    assert!(finisher.finish(&without, &ChunkLimits::default(), BytesMut::with_capacity).is_err());
}
