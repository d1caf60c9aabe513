//! Rows that are decoded together.

use super::ParquetLayout;
use crate::{BlockRange, RecordReaderInput, parquet::reader::columns::FeatureColumn};
use std::ops::Range;

impl ParquetLayout {
    /// The blocks of rows that hold `rows`: the pages of the largest wanted column, or its whole row group where its
    /// pages are not known. None if a column is not there.
    pub(crate) fn blocks(
        &self,
        rows: Range<u32>,
        source: RecordReaderInput<'_>,
    ) -> Option<Vec<BlockRange>> {
        let schema = self.metadata.file_metadata().schema_descr();
        let leaves = source
            .features
            .values()
            .map(|feature| Some(FeatureColumn::find(schema, feature).ok()?.leaf));
        let leaves: Vec<usize> = leaves.collect::<Option<_>>()?;
        let mut blocks = Vec::new();
        for (group, within) in self.groups(rows) {
            let meta = self.metadata.row_group(group);
            let bytes = |leaf: usize| {
                u64::try_from(meta.column(leaf).uncompressed_size()).unwrap_or(u64::MAX)
            };
            let all: u64 = leaves.iter().map(|leaf| bytes(*leaf)).fold(0, u64::saturating_add);
            let largest = leaves.iter().copied().max_by_key(|leaf| bytes(*leaf))?;
            let (first_row, group_rows) = (self.first_rows[group], meta.num_rows() as u64);
            for block in self.pages_of(group, largest, &within) {
                let share = u128::from(all) * block.len() as u128 / u128::from(group_rows.max(1));
                let rows = first_row + block.start as u32..first_row + block.end as u32;
                blocks.push(BlockRange { rows, bytes: u64::try_from(share).unwrap_or(u64::MAX) });
            }
        }
        Some(blocks)
    }

    /// The rows, within their group, of the pages of a column that hold `rows`.
    fn pages_of(&self, group: usize, leaf: usize, rows: &Range<usize>) -> Vec<Range<usize>> {
        let whole = self.metadata.row_group(group).num_rows() as usize;
        let starts = self.pages(group, leaf).iter().map(|page| page.first_row_index as usize);
        let mut starts: Vec<usize> = starts.collect();
        if starts.first() != Some(&0) {
            starts.insert(0, 0);
        }
        let ends = starts.iter().copied().skip(1).chain([whole]);
        let pages = starts.iter().copied().zip(ends).map(|(start, end)| start..end);
        pages.filter(|page| page.start < rows.end && rows.start < page.end).collect()
    }
}
