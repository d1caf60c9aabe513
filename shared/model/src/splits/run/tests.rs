//! Readers that join runs, case by case.

use super::*;
use crate::splits::SplitPlace;
use crate::splits::job_progress::{ack, collected};
use crate::splits::ranks::TailPolicy;
use std::num::NonZeroU32;

fn at(batch_index: u64) -> Cursor {
    Cursor { epoch: 0, batch_index }
}

fn place(position: u32) -> SplitPlace {
    SplitPlace { epoch: 0, position }
}

/// A reader of the run called `name`, of `count` ranks from batch `from`, that finds generation
/// `over` and takes `generation`.
fn reader(name: &str, count: u32, from: u64, (over, generation): (u64, u64)) -> RunJoin {
    let count = NonZeroU32::new(count).unwrap();
    let ranks = RunRanks::new(count, at(from), TailPolicy::Drop);
    let place = place(from as u32);
    let start = ProgressAck {
        generation,
        over,
        delivered: place,
        durable: at(from),
        durable_place: place,
        ended: None,
        local_workers: 0,
    };
    let run = TrainingRun { token: RunToken::from_name(name), ranks, epochs: None };
    RunJoin { run, start, is_successor: false }
}

fn joined(before: Option<&JobProgress>, command: &RunJoin) -> JobProgress {
    let outcome = join(before, command, 0).unwrap();
    *outcome.write().expect("a new run begins")
}

fn progress(job: &JobProgress, batch_index: u64) -> JobProgress {
    let place = place(batch_index as u32);
    let JobProgress { generation, .. } = *job;
    let command = ProgressAck {
        generation,
        over: 0,
        delivered: place,
        durable: at(batch_index),
        durable_place: place,
        ended: None,
        local_workers: 0,
    };
    ack(Some(job), &command, 0).unwrap().into_item()
}

#[test]
fn the_first_reader_begins_the_run_and_the_others_find_it() {
    let first = joined(None, &reader("a", 2, 0, (0, 5)));
    assert_eq!((first.generation, first.run.unwrap().ranks.count.get()), (5, 2));
    // The second found no run either, and chose another generation.
    let second = join(Some(&first), &reader("a", 2, 0, (0, 6)), 9).unwrap();
    assert_eq!(second, TransitionOutcome::AlreadyApplied(first));
}

#[test]
fn readers_of_one_run_agree_on_its_ranks_and_its_beginning() {
    let first = joined(None, &reader("a", 2, 0, (0, 5)));
    let refused = |command: &RunJoin| join(Some(&first), command, 0).unwrap_err().to_string();
    let why = refused(&reader("a", 3, 0, (5, 6)));
    let both = ["2 ranks from batch 0 of epoch 0", "3 ranks from batch 0 of epoch 0"];
    assert!(both.iter().all(|ranks| why.contains(ranks)), "{why}");
    assert!(refused(&reader("a", 2, 1, (5, 6))).contains("2 ranks from batch 1 of epoch 0"));
    let mut other = reader("a", 2, 0, (5, 6));
    other.run.ranks.tail = TailPolicy::Repeat;
    assert!(refused(&other).contains("tail repeat"), "{}", refused(&other));
}

#[test]
fn a_successor_begins_at_the_durable_cursor_or_later() {
    let run = progress(&joined(None, &reader("a", 2, 0, (0, 5))), 4);
    let successor = |from| RunJoin { is_successor: true, ..reader("a", 2, from, (5, 6)) };
    for from in [0, 4, 6] {
        assert_eq!(
            join(Some(&run), &successor(from), 0),
            Ok(TransitionOutcome::AlreadyApplied(run))
        );
    }
    assert!(matches!(
        join(Some(&run), &successor(2), 0),
        Err(TransitionRefusal::RunDiffers { .. })
    ));
}

#[test]
fn a_later_run_of_any_size_takes_over_from_the_checkpoint() {
    let run = progress(&joined(None, &reader("a", 2, 0, (0, 5))), 4);
    let next = joined(Some(&run), &reader("b", 3, 2, (5, 9)));
    assert_eq!((next.generation, next.durable), (9, at(2)), "an older checkpoint");
    assert!(
        next.past.contains(RunToken::from_name("a"))
            && !next.past.contains(RunToken::from_name("b"))
    );
}

#[test]
fn a_run_may_begin_before_what_has_been_collected() {
    let first = progress(&joined(None, &reader("a", 2, 0, (0, 5))), 6);
    let first = collected(Some(&first)).unwrap().into_item();
    let behind = joined(Some(&first), &reader("b", 1, 2, (5, 6)));
    assert_eq!((behind.durable, behind.durable_place), (at(2), place(2)));
    assert_eq!((behind.collected, behind.collected_place), (at(6), place(6)));
    // A second reader and a successor find it so.
    let found = Ok(TransitionOutcome::AlreadyApplied(behind));
    assert_eq!(join(Some(&behind), &reader("b", 1, 2, (5, 7)), 0), found);
    let successor = RunJoin { is_successor: true, ..reader("b", 1, 3, (6, 7)) };
    assert_eq!(join(Some(&behind), &successor, 0), found);
    // The horizon stays until the run has passed it.
    assert_eq!(collected(Some(&behind)), Ok(TransitionOutcome::AlreadyApplied(behind)));
    let passed = collected(Some(&progress(&behind, 8))).unwrap().into_item();
    assert_eq!((passed.collected, passed.collected_place), (at(8), place(8)));
}

#[test]
fn a_reader_of_a_superseded_run_is_fenced() {
    let first = joined(None, &reader("a", 2, 0, (0, 5)));
    let second = joined(Some(&first), &reader("b", 2, 0, (5, 6)));
    let fenced = Err(TransitionRefusal::Fenced { generation: 6 });
    assert_eq!(join(Some(&second), &reader("a", 2, 0, (6, 7)), 0), fenced);
    // It never joined, and knows of no run but the first.
    assert_eq!(join(Some(&second), &reader("c", 2, 0, (5, 7)), 0), fenced);
    assert_eq!(join(Some(&second), &reader("c", 2, 0, (6, 6)), 0), fenced);
}

#[test]
fn a_second_reader_of_all_ranks_takes_the_place_of_the_first() {
    let first = progress(&joined(None, &reader("a", 2, 0, (0, 5))), 4);
    let alone = |command: &RunJoin| join_alone(Some(&first), command, Visitation::ExactlyOnce, 0);
    assert_eq!(
        alone(&reader("a", 2, 0, (0, 5))),
        Ok(TransitionOutcome::AlreadyApplied(first)),
        "repeated"
    );
    let mut second = reader("a", 2, 0, (5, 6));
    (second.is_successor, second.start.durable) = (true, at(2));
    let second = *alone(&second).unwrap().write().unwrap();
    assert_eq!((second.generation, second.durable, second.run), (6, at(2), first.run));
    assert!(second.past.is_empty(), "the run is the same");
    let unknowing = alone(&reader("a", 2, 0, (4, 7)));
    assert_eq!(unknowing, Err(TransitionRefusal::Fenced { generation: 5 }));
    assert!(matches!(alone(&reader("a", 3, 0, (5, 6))), Err(TransitionRefusal::RunDiffers { .. })));
    let late = reader("a", 2, 0, (0, 5));
    let fenced = join_alone(Some(&second), &late, Visitation::ExactlyOnce, 0);
    assert_eq!(fenced, Err(TransitionRefusal::Fenced { generation: 6 }), "the first is late");
}

#[test]
fn at_most_once_never_begins_before_what_is_durable() {
    let of = |before: Option<&JobProgress>, command: &RunJoin, visitation| {
        join_alone(before, command, visitation, 0)
    };
    let (first, behind) = (reader("a", 1, 0, (0, 5)), reader("b", 1, 3, (5, 6)));
    let begun = of(None, &first, Visitation::AtMostOnce).unwrap().into_item();
    let run = progress(&begun, 4);
    let refused = Err(TransitionRefusal::Collected { durable: at(4) });
    assert_eq!(of(Some(&run), &behind, Visitation::AtMostOnce), refused);
    let restarted = reader("a", 1, 0, (5, 6));
    assert_eq!(of(Some(&run), &restarted, Visitation::AtMostOnce), refused, "in the same run");
    for visitation in [Visitation::ExactlyOnce, Visitation::ZeroOnceOrMore] {
        assert!(matches!(of(Some(&run), &behind, visitation), Ok(TransitionOutcome::Write(_))));
    }
    let again = of(Some(&run), &first, Visitation::AtMostOnce);
    assert_eq!(again, Ok(TransitionOutcome::AlreadyApplied(run)), "a join that is sent again");
    let next = of(Some(&run), &reader("b", 1, 4, (5, 6)), Visitation::AtMostOnce).unwrap();
    let fenced = of(Some(next.item()), &first, Visitation::AtMostOnce);
    assert_eq!(fenced, Err(TransitionRefusal::Fenced { generation: 6 }));
}

#[test]
fn a_run_begins_at_its_first_batch_or_with_the_next_epoch() {
    let mut command = reader("a", 2, 7, (0, 1));
    command.start.durable = at(8);
    assert!(matches!(join(None, &command, 0), Err(TransitionRefusal::Invalid { .. })));
    // The epoch has seven batches, which the checkpoint did not know.
    let next = SplitPlace { epoch: 1, position: 0 };
    command.start.durable = Cursor { epoch: 1, batch_index: 0 };
    (command.start.durable_place, command.start.delivered) = (next, next);
    assert_eq!(joined(None, &command).durable.epoch, 1);
}

#[test]
fn eight_superseded_runs_are_remembered() {
    let tokens: Vec<_> = (0..10).map(|i| RunToken::from_name(&format!("run-{i}"))).collect();
    let past = tokens.iter().fold(PastRuns::default(), |past, token| past.with(*token));
    let known: Vec<_> = tokens.iter().filter(|token| past.contains(**token)).collect();
    assert_eq!(known, tokens[2..].iter().collect::<Vec<_>>());
    assert_eq!(past.with(tokens[5]), past.with(tokens[5]).with(tokens[5]), "each once");
    let stored = serde_json::to_string(&past).unwrap();
    assert_eq!(serde_json::from_str::<PastRuns>(&stored).unwrap(), past);
}

#[test]
fn an_item_with_a_run_and_eight_past_ones_is_one_write_unit() {
    let names = (0..=PAST_RUNS).map(|i| format!("run-{i}"));
    let full = names.fold(None, |before: Option<JobProgress>, name| {
        let over = before.map_or(0, |before| before.generation);
        Some(joined(before.as_ref(), &reader(&name, 64, 0, (over, over + (1 << 60) / 9))))
    });
    let full = full.unwrap();
    assert!((0..PAST_RUNS).all(|i| full.past.contains(RunToken::from_name(&format!("run-{i}")))));
    let stored = serde_json::to_string(&full).unwrap();
    assert!(stored.len() < 1_000, "{} bytes: {stored}", stored.len());
    assert_eq!(serde_json::from_str::<JobProgress>(&stored).unwrap(), full);
    // Before the first run there is nothing to store of it.
    let stored = serde_json::to_string(&JobProgress::default()).unwrap();
    assert!(!stored.contains("run") && !stored.contains("past"), "{stored}");
}

#[test]
fn readers_of_one_run_agree_on_its_replicas() {
    let meshed = |replicas: &str, number| {
        let command = reader("a", 4, 0, number);
        let replicas = replicas.parse().unwrap();
        let ranks = RunRanks { replicas, ..command.run.ranks };
        RunJoin { run: TrainingRun { ranks, ..command.run }, ..command }
    };
    let first = joined(None, &meshed("2", (0, 5)));
    assert!(join(Some(&first), &meshed("2", (5, 6)), 0).is_ok());
    let why = join(Some(&first), &meshed("2x1", (5, 6)), 0).unwrap_err().to_string();
    assert!(why.contains("and replicas 2") && why.contains("and replicas 2x1"), "{why}");
    let why = join(None, &meshed("3", (0, 5)), 0).unwrap_err().to_string();
    assert!(why.contains("replicas do not divide the ranks"), "{why}");
}
