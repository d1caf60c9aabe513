//! The records of each split: files cut into runs of `split_records`, the last of each file
//! shorter; with dataset operators or several datasets, the resulting sequence is cut instead.

use crate::splits::{
    order::{self, KeyedPermutation},
    view::{DatasetView, DatasetViewError, RecordRange, ZipMember, mixed},
};
use crate::{DatasetOp, Epoch, Position, SplitId};

/// All splits of a dataset, in dataset order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitPlan {
    split_records: u32,
    records_per_file: Vec<u32>,
    /// Splits before each file, and their total last.
    first_split: Vec<u32>,
    records: u64,
    /// The view of dataset operators or a zip. Its splits cross the bounds of files.
    view: Option<DatasetView>,
    in_order: bool,
}

/// The records to read and run at one position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitVisit {
    /// Its records, neighbours together.
    pub runs: Vec<RecordRange>,
    /// Their counterparts in each further dataset of a zip: as many records, in the same order.
    pub zipped: Vec<Vec<RecordRange>>,
    /// The order in which the records are run, if it differs from that of `runs`.
    pub shuffled: Option<KeyedPermutation>,
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
        let (view, in_order) = (None, false);
        Some(Self { split_records, records_per_file, first_split, records, view, in_order })
    }

    /// As [`new`](Self::new), for the sequence that `ops` make of zipped datasets. Their files are numbered one dataset
    /// after the other; records are named by the first dataset. Fails if there would be more splits
    /// than can be counted, or the operators cannot be resolved.
    pub fn from_zip(
        members: &[ZipMember<'_>],
        split_records: u32,
        ops: &[DatasetOp],
    ) -> Result<Self, DatasetViewError> {
        let too_many = DatasetViewError::TooMany("splits");
        let first = members.first().map_or(&[][..], |first| first.records_per_file);
        let plan = Self::new(first, split_records).ok_or(too_many.clone())?;
        let in_order = ops.contains(&DatasetOp::InOrder);
        let alone = members == [ZipMember::once(first)];
        if alone && ops.is_empty() {
            return Ok(plan);
        }
        let view = DatasetView::new(members, ops, plan.split_records)?;
        let records = view.records();
        let splits = records.div_ceil(u64::from(plan.split_records));
        let splits = u32::try_from(splits).map_err(|_| too_many)?;
        Ok(Self { first_split: vec![splits], records, view: Some(view), in_order, ..plan })
    }

    /// The records at `position` of an epoch that visits every split `copies` times; none beyond its
    /// end.
    pub fn visit(
        &self,
        copies: u32,
        seed: u64,
        epoch: Epoch,
        position: Position,
    ) -> Option<SplitVisit> {
        self.visit_as(copies, seed, epoch, epoch, position)
    }

    /// As [`visit`](Self::visit), with splits composed as in epoch `drawn`: for epochs whose splits
    /// are cached, or are to be.
    pub fn visit_as(
        &self,
        copies: u32,
        seed: u64,
        epoch: Epoch,
        drawn: Epoch,
        position: Position,
    ) -> Option<SplitVisit> {
        let (copy, split) =
            order::visit_of(self.n_splits(), copies, self.in_order, seed, epoch, position)?;
        let Some(view) = &self.view else {
            return Some(SplitVisit {
                runs: vec![RecordRange { copy, ..self.split(split)? }],
                zipped: Vec::new(),
                shuffled: None,
            });
        };
        if split >= self.n_splits() {
            return None;
        }
        let size = u64::from(self.split_records);
        let first = u64::from(split) * size;
        // Each copy draws on its own, and independently of the repetitions that `repeat` makes.
        let seed = if copy == 0 { seed } else { mixed(seed, 0, copy) };
        let mut zipped = view.runs(first..first + size, seed, drawn);
        let mut runs = zipped.remove(0);
        for run in &mut runs {
            run.copy = run.copy.checked_mul(copies)?.checked_add(copy)?;
        }
        let records = runs.iter().map(|run| run.records).sum();
        let shuffled = view
            .shuffle()
            .map(|own| KeyedPermutation::new(records, mixed(seed, own ^ first, copy), drawn));
        Some(SplitVisit { runs, zipped, shuffled })
    }

    /// The number of the visit at `position` among all visits of an epoch, independent of their
    /// order.
    pub fn visit_number(
        &self,
        copies: u32,
        seed: u64,
        epoch: Epoch,
        position: Position,
    ) -> Option<u64> {
        let (copy, split) =
            order::visit_of(self.n_splits(), copies, self.in_order, seed, epoch, position)?;
        Some(order::visit_number(copies, copy, split))
    }

    /// Number of splits.
    pub fn n_splits(&self) -> u32 {
        self.first_split.last().copied().unwrap_or(0)
    }

    /// Records of the whole dataset.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The records of `split` where there are no dataset operators; none for a split there is not.
    /// O(log files).
    fn split(&self, split: SplitId) -> Option<RecordRange> {
        if split >= self.n_splits() {
            return None;
        }
        // The last file that starts at or before the split: empty files before it start there too.
        let file = self.first_split.partition_point(|first| *first <= split) - 1;
        let first_record = (split - self.first_split[file]) * self.split_records;
        let records = (self.records_per_file[file] - first_record).min(self.split_records);
        Some(RecordRange { file: file as u32, first_record, records, copy: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan_with_ops(files: &[u32], split_records: u32, ops: &[DatasetOp]) -> SplitPlan {
        SplitPlan::from_zip(&[ZipMember::once(files)], split_records, ops).unwrap()
    }

    #[test]
    fn the_last_split_of_a_file_is_short() {
        let plan = SplitPlan::new(&[0, 5, 0, 4, 1, 0], 2).unwrap();
        let splits: Vec<_> = (0..).map_while(|split| plan.split(split)).collect();
        let range =
            |file, first_record, records| RecordRange { file, first_record, records, copy: 0 };
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

    #[test]
    fn a_plan_in_order_is_delivered_in_order() {
        let plan = plan_with_ops(&[5, 3], 2, &[DatasetOp::InOrder]);
        let seen: Vec<_> = (0..).map_while(|at| plan.visit(1, 9, 0, at)).collect();
        let runs: Vec<_> = seen.iter().map(|v| (v.runs[0].file, v.runs[0].first_record)).collect();
        assert_eq!(runs, [(0, 0), (0, 2), (0, 4), (1, 1)], "splits go on in the next file");
        let lengths = seen.iter().map(|v| v.runs.iter().map(|run| run.records).sum::<u32>());
        assert_eq!(lengths.collect::<Vec<_>>(), [2, 2, 2, 2]);
        let copies: Vec<_> = (0..).map_while(|at| plan.visit(2, 9, 0, at)).collect();
        let runs: Vec<_> =
            copies.iter().map(|v| (v.runs[0].copy, v.runs[0].first_record)).collect();
        assert_eq!(runs, [(0, 0), (0, 2), (0, 4), (0, 1), (1, 0), (1, 2), (1, 4), (1, 1)]);
        let plan = plan_with_ops(&[5, 3], 2, &[DatasetOp::Take { count: 7 }]);
        assert_eq!((plan.n_splits(), plan.records()), (4, 7), "splits go on in the next file");
    }

    #[test]
    fn zipped_datasets_come_along() {
        let members = [ZipMember::once(&[3, 4]), ZipMember { records_per_file: &[2, 1], times: 2 }];
        let plan = SplitPlan::from_zip(&members, 4, &[DatasetOp::InOrder]).unwrap();
        assert_eq!((plan.n_splits(), plan.records()), (2, 6));
        let run =
            |file, first_record, records, copy| RecordRange { file, first_record, records, copy };
        let first = plan.visit(1, 9, 0, 0).unwrap();
        assert_eq!(first.runs, [run(0, 0, 3, 0), run(1, 0, 1, 0)]);
        assert_eq!(first.zipped, [[run(2, 0, 2, 0), run(3, 0, 1, 0), run(2, 0, 1, 1)]]);
        let second = plan.visit(1, 9, 0, 1).unwrap();
        assert_eq!(second.runs, [run(1, 1, 2, 0)]);
        assert_eq!(second.zipped, [[run(2, 1, 1, 1), run(3, 0, 1, 1)]]);
        assert_eq!(plan.visit(1, 9, 0, 2), None);
        // A single dataset is divided as without a zip.
        let alone = SplitPlan::from_zip(&members[..1], 4, &[]).unwrap();
        assert_eq!(alone, SplitPlan::new(&[3, 4], 4).unwrap());
        assert_eq!(SplitPlan::from_zip(&[], 4, &[]).unwrap().visit(1, 9, 0, 0), None);
    }

    #[test]
    fn a_shuffled_split_is_run_in_another_order() {
        let ops = [DatasetOp::Shuffle { blocks: 2, seed: 1 }];
        let plan = plan_with_ops(&[64], 16, &ops);
        let visits: Vec<_> = (0..).map_while(|at| plan.visit(2, 9, 0, at)).collect();
        assert_eq!(visits.len(), 8);
        let records = |visit: &SplitVisit| visit.runs.iter().map(|run| run.records).sum::<u32>();
        assert!(visits.iter().all(|visit| records(visit) == 16));
        let order = |visit: &SplitVisit| {
            let order = visit.shuffled.clone().unwrap();
            (0..16).map(|i| order.split_at(i).unwrap()).collect::<Vec<_>>()
        };
        let orders: std::collections::BTreeSet<_> = visits.iter().map(order).collect();
        assert_eq!(orders.len(), 8, "each split in its own");
        assert!(!orders.contains(&(0..16).collect::<Vec<_>>()));
        let copies = visits.iter().flat_map(|v| &v.runs).filter(|run| run.copy == 1);
        assert_eq!(copies.map(|run| run.records).sum::<u32>(), 64);
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
