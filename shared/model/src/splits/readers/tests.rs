//! Reports of readers and their merge, case by case and over any sequence.

use super::*;
use crate::RunToken;
use crate::splits::ranks::{RunRanks, TailPolicy};
use crate::splits::run::{RunJoin, TrainingRun, join};
use proptest::prelude::*;

fn count(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap()
}

fn ranks(first: u32, ranks: u32) -> RankRange {
    RankRange { first, count: count(ranks) }
}

fn place(position: u32) -> SplitPlace {
    SplitPlace { epoch: 0, position }
}

fn cursor(batch_index: u64) -> Cursor {
    Cursor { epoch: 0, batch_index }
}

fn ack(generation: u64, durable: u64, delivered: u32) -> ProgressAck {
    ProgressAck {
        generation,
        over: generation - 1,
        delivered: place(delivered),
        durable: cursor(durable),
        durable_place: place(u32::try_from(durable).unwrap().min(delivered)),
        ended: None,
        local_workers: 0,
    }
}

fn started(ranks: u32, generation: u64) -> JobProgress {
    let ranks = RunRanks::new(count(ranks), cursor(0), TailPolicy::Drop);
    let run = TrainingRun { token: RunToken([1; 16]), ranks, epochs: None };
    let start = ack(generation, 0, 0);
    join(None, &RunJoin { run, start, is_successor: false }, 0).unwrap().into_item()
}

fn said(ranks: RankRange, generation: u64, durable: u64, delivered: u32) -> ReaderProgress {
    let ack = ack(generation, durable, delivered);
    report(None, &ReaderReport { reader: 1, over_reader: 0, ranks, ack }, 0).unwrap().into_item()
}

fn merged(job: &JobProgress, readers: &[ReaderProgress]) -> JobProgress {
    merge(Some(job), readers, 0).unwrap().into_item()
}

#[test]
fn the_job_is_where_its_last_reader_is() {
    let job = started(4, 3);
    let readers = [said(ranks(2, 2), 3, 7, 9), said(ranks(0, 2), 3, 5, 12)];
    let after = merged(&job, &readers);
    assert_eq!(
        (after.delivered, after.durable, after.durable_place),
        (place(9), cursor(5), place(5))
    );
    assert_eq!((after.run, after.generation), (job.run, 3));
    assert_eq!(merge(Some(&after), &readers, 0), Ok(TransitionOutcome::AlreadyApplied(after)));
}

#[test]
fn nothing_moves_before_each_rank_has_one_reader() {
    let job = started(4, 3);
    let stays = |readers: &[ReaderProgress]| {
        assert_eq!(merged(&job, readers), job);
        covering(&job, readers).unwrap_err().to_string()
    };
    let low = said(ranks(0, 2), 3, 5, 9);
    assert_eq!(stays(&[]), "rank 0 of 4 has no reader yet");
    assert_eq!(stays(&[low]), "rank 2 of 4 has no reader yet");
    assert_eq!(stays(&[said(ranks(1, 3), 3, 5, 9)]), "rank 0 of 4 has no reader yet");
    assert_eq!(stays(&[low, said(ranks(1, 3), 3, 5, 9)]), "rank 1 is served by two readers");
    let beyond = [low, said(ranks(2, 3), 3, 5, 9)];
    assert_eq!(stays(&beyond), "ranks 2-4 are served, and the run has 4 ranks");
    let old = [low, said(ranks(2, 2), 2, 9, 9)];
    assert_eq!(stays(&old), "rank 2 of 4 has no reader yet", "its report is of an older run");
    let plain = JobProgress { run: None, ..job };
    assert_eq!(covering(&plain, &[low]), Err(RankCoverageError::NoRun));
}

#[test]
fn the_heartbeat_moves_while_ranks_are_missing() {
    let job = started(2, 3);
    let after = merge(Some(&job), &[], 77).unwrap().into_item();
    assert_eq!(after, JobProgress { heartbeat_ms: 77, ..job });
}

#[test]
fn a_place_reported_early_by_one_reader_does_not_stop_the_merge() {
    let ahead = ReaderProgress { durable_place: place(8), ..said(ranks(0, 1), 3, 5, 9) };
    let early = ReaderProgress { durable_place: place(2), ..said(ranks(1, 1), 3, 6, 7) };
    let after = merged(&started(2, 3), &[ahead, early]);
    assert_eq!(
        (after.durable, after.durable_place, after.delivered),
        (cursor(5), place(7), place(7))
    );
}

#[test]
fn an_older_report_changes_nothing() {
    let now = said(ranks(0, 2), 3, 5, 9);
    let again = |reader, over_reader, generation, durable| {
        let ack = ack(generation, durable, 9);
        report(Some(&now), &ReaderReport { reader, over_reader, ranks: ranks(0, 2), ack }, 0)
    };
    assert_eq!(again(1, 0, 3, 4), Ok(TransitionOutcome::AlreadyApplied(now)));
    assert_eq!(again(1, 0, 2, 9), Err(TransitionRefusal::Fenced { generation: 3 }));
    let later = again(2, 1, 3, 4).unwrap().into_item();
    assert_eq!((later.reader, later.durable), (2, cursor(5)), "it goes on where the first was");
    let late = ReaderReport { reader: 1, over_reader: 0, ranks: ranks(0, 2), ack: ack(3, 8, 9) };
    assert_eq!(report(Some(&later), &late, 0), Err(TransitionRefusal::Replaced { reader: 2 }));
    let twin = ReaderReport { reader: 3, over_reader: 1, ..late };
    assert_eq!(report(Some(&later), &twin, 0), Err(TransitionRefusal::Replaced { reader: 2 }));
    let next_run = again(1, 0, 4, 2).unwrap().into_item();
    assert_eq!((next_run.generation, next_run.durable), (4, cursor(2)), "a run may go back");
}

#[test]
fn a_reader_takes_over_the_same_ranks() {
    let now = said(ranks(0, 2), 3, 5, 9);
    let command = ReaderReport { reader: 2, over_reader: 1, ranks: ranks(0, 3), ack: ack(3, 5, 9) };
    assert!(matches!(report(Some(&now), &command, 0), Err(TransitionRefusal::Invalid { .. })));
}

#[test]
fn the_next_reader_leads_when_the_leader_is_silent() {
    let leading = |first, silence_ms: u64| leads(ranks(first, 8), 1_000, 1_000 + silence_ms);
    assert!(leading(0, 0));
    assert!(!leading(8, 6_000) && leading(8, 6_001));
    assert!(!leading(56, 24_000) && leading(56, 24_001));
    assert!(!leads(ranks(8, 8), 9_000, 1_000), "a clock behind is no silence");
    assert!(!leads(ranks(1, 7), 1_000, 1_000), "readers may serve unequal numbers of ranks");
}

#[test]
fn a_reader_that_is_last_and_silent_is_named() {
    let job = started(4, 3);
    let at = |ranks, delivered, heartbeat_ms| ReaderProgress {
        heartbeat_ms,
        ..said(ranks, 3, 0, delivered)
    };
    let (ahead, behind) = (at(ranks(0, 2), 9, 20_000), at(ranks(2, 2), 4, 8_000));
    let waits = |readers: &[ReaderProgress]| waits_for(&job, readers, 20_500);
    let why = waits(&[ahead, behind]).unwrap();
    assert_eq!(why, "ranks 2-3 have been silent for 12 s; the job waits for them");
    let alike = at(ranks(2, 2), 9, 8_000);
    assert_eq!(waits(&[ahead, alike]), None, "both wait for workers");
    let alive = at(ranks(2, 2), 4, 9_000);
    assert_eq!(waits(&[ahead, alive]), None);
    assert_eq!(waits(&[ahead]).unwrap(), "rank 2 of 4 has no reader yet");
    let one = [at(ranks(0, 3), 9, 20_000), at(ranks(3, 1), 4, 0)];
    assert_eq!(waits(&one).unwrap(), "rank 3 has been silent for 20 s; the job waits for it");
}

#[test]
fn ranges_overlap_if_they_share_a_rank() {
    let shared = |a, b| [ranks(a, 4).overlaps(ranks(b, 2)), ranks(b, 2).overlaps(ranks(a, 4))];
    assert_eq!([shared(4, 2), shared(4, 3)], [[false; 2], [true; 2]]);
    assert_eq!([shared(4, 7), shared(4, 8)], [[true; 2], [false; 2]]);
}

#[test]
fn all_followers_together_poll_250_times_a_second() {
    assert_eq!([true, false].map(|leads| poll_every_ms(1, leads)), [0, 0]);
    assert_eq!([2, 4, 8, 256].map(|readers| poll_every_ms(readers, true)), [50, 100, 200, 200]);
    assert_eq!([2, 8, 13, 25, 250].map(|n| poll_every_ms(n, false)), [50, 50, 52, 100, 1_000]);
    assert_eq!([1, 64, 256].map(report_every_ms), [0, 256, 1_024]);
    assert_eq!(poll_every_ms(256, false), 1_024, "each poll of many readers may report");
}

#[test]
fn a_report_is_one_write_unit() {
    let full = ReaderProgress { reader: u64::MAX, ..said(ranks(1 << 20, 1 << 20), 1 << 60, 9, 9) };
    assert!(serde_json::to_string(&full).unwrap().len() < 500);
    assert_eq!(ranks(8, 8).to_string(), "ranks 8-15");
    assert_eq!(ranks(8, 1).to_string(), "rank 8");
}

proptest! {
    /// Merging any reports never moves the job beyond one of them, nor back.
    #[test]
    fn a_merge_is_the_least_of_its_readers(
        reports in prop::collection::vec((0u32..4, 1u32..4, 2u64..4, 0u64..9, 0u32..9), 0..6),
        stale in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut job = started(3, 3);
        let reports: Vec<_> = reports
            .into_iter()
            .map(|(first, n, generation, durable, ahead)| {
                said(ranks(first, n), generation, durable, durable as u32 + ahead)
            })
            .collect();
        for picked in stale.iter().map(|_| &stale) {
            let some: Vec<_> = if reports.is_empty() { Vec::new() } else { picked.iter().map(|index| *index.get(&reports)).collect() };
            let after = merged(&job, &some);
            prop_assert!(after.durable >= job.durable && after.delivered >= job.delivered);
            if after.durable > job.durable {
                let covering = covering(&job, &some).unwrap();
                prop_assert!(covering.iter().all(|reader| after.durable <= reader.durable));
                prop_assert_eq!(covering.iter().map(|r| r.ranks.count.get()).sum::<u32>(), 3);
            }
            job = after;
        }
    }

    /// No sequence of reports takes a reader back within a generation.
    #[test]
    fn any_sequence_of_reports_is_monotone(
        commands in prop::collection::vec((1u64..4, 0u64..4, 1u64..4, 0u64..9, 0u32..3), 0..40),
    ) {
        let mut item: Option<ReaderProgress> = None;
        for (reader, over_reader, generation, durable, ahead) in commands {
            let ack = ack(generation, durable, durable as u32 + ahead);
            let command = ReaderReport { reader, over_reader, ranks: ranks(0, 1), ack };
            if let Ok(TransitionOutcome::Write(after)) = report(item.as_ref(), &command, 0) {
                if let Some(before) = &item {
                    prop_assert_eq!(invariants::invariant_21_reader_is_monotone(before, &after), Ok(()));
                }
                item = Some(after);
            }
        }
    }
}
