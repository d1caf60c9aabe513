//! Parts of an object: the index first, then single frames by range.

use bytes::Bytes;
use gristmill_chunk::{
    Chunk, ChunkFormatError, ChunkFrameKind, ChunkLimits, ChunkWriter, Footer, FrameCodec,
    FrameSchema, TensorDType, TensorSpec,
};

/// An object of five batches of two rows, and a remainder of one.
fn object(codec: FrameCodec) -> Bytes {
    let schema = FrameSchema::new(vec![TensorSpec::fixed("x", TensorDType::U8, [100])])
        .expect("a valid object");
    let mut writer = ChunkWriter::new(codec);
    for frame in 0..6 {
        writer.begin_frame(&schema, 2).expect("a valid object");
        let rows = if frame < 5 { 2 } else { 1 };
        for row in 0..rows {
            writer.row_mut(0, row).expect("a valid object").fill(frame * 2 + row as u8);
        }
        let kind = if rows == 2 { ChunkFrameKind::Batch } else { ChunkFrameKind::Remainder };
        writer.end_frame(kind, rows).expect("a valid object");
    }
    writer.finish().expect("a valid object").into()
}

/// The index of `object`, read from as many bytes at its end as its number of frames tells.
fn index(object: &Bytes) -> Footer {
    let at = object.len() - Footer::bytes(6) as usize;
    Footer::parse(&object[at..], object.len() as u64, &ChunkLimits::default())
        .expect("a valid object")
}

/// The parts of `object` that hold `frames`.
fn parts(object: &Bytes, frames: &[usize]) -> Vec<(u64, Bytes)> {
    let runs = index(object).runs(frames.iter().copied());
    let slice = |run: &std::ops::Range<u64>| object.slice(run.start as usize..run.end as usize);
    runs.iter().map(|run| (run.start, slice(run))).collect()
}

#[test]
fn frames_that_were_read_are_those_of_the_whole_object() {
    for codec in [FrameCodec::Stored, FrameCodec::Zstd { level: 3 }] {
        let object = object(codec);
        let whole = Chunk::open(object.clone(), &ChunkLimits::default()).unwrap();
        let mut read = parts(&object, &[0, 2, 3, 5]);
        assert_eq!(read.len(), 3, "neighbours are read together");
        read.reverse();
        let part = Chunk::from_parts(index(&object), read, &ChunkLimits::default()).unwrap();
        assert_eq!((part.frames(), part.remainder()), (whole.frames(), Some(5)));
        for frame in [0, 2, 3, 5] {
            assert_eq!(part.frame(frame).unwrap(), whole.frame(frame).unwrap());
        }
        for frame in [1, 4] {
            let error = part.frame(frame).unwrap_err();
            assert!(error.to_string().contains("not among those that were read"), "{error}");
        }
    }
}

#[test]
fn frames_that_the_object_lacks_are_not_read() {
    let object = object(FrameCodec::Stored);
    assert_eq!(parts(&object, &[4, 5, 6, 7]), parts(&object, &[4, 5]));
    assert!(parts(&object, &[]).is_empty());
}

#[test]
fn a_changed_or_cut_part_is_noticed() {
    let object = object(FrameCodec::Stored);
    let of = |part| Chunk::from_parts(index(&object), vec![part], &ChunkLimits::default());
    let [(offset, whole)] = &parts(&object, &[1, 2])[..] else { panic!("one run") };
    for at in [0, 200, whole.len() - 1] {
        let mut changed = whole.to_vec();
        changed[at] ^= 1;
        assert!(matches!(of((*offset, changed.into())), Err(ChunkFormatError::Corrupt { .. })));
    }
    let cut = of((*offset, whole.slice(..whole.len() - 1))).unwrap();
    assert!(cut.frame(1).is_ok() && cut.frame(2).is_err());
}
