//! Objects read back as written, also by the `safetensors` crate.

#![allow(clippy::unwrap_used, reason = "clippy does not see that functions tests share are tests")]

use bytes::{Bytes, BytesMut};
use gristmill_chunk::*;
use proptest::prelude::*;
use safetensors::SafeTensors;

fn schema() -> FrameSchema {
    FrameSchema::new(vec![
        TensorSpec::fixed("image", TensorDType::U8, [2, 3]),
        TensorSpec::fixed("__key__", TensorDType::U64, []),
        TensorSpec::fixed("box", TensorDType::F32, [4]),
        TensorSpec::fixed("a", TensorDType::BF16, [1]),
    ])
    .unwrap()
}

fn fill(writer: &mut ChunkWriter, row: usize, seed: u8) {
    for (tensor, len) in [(0, 6), (1, 8), (2, 16), (3, 2)] {
        let bytes = writer.row_mut(tensor, row).unwrap();
        assert_eq!(bytes.len(), len);
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = seed.wrapping_mul(31).wrapping_add((tensor * 7 + i) as u8);
        }
    }
}

#[test]
fn rows_written_in_place_read_back() {
    for codec in [FrameCodec::Stored, FrameCodec::Zstd { level: 1 }] {
        let mut writer = ChunkWriter::new(codec);
        writer.begin_frame(&schema(), 4).unwrap();
        (0..4).for_each(|row| fill(&mut writer, row, row as u8));
        writer.end_frame(ChunkFrameKind::Batch, 4).unwrap();
        writer.begin_frame(&schema(), 4).unwrap();
        (0..2).for_each(|row| fill(&mut writer, row, 4 + row as u8));
        writer.end_frame(ChunkFrameKind::Remainder, 2).unwrap();
        let object = Bytes::from(writer.finish().unwrap());
        let chunk = Chunk::open(object, &ChunkLimits::default()).unwrap();
        assert_eq!(chunk.frames().len(), 2);
        assert_eq!(chunk.remainder(), Some(1));
        for (i, rows) in [(0, 4), (1, 2)] {
            let bytes = chunk.frame(i).unwrap();
            let peer = SafeTensors::deserialize(&bytes).unwrap();
            let frame = chunk.tensors(i).unwrap();
            assert_eq!(peer.len(), 4);
            for view in frame.tensors() {
                let theirs = peer.tensor(&view.spec().name).unwrap();
                assert_eq!(theirs.data(), view.values());
                assert_eq!(theirs.shape(), view.shape());
                assert_eq!(theirs.shape()[0], rows);
                assert_eq!(format!("{:?}", theirs.dtype()), view.spec().dtype.name());
            }
        }
    }
}

/// A schema with every kind of tensor, and records to fill it with.
fn mixed() -> FrameSchema {
    FrameSchema::new(vec![
        TensorSpec::fixed("image", TensorDType::U8, [5]),
        TensorSpec::ragged("text", TensorDType::U8, []),
        TensorSpec::fixed("key", TensorDType::U64, []),
        TensorSpec::ragged("boxes", TensorDType::F32, [4]),
        TensorSpec::fixed("weight", TensorDType::F16, [3]),
    ])
    .unwrap()
}

/// The bytes of each tensor of one record, in the order of [`mixed`].
type Record = [Vec<u8>; 5];

fn record(seed: u64) -> Record {
    let text = (seed * 7 % 11) as usize;
    let boxes = (seed * 5 % 3) as usize;
    let bytes = |tensor: u64, len: usize| {
        (0..len as u64).map(|i| (seed * 131 + tensor * 31 + i * 7) as u8).collect()
    };
    [bytes(0, 5), bytes(1, text), bytes(2, 8), bytes(3, boxes * 16), bytes(4, 6)]
}

fn write_row(writer: &mut ChunkWriter, schema: &FrameSchema, row: usize, record: &Record) {
    for (tensor, bytes) in record.iter().enumerate() {
        if schema.tensors()[tensor].ragged {
            writer.push_ragged(tensor, bytes).unwrap()
        } else {
            writer.row_mut(tensor, row).unwrap().copy_from_slice(bytes)
        }
    }
}

/// One frame of these records, begun with room for `planned` rows.
fn frame_of(records: &[Record], planned: usize) -> ChunkFrame {
    let (schema, mut writer) = (mixed(), ChunkWriter::new(FrameCodec::Stored));
    writer.recycle(vec![0xee; 10_000]);
    writer.begin_frame(&schema, planned).unwrap();
    for (row, record) in records.iter().enumerate() {
        write_row(&mut writer, &schema, row, record);
    }
    writer.end_frame(ChunkFrameKind::Batch, records.len()).unwrap();
    only_frame(&mut writer)
}

fn only_frame(writer: &mut ChunkWriter) -> ChunkFrame {
    let object = Bytes::from(writer.finish().unwrap());
    Chunk::open(object, &ChunkLimits::default()).unwrap().tensors(0).unwrap()
}

fn assert_holds(frame: &ChunkFrame, records: &[Record]) {
    assert_eq!(frame.rows(), records.len());
    for (tensor, spec) in mixed().tensors().iter().enumerate() {
        let view = frame.get(&spec.name).unwrap();
        for (row, record) in records.iter().enumerate() {
            assert_eq!(view.row(row).unwrap(), record[tensor], "row {row} of {}", spec.name);
        }
    }
}

#[test]
fn only_fixed_tensors_that_are_there_are_made_anew() {
    let frame = frame_of(&[record(1)], 1);
    for name in ["text", "nothing"] {
        let spec = [TensorSpec::fixed(name, TensorDType::F32, [5])];
        let none = |_, _: &[u8], _: &mut [u8]| Ok(());
        let replaced =
            replace_tensors(&frame, &spec, &ChunkLimits::default(), BytesMut::with_capacity, none);
        assert!(matches!(replaced, Err(ChunkFormatError::Invalid(_))), "{name}");
    }
    let large = [TensorSpec::fixed("image", TensorDType::F32, [1 << 20])];
    let limits = ChunkLimits { frame_bytes: 1 << 20, ..ChunkLimits::default() };
    let none = |_, _: &[u8], _: &mut [u8]| Ok(());
    let never = |_| -> BytesMut { unreachable!("nothing is allocated") };
    let replaced = replace_tensors(&frame, &large, &limits, never, none);
    assert!(matches!(replaced, Err(ChunkFormatError::OverLimit { .. })), "{replaced:?}");
}

proptest! {
    #[test]
    fn fewer_rows_than_planned_give_the_same_frame(rows in 1usize..30, more in 0usize..300) {
        let records: Vec<_> = (0..rows as u64).map(record).collect();
        let exact = frame_of(&records, rows);
        assert_holds(&exact, &records);
        assert_eq!(frame_of(&records, rows + more).bytes(), exact.bytes());
    }

    #[test]
    fn a_frame_with_tensors_made_anew_is_what_a_writer_makes_of_them(rows in 1usize..30) {
        let records: Vec<_> = (0..rows as u64).map(record).collect();
        let frame = frame_of(&records, rows);
        // Larger values of another dtype also change their position in the frame.
        let made = TensorSpec::fixed("image", TensorDType::F32, [5]);
        let widened = |row: &[u8]| -> Vec<u8> {
            row.iter().flat_map(|x| f32::from(*x).to_le_bytes()).collect()
        };
        let replaced = replace_tensors(
            &frame,
            std::slice::from_ref(&made),
            &ChunkLimits::default(),
            BytesMut::with_capacity,
            |place, from, to| {
                assert_eq!(place, 0);
                to.copy_from_slice(&widened(from));
                Ok(())
            },
        );
        let mut tensors = mixed().tensors().to_vec();
        tensors[0] = made;
        let schema = FrameSchema::new(tensors).unwrap();
        let mut writer = ChunkWriter::new(FrameCodec::Stored);
        writer.begin_frame(&schema, rows).unwrap();
        for (row, record) in records.iter().enumerate() {
            let mut record = record.clone();
            record[0] = widened(&record[0]);
            write_row(&mut writer, &schema, row, &record);
        }
        writer.end_frame(ChunkFrameKind::Batch, rows).unwrap();
        let expected = only_frame(&mut writer);
        prop_assert_eq!(&replaced.unwrap()[..], &expected.bytes()[..]);
    }

    #[test]
    fn joined_rows_are_what_a_writer_makes_of_them(
        sizes in prop::collection::vec(1usize..12, 1..6),
        cuts in prop::collection::vec((0usize..13, 0usize..13), 1..8),
    ) {
        let mut seeds = 0u64..;
        let sources: Vec<Vec<Record>> = sizes
            .iter()
            .map(|size| seeds.by_ref().take(*size).map(record).collect())
            .collect();
        let frames: Vec<_> = sources.iter().map(|records| frame_of(records, records.len())).collect();
        let mut pieces = Vec::new();
        let mut wanted = Vec::new();
        for (i, (a, b)) in cuts.iter().enumerate() {
            let (which, rows) = (i % frames.len(), sources[i % frames.len()].len());
            let (a, b) = (*a.min(b) % (rows + 1), (*a.max(b)).min(rows));
            let range = a.min(b)..b;
            wanted.extend_from_slice(&sources[which][range.clone()]);
            pieces.push((&frames[which], range));
        }
        let joined = join_rows(&pieces, &ChunkLimits::default(), BytesMut::with_capacity);
        if wanted.is_empty() {
            prop_assert!(joined.is_err());
        } else {
            let joined = ChunkFrame::parse(joined.unwrap().freeze(), &ChunkLimits::default()).unwrap();
            assert_holds(&joined, &wanted);
            let written = frame_of(&wanted, wanted.len());
            prop_assert_eq!(joined.bytes(), written.bytes());
        }
    }
}

#[test]
fn a_batch_joined_from_remainders_equals_the_batch_of_one_split() {
    let records: Vec<_> = (0..8).map(record).collect();
    let whole = frame_of(&records, 8);
    let (first, second) = (frame_of(&records[..5], 8), frame_of(&records[5..], 8));
    let join = |pieces: &[_]| join_rows(pieces, &ChunkLimits::default(), BytesMut::with_capacity);
    assert_eq!(join(&[(&first, 0..5), (&second, 0..3)]).unwrap(), whole.bytes());
    assert_eq!(join(&[(&whole, 0..5)]).unwrap(), first.bytes());
    assert_eq!(join(&[(&whole, 5..8)]).unwrap(), second.bytes());
}

#[test]
fn frames_with_other_tensors_or_missing_rows_are_not_joined() {
    let limits = ChunkLimits::default();
    let mixed = frame_of(&[record(1), record(2)], 2);
    let mut writer = ChunkWriter::new(FrameCodec::Stored);
    writer.begin_frame(&schema(), 2).unwrap();
    (0..2).for_each(|row| fill(&mut writer, row, 1));
    writer.end_frame(ChunkFrameKind::Batch, 2).unwrap();
    let other = only_frame(&mut writer);
    #[allow(clippy::reversed_empty_ranges)]
    for pieces in [
        vec![(&mixed, 0..2), (&other, 0..2)],
        vec![(&mixed, 0..3)],
        vec![(&mixed, 2..1)],
        vec![(&mixed, 1..1)],
        vec![],
    ] {
        let joined = join_rows(&pieces, &limits, BytesMut::with_capacity);
        assert!(matches!(joined, Err(ChunkFormatError::Invalid(_))));
    }
    let small = ChunkLimits { frame_bytes: 64, ..limits };
    let error = join_rows(&[(&mixed, 0..2)], &small, BytesMut::with_capacity).unwrap_err();
    assert!(matches!(error, ChunkFormatError::OverLimit { limit: 64, .. }));
}

#[test]
fn a_record_that_fails_halfway_leaves_nothing() {
    let schema = mixed();
    let mut writer = ChunkWriter::new(FrameCodec::Stored);
    writer.begin_frame(&schema, 3).unwrap();
    write_row(&mut writer, &schema, 0, &record(1));
    // The second record fails after its text and part of its image.
    writer.push_ragged(1, b"half a record").unwrap();
    writer.row_mut(0, 1).unwrap()[..2].fill(0xff);
    writer.truncate_ragged(1).unwrap();
    write_row(&mut writer, &schema, 1, &record(2));
    writer.end_frame(ChunkFrameKind::Batch, 2).unwrap();
    let records = [record(1), record(2)];
    assert_eq!(only_frame(&mut writer).bytes(), frame_of(&records, 2).bytes());
}

#[test]
fn frames_and_tensors_are_aligned() {
    let mut writer = ChunkWriter::new(FrameCodec::Stored);
    for rows in 1..20 {
        writer.begin_frame(&schema(), rows).unwrap();
        (0..rows).for_each(|row| fill(&mut writer, row, row as u8));
        writer.end_frame(ChunkFrameKind::Batch, rows).unwrap();
    }
    let object = Bytes::from(writer.finish().unwrap());
    let chunk = Chunk::open(object, &ChunkLimits::default()).unwrap();
    for (i, info) in chunk.frames().iter().enumerate() {
        assert_eq!(info.offset % 64, 0);
        let frame = chunk.tensors(i).unwrap();
        assert_eq!(frame.layout().header().len() % 64, 0);
        for (tensor, spec) in frame.schema().tensors().iter().enumerate() {
            let values = frame.layout().values(tensor).unwrap();
            assert_eq!(values.start % spec.dtype.size_bytes(), 0);
        }
    }
}

#[test]
fn the_order_tensors_are_named_in_does_not_matter() {
    let mut specs = schema().tensors().to_vec();
    specs.reverse();
    let reversed = FrameSchema::new(specs).unwrap();
    assert_eq!(reversed, schema());
    assert_eq!(
        reversed.layout(7, &[]).unwrap().header(),
        schema().layout(7, &[]).unwrap().header()
    );
    assert_ne!(mixed(), schema());
}

#[test]
fn a_reused_writer_writes_what_a_new_one_does() {
    let write = |writer: &mut ChunkWriter, rows: usize| {
        for _ in 0..2 {
            writer.begin_frame(&schema(), rows).unwrap();
            (0..rows).for_each(|row| fill(writer, row, row as u8));
            writer.end_frame(ChunkFrameKind::Batch, rows).unwrap();
        }
        let object_bytes = writer.object_bytes();
        let object = writer.finish().unwrap();
        assert_eq!(object.len(), object_bytes);
        object
    };
    for codec in [FrameCodec::Stored, FrameCodec::Zstd { level: 3 }] {
        let mut reused = ChunkWriter::new(codec);
        for rows in [50, 3, 20, 300] {
            let mut fresh = ChunkWriter::new(codec);
            let object = write(&mut reused, rows);
            assert!(object == write(&mut fresh, rows), "{rows} rows, {codec:?}");
            reused.recycle(object);
            // An abandoned object must leave no trace.
            reused.begin_frame(&schema(), 5).unwrap();
            (0..5).for_each(|row| reused.row_mut(0, row).unwrap().fill(0xaa));
            reused.end_frame(ChunkFrameKind::Remainder, 5).unwrap();
            reused.reset();
        }
    }
}

#[test]
fn frames_that_hardly_shrink_are_stored() {
    let schema = FrameSchema::new(vec![TensorSpec::fixed("x", TensorDType::U8, [4096])]).unwrap();
    let mut writer = ChunkWriter::new(FrameCodec::Zstd { level: 1 });
    writer.begin_frame(&schema, 1).unwrap();
    let mut state = 1u64;
    for byte in writer.row_mut(0, 0).unwrap() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *byte = (state >> 56) as u8;
    }
    writer.end_frame(ChunkFrameKind::Batch, 1).unwrap();
    writer.begin_frame(&schema, 1).unwrap();
    writer.row_mut(0, 0).unwrap().fill(7);
    writer.end_frame(ChunkFrameKind::Batch, 1).unwrap();
    let [noise, flat] = writer.frames() else { panic!() };
    assert_eq!((noise.encoding, noise.stored_bytes), (FrameEncoding::Stored, noise.raw_bytes));
    assert_eq!(flat.encoding, FrameEncoding::Zstd);
    assert!(flat.stored_bytes < 200);
}

#[test]
fn stored_frames_are_not_copied_and_buffers_can_be_kept() {
    for codec in [FrameCodec::Stored, FrameCodec::Zstd { level: 1 }] {
        let mut writer = ChunkWriter::new(codec);
        writer.begin_frame(&schema(), 40).unwrap();
        (0..40).for_each(|row| fill(&mut writer, row, 3));
        writer.end_frame(ChunkFrameKind::Batch, 40).unwrap();
        let object = Bytes::from(writer.finish().unwrap());
        let chunk = Chunk::open(object.clone(), &ChunkLimits::default()).unwrap();
        let info = &chunk.frames()[0];
        let stored = object.slice(info.range().start as usize..info.range().end as usize);
        let frame = chunk.frame(0).unwrap();
        assert_eq!(frame.as_ptr() == stored.as_ptr(), codec == FrameCodec::Stored);
        let decode = |stored| info.decode_with(stored, BytesMut::with_capacity, BytesMut::freeze);
        assert_eq!(decode(stored.clone()).unwrap(), frame);
        let mut kept = BytesMut::zeroed(100_000);
        kept.clear();
        let place = if codec == FrameCodec::Stored { stored.as_ptr() } else { kept.as_ptr() };
        let decoded = info.decode_with(stored.clone(), |_| kept, BytesMut::freeze).unwrap();
        assert_eq!((decoded.as_ptr(), &decoded), (place, &frame));
        assert!(decode(stored.slice(1..)).is_err());
    }
}

#[test]
fn writing_in_the_wrong_order_is_an_error_that_says_so() {
    let invalid = |result: Result<(), ChunkFormatError>, words: &str| match result.unwrap_err() {
        ChunkFormatError::Invalid(message) => assert!(message.contains(words), "{message}"),
        other => panic!("{other}"),
    };
    let (schema, mixed) = (schema(), mixed());
    let mut writer = ChunkWriter::new(FrameCodec::Stored);
    invalid(writer.end_frame(ChunkFrameKind::Batch, 1), "no frame is open");
    invalid(writer.row_mut(0, 0).map(drop), "no frame is open");
    invalid(writer.begin_frame(&schema, 0), "at least one row");
    writer.begin_frame(&schema, 2).unwrap();
    invalid(writer.begin_frame(&schema, 2), "still open");
    invalid(writer.finish().map(drop), "while a frame is open");
    invalid(writer.row_mut(0, 2).map(drop), "no row 2");
    invalid(writer.row_mut(4, 0).map(drop), "fixed tensor 4");
    invalid(writer.push_ragged(0, &[]), "not a ragged one");
    invalid(writer.end_frame(ChunkFrameKind::Batch, 3), "cannot end with 3");
    writer.begin_frame(&mixed, 2).unwrap();
    invalid(writer.row_mut(1, 0).map(drop), "fixed tensor 1");
    invalid(writer.push_ragged(3, &[0; 15]), "15 bytes");
    writer.push_ragged(1, b"one").unwrap();
    writer.push_ragged(1, b"two").unwrap();
    invalid(writer.push_ragged(1, b"three"), "already has all");
    invalid(writer.end_frame(ChunkFrameKind::Batch, 2), "\"boxes\" has 0 of 2 rows");
    writer.begin_frame(&schema, 1).unwrap();
    fill(&mut writer, 0, 1);
    writer.end_frame(ChunkFrameKind::Remainder, 1).unwrap();
    invalid(writer.begin_frame(&schema, 1), "nothing may follow");
    assert_eq!(writer.frames().len(), 1);
}

#[test]
fn a_writer_keeps_its_limits() {
    let what = |result: Result<(), ChunkFormatError>| match result.unwrap_err() {
        ChunkFormatError::OverLimit { what, .. } => what,
        other => panic!("{other}"),
    };
    let limits =
        ChunkLimits { object_bytes: 6000, frames: 3, frame_bytes: 2000, ..ChunkLimits::default() };
    let text = FrameSchema::new(vec![TensorSpec::ragged("text", TensorDType::U8, [])]).unwrap();
    let wide = FrameSchema::new(vec![TensorSpec::fixed("x", TensorDType::U8, [1 << 40, 1 << 20])])
        .unwrap();
    for codec in [FrameCodec::Stored, FrameCodec::Zstd { level: 1 }] {
        let mut writer = ChunkWriter::with_limits(codec, limits.clone());
        assert_eq!(what(writer.begin_frame(&wide, 1)), "frame size in bytes");
        assert_eq!(what(writer.begin_frame(&wide, 1 << 30)), "frame size in bytes");
        assert_eq!(what(writer.begin_frame(&schema(), 200)), "frame size in bytes");
        writer.begin_frame(&text, 1).unwrap();
        assert_eq!(what(writer.push_ragged(0, &[1; 2000])), "frame size in bytes");
        writer.abandon_frame();
        for _ in 0..3 {
            writer.begin_frame(&schema(), 30).unwrap();
            (0..30).for_each(|row| fill(&mut writer, row, row as u8));
            writer.end_frame(ChunkFrameKind::Batch, 30).unwrap();
        }
        assert_eq!(what(writer.begin_frame(&schema(), 1)), "number of frames");
        let small = ChunkLimits { object_bytes: 1000, ..limits.clone() };
        let mut writer = ChunkWriter::with_limits(FrameCodec::Stored, small);
        assert_eq!(what(writer.begin_frame(&schema(), 30)), "object size in bytes");
    }
}

#[test]
fn schemas_that_cannot_be_are_refused_by_name() {
    let refused = |specs: Vec<TensorSpec>, words: &str| match FrameSchema::new(specs).unwrap_err() {
        ChunkFormatError::Invalid(message) => assert!(message.contains(words), "{message}"),
        other => panic!("{other}"),
    };
    let x = |name: &str| TensorSpec::fixed(name, TensorDType::F32, [2]);
    refused(vec![], "1 to 1024");
    refused((0..1025).map(|i| x(&i.to_string())).collect(), "1 to 1024");
    refused(vec![x("")], "0 bytes");
    refused(vec![x(&"n".repeat(256))], "256 bytes");
    refused(vec![x("__metadata__")], "reserved");
    refused(vec![x("text.offsets")], "reserved");
    refused(vec![x("a"), x("b"), x("a")], "two tensors are named \"a\"");
    refused(vec![TensorSpec::fixed("a", TensorDType::U8, [3, 0])], "dimension of 0");
    refused(vec![x("b"), TensorSpec::ragged("a", TensorDType::U8, [0])], "dimension of 0");
    refused(vec![TensorSpec::fixed("a", TensorDType::U8, [1; 17])], "17 dimensions");
    refused(vec![TensorSpec::fixed("a", TensorDType::U8, [usize::MAX, 2])], "too large");
}

#[test]
fn rows_without_values_read_back_beside_others() {
    for codec in [FrameCodec::Stored, FrameCodec::Zstd { level: 1 }] {
        let specs = vec![
            TensorSpec::fixed("none", TensorDType::I64, [0, 3]),
            TensorSpec::fixed("one", TensorDType::U8, []),
        ];
        let mut writer = ChunkWriter::new(codec);
        writer.begin_frame(&FrameSchema::new(specs).unwrap(), 3).unwrap();
        for row in 0..2 {
            assert!(writer.row_mut(0, row).unwrap().is_empty());
            writer.row_mut(1, row).unwrap().fill(7);
        }
        writer.end_frame(ChunkFrameKind::Batch, 2).unwrap();
        let object = Bytes::from(writer.finish().unwrap());
        let chunk = Chunk::open(object, &ChunkLimits::default()).unwrap();
        let bytes = chunk.frame(0).unwrap();
        let peer = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(peer.tensor("none").unwrap().shape(), [2, 0, 3]);
        let frame = chunk.tensors(0).unwrap();
        assert_eq!(frame.get("none").unwrap().row(1), Some(&[][..]));
        assert_eq!(frame.get("one").unwrap().values(), [7, 7]);
    }
}

#[test]
fn dtypes_are_serialised_under_their_safetensors_names() {
    for dtype in TensorDType::ALL {
        assert_eq!(serde_json::to_value(dtype).unwrap(), dtype.name());
        assert_eq!(serde_json::from_value::<TensorDType>(dtype.name().into()).unwrap(), dtype);
        assert_eq!(dtype.to_string(), dtype.name());
    }
}

#[test]
fn a_writer_can_be_sent_between_threads() {
    fn sent<T: Send>() {}
    sent::<ChunkWriter>();
    sent::<Chunk>();
}

#[test]
fn an_object_that_is_packed_again_has_the_same_frames() {
    let (schema, mut writer) = (mixed(), ChunkWriter::new(FrameCodec::Stored));
    writer.set_codec(FrameCodec::Zstd { level: 1 });
    let mut object = |codec| {
        writer.set_codec(codec);
        writer.begin_frame(&schema, 2).unwrap();
        for row in 0..2 {
            for (i, tensor) in schema.tensors().iter().enumerate() {
                if tensor.ragged {
                    writer.push_ragged(i, &[7; 4096]).unwrap()
                } else {
                    writer.row_mut(i, row).unwrap().fill(7)
                }
            }
        }
        writer.end_frame(ChunkFrameKind::Batch, 2).unwrap();
        Bytes::from(writer.finish().unwrap())
    };
    let zstd = FrameCodec::Zstd { level: 1 };
    let (stored, packed) = (object(FrameCodec::Stored), object(zstd));
    assert!(packed.len() < stored.len());
    let chunk = Chunk::open(stored.clone(), &ChunkLimits::default()).unwrap();
    assert_eq!(gristmill_chunk::repack(&chunk, zstd).unwrap(), packed);
    let chunk = Chunk::open(packed, &ChunkLimits::default()).unwrap();
    assert_eq!(gristmill_chunk::repack(&chunk, FrameCodec::Stored).unwrap(), stored);
    let frame = chunk.frame(0).unwrap();
    assert_eq!(
        gristmill_chunk::compressed_bytes(&frame, 1).unwrap() as u64,
        chunk.frames()[0].stored_bytes
    );
}
