//! Readers of a run: who may join, what counts as the job's progress, and how far claims go ahead of it.

use super::*;
use gristmill_model::RunToken;
use gristmill_model::splits::ranks::{Ranks, Tail};
use gristmill_model::splits::readers::{RankRange, Report};
use gristmill_model::splits::run::{Join, TrainingRun};
use gristmill_model::wire::{JobStatus, PollReader, ReaderPolled, ReaderStatus, RunStatus};
use std::num::NonZeroU32;

/// A reader of one rank or more of the run called `name`, of `count` ranks, at generation `over`.
struct Reader<'a> {
    world: &'a World,
    run: TrainingRun,
    ranks: RankRange,
    over: u64,
}

impl<'a> Reader<'a> {
    fn new(world: &'a World, (name, count): (&str, u32), rank: u32, over: u64) -> Self {
        let (count, from) = (NonZeroU32::new(count).unwrap(), Cursor::start_of(0));
        let ranks = Ranks { count, from, tail: Tail::Drop };
        let run = TrainingRun { token: RunToken::of(name), ranks };
        Self { world, run, ranks: RankRange { first: rank, count: NonZeroU32::MIN }, over }
    }

    /// Serves `count` ranks from its first on.
    fn serving(mut self, count: u32) -> Self {
        self.ranks.count = NonZeroU32::new(count).unwrap();
        self
    }

    fn ack(&self, generation: u64, durable: u64) -> Ack {
        Ack {
            generation,
            over: self.over,
            delivered: Place { epoch: 0, position: durable as u32 },
            durable: Cursor { epoch: 0, batch_index: durable },
            durable_place: Place { epoch: 0, position: durable as u32 },
        }
    }

    async fn poll(
        &self,
        join: Option<Join>,
        report: Option<Report>,
    ) -> Result<ReaderPolled, Refusal> {
        let (job, from) = (self.world.job.clone(), Place::start_of(0));
        let metrics = TrainerMetrics::default();
        self.world.clock.sleep(BETWEEN_POLLS).await;
        let ranks = self.ranks;
        let call = PollReader {
            job,
            registered_ms: 0,
            from,
            ranks,
            join,
            report,
            metrics,
            training: None,
        };
        self.world.call(call).await
    }

    async fn join(&self) -> Result<ReaderPolled, Refusal> {
        self.join_as(false).await
    }

    async fn join_as(&self, is_successor: bool) -> Result<ReaderPolled, Refusal> {
        let start = self.ack(self.over + 1 + u64::from(self.ranks.first), 0);
        self.poll(Some(Join { run: self.run, start, is_successor }), None).await
    }

    async fn report(&self, generation: u64, durable: u64) -> Result<ReaderPolled, Refusal> {
        self.report_as((1, 0), generation, durable).await
    }

    /// Reports as reader `number`, which takes the place of reader `over`.
    async fn report_as(
        &self,
        (number, over): (u64, u64),
        generation: u64,
        durable: u64,
    ) -> Result<ReaderPolled, Refusal> {
        let ack = self.ack(generation, durable);
        let report = Report { reader: number, over_reader: over, ranks: self.ranks, ack };
        self.poll(None, Some(report)).await
    }
}

impl World {
    async fn status(&self) -> JobStatus {
        self.call(Status { job: self.job.clone() }).await.unwrap()
    }

    async fn durable(&self) -> u64 {
        self.status().await.durable.batch_index
    }
}

#[tokio::test]
async fn the_least_of_two_readers_is_the_jobs_progress() {
    let world = World::running(ErrorPolicy::Fail).await;
    let [first, second] = [0, 1].map(|rank| Reader::new(&world, ("a", 2), rank, 0));
    let stranger = second.report(1, 4).await.unwrap_err();
    assert!(stranger.message.contains("has not joined"), "{stranger:?}");
    let begun = first.join().await.unwrap();
    assert_eq!(begun.uncovered.as_deref(), Some("rank 0 of 2 has no reader yet"));
    let generation = begun.polled.generation;
    let joined = second.join().await.unwrap();
    assert_eq!((joined.polled.generation, joined.run, joined.reader), (generation, begun.run, 0));
    assert_eq!((begun.next_poll_ms, joined.next_poll_ms), (200, 50));
    second.report(generation, 4).await.unwrap();
    let alone = first.poll(None, None).await.unwrap();
    assert_eq!(alone.uncovered.as_deref(), Some("rank 0 of 2 has no reader yet"));
    assert_eq!(world.durable().await, 0);
    assert_eq!(first.report(generation, 3).await.unwrap().uncovered, None);
    assert_eq!(world.durable().await, 3);
    first.report(generation, 6).await.unwrap();
    assert_eq!(world.durable().await, 4);
    let unequal = Reader::new(&world, ("a", 3), 2, generation).join().await.unwrap_err();
    assert!(unequal.message.contains("2 ranks") && unequal.message.contains("3 ranks"));
}

#[tokio::test]
async fn readers_of_a_superseded_run_change_nothing() {
    let world = World::running(ErrorPolicy::Fail).await;
    let [first, second] = [0, 1].map(|rank| Reader::new(&world, ("a", 2), rank, 0));
    let generation = first.join().await.unwrap().polled.generation;
    for reader in [&first, &second] {
        reader.join().await.unwrap();
        reader.report(generation, 4).await.unwrap();
    }
    let next = Reader::new(&world, ("b", 2), 0, generation);
    let begun = next.join().await.unwrap();
    assert_eq!(world.durable().await, 0, "it begins at an older checkpoint");
    next.report(begun.polled.generation, 2).await.unwrap();
    for refused in [second.report(generation, 9).await, first.join().await] {
        assert_eq!(refused.unwrap_err().kind, RefusalKind::Fenced);
    }
    assert_eq!(world.durable().await, 0, "the other reader's report is of the run before");
}

#[tokio::test]
async fn the_second_reader_leads_when_the_first_is_silent() {
    let world = World::running(ErrorPolicy::Fail).await;
    let [first, second] = [0, 1].map(|rank| Reader::new(&world, ("a", 2), rank, 0));
    let generation = first.join().await.unwrap().polled.generation;
    first.report(generation, 4).await.unwrap();
    second.report(generation, 4).await.unwrap();
    assert_eq!(world.durable().await, 0, "it follows");
    world.pass(7).await;
    let led = second.poll(None, None).await.unwrap();
    assert_eq!((led.next_poll_ms, world.durable().await), (200, 4));
}

#[tokio::test]
async fn a_reader_of_ranks_that_another_serves_is_refused() {
    let world = World::running(ErrorPolicy::Fail).await;
    let first = Reader::new(&world, ("a", 4), 0, 0).serving(2);
    let generation = first.join().await.unwrap().polled.generation;
    first.report(generation, 0).await.unwrap();
    for (rank, count) in [(0, 1), (0, 3), (1, 1), (1, 3)] {
        let other = Reader::new(&world, ("a", 4), rank, 0).serving(count);
        let Refusal { kind, message } = other.join().await.unwrap_err();
        assert_eq!(kind, RefusalKind::Fenced);
        let said = format!(
            "another reader of this run serves ranks 0-1, and this one {}: give each rank to one, in a new run",
            other.ranks
        );
        assert_eq!(message, said);
    }
    let beside = Reader::new(&world, ("a", 4), 2, 0).serving(2);
    assert!(beside.join().await.is_ok(), "ranks that nobody serves");
    // In a new run the ranks may be divided otherwise.
    let next = Reader::new(&world, ("b", 4), 1, generation).serving(3);
    assert!(next.join().await.is_ok());
}

#[tokio::test]
async fn a_reader_of_the_same_ranks_takes_the_place_of_the_one_before() {
    let world = World::running(ErrorPolicy::Fail).await;
    let reader = |rank| Reader::new(&world, ("a", 4), rank, 0).serving(2);
    let (first, second, successor) = (reader(0), reader(2), reader(2));
    let generation = first.join().await.unwrap().polled.generation;
    second.join().await.unwrap();
    first.report(generation, 8).await.unwrap();
    second.report(generation, 4).await.unwrap();
    let joined = successor.join_as(true).await.unwrap();
    assert_eq!(
        (joined.polled.generation, joined.reader),
        (generation, 1),
        "it learns of the other"
    );
    let unaware = successor.report_as((3, 0), generation, 4).await.unwrap_err();
    assert_eq!(unaware.kind, RefusalKind::Fenced);
    successor.report_as((2, 1), generation, 5).await.unwrap();
    let late = second.report(generation, 6).await.unwrap_err();
    assert_eq!(late.kind, RefusalKind::Fenced, "{late:?}");
    first.poll(None, None).await.unwrap();
    assert_eq!(world.durable().await, 5, "the report of the one before does not count");
}

#[tokio::test]
async fn status_names_the_readers_of_a_run_with_their_lag_and_silence() {
    let world = World::running(ErrorPolicy::Fail).await;
    assert_eq!(world.status().await.run, None);
    let [first, second] = [0, 1].map(|rank| Reader::new(&world, ("a", 3), rank, 0));
    let generation = first.join().await.unwrap().polled.generation;
    second.join().await.unwrap();
    second.report(generation, 3).await.unwrap();
    first.report(generation, 8).await.unwrap();
    let status = world.status().await.run.unwrap();
    assert_eq!(status.run, first.run);
    let shown = |status: &RunStatus| {
        let readers = status.readers.iter();
        let of = |reader: &ReaderStatus| {
            let ReaderStatus { progress, lag_batches, silent_ms } = reader;
            (progress.ranks.to_string(), progress.durable.batch_index, *lag_batches, *silent_ms)
        };
        readers.map(of).collect::<Vec<_>>()
    };
    // Time passes only before a poll.
    let polled_ms = BETWEEN_POLLS.as_millis() as u64;
    let [ahead, behind] = [("rank 0".into(), 8, 0, 0), ("rank 1".into(), 3, 5, polled_ms)];
    assert_eq!(shown(&status), [ahead, behind]);
    assert_eq!(status.uncovered.as_deref(), Some("rank 2 of 3 has no reader yet"));
    let third = Reader::new(&world, ("a", 3), 2, 0);
    third.report(generation, 8).await.unwrap();
    world.clock.sleep(Duration::from_secs(20)).await;
    first.report(generation, 9).await.unwrap();
    let status = world.status().await.run.unwrap();
    let silent_ms = 20_000 + 3 * polled_ms;
    assert_eq!(shown(&status)[1], ("rank 1".into(), 3, 6, silent_ms));
    assert_eq!(
        status.uncovered.as_deref(),
        Some("rank 1 has been silent for 20 s; the job waits for it")
    );
    // A new run has none of them.
    let next = Reader::new(&world, ("b", 3), 0, generation);
    let begun = next.join().await.unwrap().polled.generation;
    next.report(begun, 0).await.unwrap();
    assert_eq!(shown(&world.status().await.run.unwrap()), [("rank 0".into(), 0, 0, 0)]);
}

/// Splits that workers claim until none is left for them, and the window that polls report.
async fn claimed(ranks: u32) -> (u32, u32) {
    let world = World::running(ErrorPolicy::Fail).await;
    let [first, second] =
        [0, ranks / 2].map(|rank| Reader::new(&world, ("a", ranks), rank, 0).serving(ranks / 2));
    first.join().await.unwrap();
    second.join().await.unwrap();
    let mut claimed = 0;
    for worker in 0.. {
        match world.claim(worker, 0).await.unwrap() {
            ClaimReply::Leased(lease) => claimed += lease.todo.len() as u32,
            ClaimReply::Idle(idle) => {
                assert_eq!(idle.reason, IdleReason::WindowFull);
                break;
            }
        }
    }
    let polled = first.poll(None, None).await.unwrap().polled;
    assert!(polled.window_full, "{polled:?}");
    assert_eq!(world.status().await.window, polled.window);
    (claimed, polled.window)
}

#[tokio::test]
async fn claims_of_a_run_of_many_ranks_fill_the_window_that_polls_report() {
    let (few, reported) = claimed(2).await;
    assert!(few <= reported && reported < 4 * 6, "{few} of {reported}");
    // A bundle at the end of the window that does not fit into it whole is left.
    let (claimed, window) = claimed(6).await;
    assert!(4 * 6 <= claimed && claimed <= window && window - claimed < 8, "{claimed} of {window}");
}
