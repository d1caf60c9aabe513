//! Rows out of blocks are those that are read alone.

use super::*;
use crate::{BlockRange, OpenedRecords};

fn out_of_blocks(
    index: &FileIndex,
    file: &Bytes,
    blocks: &[BlockRange],
    (first, n): (u32, u32),
) -> OpenedRecords {
    let source = source();
    let part = |BlockRange { rows: block, .. }: &BlockRange| {
        let (start, rows) = (block.start, block.end - block.start);
        let parts = parts(index, file, start, rows, &source);
        let opened = index.open(start, rows, &source, &parts).unwrap();
        let (from, to) = (first.max(start), (first + n).min(block.end));
        opened.part(from, to - from).unwrap()
    };
    OpenedRecords::joined(blocks.iter().map(part).collect()).unwrap()
}

#[test]
fn rows_out_of_blocks_are_those_that_are_read_alone() {
    for says_pages in [true, false] {
        let mut style = style(WriterVersion::PARQUET_2_0, Compression::SNAPPY);
        style.properties = style.properties.set_offset_index_disabled(!says_pages);
        let file = file(style);
        let (index, _) = index(&file);
        let mut found = 0;
        for (first, n) in (0..101).flat_map(|first| [1, 5, 40].map(|n| (first, n))) {
            let source = source();
            let n = n.min(101 - first);
            let alone = index.open(first, n, &source, &parts(&index, &file, first, n, &source));
            let Some(blocks) = index.blocks(first, n, &source) else { continue };
            found += 1;
            let (alone, shared) =
                (alone.unwrap(), out_of_blocks(&index, &file, &blocks, (first, n)));
            assert_eq!((alone.data, alone.index), (shared.data, shared.index), "{first}, {n}");
        }
        assert!(found > 200, "{found} runs are in blocks");
    }
}

#[test]
fn blocks_are_pages_of_the_largest_column_and_end_with_their_row_group() {
    let file = file(style(WriterVersion::PARQUET_1_0, Compression::UNCOMPRESSED));
    let (index, _) = index(&file);
    let rows = |first, n| {
        let blocks = index.blocks(first, n, &source())?;
        Some(blocks.into_iter().map(|block| block.rows).collect::<Vec<_>>())
    };
    let all = rows(1, 100).unwrap();
    assert!(all.len() > 10, "pages have at most ten rows: {all:?}");
    assert_eq!((all[0].start, all.last().unwrap().end), (0, 101));
    assert!(all.iter().any(|block| block.end == 60), "a row group ends: {all:?}");
    assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start), "{all:?}");
    // Whole blocks are read as they are.
    assert_eq!(rows(0, 101), None);
    assert_eq!(rows(all[3].start, all[3].end - all[3].start), None);
    assert_eq!(rows(all[3].start, 1), Some(vec![all[3].clone()]));
    assert_eq!(rows(100, 2), None, "a row that is not there");
    let none = features(&[("missing", FeatureDType::I64, &[])]);
    assert_eq!(index.blocks(1, 1, &none), None);
}

#[test]
fn blocks_of_small_columns_say_so() {
    let file = file(style(WriterVersion::PARQUET_1_0, Compression::UNCOMPRESSED));
    let (index, _) = index(&file);
    let bytes = |source: &ParsedSource| {
        let blocks = index.blocks(1, 90, source).unwrap();
        blocks.iter().map(|block| block.bytes).sum::<u64>()
    };
    let one = bytes(&features(&[("flag", FeatureDType::I64, &[])]));
    assert!(one * 5 < bytes(&source()), "{one} of {}", bytes(&source()));
}
