//! The progress of a job, case by case.

use super::*;
use crate::splits::ranks::RunRanks;
use crate::splits::run::{RunJoin, join_alone};
use crate::{RunToken, Visitation};
use proptest::prelude::*;

fn at(generation: u64, g: u64, position: Position) -> ProgressAck {
    ProgressAck {
        generation,
        over: generation - 1,
        delivered: SplitPlace { epoch: 0, position: position + 1 },
        durable: Cursor { epoch: 0, batch_index: g },
        durable_place: SplitPlace { epoch: 0, position },
        ended: None,
        local_workers: 0,
    }
}

/// A trainer of one rank begins the run of its generation. Times grow with the durable cursor.
fn join(
    before: Option<&JobProgress>,
    from: &ProgressAck,
) -> Result<TransitionOutcome<JobProgress>, TransitionRefusal> {
    let token = RunToken::from_name(&from.generation.to_string());
    let run = TrainingRun { token, ranks: RunRanks::one(from.durable), epochs: None };
    let command = RunJoin { run, start: *from, is_successor: false };
    join_alone(before, &command, Visitation::ExactlyOnce, from.durable.batch_index)
}

fn ack(
    before: Option<&JobProgress>,
    command: &ProgressAck,
) -> Result<TransitionOutcome<JobProgress>, TransitionRefusal> {
    super::ack(before, command, command.durable.batch_index)
}

fn started() -> JobProgress {
    join(None, &at(1, 0, 0)).unwrap().into_item()
}

#[test]
fn a_newer_generation_fences_the_older() {
    let first = started();
    let second = join(Some(&first), &at(2, 0, 0)).unwrap().into_item();
    assert_eq!(ack(Some(&second), &at(1, 5, 2)), Err(TransitionRefusal::Fenced { generation: 2 }));
    assert_eq!(join(Some(&second), &at(1, 0, 0)), Err(TransitionRefusal::Fenced { generation: 2 }));
    assert_eq!(join(Some(&second), &at(2, 0, 0)), Ok(TransitionOutcome::AlreadyApplied(second)));
}

#[test]
fn late_report_of_a_dead_run_fences_no_reader() {
    let first = started();
    let third = join(Some(&first), &ProgressAck { over: 1, ..at(3, 0, 0) }).unwrap().into_item();
    // The second run found the first too, took its clock as generation, and died.
    let late = ProgressAck { over: 1, ..at(9, 0, 0) };
    assert_eq!(ack(Some(&third), &late), Err(TransitionRefusal::Fenced { generation: 3 }));
    assert!(matches!(
        ack(Some(&third), &ProgressAck { over: 1, ..at(3, 5, 2) }),
        Ok(TransitionOutcome::Write(_))
    ));
}

#[test]
fn only_the_run_that_has_joined_acknowledges() {
    let newer = ack(Some(&started()), &ProgressAck { over: 1, ..at(7, 3, 1) });
    assert_eq!(newer, Err(TransitionRefusal::Fenced { generation: 1 }));
    assert!(matches!(ack(None, &at(1, 0, 0)), Err(TransitionRefusal::Invalid { .. })));
}

#[test]
fn an_ack_sent_again_or_overtaken_changes_nothing() {
    let ahead = ack(Some(&started()), &at(1, 5, 2)).unwrap().into_item();
    assert_eq!(ack(Some(&ahead), &at(1, 5, 2)), Ok(TransitionOutcome::AlreadyApplied(ahead)));
    assert_eq!(ack(Some(&ahead), &at(1, 3, 1)), Ok(TransitionOutcome::AlreadyApplied(ahead)));
}

#[test]
fn a_new_run_may_go_back_to_the_horizon_and_behind_it() {
    let ahead = ack(Some(&started()), &at(1, 5, 2)).unwrap().into_item();
    let horizon = collected(Some(&ahead)).unwrap().into_item();
    let ahead = ack(Some(&horizon), &at(1, 9, 4)).unwrap().into_item();
    for batch_index in [5, 4] {
        let back = join(Some(&ahead), &at(2, batch_index, 1)).unwrap().into_item();
        assert_eq!(back.durable, Cursor { epoch: 0, batch_index });
        assert_eq!(back.durable_place.position, if batch_index < 5 { 1 } else { 2 });
        assert_eq!(back.collected, horizon.collected);
        assert_eq!(back.collected_place, horizon.collected_place);
    }
}

#[test]
fn a_checkpoint_saved_before_splits_without_rows_is_as_good_as_one_saved_after() {
    let ahead = ack(Some(&started()), &at(1, 5, 6)).unwrap().into_item();
    let horizon = collected(Some(&ahead)).unwrap().into_item();
    let back = join(Some(&horizon), &at(2, 5, 3)).unwrap().into_item();
    assert_eq!(back.durable_place, SplitPlace { epoch: 0, position: 6 });
    assert!(back.delivered >= back.durable_place);
}

#[test]
fn nothing_is_collected_for_a_job_without_progress() {
    assert!(matches!(collected(None), Err(TransitionRefusal::Invalid { .. })));
    assert!(collected(Some(&started())).unwrap().write().is_none());
}

#[test]
fn durable_cannot_be_ahead_of_delivered() {
    let mut ahead = at(1, 1, 5);
    ahead.delivered.position = 4;
    assert!(matches!(ack(Some(&started()), &ahead), Err(TransitionRefusal::Invalid { .. })));
    let mut torn = at(1, 1, 5);
    torn.durable.epoch = 1;
    assert!(matches!(ack(Some(&started()), &torn), Err(TransitionRefusal::Invalid { .. })));
}

proptest! {
    /// No sequence of commands breaks an invariant (the transitions assert them).
    #[test]
    fn any_sequence_of_commands_keeps_the_invariants(
        commands in prop::collection::vec((0u8..3, 0u64..4, 0u32..3, 0u64..9, 0u32..9, 0u32..3), 0..40),
    ) {
        let mut progress = None;
        for (command, generation, epoch, g, position, ahead) in commands {
            let over = progress.map_or(0, |progress: JobProgress| progress.generation);
            let data = ProgressAck {
                generation,
                over,
                delivered: SplitPlace { epoch, position: position + ahead },
                durable: Cursor { epoch, batch_index: g },
                durable_place: SplitPlace { epoch, position }, ended: None, local_workers: 0 };
            let outcome = match command {
                0 => join(progress.as_ref(), &data),
                1 => ack(progress.as_ref(), &data),
                _ => collected(progress.as_ref()),
            };
            if let Ok(TransitionOutcome::Write(after)) = outcome {
                progress = Some(after);
            }
        }
    }
}

#[test]
fn a_run_that_found_a_generation_which_the_table_has_lost_takes_over() {
    let first = started();
    let ahead = join(Some(&first), &ProgressAck { over: 5, ..at(7, 3, 1) }).unwrap();
    assert_eq!(ahead.write().map(|progress| progress.generation), Some(7));
}

#[test]
fn work_begins_at_what_is_lacking_until_it_is_made() {
    let place = |position| SplitPlace { epoch: 0, position };
    let lacks = |from, to| Some(LackingSplits { from: place(from), to: place(to) });
    let progress = ack(Some(&started()), &at(1, 9, 8)).unwrap().into_item();
    assert_eq!((progress.horizon().slowest, progress.horizon().passed_epochs()), (place(9), 0));
    let lacking = progress.with_lacking(lacks(4, 9)).with_lacking(lacks(6, 14));
    assert_eq!((lacking.horizon().slowest, lacking.lacking), (place(4), lacks(4, 14)));
    let further = ack(Some(&lacking), &at(1, 12, 11)).unwrap().into_item();
    assert_eq!(further.horizon().slowest, place(4), "an acknowledgement makes nothing");
    let next = join(Some(&further), &at(2, 12, 11)).unwrap().into_item();
    assert_eq!(next.horizon().slowest, place(4), "nor does another run of the trainer");
    assert!(made(Some(&next), place(3)).write().is_none());
    let some = made(Some(&next), place(12)).into_item();
    assert_eq!(some.lacking, lacks(12, 14), "the trainer knows of two more");
    let all = made(Some(&some), place(14)).into_item();
    assert_eq!((all.horizon().slowest, all.lacking), (place(12), None));
}

#[test]
fn an_epoch_is_passed_once_it_is_made() {
    let durable = Cursor { epoch: 2, batch_index: 0 };
    let delivered = SplitPlace { epoch: 2, position: 0 };
    let progress = JobProgress { delivered, durable, ..started() };
    assert_eq!(progress.horizon().passed_epochs(), 2);
    let (from, to) = (SplitPlace { epoch: 1, position: 3 }, SplitPlace { epoch: 2, position: 0 });
    assert_eq!(
        progress.with_lacking(Some(LackingSplits { from, to })).horizon().passed_epochs(),
        1
    );
}
