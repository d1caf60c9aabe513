//! Compares views with the same operators applied to lists.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// (file, record, copy)
type Seen = (u32, u32, u32);

fn seen(view: &DatasetView, size: u64, epoch: Epoch) -> Vec<Seen> {
    let runs = (0..view.records().div_ceil(size))
        .flat_map(|split| view.runs(split * size..(split + 1) * size, 7, epoch).remove(0));
    runs.flat_map(|run| (0..run.records).map(move |i| (run.file, run.first_record + i, run.copy)))
        .collect()
}

fn listed(files: &[u32]) -> Vec<Seen> {
    let records = |(file, &n): (u32, &u32)| (0..n).map(move |record| (file, record, 0));
    (0..).zip(files).flat_map(records).collect()
}

fn apply(list: Vec<Seen>, op: &DatasetOp) -> Vec<Seen> {
    match *op {
        DatasetOp::Take { count } => list.into_iter().take(count as usize).collect(),
        DatasetOp::Skip { count } => list.into_iter().skip(count as usize).collect(),
        DatasetOp::Repeat { count } => (0..count)
            .flat_map(|time| {
                let again = |&(file, record, copy): &Seen| (file, record, copy, time);
                list.iter().map(again).collect::<Vec<_>>()
            })
            .map(|(file, record, copy, time)| (file, record, copy + 1_000 * time))
            .collect(),
        DatasetOp::ShardRecords { index, count, block } => {
            let runs = list.chunks(block as usize).skip(index as usize).step_by(count as usize);
            runs.flatten().copied().collect()
        }
        _ => unreachable!("not made of a list here"),
    }
}

/// The numbers of copies do not matter, only that they differ.
fn multiset(seen: &[Seen]) -> BTreeMap<(u32, u32), usize> {
    let mut counts = BTreeMap::new();
    for (file, record, _) in seen {
        *counts.entry((*file, *record)).or_default() += 1;
    }
    counts
}

fn view(files: &[u32], ops: &[DatasetOp]) -> DatasetView {
    DatasetView::new(&[ZipMember::once(files)], ops, 4).unwrap()
}

#[test]
fn interleave_is_that_of_tf_data() {
    // tf.data.Dataset.range(1, 6).interleave(lambda x: Dataset.from_tensors(x).repeat(6),
    // cycle_length=2, block_length=4), from its documentation.
    let op = DatasetOp::Interleave { cycle_length: 2, block_length: 4 };
    let files: Vec<u32> = seen(&view(&[6; 5], &[op]), 4, 0).iter().map(|seen| seen.0 + 1).collect();
    let documented =
        [1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 3, 3, 4, 4, 5, 5, 5, 5, 5, 5];
    assert_eq!(files, documented);
}

/// The places of what is seen in the dataset of `files`.
fn places(files: &[u32], ops: &[DatasetOp]) -> Vec<usize> {
    let listed = listed(files);
    let place = |of: Seen| listed.iter().position(|seen| *seen == of).unwrap();
    seen(&view(files, ops), 3, 0).into_iter().map(place).collect()
}

#[test]
fn shards_are_those_of_tf_data() {
    let of_records = |block| DatasetOp::ShardRecords { index: 1, count: 5, block };
    assert_eq!(places(&[20], &[of_records(1)]), [1, 6, 11, 16]);
    assert_eq!(places(&[20], &[of_records(3)]), [3, 4, 5, 18, 19], "of batches of three");
    let of_files = DatasetOp::ShardFiles { index: 3, count: 5 };
    let expected: Vec<usize> = (30..40).chain(80..90).collect();
    assert_eq!(places(&[10; 10], std::slice::from_ref(&of_files)), expected, "files 3 and 8");
    let interleave = DatasetOp::Interleave { cycle_length: 2, block_length: 5 };
    let turns: Vec<usize> = (30..35).chain(80..85).chain(35..40).chain(85..90).collect();
    assert_eq!(places(&[10; 10], &[of_files, interleave]), turns);
}

#[test]
fn chosen_records_come_in_the_order_given() {
    let chosen = DatasetOp::Select([7..9, 0..1, 3..5].into());
    assert_eq!(places(&[4, 0, 6], std::slice::from_ref(&chosen)), [7, 8, 0, 3, 4]);
    let some = [DatasetOp::Skip { count: 1 }, chosen, DatasetOp::Take { count: 3 }];
    assert_eq!(places(&[4, 0, 6], &some), [8, 9, 1]);
}

#[test]
fn impossible_view_is_refused() {
    let refused = |files: &[u32], ops: &[DatasetOp]| {
        DatasetView::new(&[ZipMember::once(files)], ops, 1).unwrap_err()
    };
    let interleave = DatasetOp::Interleave { cycle_length: 2, block_length: 1 };
    let skip = DatasetOp::Skip { count: 1 };
    let after_skip = [skip.clone(), interleave.clone()];
    let not_first = DatasetViewError::NotOnFiles("interleave");
    assert_eq!(refused(&[4, 4], &after_skip), not_first);
    assert_eq!(refused(&[u32::MAX], std::slice::from_ref(&interleave)), DatasetViewError::TooFine);
    let shard = DatasetOp::ShardFiles { index: 0, count: 5 };
    let few = DatasetViewError::TooFewFiles { files: 4, shards: 5 };
    assert_eq!(refused(&[4; 4], std::slice::from_ref(&shard)), few);
    assert_eq!(refused(&[4; 9], &[skip, shard.clone()]), DatasetViewError::NotOnFiles("shard"));
    let beyond = DatasetOp::Select([0..1, 7..9].into());
    let no_such = DatasetViewError::NoSuchRecord { record: 8, records: 8 };
    assert_eq!(refused(&[4, 4], &[beyond]), no_such);
    let repeats = [DatasetOp::Repeat { count: u32::MAX }, DatasetOp::Repeat { count: u32::MAX }];
    assert_eq!(refused(&[u32::MAX], &repeats), DatasetViewError::TooMany("records"));
    let shuffle = DatasetOp::Shuffle { blocks: 1, seed: 0 };
    assert_eq!(refused(&[u32::MAX, 1], &[shuffle]), DatasetViewError::TooMany("blocks"));
    let zipped = |members: &[ZipMember<'_>], ops: &[DatasetOp]| DatasetView::new(members, ops, 1);
    let two = [ZipMember::once(&[4, 4]), ZipMember::once(&[8])];
    assert_eq!(zipped(&two, &[interleave]), Err(DatasetViewError::Zipped("interleave")));
    assert_eq!(zipped(&two, &[shard]), Err(DatasetViewError::Zipped("shard")));
    let long = ZipMember { records_per_file: &[u32::MAX; 3], times: u32::MAX };
    assert_eq!(zipped(&[two[0], long], &[]), Err(DatasetViewError::TooMany("records")));
}

#[test]
fn a_shuffled_epoch_differs_from_the_next_and_from_its_own_repeat() {
    let ops = [DatasetOp::Shuffle { blocks: 4, seed: 3 }, DatasetOp::Repeat { count: 2 }];
    let view = view(&[40, 24], &ops);
    let (first, second) = (seen(&view, 4, 0), seen(&view, 4, 1));
    let keys = |half: &[Seen]| half.iter().map(|seen| (seen.0, seen.1)).collect::<Vec<_>>();
    assert_ne!(keys(&first[..64]), keys(&first[64..]));
    assert_ne!(first, second);
    assert_eq!(first, seen(&view, 4, 0));
}

/// (file, record) of each dataset at each place, up to the end of the shortest.
fn zip_of_lists(members: &[(Vec<u32>, u32)]) -> Vec<Vec<(u32, u32)>> {
    let mut first_file = 0;
    let lists = members.iter().map(|(files, times)| {
        let once: Vec<_> = listed(files).iter().map(|s| (first_file + s.0, s.1)).collect();
        first_file += files.len() as u32;
        once.repeat(*times as usize)
    });
    let lists: Vec<Vec<(u32, u32)>> = lists.collect();
    let shortest = lists.iter().map(Vec::len).min().unwrap_or(0);
    (0..shortest).map(|at| lists.iter().map(|list| list[at]).collect()).collect()
}

fn as_members(members: &[(Vec<u32>, u32)]) -> Vec<ZipMember<'_>> {
    members
        .iter()
        .map(|(files, times)| ZipMember { records_per_file: files, times: *times })
        .collect()
}

/// The records at each place of `runs`, as (file, record).
fn together(runs: &[Vec<RecordRange>]) -> Vec<Vec<(u32, u32)>> {
    let flat = |runs: &Vec<RecordRange>| -> Vec<(u32, u32)> {
        let records = |run: &RecordRange| {
            let (file, first) = (run.file, run.first_record);
            (0..run.records).map(move |i| (file, first + i))
        };
        runs.iter().flat_map(records).collect()
    };
    let flat: Vec<_> = runs.iter().map(flat).collect();
    assert!(flat.iter().all(|records| records.len() == flat[0].len()), "{runs:?}");
    (0..flat[0].len()).map(|at| flat.iter().map(|records| records[at]).collect()).collect()
}

#[test]
fn a_zip_ends_with_the_shortest() {
    let fifty = ZipMember::once(&[20, 0, 30]);
    let ten = ZipMember { records_per_file: &[4, 6], times: 10 };
    let records = |members: &[ZipMember<'_>]| DatasetView::new(members, &[], 8).unwrap().records();
    assert_eq!((records(&[fifty, ten]), records(&[ten, fifty])), (50, 50));
    assert_eq!(records(&[fifty, ZipMember::once(&[4, 6]), fifty]), 10);
    assert_eq!(records(&[fifty, ZipMember::once(&[0])]), 0);
    assert_eq!(records(&[]), 0);
}

fn list_op() -> impl Strategy<Value = DatasetOp> {
    prop_oneof![
        (0u64..60).prop_map(|count| DatasetOp::Take { count }),
        (0u64..30).prop_map(|count| DatasetOp::Skip { count }),
        (1u32..4).prop_map(|count| DatasetOp::Repeat { count }),
        (0u32..4, 1u32..4, 1u32..5).prop_map(|(index, more, block)| {
            DatasetOp::ShardRecords { index, count: index + more, block }
        }),
    ]
}

proptest! {
    #[test]
    fn a_view_is_what_the_operators_make_of_a_list(
        files in prop::collection::vec(0u32..12, 0..8),
        ops in prop::collection::vec(list_op(), 0..5),
        size in 1u64..9,
    ) {
        let expected = ops.iter().fold(listed(&files), apply);
        let found = seen(&view(&files, &ops), size, 0);
        let keys = |seen: &[Seen]| seen.iter().map(|s| (s.0, s.1)).collect::<Vec<_>>();
        prop_assert_eq!(keys(&expected), keys(&found));
        // No two visits of a record have one number.
        let mut apart = found.clone();
        apart.sort_unstable();
        apart.dedup();
        prop_assert_eq!(apart.len(), found.len());
    }

    #[test]
    fn shards_share_nothing_and_are_the_whole_together(
        files in prop::collection::vec(0u32..12, 1..9),
        count in 1u32..9, block in 1u32..5, size in 1u64..9,
    ) {
        let of_records = |index| DatasetOp::ShardRecords { index, count, block };
        let of_files = |index| DatasetOp::ShardFiles { index, count };
        let all = |shard: &dyn Fn(u32) -> DatasetOp| {
            let views = (0..count).map(|index| view(&files, &[shard(index)]));
            let mut all: Vec<Seen> = views.flat_map(|view| seen(&view, size, 0)).collect();
            all.sort_unstable();
            all
        };
        prop_assert_eq!(all(&of_records), listed(&files));
        if files.len() >= count as usize {
            prop_assert_eq!(all(&of_files), listed(&files));
        }
    }

    #[test]
    fn a_zip_is_that_of_lists_however_it_is_split(
        members in prop::collection::vec((prop::collection::vec(0u32..9, 0..5), 1u32..4), 1..4),
        ops in prop::collection::vec(list_op(), 0..4),
        size in 1u64..9,
    ) {
        let pairs = zip_of_lists(&members);
        let places = (0..pairs.len() as u32).map(|place| (place, 0, 0)).collect();
        let places = ops.iter().fold(places, apply);
        let expected: Vec<_> = places.iter().map(|seen| pairs[seen.0 as usize].clone()).collect();
        let view = DatasetView::new(&as_members(&members), &ops, 4).unwrap();
        prop_assert_eq!(view.records(), expected.len() as u64);
        let splits = 0..view.records().div_ceil(size);
        let runs = splits.map(|split| view.runs(split * size..(split + 1) * size, 7, 0));
        let found: Vec<_> = runs.flat_map(|runs| together(&runs)).collect();
        prop_assert_eq!(found, expected);
        // No two visits of a record have one number.
        let mut apart = seen(&view, size, 0);
        apart.sort_unstable();
        apart.dedup();
        prop_assert_eq!(apart.len() as u64, view.records());
    }

    #[test]
    fn a_shuffled_zip_has_each_pair_once(
        members in prop::collection::vec((prop::collection::vec(0u32..20, 0..5), 1u32..4), 2..4),
        blocks in 1u32..6, split_records in 1u32..9, size in 1u64..9, epoch in 0u32..3,
    ) {
        let ops = [DatasetOp::Shuffle { blocks, seed: 9 }];
        let view = DatasetView::new(&as_members(&members), &ops, split_records).unwrap();
        let splits = 0..view.records().div_ceil(size);
        let runs = splits.map(|split| view.runs(split * size..(split + 1) * size, 7, epoch));
        let mut found: Vec<_> = runs.flat_map(|runs| together(&runs)).collect();
        let mut expected = zip_of_lists(&members);
        found.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn shuffling_and_interleaving_lose_nothing(
        files in prop::collection::vec(0u32..30, 0..8),
        cycle_length in 1u32..5, block_length in 1u32..5,
        blocks in 1u32..6, split_records in 1u32..9, size in 1u64..9, epoch in 0u32..3,
    ) {
        let ops = [
            DatasetOp::Interleave { cycle_length, block_length },
            DatasetOp::Shuffle { blocks, seed: 9 },
            DatasetOp::Repeat { count: 2 },
        ];
        let view = DatasetView::new(&[ZipMember::once(&files)], &ops, split_records).unwrap();
        let found = seen(&view, size, epoch);
        prop_assert_eq!(view.records(), found.len() as u64);
        let expected: Vec<Seen> = listed(&files).into_iter().flat_map(|seen| [seen; 2]).collect();
        prop_assert_eq!(multiset(&found), multiset(&expected));
    }
}
