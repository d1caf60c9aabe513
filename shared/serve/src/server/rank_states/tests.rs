//! Ranks that take steps, fall behind, leave and return.

use super::*;
use bytes::Bytes;
use gristmill_model::splits::ranks::TailPolicy;
use gristmill_model::splits::run::TrainingRun;
use gristmill_stream::samples::batch;
use gristmill_stream::{DeliveredBatch, MemoryShare};

const EPOCHS: Epoch = 2;

fn states_of(first: u32, count: u32, of: u32, is_successor: bool) -> RankStates {
    let own =
        gristmill_stream::samples::own(of, first..first + count, batch(0, 0), TailPolicy::Repeat);
    let own = ServedRanks { is_successor, ..own };
    RankStates::new(own, EPOCHS, batch(0, 0), AckTiming::Said)
}

/// Both ranks of a run of two, connected by links 0 and 1.
fn two() -> RankStates {
    let mut states = states_of(0, 2, 2, false);
    for rank_index in 0..2 {
        states.sit(rank_index, None, rank_index as RankLinkId).unwrap();
    }
    states
}

/// Releases the step of two batches that begins at `start`, of which the first `given` exist.
fn release(states: &mut RankStates, start: Cursor, given: u64) -> bool {
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
    states.release(start, next, vec![of(0), of(1)])
}

/// All that is handed over now, by link: batches taken, none for the end.
fn taken(states: &mut RankStates) -> Vec<(RankLinkId, Option<Cursor>)> {
    let mut all = Vec::new();
    while let Some((link, handed)) = states.hand_over() {
        states.taken(usize::try_from(link % 10).unwrap());
        all.push(match handed {
            RankOutput::Step { batch, .. } => (link, Some(batch.batch.cursor())),
            RankOutput::End => (link, None),
        });
    }
    all
}

#[test]
fn a_rank_that_takes_nothing_holds_the_others_after_two_steps() {
    let mut states = two();
    for start in [0, 2] {
        assert_eq!(states.wanted(), StreamAction::Release);
        assert!(release(&mut states, batch(0, start), 2));
    }
    assert_eq!(states.wanted(), StreamAction::Hold);
    // Rank 1 is sent its first step and does not read it.
    let order = [states.hand_over(), states.hand_over(), states.hand_over()];
    assert!(order[0].as_ref().is_some_and(|(link, _)| *link == 0));
    assert!(order[1].as_ref().is_some_and(|(link, _)| *link == 1));
    assert!(order[2].is_none(), "one step at a time is on its way");
    states.taken(0);
    assert!(states.hand_over().is_some());
    // Both took the first step, so a third one has room, and then rank 1 holds.
    assert_eq!(states.wanted(), StreamAction::Release);
    release(&mut states, batch(0, 4), 2);
    assert_eq!((states.wanted(), states.slowest()), (StreamAction::Hold, vec![1]));
    states.taken(1);
    assert_eq!(taken(&mut states), [(1, Some(batch(0, 3))), (1, Some(batch(0, 5)))]);
    assert_eq!(states.wanted(), StreamAction::Release);
}

#[test]
fn the_least_of_all_ranks_is_durable() {
    let mut states = two();
    release(&mut states, batch(0, 0), 2);
    release(&mut states, batch(0, 2), 2);
    taken(&mut states);
    states.acknowledge(0, batch(0, 2)).unwrap();
    assert_eq!(states.durable(), batch(0, 0));
    states.acknowledge(1, batch(0, 1)).unwrap();
    assert_eq!(states.durable(), batch(0, 2));
    states.acknowledge(1, batch(0, 1)).unwrap();
    let why = states.acknowledge(1, batch(0, 2)).unwrap_err();
    assert!(
        why.contains("rank 1 acknowledges batch 2 of epoch 0, which is not one of its own"),
        "{why}"
    );
    let why = states.acknowledge(1, batch(0, 5)).unwrap_err();
    assert!(why.contains("was handed only what comes before batch 4"), "{why}");
    assert_eq!(states.acknowledge(1, batch(0, 0)), Ok(()), "it is durable already");
}

#[test]
fn one_rank_may_speak_for_the_whole_job() {
    let mut states = two();
    release(&mut states, batch(0, 0), 2);
    release(&mut states, batch(0, 2), 2);
    assert!(states.hand_over().is_some(), "rank 0");
    let why = states.acknowledge_job(0, batch(0, 2)).unwrap_err();
    assert!(why.contains("a rank was handed only what comes before batch 0"), "{why}");
    states.taken(0);
    taken(&mut states);
    assert!(states.acknowledge_job(0, batch(0, 3)).unwrap_err().contains("where no step ends"));
    states.acknowledge_job(0, batch(0, 4)).unwrap();
    assert_eq!(states.durable(), batch(0, 4));
}

#[test]
fn a_rank_that_returns_gets_the_same_steps_and_the_others_none_twice() {
    let mut states = two();
    for start in [0, 2, 4] {
        release(&mut states, batch(0, start), 2);
        taken(&mut states);
    }
    states.acknowledge(0, batch(0, 2)).unwrap();
    states.acknowledge(1, batch(0, 1)).unwrap();
    states.leave(1);
    assert_eq!((states.absent(), states.link(1)), (vec![1], None));
    assert_eq!(states.wanted(), StreamAction::Release);
    let why = states.sit(1, Some(batch(0, 0)), 11).unwrap_err();
    assert!(
        why.contains("rank 1 wants batch 0 of epoch 0, and its run is safe up to batch 2"),
        "{why}"
    );
    let why = states.sit(1, Some(batch(0, 8)), 11).unwrap_err();
    assert!(why.contains("was handed only what comes before batch 6"), "{why}");
    assert!(states.sit(1, Some(batch(0, 3)), 11).unwrap_err().contains("no step of 2 ranks"));
    states.sit(1, Some(batch(0, 4)), 11).unwrap();
    assert_eq!(
        states.wanted(),
        StreamAction::Reopen(batch(0, 2)),
        "not beyond what is durable for all"
    );
    states.reopened(batch(0, 2));
    assert_eq!(states.wanted(), StreamAction::Release);
    assert!(!release(&mut states, batch(0, 2), 2), "it was released before");
    assert_eq!(taken(&mut states), []);
    release(&mut states, batch(0, 4), 2);
    assert_eq!(taken(&mut states), [(11, Some(batch(0, 5)))]);
    assert!(release(&mut states, batch(0, 6), 2));
    assert_eq!(taken(&mut states), [(0, Some(batch(0, 6))), (11, Some(batch(0, 7)))]);
}

#[test]
fn the_end_of_an_epoch_and_the_start_of_the_next_are_one() {
    let mut states = two();
    release(&mut states, batch(0, 0), 2);
    taken(&mut states);
    (0..2).for_each(|rank_index| {
        states.acknowledge(rank_index, batch(0, rank_index as u64)).unwrap()
    });
    assert_eq!(states.durable(), batch(0, 2));
    states.end_epoch(0);
    for at in [batch(0, 2), batch(1, 0)] {
        states.leave(1);
        states.sit(1, Some(at), 1).unwrap();
    }
    assert_eq!(states.wanted(), StreamAction::Release);
    release(&mut states, batch(1, 0), 2);
    assert_eq!(taken(&mut states), [(0, Some(batch(1, 0))), (1, Some(batch(1, 1)))]);
    assert!(!states.are_done());
    states.end_epoch(1);
    states.end_all();
    assert_eq!(taken(&mut states), [(0, None), (1, None)]);
    (0..2).for_each(|rank_index| {
        states.acknowledge(rank_index, batch(1, rank_index as u64)).unwrap()
    });
    assert!(states.are_done() && states.unacknowledged().is_empty());
}

#[test]
fn a_rank_without_a_batch_at_an_uneven_end_has_nothing_to_acknowledge() {
    let mut states = two();
    release(&mut states, batch(0, 0), 2);
    release(&mut states, batch(0, 2), 1);
    assert_eq!(taken(&mut states).len(), 3);
    states.end_all();
    assert_eq!(taken(&mut states), [(0, None), (1, None)]);
    states.acknowledge(1, batch(0, 1)).unwrap();
    assert_eq!(states.unacknowledged(), [0]);
    states.acknowledge(0, batch(0, 2)).unwrap();
    assert!(states.are_done());
}

#[test]
fn ranks_that_live_longer_than_their_fetcher_go_on_where_they_are() {
    let mut states = states_of(0, 2, 2, true);
    states.sit(0, Some(batch(0, 4)), 0).unwrap();
    // It saved its checkpoint after its fetcher died, and the new one has yet to pass the step.
    states.acknowledge(0, batch(0, 2)).unwrap();
    assert_eq!(states.wanted(), StreamAction::Release);
    release(&mut states, batch(0, 0), 2);
    states.sit(1, Some(batch(0, 2)), 1).unwrap();
    release(&mut states, batch(0, 2), 2);
    assert_eq!(taken(&mut states), [(1, Some(batch(0, 3)))]);
    states.acknowledge(1, batch(0, 3)).unwrap();
    assert_eq!(states.durable(), batch(0, 4));
    release(&mut states, batch(0, 4), 2);
    assert_eq!(taken(&mut states).len(), 2);
}

#[test]
fn waits_count_only_for_ranks_that_have_nothing_left() {
    let mut states = two();
    assert!(!states.compute(), "ranks that announce nothing are taken to wait");
    (0..2).for_each(|rank_index| states.waits(rank_index));
    release(&mut states, batch(0, 0), 2);
    assert!(states.compute(), "the next step is here");
    taken(&mut states);
    assert!(states.compute(), "they compute");
    states.waits(1);
    assert!(!states.compute());
}

#[test]
fn a_restarted_fetcher_waits_for_no_rank_that_waits_for_another() {
    let mut states = states_of(0, 2, 2, true);
    // Rank 1 took the step that rank 0 wants, and meets rank 0 after it before it connects again.
    states.sit(0, Some(batch(0, 6)), 0).unwrap();
    for start in [0, 2, 4, 6, 8] {
        assert_eq!(states.wanted(), StreamAction::Release, "{start}");
        release(&mut states, batch(0, start), 2);
    }
    assert_eq!(taken(&mut states), [(0, Some(batch(0, 6))), (0, Some(batch(0, 8)))]);
    assert_eq!(states.wanted(), StreamAction::Hold, "rank 1 is at most one step behind");
    states.sit(1, Some(batch(0, 8)), 1).unwrap();
    assert_eq!(states.wanted(), StreamAction::Release);
    assert_eq!(taken(&mut states), [(1, Some(batch(0, 9)))]);
}

#[test]
fn a_rank_may_return_to_the_place_before_a_step_without_a_batch_for_it() {
    let mut states = two();
    release(&mut states, batch(0, 0), 2);
    release(&mut states, batch(0, 2), 1);
    taken(&mut states);
    states.end_epoch(0);
    states.acknowledge(0, batch(0, 2)).unwrap();
    states.acknowledge(1, batch(0, 1)).unwrap();
    assert_eq!(states.durable(), batch(0, 2), "rank 1 has saved that place");
    states.leave(1);
    states.sit(1, Some(batch(0, 2)), 1).unwrap();
}

#[test]
fn a_restarted_fetcher_lets_others_pass_a_rank_that_reads_what_it_was_sent_before() {
    let mut states = states_of(0, 2, 2, true);
    states.sit(0, Some(batch(0, 0)), 0).unwrap();
    for start in [0, 2] {
        release(&mut states, batch(0, start), 2);
    }
    taken(&mut states);
    assert_eq!(states.wanted(), StreamAction::Hold, "rank 1 has time to come");
    assert!(states.is_waiting_for_unknown());
    states.stop_waiting_for_unknown();
    for start in [4, 6, 8] {
        assert_eq!(states.wanted(), StreamAction::Release);
        release(&mut states, batch(0, start), 2);
        assert_eq!(taken(&mut states), [(0, Some(batch(0, start)))]);
    }
    // It was not that far: it gets what it lacks.
    states.sit(1, Some(batch(0, 2)), 1).unwrap();
    assert_eq!(states.wanted(), StreamAction::Reopen(batch(0, 0)));
}

#[test]
fn a_rank_without_any_batch_is_waited_for() {
    let mut states = states_of(0, 2, 2, false);
    states.sit(0, None, 0).unwrap();
    states.end_epoch(0);
    states.end_epoch(1);
    states.end_all();
    assert_eq!(taken(&mut states), [(0, None)]);
    assert!(!states.are_done(), "rank 1 has yet to come");
    states.sit(1, None, 1).unwrap();
    assert!(states.are_done());
}

#[test]
fn a_stream_leaves_out_what_became_durable_before_it_came_there() {
    let mut states = states_of(0, 2, 2, true);
    states.sit(0, Some(batch(0, 8)), 0).unwrap();
    release(&mut states, batch(0, 0), 2);
    states.acknowledge_job(0, batch(0, 8)).unwrap();
    assert_eq!(states.wanted(), StreamAction::Reopen(batch(0, 8)));
    states.reopened(batch(0, 8));
    assert_eq!(states.wanted(), StreamAction::Release);
}

#[test]
fn a_place_beyond_the_end_of_an_epoch_is_no_place_in_the_next_one() {
    let mut states = two();
    release(&mut states, batch(0, 0), 2);
    states.end_epoch(0);
    taken(&mut states);
    for rank_index in 0..2 {
        states.leave(rank_index);
    }
    let why = states.sit(0, Some(batch(0, 40)), 10).unwrap_err();
    assert!(
        why.contains("wants batch 40 of epoch 0") && why.contains("end before batch 2"),
        "{why}"
    );
    states.sit(0, Some(batch(0, 2)), 10).unwrap();
    states.sit(1, Some(batch(1, 0)), 11).unwrap();
}

/// Rank 1 of two with three batches in each epoch has none in the last step. It may return with the checkpoint after its last batch
/// once all is over, to this fetcher or to a new one.
#[test]
fn a_rank_without_a_batch_in_the_last_step_returns_after_the_end() {
    let own = gristmill_stream::samples::own(2, 0..2, batch(0, 0), TailPolicy::Uneven);
    let states = |at| RankStates::new(own, 1, at, AckTiming::Said);
    let mut first = states(batch(0, 0));
    for rank_index in 0..2 {
        first.sit(rank_index, None, rank_index as RankLinkId).unwrap();
    }
    release(&mut first, batch(0, 0), 2);
    first.know_end(Some(batch(0, 3)));
    release(&mut first, batch(0, 2), 1);
    first.end_all();
    taken(&mut first);
    first.acknowledge(0, batch(0, 2)).unwrap();
    first.acknowledge(1, batch(0, 1)).unwrap();
    let mut second = states(batch(1, 0));
    second.know_end(Some(batch(0, 3)));
    second.end_all();
    for (name, mut states) in [("the same", first), ("a new one", second)] {
        states.leave(1);
        let why = states.sit(1, Some(batch(0, 0)), 21).unwrap_err();
        assert!(why.contains("its run is safe up to batch"), "{name}: {why}");
        let why = states.check_end(1, Some(batch(1, 2))).unwrap_err();
        assert!(why.contains("this run ends at batch 0 of epoch 1"), "{name}: {why}");
        states.sit(1, Some(batch(0, 2)), 21).unwrap();
        assert_eq!(taken(&mut states), [(21, None)], "{name}");
    }
}

#[test]
fn a_trainer_computes_between_the_waits_that_it_announces() {
    let computes = |announced, sent| WaitCounts { announced, sent }.trainer_computes();
    assert!(!computes(0, 0) && !computes(0, 5), "it announces nothing");
    assert!(!computes(1, 0) && computes(1, 1) && !computes(2, 1) && computes(2, 2));
}

/// Four ranks in two pairs of replicas, which lie as `replicas` says.
fn pairs(replicas: &str) -> RankStates {
    let own = gristmill_stream::samples::own(4, 0..4, batch(0, 0), TailPolicy::Uneven);
    let ranks = RunRanks { replicas: replicas.parse().unwrap(), ..own.run.ranks };
    let own = ServedRanks { run: TrainingRun { ranks, ..own.run }, ..own };
    let mut states = RankStates::new(own, EPOCHS, batch(0, 0), AckTiming::Said);
    for rank_index in 0..4 {
        states.sit(rank_index, None, rank_index as RankLinkId).unwrap();
    }
    states
}

/// Releases the step at `start` to ranks that take the batches of these data ranks.
fn release_to(states: &mut RankStates, start: u64, data_ranks: [Option<u64>; 4]) {
    let given = data_ranks.map(|data_rank| {
        let (batch_index, room) = (start + data_rank?, MemoryShare::default());
        let batch = DeliveredBatch { epoch: 0, batch_index, rows: 8, frame: Bytes::new(), room };
        Some(RankBatch { batch, repeated_for: None })
    });
    states.release(batch(0, start), batch(0, start + 2), given.to_vec());
}

#[test]
fn a_step_is_durable_once_every_replica_has_saved_it() {
    let mut states = pairs("2");
    release_to(&mut states, 0, [Some(0), Some(0), Some(1), Some(1)]);
    let given = taken(&mut states);
    let of = |link, index| (link, Some(batch(0, index)));
    assert_eq!(given, [of(0, 0), of(1, 0), of(2, 1), of(3, 1)]);
    for (rank_index, index) in [(0, 0), (2, 1), (3, 1)] {
        states.acknowledge(rank_index, batch(0, index)).unwrap();
        assert_eq!(states.durable(), batch(0, 0), "rank 1 has not saved it");
    }
    let why = states.acknowledge(1, batch(0, 1)).unwrap_err();
    assert!(why.contains("rank 1 acknowledges") && why.contains("not one of its own"), "{why}");
    states.acknowledge(1, batch(0, 0)).unwrap();
    assert_eq!(states.durable(), batch(0, 2));
}

#[test]
fn replicas_have_none_of_an_uneven_last_step_together() {
    let mut states = pairs("2x1");
    release_to(&mut states, 0, [Some(0), None, Some(0), None]);
    states.end_epoch(0);
    let given = taken(&mut states);
    assert_eq!(given, [(0, Some(batch(0, 0))), (2, Some(batch(0, 0)))]);
    states.acknowledge(0, batch(0, 0)).unwrap();
    assert_eq!(states.durable(), batch(0, 0));
    states.acknowledge(2, batch(0, 0)).unwrap();
    assert_eq!(states.passed.normal(states.durable()), batch(1, 0));
}
