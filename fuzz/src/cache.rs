//! Cache objects: splits resumed from captured elements.

use crate::{one_line, read_everything::reseal};
use bytes::Bytes;
use gristmill_chunk::{Chunk, ChunkLimits};
use gristmill_executor::{CompiledPipeline, ExecError, ResumeInput};
use gristmill_model::ErrorPolicy;
use std::sync::LazyLock;

fn program(yaml: &str) -> CompiledPipeline {
    let pipeline = gristmill_operators::parse(yaml).expect("a target's pipeline is valid");
    CompiledPipeline::compile(&pipeline).expect("a target's pipeline compiles")
}

/// Images of any size with their sizes; some are read by two operators.
static IMAGES: LazyLock<CompiledPipeline> = LazyLock::new(|| {
    program(
        "source: { tfrecord: x, features: { image: { dtype: bytes } } }\n\
         ops: [decode, autocache, flip, random_resized_crop: { size: 8 }, batch: { size: 2 }]",
    )
});

/// Byte strings that are parsed and numbers of any count.
static LINES: LazyLock<CompiledPipeline> = LazyLock::new(|| {
    program(
        "source: { tfrecord: x, features: { line: { dtype: bytes }, any: { dtype: i64, shape: [-1] }, two: { dtype: f32, shape: [2] } } }\n\
         ops: [autocache, parse_json: { field: line, features: { i: { dtype: i64 } } }, truncate: { field: any, length: 4 }, flat_map: { field: two }, duplicate, padded_batch: { size: 3 }]",
    )
});

/// Cache objects, also with corrected checksums, so that damage reaches the code behind them.
pub fn cache(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    // Without a trailer there is nothing to correct.
    let _ = reseal(&mut sealed);
    for bytes in [bytes, &sealed] {
        for program in [&*IMAGES, &*LINES] {
            resume(program, bytes);
        }
    }
}

fn resume(program: &CompiledPipeline, bytes: &[u8]) {
    let (object, on_error) = (Bytes::copy_from_slice(bytes), ErrorPolicy::Skip);
    let input = ResumeInput { point: 0, object, epoch: 3, seed: 1, on_error, ends_at_bad: false };
    let output = match program.resume_split(&mut program.scratch(), &input, &|| false) {
        Ok(output) => output,
        Err(error @ ExecError::Cache { .. }) => return one_line(&error.to_string()),
        Err(error) => panic!("it is the object's fault: {error}"),
    };
    for skipped in &output.skipped {
        assert!(!skipped.reason.contains(char::is_control), "{:?}", skipped.reason);
        // Caught, but still a bug of ours.
        let panicked = skipped.reason.starts_with("the operator panicked");
        assert!(!panicked, "{}: {}", skipped.op, skipped.reason);
    }
    let chunk = Chunk::open(Bytes::from(output.object), &ChunkLimits::default());
    let chunk = chunk.expect("what was written can be read");
    let rows: u64 = chunk.frames().iter().map(|frame| u64::from(frame.rows)).sum();
    assert_eq!(rows, u64::from(output.rows));
}
