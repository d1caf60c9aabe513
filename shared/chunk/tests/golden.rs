//! The files in `golden/` define this version of the format: the writer reproduces them byte for byte and the reader
//! reads them. To add one, add it to `objects` and run
//! `cargo test --release -p gristmill-chunk --test golden -- --ignored`.

#![allow(clippy::unwrap_used, reason = "clippy does not see that functions tests share are tests")]

use std::path::PathBuf;

use bytes::Bytes;
use gristmill_chunk::{
    Chunk, ChunkFrameKind, ChunkLimits, ChunkWriter, FrameCodec, FrameEncoding, FrameSchema,
    TensorDType, TensorSpec,
};
use safetensors::SafeTensors;

/// Records of varied content; `rows` per frame, then the remainder.
fn object(codec: FrameCodec, schema: &FrameSchema, batches: &[usize], remainder: usize) -> Vec<u8> {
    let mut writer = ChunkWriter::new(codec);
    let mut record = 0u8;
    let frames = batches.iter().map(|rows| (ChunkFrameKind::Batch, *rows));
    for (kind, rows) in frames.chain([(ChunkFrameKind::Remainder, remainder)]) {
        if rows == 0 {
            continue;
        }
        writer.begin_frame(schema, rows).unwrap();
        for row in 0..rows {
            for (tensor, spec) in schema.tensors().iter().enumerate() {
                if spec.ragged {
                    let items = (record as usize * 2 + tensor) % 4;
                    let bytes = items * schema.item_bytes(tensor).unwrap();
                    writer.push_ragged(tensor, &vec![b'a' + record; bytes]).unwrap();
                } else {
                    writer.row_mut(tensor, row).unwrap().fill(record);
                }
            }
            record += 1;
        }
        writer.end_frame(kind, rows).unwrap();
    }
    writer.finish().unwrap()
}

fn objects() -> Vec<(&'static str, Vec<u8>)> {
    let images = FrameSchema::new(vec![
        TensorSpec::fixed("image", TensorDType::U8, [2, 2, 3]),
        TensorSpec::fixed("label", TensorDType::I64, []),
        TensorSpec::fixed("__key__", TensorDType::U64, []),
    ])
    .unwrap();
    let every_dtype = FrameSchema::new(
        TensorDType::ALL.iter().map(|dtype| TensorSpec::fixed(dtype.name(), *dtype, [3])).collect(),
    )
    .unwrap();
    let texts = FrameSchema::new(vec![
        TensorSpec::ragged("text", TensorDType::U8, []),
        TensorSpec::ragged("boxes", TensorDType::F32, [4]),
        TensorSpec::fixed("\"odd\" näme\n", TensorDType::BF16, [1]),
    ])
    .unwrap();
    let wide = FrameSchema::new(vec![TensorSpec::fixed("x", TensorDType::F32, [64])]).unwrap();
    vec![
        ("empty", object(FrameCodec::Stored, &images, &[], 0)),
        ("stored", object(FrameCodec::Stored, &images, &[3, 3], 0)),
        ("remainder", object(FrameCodec::Stored, &images, &[2], 1)),
        ("ragged", object(FrameCodec::Stored, &texts, &[3], 2)),
        ("dtypes", object(FrameCodec::Stored, &every_dtype, &[1], 0)),
        ("zstd", object(FrameCodec::Zstd { level: 3 }, &wide, &[4, 4], 1)),
    ]
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(format!("{name}.chunk"))
}

#[test]
#[ignore = "writes the golden files"]
fn write_golden_files() {
    for (name, object) in objects() {
        std::fs::write(path(name), object).unwrap();
    }
}

#[test]
fn the_writer_reproduces_the_golden_files() {
    for (name, object) in objects() {
        assert!(std::fs::read(path(name)).unwrap() == object, "{name} differs");
    }
}

#[test]
fn the_reader_reads_the_golden_files() {
    let expected = [
        ("empty", vec![]),
        ("stored", vec![(ChunkFrameKind::Batch, 3), (ChunkFrameKind::Batch, 3)]),
        ("remainder", vec![(ChunkFrameKind::Batch, 2), (ChunkFrameKind::Remainder, 1)]),
        ("ragged", vec![(ChunkFrameKind::Batch, 3), (ChunkFrameKind::Remainder, 2)]),
        ("dtypes", vec![(ChunkFrameKind::Batch, 1)]),
        (
            "zstd",
            vec![
                (ChunkFrameKind::Batch, 4),
                (ChunkFrameKind::Batch, 4),
                (ChunkFrameKind::Remainder, 1),
            ],
        ),
    ];
    for (name, frames) in expected {
        let object = Bytes::from(std::fs::read(path(name)).unwrap());
        let chunk = Chunk::open(object, &ChunkLimits::default()).unwrap();
        let found: Vec<_> = chunk.frames().iter().map(|info| (info.kind, info.rows)).collect();
        assert_eq!(found, frames, "{name}");
        let zstd = chunk.frames().iter().all(|info| info.encoding == FrameEncoding::Zstd);
        assert_eq!(zstd, name == "zstd" || name == "empty", "{name}");
        for i in 0..frames.len() {
            let frame = chunk.tensors(i).unwrap();
            let peer = SafeTensors::deserialize(frame.bytes()).unwrap();
            for view in frame.tensors() {
                assert_eq!(peer.tensor(&view.spec().name).unwrap().data(), view.values());
            }
        }
    }
}

/// Decoded frames do not depend on the release of zstd, although compressed bytes do.
#[test]
fn compression_does_not_change_frames() {
    let zstd = Bytes::from(std::fs::read(path("zstd")).unwrap());
    let zstd = Chunk::open(zstd, &ChunkLimits::default()).unwrap();
    let wide = FrameSchema::new(vec![TensorSpec::fixed("x", TensorDType::F32, [64])]).unwrap();
    let stored = Bytes::from(object(FrameCodec::Stored, &wide, &[4, 4], 1));
    let stored = Chunk::open(stored, &ChunkLimits::default()).unwrap();
    for i in 0..3 {
        assert_eq!(zstd.frame(i).unwrap(), stored.frame(i).unwrap());
    }
}

/// Parses by the specification, without this crate.
#[test]
fn a_golden_file_matches_the_specification_by_hand() {
    let object = std::fs::read(path("stored")).unwrap();
    let u64_at = |at: usize| u64::from_le_bytes(object[at..at + 8].try_into().unwrap());
    let u32_at = |at: usize| u32::from_le_bytes(object[at..at + 4].try_into().unwrap());
    assert_eq!(object[..8], *b"\x89GRMILL\n");
    assert_eq!(u32_at(8), 1);
    let trailer = object.len() - 24;
    assert_eq!(object[trailer + 16..], *b"\x89GRMILL\n");
    assert_eq!(u32_at(trailer + 8), 1);
    assert_eq!(u64_at(trailer), 80);
    let footer = trailer - 80;
    assert_eq!(u32_at(trailer + 12), crc32c::crc32c(&object[footer..trailer + 12]));
    assert_eq!((object[footer], object[footer + 1], u32_at(footer + 4)), (0, 0, 3));
    let (offset, stored) = (u64_at(footer + 8) as usize, u64_at(footer + 16) as usize);
    assert_eq!((offset, u64_at(footer + 24) as usize), (64, stored));
    assert_eq!(u32_at(footer + 32), crc32c::crc32c(&object[offset..offset + stored]));
    let header = u64_at(offset) as usize;
    assert_eq!((8 + header) % 64, 0);
    let json = std::str::from_utf8(&object[offset + 8..offset + 8 + header]).unwrap();
    assert_eq!(
        json.trim_end_matches(' '),
        "{\"__key__\":{\"dtype\":\"U64\",\"shape\":[3],\"data_offsets\":[0,24]},\
         \"label\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[24,48]},\
         \"image\":{\"dtype\":\"U8\",\"shape\":[3,2,2,3],\"data_offsets\":[48,84]}}"
    );
}

#[test]
fn a_checksum_tells_objects_apart() {
    let mut seen: Vec<u32> =
        objects().iter().map(|(_, object)| gristmill_chunk::checksum(object).unwrap()).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), objects().len());
    assert!(gristmill_chunk::checksum(&[0; 23]).is_err());
}
