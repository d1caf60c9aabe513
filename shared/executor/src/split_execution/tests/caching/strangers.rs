//! Objects that differ from the captured one: damaged, of another pipeline, or forged.

use super::*;

fn images() -> Cached {
    let ops = "ops:\n  - decode\n  - autocache\n  - resize: { size: 4 }\n  - batch: { size: 4 }\n";
    Cached::new(&format!("{IMAGES}{ops}"), &picture_records())
}

#[track_caller]
fn refused(cached: &Cached, object: &[u8], why: &str) {
    match cached.resume(0, object, 1) {
        Err(ExecError::Cache { point, reason }) => {
            assert_eq!(point, "`autocache` 0, after `decode`");
            assert!(reason.contains(why) && !reason.contains('\n'), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn every_changed_bit_is_noticed(at in any::<prop::sample::Index>(), bit in 0..8_u32) {
        let cached = images();
        let mut object = cached.run(1, Some(0), false).cached.unwrap();
        *at.get_mut(&mut object) ^= 1 << bit;
        refused(&cached, &object, "");
    }

    #[test]
    fn every_missing_byte_is_noticed(at in any::<prop::sample::Index>()) {
        let cached = images();
        let object = cached.run(1, Some(0), false).cached.unwrap();
        refused(&cached, &object[..at.index(object.len())], "");
    }
}

#[test]
fn objects_of_other_pipelines_and_places_are_refused() {
    let cached = images();
    // Its remainder does not list records, and its batches are not elements of this cache point.
    refused(&cached, &cached.run(1, None, false).object, "list of skipped records is invalid");
    let batches = Cached::new(
        &format!("{IMAGES}ops:\n  - decode\n  - resize: {{ size: 4 }}\n  - batch: {{ size: 1 }}\n"),
        &image_records(3),
    );
    refused(&cached, &batches.run(1, None, false).object, "it belongs to another pipeline");
    let ops = "ops:\n  - decode\n  - resize: { size: 5 }\n  - autocache\n  - resize: { size: 4 }\n  - batch: { size: 4 }\n";
    let other = Cached::new(&format!("{IMAGES}{ops}"), &image_records(3));
    let object = other.run(1, Some(0), false).cached.unwrap();
    refused(&cached, &object, "it belongs to another pipeline");
    refused(&cached, b"", "");
}

/// One element as the cache point in [`images`] would store it, and a refused record. Fields hold
/// the values to forge.
struct Forged {
    pixels: usize,
    size: [u32; 2],
    records: [u32; 2],
    refused: [u32; 2],
    reason: &'static [u8],
}

const RIGHT: Forged =
    Forged { pixels: 4 * 5 * 3, size: [4, 5], records: [0, 1], refused: [2, 3], reason: b"bad" };

impl Forged {
    fn object(&self) -> Vec<u8> {
        let schema = gristmill_chunk::FrameSchema::new(vec![
            TensorSpec::ragged("image", TensorDType::U8, []),
            TensorSpec::fixed("label", TensorDType::I64, []),
            TensorSpec::fixed("__key__", TensorDType::U64, []),
            TensorSpec::fixed("__copy__", TensorDType::U32, []),
            TensorSpec::fixed("__record__", TensorDType::U32, []),
            TensorSpec::fixed("__repeat__", TensorDType::U32, []),
            TensorSpec::fixed("__sizes__", TensorDType::U32, [1, 2]),
        ]);
        let mut writer = ChunkWriter::new(FrameCodec::Stored);
        writer.begin_frame(&schema.unwrap(), 2).unwrap();
        for (row, record) in self.records.iter().enumerate() {
            writer.push_ragged(0, &vec![7; self.pixels]).unwrap();
            for tensor in 1..7 {
                writer.row_mut(tensor, row).unwrap().fill(0);
            }
            writer.row_mut(4, row).unwrap().copy_from_slice(&record.to_le_bytes());
            let sizes = self.size.map(u32::to_le_bytes);
            writer.row_mut(6, row).unwrap().copy_from_slice(sizes.as_flattened());
        }
        writer.end_frame(ChunkFrameKind::Batch, 2).unwrap();
        let schema = gristmill_chunk::FrameSchema::new(vec![
            TensorSpec::fixed("__key__", TensorDType::U64, []),
            TensorSpec::fixed("__record__", TensorDType::U32, []),
            TensorSpec::ragged("__op__", TensorDType::U8, []),
            TensorSpec::ragged("__reason__", TensorDType::U8, []),
        ]);
        writer.begin_frame(&schema.unwrap(), 2).unwrap();
        for (row, record) in self.refused.iter().enumerate() {
            writer.row_mut(0, row).unwrap().fill(0);
            writer.row_mut(1, row).unwrap().copy_from_slice(&record.to_le_bytes());
            writer.push_ragged(2, b"decode").unwrap();
            writer.push_ragged(3, self.reason).unwrap();
        }
        writer.end_frame(ChunkFrameKind::Remainder, 2).unwrap();
        writer.finish().unwrap()
    }
}

#[test]
fn forged_objects_with_valid_checksums_are_refused() {
    let cached = images();
    let right = cached.resume(0, &RIGHT.object(), 1).unwrap();
    assert_eq!((right.rows, right.skipped.len()), (2, 2));
    let sizes = "an image of 4 x 6 of u8 [?, ?, 3] has others";
    refused(&cached, &Forged { size: [4, 6], ..RIGHT }.object(), sizes);
    refused(&cached, &Forged { size: [u32::MAX, u32::MAX], ..RIGHT }.object(), "has others");
    refused(&cached, &Forged { size: [0, 5], pixels: 0, ..RIGHT }.object(), "has others");
    refused(&cached, &Forged { records: [1, 0], ..RIGHT }.object(), "not in order");
    let list = "list of skipped records is invalid";
    refused(&cached, &Forged { refused: [3, 2], ..RIGHT }.object(), list);
    refused(&cached, &Forged { reason: b"\xff", ..RIGHT }.object(), list);
}

#[test]
fn elements_too_large_for_an_object_name_the_cache_point() {
    let cached = images();
    let program = &cached.bench.program;
    let mut scratch = program.scratch();
    let limits = ChunkLimits { object_bytes: 20_000, ..ChunkLimits::default() };
    scratch.cache = ChunkWriter::with_limits(FrameCodec::Stored, limits);
    let input = SplitInput { put: Some(0), ..cached.bench.input(0, 7) };
    let error = program.run_split(&mut scratch, &input, &|| false).unwrap_err().to_string();
    assert!(
        error.starts_with("`autocache` 0, after `decode`: object size in bytes is "),
        "{error}"
    );
    // The same scratch still works without the cache.
    let input = SplitInput { put: None, ..input };
    let output = program.run_split(&mut scratch, &input, &|| false).unwrap();
    assert_eq!(output.object, cached.run(1, None, false).object);
}
