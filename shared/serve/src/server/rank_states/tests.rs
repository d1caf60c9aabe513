//! Ranks that take steps, fall behind, leave and return.

use super::*;
use bytes::Bytes;
use gristmill_model::splits::ranks::TailPolicy;
use gristmill_stream::samples::batch;
use gristmill_stream::{DeliveredBatch, MemoryShare};

const EPOCHS: Epoch = 2;

fn seats_of(first: u32, count: u32, of: u32, is_successor: bool) -> RankStates {
    let own =
        gristmill_stream::samples::own(of, first..first + count, batch(0, 0), TailPolicy::Repeat);
    let own = ServedRanks { is_successor, ..own };
    RankStates::new(own, (EPOCHS, batch(0, 0)), AckTiming::Said)
}

/// Both ranks of a run of two, connected by links 0 and 1.
fn two() -> RankStates {
    let mut seats = seats_of(0, 2, 2, false);
    for seat in 0..2 {
        seats.sit(seat, None, seat as RankLinkId).unwrap();
    }
    seats
}

/// Releases the step of two batches that begins at `start`, of which the first `given` exist.
fn release(seats: &mut RankStates, start: Cursor, given: u64) -> bool {
    let of = |rank: u64| {
        let batch_index = start.batch_index + rank;
        let batch = DeliveredBatch {
            epoch: start.epoch,
            batch_index,
            rows: 8,
            frame: Bytes::new(),
            room: MemoryShare::default(),
        };
        (rank < given).then_some(RankBatch { batch, repeated_for: None })
    };
    let next = batch(start.epoch, start.batch_index + 2);
    seats.release((start, next), vec![of(0), of(1)])
}

/// All that is handed over now, by link: batches taken, none for the end.
fn taken(seats: &mut RankStates) -> Vec<(RankLinkId, Option<Cursor>)> {
    let mut all = Vec::new();
    while let Some((link, handed)) = seats.hand_over() {
        seats.taken(usize::try_from(link % 10).unwrap());
        all.push(match handed {
            RankOutput::Step { batch, .. } => (link, Some(batch.batch.cursor())),
            RankOutput::End => (link, None),
        });
    }
    all
}

#[test]
fn a_rank_that_takes_nothing_holds_the_others_after_two_steps() {
    let mut seats = two();
    for start in [0, 2] {
        assert_eq!(seats.wanted(), StreamAction::Release);
        assert!(release(&mut seats, batch(0, start), 2));
    }
    assert_eq!(seats.wanted(), StreamAction::Hold);
    // Rank 1 is sent its first step and does not read it.
    let order = [seats.hand_over(), seats.hand_over(), seats.hand_over()];
    assert!(order[0].as_ref().is_some_and(|(link, _)| *link == 0));
    assert!(order[1].as_ref().is_some_and(|(link, _)| *link == 1));
    assert!(order[2].is_none(), "one step at a time is on its way");
    seats.taken(0);
    assert!(seats.hand_over().is_some());
    // Both took the first step, so a third one has room, and then rank 1 holds.
    assert_eq!(seats.wanted(), StreamAction::Release);
    release(&mut seats, batch(0, 4), 2);
    assert_eq!((seats.wanted(), seats.slowest()), (StreamAction::Hold, vec![1]));
    seats.taken(1);
    assert_eq!(taken(&mut seats), [(1, Some(batch(0, 3))), (1, Some(batch(0, 5)))]);
    assert_eq!(seats.wanted(), StreamAction::Release);
}

#[test]
fn the_least_of_all_ranks_is_durable() {
    let mut seats = two();
    release(&mut seats, batch(0, 0), 2);
    release(&mut seats, batch(0, 2), 2);
    taken(&mut seats);
    seats.acknowledge(0, batch(0, 2)).unwrap();
    assert_eq!(seats.durable(), batch(0, 0));
    seats.acknowledge(1, batch(0, 1)).unwrap();
    assert_eq!(seats.durable(), batch(0, 2));
    seats.acknowledge(1, batch(0, 1)).unwrap();
    let why = seats.acknowledge(1, batch(0, 2)).unwrap_err();
    assert!(
        why.contains("rank 1 acknowledges batch 2 of epoch 0, which is not one of its own"),
        "{why}"
    );
    let why = seats.acknowledge(1, batch(0, 5)).unwrap_err();
    assert!(why.contains("was handed only what comes before batch 4"), "{why}");
    assert_eq!(seats.acknowledge(1, batch(0, 0)), Ok(()), "it is durable already");
}

#[test]
fn one_rank_may_speak_for_the_whole_job() {
    let mut seats = two();
    release(&mut seats, batch(0, 0), 2);
    release(&mut seats, batch(0, 2), 2);
    assert!(seats.hand_over().is_some(), "rank 0");
    let why = seats.acknowledge_job(0, batch(0, 2)).unwrap_err();
    assert!(why.contains("a rank was handed only what comes before batch 0"), "{why}");
    seats.taken(0);
    taken(&mut seats);
    assert!(seats.acknowledge_job(0, batch(0, 3)).unwrap_err().contains("where no step ends"));
    seats.acknowledge_job(0, batch(0, 4)).unwrap();
    assert_eq!(seats.durable(), batch(0, 4));
}

#[test]
fn a_rank_that_returns_gets_the_same_steps_and_the_others_none_twice() {
    let mut seats = two();
    for start in [0, 2, 4] {
        release(&mut seats, batch(0, start), 2);
        taken(&mut seats);
    }
    seats.acknowledge(0, batch(0, 2)).unwrap();
    seats.acknowledge(1, batch(0, 1)).unwrap();
    seats.leave(1);
    assert_eq!((seats.absent(), seats.link(1)), (vec![1], None));
    assert_eq!(seats.wanted(), StreamAction::Release);
    let why = seats.sit(1, Some(batch(0, 0)), 11).unwrap_err();
    assert!(
        why.contains("rank 1 wants batch 0 of epoch 0, and its run is safe up to batch 2"),
        "{why}"
    );
    let why = seats.sit(1, Some(batch(0, 8)), 11).unwrap_err();
    assert!(why.contains("was handed only what comes before batch 6"), "{why}");
    assert!(seats.sit(1, Some(batch(0, 3)), 11).unwrap_err().contains("no step of 2 ranks"));
    seats.sit(1, Some(batch(0, 4)), 11).unwrap();
    assert_eq!(
        seats.wanted(),
        StreamAction::Reopen(batch(0, 2)),
        "not beyond what is durable for all"
    );
    seats.reopened(batch(0, 2));
    assert_eq!(seats.wanted(), StreamAction::Release);
    assert!(!release(&mut seats, batch(0, 2), 2), "it was released before");
    assert_eq!(taken(&mut seats), []);
    release(&mut seats, batch(0, 4), 2);
    assert_eq!(taken(&mut seats), [(11, Some(batch(0, 5)))]);
    assert!(release(&mut seats, batch(0, 6), 2));
    assert_eq!(taken(&mut seats), [(0, Some(batch(0, 6))), (11, Some(batch(0, 7)))]);
}

#[test]
fn the_end_of_an_epoch_and_the_start_of_the_next_are_one() {
    let mut seats = two();
    release(&mut seats, batch(0, 0), 2);
    taken(&mut seats);
    (0..2).for_each(|seat| seats.acknowledge(seat, batch(0, seat as u64)).unwrap());
    assert_eq!(seats.durable(), batch(0, 2));
    seats.end_epoch(0);
    for at in [batch(0, 2), batch(1, 0)] {
        seats.leave(1);
        seats.sit(1, Some(at), 1).unwrap();
    }
    assert_eq!(seats.wanted(), StreamAction::Release);
    release(&mut seats, batch(1, 0), 2);
    assert_eq!(taken(&mut seats), [(0, Some(batch(1, 0))), (1, Some(batch(1, 1)))]);
    assert!(!seats.are_done());
    seats.end_epoch(1);
    seats.end_all();
    assert_eq!(taken(&mut seats), [(0, None), (1, None)]);
    (0..2).for_each(|seat| seats.acknowledge(seat, batch(1, seat as u64)).unwrap());
    assert!(seats.are_done() && seats.unacknowledged().is_empty());
}

#[test]
fn a_rank_without_a_batch_at_an_uneven_end_has_nothing_to_acknowledge() {
    let mut seats = two();
    release(&mut seats, batch(0, 0), 2);
    release(&mut seats, batch(0, 2), 1);
    assert_eq!(taken(&mut seats).len(), 3);
    seats.end_all();
    assert_eq!(taken(&mut seats), [(0, None), (1, None)]);
    seats.acknowledge(1, batch(0, 1)).unwrap();
    assert_eq!(seats.unacknowledged(), [0]);
    seats.acknowledge(0, batch(0, 2)).unwrap();
    assert!(seats.are_done());
}

#[test]
fn ranks_that_live_longer_than_their_fetcher_go_on_where_they_are() {
    let mut seats = seats_of(0, 2, 2, true);
    seats.sit(0, Some(batch(0, 4)), 0).unwrap();
    // It saved its checkpoint after its fetcher died, and the new one has yet to pass the step.
    seats.acknowledge(0, batch(0, 2)).unwrap();
    assert_eq!(seats.wanted(), StreamAction::Release);
    release(&mut seats, batch(0, 0), 2);
    seats.sit(1, Some(batch(0, 2)), 1).unwrap();
    release(&mut seats, batch(0, 2), 2);
    assert_eq!(taken(&mut seats), [(1, Some(batch(0, 3)))]);
    seats.acknowledge(1, batch(0, 3)).unwrap();
    assert_eq!(seats.durable(), batch(0, 4));
    release(&mut seats, batch(0, 4), 2);
    assert_eq!(taken(&mut seats).len(), 2);
}

#[test]
fn waits_count_only_for_ranks_that_have_nothing_left() {
    let mut seats = two();
    assert!(!seats.compute(), "ranks that announce nothing are taken to wait");
    (0..2).for_each(|seat| seats.waits(seat));
    release(&mut seats, batch(0, 0), 2);
    assert!(seats.compute(), "the next step is here");
    taken(&mut seats);
    assert!(seats.compute(), "they compute");
    seats.waits(1);
    assert!(!seats.compute());
}

#[test]
fn a_restarted_fetcher_waits_for_no_rank_that_waits_for_another() {
    let mut seats = seats_of(0, 2, 2, true);
    // Rank 1 took the step that rank 0 wants, and meets rank 0 after it before it connects again.
    seats.sit(0, Some(batch(0, 6)), 0).unwrap();
    for start in [0, 2, 4, 6, 8] {
        assert_eq!(seats.wanted(), StreamAction::Release, "{start}");
        release(&mut seats, batch(0, start), 2);
    }
    assert_eq!(taken(&mut seats), [(0, Some(batch(0, 6))), (0, Some(batch(0, 8)))]);
    assert_eq!(seats.wanted(), StreamAction::Hold, "rank 1 is at most one step behind");
    seats.sit(1, Some(batch(0, 8)), 1).unwrap();
    assert_eq!(seats.wanted(), StreamAction::Release);
    assert_eq!(taken(&mut seats), [(1, Some(batch(0, 9)))]);
}

#[test]
fn a_rank_may_return_to_the_place_before_a_step_without_a_batch_for_it() {
    let mut seats = two();
    release(&mut seats, batch(0, 0), 2);
    release(&mut seats, batch(0, 2), 1);
    taken(&mut seats);
    seats.end_epoch(0);
    seats.acknowledge(0, batch(0, 2)).unwrap();
    seats.acknowledge(1, batch(0, 1)).unwrap();
    assert_eq!(seats.durable(), batch(0, 2), "rank 1 has saved that place");
    seats.leave(1);
    seats.sit(1, Some(batch(0, 2)), 1).unwrap();
}

#[test]
fn a_restarted_fetcher_lets_others_pass_a_rank_that_reads_what_it_was_sent_before() {
    let mut seats = seats_of(0, 2, 2, true);
    seats.sit(0, Some(batch(0, 0)), 0).unwrap();
    for start in [0, 2] {
        release(&mut seats, batch(0, start), 2);
    }
    taken(&mut seats);
    assert_eq!(seats.wanted(), StreamAction::Hold, "rank 1 has time to come");
    assert!(seats.is_waiting_for_unknown());
    seats.stop_waiting_for_unknown();
    for start in [4, 6, 8] {
        assert_eq!(seats.wanted(), StreamAction::Release);
        release(&mut seats, batch(0, start), 2);
        assert_eq!(taken(&mut seats), [(0, Some(batch(0, start)))]);
    }
    // It was not that far: it gets what it lacks.
    seats.sit(1, Some(batch(0, 2)), 1).unwrap();
    assert_eq!(seats.wanted(), StreamAction::Reopen(batch(0, 0)));
}

#[test]
fn a_rank_without_any_batch_is_waited_for() {
    let mut seats = seats_of(0, 2, 2, false);
    seats.sit(0, None, 0).unwrap();
    seats.end_epoch(0);
    seats.end_epoch(1);
    seats.end_all();
    assert_eq!(taken(&mut seats), [(0, None)]);
    assert!(!seats.are_done(), "rank 1 has yet to come");
    seats.sit(1, None, 1).unwrap();
    assert!(seats.are_done());
}

#[test]
fn a_stream_leaves_out_what_became_durable_before_it_came_there() {
    let mut seats = seats_of(0, 2, 2, true);
    seats.sit(0, Some(batch(0, 8)), 0).unwrap();
    release(&mut seats, batch(0, 0), 2);
    seats.acknowledge_job(0, batch(0, 8)).unwrap();
    assert_eq!(seats.wanted(), StreamAction::Reopen(batch(0, 8)));
    seats.reopened(batch(0, 8));
    assert_eq!(seats.wanted(), StreamAction::Release);
}

#[test]
fn a_place_beyond_the_end_of_an_epoch_is_no_place_in_the_next_one() {
    let mut seats = two();
    release(&mut seats, batch(0, 0), 2);
    seats.end_epoch(0);
    taken(&mut seats);
    for seat in 0..2 {
        seats.leave(seat);
    }
    let why = seats.sit(0, Some(batch(0, 40)), 10).unwrap_err();
    assert!(
        why.contains("wants batch 40 of epoch 0") && why.contains("end before batch 2"),
        "{why}"
    );
    seats.sit(0, Some(batch(0, 2)), 10).unwrap();
    seats.sit(1, Some(batch(1, 0)), 11).unwrap();
}

/// Rank 1 of two with three batches in each epoch has none in the last step. It may return with the checkpoint after its last batch
/// once all is over, to this fetcher or to a new one.
#[test]
fn a_rank_without_a_batch_in_the_last_step_returns_after_the_end() {
    let own = gristmill_stream::samples::own(2, 0..2, batch(0, 0), TailPolicy::Uneven);
    let seats = |at| RankStates::new(own, (1, at), AckTiming::Said);
    let mut first = seats(batch(0, 0));
    for seat in 0..2 {
        first.sit(seat, None, seat as RankLinkId).unwrap();
    }
    release(&mut first, batch(0, 0), 2);
    first.know_end(Some(batch(0, 3)));
    release(&mut first, batch(0, 2), 1);
    first.end_all();
    taken(&mut first);
    first.acknowledge(0, batch(0, 2)).unwrap();
    first.acknowledge(1, batch(0, 1)).unwrap();
    let mut second = seats(batch(1, 0));
    second.know_end(Some(batch(0, 3)));
    second.end_all();
    for (name, mut seats) in [("the same", first), ("a new one", second)] {
        seats.leave(1);
        let why = seats.sit(1, Some(batch(0, 0)), 21).unwrap_err();
        assert!(why.contains("its run is safe up to batch"), "{name}: {why}");
        let why = seats.check_end(1, Some(batch(1, 2))).unwrap_err();
        assert!(why.contains("this run ends at batch 0 of epoch 1"), "{name}: {why}");
        seats.sit(1, Some(batch(0, 2)), 21).unwrap();
        assert_eq!(taken(&mut seats), [(21, None)], "{name}");
    }
}

#[test]
fn a_trainer_computes_between_the_waits_that_it_announces() {
    let computes = |announced, sent| WaitCounts { announced, sent }.trainer_computes();
    assert!(!computes(0, 0) && !computes(0, 5), "it announces nothing");
    assert!(!computes(1, 0) && computes(1, 1) && !computes(2, 1) && computes(2, 2));
}
