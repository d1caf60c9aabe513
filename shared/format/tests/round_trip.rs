//! Objects read back as what was written, also by the `safetensors` crate.

use bytes::Bytes;
use gristmill_format::*;
use safetensors::SafeTensors;

fn schema() -> Schema {
    Schema::new(vec![
        TensorSpec::fixed("image", DType::U8, [2, 3]),
        TensorSpec::fixed("__key__", DType::U64, []),
        TensorSpec::fixed("box", DType::F32, [4]),
        TensorSpec::fixed("a", DType::BF16, [1]),
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
    for codec in [Codec::Stored, Codec::Zstd { level: 1 }] {
        let mut writer = ChunkWriter::new(codec);
        writer.begin_frame(&schema(), 4).unwrap();
        (0..4).for_each(|row| fill(&mut writer, row, row as u8));
        writer.end_frame(FrameKind::Batch, 4).unwrap();
        writer.begin_frame(&schema(), 4).unwrap();
        (0..2).for_each(|row| fill(&mut writer, row, 4 + row as u8));
        writer.end_frame(FrameKind::Remainder, 2).unwrap();
        let object = Bytes::from(writer.finish().unwrap());
        let chunk = Chunk::open(object, &Limits::default()).unwrap();
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
