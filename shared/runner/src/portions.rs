//! Divides a visit whose records are too large to hold at once into portions, which are read one by one.

use gristmill_model::splits::{RecordRange, SplitVisit};

/// Most unpacked bytes of a portion, unless one record alone is larger. Planned splits stay below this; a
/// split of one batch of large records may not.
pub(crate) const PORTION_BYTES: u64 = 96 << 20;

/// Divides `visit` into portions of at most `most` bytes, or of one record, in the order in which its
/// records are run. `weigh` returns the bytes of each record of a run.
pub(crate) fn portions<E>(
    visit: &SplitVisit,
    most: u64,
    weigh: impl Fn(&RecordRange) -> Result<Vec<u64>, E>,
) -> Result<Vec<SplitVisit>, E> {
    let datasets: Vec<&[RecordRange]> =
        std::iter::once(&visit.runs).chain(&visit.zipped).map(Vec::as_slice).collect();
    let mut weights: Vec<u64> = Vec::new();
    for runs in &datasets {
        let mut place = 0;
        for run in *runs {
            for bytes in weigh(run)? {
                match weights.get_mut(place) {
                    Some(weight) => *weight = weight.saturating_add(bytes),
                    None => weights.push(bytes),
                }
                place += 1;
            }
        }
    }
    let order = |i: usize| match &visit.shuffled {
        Some(order) => order.split_at(i as u32).map_or(i, |at| at as usize),
        None => i,
    };
    let places: Vec<usize> = (0..weights.len()).map(order).collect();
    let records: Vec<Vec<RecordRange>> = datasets.iter().map(|runs| each(runs)).collect();
    let mut portions = Vec::new();
    let mut first = 0;
    while first < places.len() {
        let mut bytes = 0_u64;
        let fits = places[first..].iter().take_while(|place| {
            bytes = bytes.saturating_add(weights[**place]);
            bytes <= most
        });
        let end = first + fits.count().max(1);
        let of = |records: &Vec<RecordRange>| {
            let chosen = places[first..end].iter().filter_map(|place| records.get(*place));
            together(chosen.copied())
        };
        let mut zipped: Vec<Vec<RecordRange>> = records.iter().map(of).collect();
        let runs = zipped.remove(0);
        portions.push(SplitVisit { runs, zipped, shuffled: None });
        first = end;
    }
    Ok(portions)
}

/// The records of `runs`, as runs of one record each.
fn each(runs: &[RecordRange]) -> Vec<RecordRange> {
    let of_run = |run: &RecordRange| {
        let run = *run;
        (0..run.records).map(move |i| RecordRange {
            first_record: run.first_record + i,
            records: 1,
            ..run
        })
    };
    runs.iter().flat_map(of_run).collect()
}

/// The same records as few runs: neighbours are joined.
fn together(records: impl Iterator<Item = RecordRange>) -> Vec<RecordRange> {
    let mut runs: Vec<RecordRange> = Vec::new();
    for run in records {
        let follows = |last: &&mut RecordRange| {
            (last.file, last.copy) == (run.file, run.copy)
                && last.first_record + last.records == run.first_record
        };
        match runs.last_mut().filter(follows) {
            Some(last) => last.records += run.records,
            None => runs.push(run),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_model::splits::order::KeyedPermutation;
    use std::convert::Infallible;

    const fn run(file: u32, first_record: u32, records: u32) -> RecordRange {
        RecordRange { file, first_record, records, copy: 0 }
    }

    /// Divides `visit`; record i of a file has i bytes.
    fn cut(visit: &SplitVisit, most: u64) -> Vec<SplitVisit> {
        let weigh = |run: &RecordRange| {
            let end = run.first_record + run.records;
            Ok::<_, Infallible>((run.first_record..end).map(u64::from).collect())
        };
        portions(visit, most, weigh).unwrap()
    }

    #[test]
    fn a_portion_has_as_many_records_as_fit() {
        let visit =
            SplitVisit { runs: vec![run(0, 1, 4), run(1, 9, 2)], zipped: vec![], shuffled: None };
        let runs = |most| cut(&visit, most).into_iter().map(|part| part.runs).collect::<Vec<_>>();
        assert_eq!(runs(1000), [vec![run(0, 1, 4), run(1, 9, 2)]]);
        assert_eq!(runs(10), [vec![run(0, 1, 4)], vec![run(1, 9, 1)], vec![run(1, 10, 1)]]);
        assert_eq!(
            runs(6),
            [vec![run(0, 1, 3)], vec![run(0, 4, 1)], vec![run(1, 9, 1)], vec![run(1, 10, 1)]]
        );
    }

    #[test]
    fn zipped_records_stay_together_and_a_shuffle_keeps_its_order() {
        let order = KeyedPermutation::new(6, 3, 1);
        let zipped = vec![vec![run(2, 0, 3), run(3, 5, 3)]];
        let runs = vec![run(0, 10, 6)];
        let visit = SplitVisit { runs, zipped, shuffled: Some(order.clone()) };
        let parts = cut(&visit, 30);
        assert!(parts.len() > 2 && parts.iter().all(|part| part.shuffled.is_none()));
        let places: Vec<u32> = parts
            .iter()
            .flat_map(|part| each(&part.runs))
            .map(|run| run.first_record - 10)
            .collect();
        let expected: Vec<u32> = (0..6).filter_map(|i| order.split_at(i)).collect();
        assert_eq!(places, expected);
        let beside: Vec<_> = parts.iter().flat_map(|part| each(&part.zipped[0])).collect();
        let all = each(&visit.zipped[0]);
        let expected: Vec<_> = expected.iter().map(|place| all[*place as usize]).collect();
        assert_eq!(beside, expected);
    }
}
