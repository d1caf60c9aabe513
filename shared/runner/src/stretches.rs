//! Plans the reads for the runs of a visit: each record once, neighbours together.

use gristmill_executor::RecordPick;
use gristmill_model::splits::{RecordRange, order::KeyedPermutation};

/// Neighbouring records of one file that are read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlannedRead {
    /// Index of the file in the dataset.
    pub file: u32,
    pub first_record: u32,
    pub records: u32,
}

impl PlannedRead {
    fn from_range(run: &RecordRange) -> Self {
        let RecordRange { file, first_record, records, .. } = *run;
        PlannedRead { file, first_record, records }
    }

    fn end(&self) -> u64 {
        u64::from(self.first_record) + u64::from(self.records)
    }
}

/// The reads for `runs`, sorted by file and record; runs that touch or overlap become one read.
pub(crate) fn spans(runs: &[RecordRange]) -> Vec<PlannedRead> {
    let mut all: Vec<PlannedRead> = runs.iter().map(PlannedRead::from_range).collect();
    all.sort_unstable_by_key(|span| (span.file, span.first_record));
    let mut spans: Vec<PlannedRead> = Vec::with_capacity(all.len());
    for span in all {
        let touches = |last: &&mut PlannedRead| {
            last.file == span.file && u64::from(span.first_record) <= last.end()
        };
        match spans.last_mut().filter(touches) {
            Some(last) => {
                last.records = (last.end().max(span.end()) - u64::from(last.first_record)) as u32;
            }
            None => spans.push(span),
        }
    }
    spans
}

/// The records of `runs` in the order in which to run them, shuffled if `shuffled` is given; none if
/// `spans` hold them in that order.
pub(crate) fn picks(
    spans: &[PlannedRead],
    runs: &[RecordRange],
    shuffled: Option<&KeyedPermutation>,
) -> Option<Vec<RecordPick>> {
    let as_read = runs.iter().map(PlannedRead::from_range).eq(spans.iter().copied());
    let one_copy = runs.windows(2).all(|pair| pair[0].copy == pair[1].copy);
    if as_read && one_copy && shuffled.is_none() {
        return None;
    }
    let picks = runs.iter().flat_map(|run| {
        // The last span that begins at or before the run.
        let after =
            |span: &PlannedRead| (span.file, span.first_record) <= (run.file, run.first_record);
        let part = spans.partition_point(after).saturating_sub(1);
        let offset = run.first_record - spans[part].first_record;
        let copy = run.copy;
        (0..run.records).map(move |i| RecordPick { part: part as u32, record: offset + i, copy })
    });
    let picks: Vec<RecordPick> = picks.collect();
    let Some(order) = shuffled else { return Some(picks) };
    let shuffled = (0..picks.len() as u32).filter_map(|at| picks.get(order.split_at(at)? as usize));
    Some(shuffled.copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn run(file: u32, first_record: u32, records: u32, copy: u32) -> RecordRange {
        RecordRange { file, first_record, records, copy }
    }

    #[test]
    fn records_are_read_once_and_neighbours_together() {
        let span = |file, first_record, records| PlannedRead { file, first_record, records };
        let runs = [run(1, 4, 2, 0), run(0, 0, 3, 0), run(1, 6, 1, 0), run(1, 5, 4, 1)];
        assert_eq!(spans(&runs), [span(0, 0, 3), span(1, 4, 5)]);
        assert_eq!(spans(&[run(0, u32::MAX - 1, 1, 0), run(0, 0, 1, 0)]).len(), 2);
        assert_eq!(spans(&[]), []);
    }

    #[test]
    fn what_is_read_in_order_needs_no_picks() {
        let runs = [run(0, 2, 3, 4), run(1, 0, 2, 4)];
        assert_eq!(picks(&spans(&runs), &runs, None), None);
    }

    #[test]
    fn picks_follow_the_runs() {
        let runs = [run(1, 4, 2, 0), run(0, 0, 1, 0), run(1, 5, 1, 1)];
        let pick = |part, record, copy| RecordPick { part, record, copy };
        let expected = [pick(1, 0, 0), pick(1, 1, 0), pick(0, 0, 0), pick(1, 1, 1)];
        assert_eq!(picks(&spans(&runs), &runs, None).unwrap(), expected);
        let order = KeyedPermutation::new(4, 5, 0);
        let mut found = picks(&spans(&runs), &runs, Some(&order)).unwrap();
        assert_ne!(found, expected);
        let by_place = |pick: &RecordPick| (pick.part, pick.record, pick.copy);
        found.sort_unstable_by_key(by_place);
        let mut sorted = expected;
        sorted.sort_unstable_by_key(by_place);
        assert_eq!(found, sorted);
    }
}
