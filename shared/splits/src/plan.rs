//! Which records a split covers: files cut into runs of `split_records`, the last of each file
//! shorter.

use gristmill_types::SplitId;

/// The records of one split: neighbours in one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SplitRange {
    /// Index of the file in the dataset.
    pub file: u32,
    pub first_record: u32,
    /// How many records, at least 1.
    pub records: u32,
}

/// All splits of a dataset, in dataset order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitPlan {
    split_records: u32,
    records_per_file: Vec<u32>,
    /// Splits before each file, and their total last.
    first_split: Vec<u32>,
    records: u64,
}

impl SplitPlan {
    /// Cuts files of the given record counts into splits of `split_records` (at least 1). Files may
    /// be empty, and so may the dataset.
    ///
    /// None when there would be more than `u32::MAX` splits.
    pub fn new(records_per_file: &[u32], split_records: u32) -> Option<Self> {
        let split_records = split_records.max(1);
        let mut first_split = Vec::with_capacity(records_per_file.len() + 1);
        let (mut splits, mut records) = (0u32, 0u64);
        for file_records in records_per_file {
            first_split.push(splits);
            splits = splits.checked_add(file_records.div_ceil(split_records))?;
            records += u64::from(*file_records);
        }
        first_split.push(splits);
        let records_per_file = records_per_file.to_vec();
        Some(Self { split_records, records_per_file, first_split, records })
    }

    /// How many splits there are.
    pub fn n_splits(&self) -> u32 {
        self.first_split.last().copied().unwrap_or(0)
    }

    /// Records of the whole dataset.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The records of `split`; none for a split there is not. O(log files).
    pub fn split(&self, split: SplitId) -> Option<SplitRange> {
        if split >= self.n_splits() {
            return None;
        }
        // The last file that starts at or before the split: empty files before it start there too.
        let file = self.first_split.partition_point(|first| *first <= split) - 1;
        let first_record = (split - self.first_split[file]) * self.split_records;
        let records = (self.records_per_file[file] - first_record).min(self.split_records);
        Some(SplitRange { file: file as u32, first_record, records })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_split_of_a_file_is_short() {
        let plan = SplitPlan::new(&[0, 5, 0, 4, 1, 0], 2).unwrap();
        let splits: Vec<_> = (0..).map_while(|split| plan.split(split)).collect();
        let range = |file, first_record, records| SplitRange { file, first_record, records };
        let expected = [
            range(1, 0, 2),
            range(1, 2, 2),
            range(1, 4, 1),
            range(3, 0, 2),
            range(3, 2, 2),
            range(4, 0, 1),
        ];
        assert_eq!(splits, expected);
        assert_eq!((plan.n_splits(), plan.records()), (6, 10));
    }

    #[test]
    fn a_dataset_may_be_empty_but_not_endless() {
        for files in [&[][..], &[0, 0][..]] {
            let plan = SplitPlan::new(files, 4).unwrap();
            assert_eq!((plan.n_splits(), plan.split(0)), (0, None));
        }
        assert!(SplitPlan::new(&[u32::MAX, 1], 1).is_none());
        let largest = SplitPlan::new(&[u32::MAX], 1).unwrap();
        assert_eq!(largest.split(u32::MAX - 1).map(|s| s.first_record), Some(u32::MAX - 1));
        assert_eq!(SplitPlan::new(&[3], 0).unwrap().n_splits(), 3);
    }

    proptest! {
        #[test]
        fn every_record_is_in_exactly_one_split(
            files in prop::collection::vec(0u32..40, 0..20), split_records in 1u32..12,
        ) {
            let plan = SplitPlan::new(&files, split_records).unwrap();
            let mut next = vec![0; files.len()];
            for split in 0..plan.n_splits() {
                let range = plan.split(split).unwrap();
                prop_assert!((1..=split_records).contains(&range.records));
                prop_assert_eq!(next[range.file as usize], range.first_record);
                next[range.file as usize] += range.records;
            }
            prop_assert_eq!(next, files);
            prop_assert_eq!(plan.split(plan.n_splits()), None);
        }
    }
}
