//! Readers of a run: who may join, what counts as the job's progress, and how far claims go ahead of it.

use super::*;
use gristmill_model::splits::ranks::{RunRanks, TailPolicy};
use gristmill_model::splits::readers::{RankRange, ReaderReport};
use gristmill_model::splits::run::{RunJoin, TrainingRun};
use gristmill_model::splits::{Cursor, ProgressAck};
use gristmill_model::wire::{JobStatus, ReaderStatus, RunStatus, TrainerMetrics};
use gristmill_model::{RunToken, Visitation};
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
        let ranks = RunRanks::new(count, from, TailPolicy::Drop);
        let run = TrainingRun { token: RunToken::from_name(name), ranks, epochs: Some(1) };
        Self { world, run, ranks: RankRange { first: rank, count: NonZeroU32::MIN }, over }
    }

    /// Serves `count` ranks from its first on.
    fn serving(mut self, count: u32) -> Self {
        self.ranks.count = NonZeroU32::new(count).unwrap();
        self
    }

    fn ack(&self, generation: u64, durable: u64) -> ProgressAck {
        ProgressAck {
            generation,
            over: self.over,
            delivered: SplitPlace { epoch: 0, position: durable as u32 },
            durable: Cursor { epoch: 0, batch_index: durable },
            durable_place: SplitPlace { epoch: 0, position: durable as u32 },
            ended: None,
            local_workers: 0,
        }
    }

    async fn poll(
        &self,
        join: Option<RunJoin>,
        report: Option<ReaderReport>,
    ) -> Result<PollReply, CallRefusal> {
        let (job, from) = (self.world.job.clone(), SplitPlace::start_of(0));
        let metrics = TrainerMetrics::default();
        self.world.clock.sleep(BETWEEN_POLLS).await;
        let (ranks, of) = (self.ranks, self.run.ranks.count);
        let call = PollCall {
            job,
            registered_ms: 0,
            from,
            ranks,
            of,
            join,
            report,
            metrics,
            training: None,
        };
        self.world.call(call).await
    }

    async fn join(&self) -> Result<PollReply, CallRefusal> {
        self.join_as(false).await
    }

    async fn join_as(&self, is_successor: bool) -> Result<PollReply, CallRefusal> {
        let start = self.ack(self.over + 1 + u64::from(self.ranks.first), 0);
        let report = ReaderReport { reader: 1, over_reader: 0, ranks: self.ranks, ack: start };
        // The only reader of several ranks reports as it joins, so that a reader of some ranks finds it.
        let reports = self.is_alone() && self.run.ranks.count > NonZeroU32::MIN;
        let join = RunJoin { run: self.run, start, is_successor };
        self.poll(Some(join), reports.then_some(report)).await
    }

    fn is_alone(&self) -> bool {
        self.ranks == RankRange::all(self.run.ranks.count)
    }

    async fn report(&self, generation: u64, durable: u64) -> Result<PollReply, CallRefusal> {
        self.report_as((1, 0), generation, durable).await
    }

    /// Reports as reader `number`, which takes the place of reader `over`.
    async fn report_as(
        &self,
        (number, over): (u64, u64),
        generation: u64,
        durable: u64,
    ) -> Result<PollReply, CallRefusal> {
        let ack = self.ack(generation, durable);
        let report = ReaderReport { reader: number, over_reader: over, ranks: self.ranks, ack };
        self.poll(None, Some(report)).await
    }
}

impl World {
    async fn status(&self) -> JobStatus {
        self.call(StatusCall { job: self.job.clone() }).await.unwrap()
    }

    async fn durable(&self) -> u64 {
        self.status().await.durable.batch_index
    }
}

/// The ranks, durable batch, lag and silence of each reader.
fn shown(status: &RunStatus) -> Vec<(String, u64, u64, u64)> {
    let of = |reader: &ReaderStatus| {
        let ReaderStatus { progress, lag_batches, silent_ms } = reader;
        (progress.ranks.to_string(), progress.durable.batch_index, *lag_batches, *silent_ms)
    };
    status.readers.iter().map(of).collect()
}

/// Number of items of readers that the table has.
async fn reader_items(world: &World) -> usize {
    let partition = keys::job_partition(&world.ns, &world.job);
    world.table.range(&partition, "R#", "R#~").await.unwrap().len()
}

#[tokio::test]
async fn the_least_of_two_readers_is_the_jobs_progress() {
    let world = World::running(ErrorPolicy::Fail).await;
    let [first, second] = [0, 1].map(|rank| Reader::new(&world, ("a", 2), rank, 0));
    let stranger = second.report(1, 4).await.unwrap();
    assert_eq!((stranger.generation, stranger.reader.run), (0, None), "no run has joined");
    assert_eq!(reader_items(&world).await, 0);
    let begun = first.join().await.unwrap();
    assert_eq!(begun.reader.uncovered.as_deref(), Some("rank 0 of 2 has no reader yet"));
    let generation = begun.generation;
    let joined = second.join().await.unwrap();
    assert_eq!((joined.generation, joined.reader.number), (generation, 0));
    assert_eq!((begun.reader.run, joined.reader.run), (Some(first.run), Some(first.run)));
    assert_eq!((begun.reader.next_poll_ms, joined.reader.next_poll_ms), (50, 50));
    second.report(generation, 4).await.unwrap();
    let alone = first.poll(None, None).await.unwrap();
    assert_eq!(alone.reader.uncovered.as_deref(), Some("rank 0 of 2 has no reader yet"));
    assert_eq!(world.durable().await, 0);
    assert_eq!(first.report(generation, 3).await.unwrap().reader.uncovered, None);
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
    let generation = first.join().await.unwrap().generation;
    for reader in [&first, &second] {
        reader.join().await.unwrap();
        reader.report(generation, 4).await.unwrap();
    }
    let next = Reader::new(&world, ("b", 2), 0, generation);
    let begun = next.join().await.unwrap();
    assert_eq!(world.durable().await, 0, "it begins at an older checkpoint");
    next.report(begun.generation, 2).await.unwrap();
    for refused in [second.report(generation, 9).await, first.join().await] {
        assert_eq!(refused.unwrap_err().kind, RefusalKind::Fenced);
    }
    assert_eq!(world.durable().await, 0, "the other reader's report is of the run before");
}

#[tokio::test]
async fn a_run_that_many_others_have_superseded_is_refused() {
    let world = World::running(ErrorPolicy::Fail).await;
    let names: Vec<_> = (0..25).map(|run| format!("run-{run}")).collect();
    let mut generation = 0;
    for name in &names {
        let begun = Reader::new(&world, (name, 2), 0, generation).join().await.unwrap();
        generation = begun.generation;
    }
    for name in &names[..24] {
        let refused = Reader::new(&world, (name, 2), 0, generation).join().await.unwrap_err();
        assert_eq!(refused.kind, RefusalKind::Fenced, "{name}");
    }
    Reader::new(&world, (&names[24], 2), 1, generation).join().await.unwrap();
}

#[tokio::test]
async fn the_second_reader_leads_when_the_first_is_silent() {
    let world = World::running(ErrorPolicy::Fail).await;
    let [first, second] = [0, 1].map(|rank| Reader::new(&world, ("a", 2), rank, 0));
    let generation = first.join().await.unwrap().generation;
    first.report(generation, 4).await.unwrap();
    second.report(generation, 4).await.unwrap();
    assert_eq!(world.durable().await, 0, "it follows");
    world.pass(7).await;
    let led = second.poll(None, None).await.unwrap();
    assert_eq!((led.reader.next_poll_ms, world.durable().await), (50, 4));
}

#[tokio::test]
async fn a_reader_of_ranks_that_another_serves_is_refused() {
    let world = World::running(ErrorPolicy::Fail).await;
    let first = Reader::new(&world, ("a", 4), 0, 0).serving(2);
    let generation = first.join().await.unwrap().generation;
    first.report(generation, 0).await.unwrap();
    for (rank, count) in [(0, 1), (0, 3), (1, 1), (1, 3)] {
        let other = Reader::new(&world, ("a", 4), rank, 0).serving(count);
        let CallRefusal { kind, message } = other.join().await.unwrap_err();
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
    let generation = first.join().await.unwrap().generation;
    second.join().await.unwrap();
    first.report(generation, 8).await.unwrap();
    second.report(generation, 4).await.unwrap();
    let joined = successor.join_as(true).await.unwrap();
    let learnt = (joined.generation, joined.reader.number);
    assert_eq!(learnt, (generation, 1), "it learns of the other");
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
    let generation = first.join().await.unwrap().generation;
    second.join().await.unwrap();
    second.report(generation, 3).await.unwrap();
    first.report(generation, 8).await.unwrap();
    let status = world.status().await.run.unwrap();
    assert_eq!(status.run, first.run);
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
    let begun = next.join().await.unwrap().generation;
    next.report(begun, 0).await.unwrap();
    assert_eq!(shown(&world.status().await.run.unwrap()), [("rank 0".into(), 0, 0, 0)]);
}

#[tokio::test]
async fn a_run_of_one_rank_writes_no_reader_item_and_status_shows_its_reader() {
    for (count, items, ranks) in [(1, 0, "rank 0"), (2, 1, "ranks 0-1")] {
        let world = World::running(ErrorPolicy::Fail).await;
        let reader = Reader::new(&world, ("a", count), 0, 0).serving(count);
        let joined = reader.join().await.unwrap();
        assert_eq!((joined.generation, joined.reader.run), (1, Some(reader.run)));
        assert_eq!((joined.reader.next_poll_ms, joined.reader.next_report_ms), (0, 0));
        for (durable, silent_ms) in [(3, 0), (7, 20_000)] {
            let reported = reader.report(1, durable).await.unwrap();
            assert_eq!(reported.reader.uncovered, None);
            world.clock.sleep(Duration::from_millis(silent_ms)).await;
            let status = world.status().await.run.unwrap();
            assert_eq!((status.run, status.uncovered.as_deref()), (reader.run, None));
            assert_eq!(shown(&status), [(ranks.to_owned(), durable, 0, silent_ms)]);
        }
        assert_eq!(world.durable().await, 7);
        assert_eq!(reader_items(&world).await, items, "a run of {count} ranks");
    }
}

#[tokio::test]
async fn a_job_that_visits_at_most_once_has_one_reader_for_all_ranks() {
    let at_most_once =
        JobSettings { visitation: Visitation::AtMostOnce, ..settings(ErrorPolicy::Fail) };
    let world = World::with(at_most_once, BATCH).await;
    let one = Reader::new(&world, ("a", 2), 0, 0);
    let CallRefusal { kind, message } = one.join().await.unwrap_err();
    assert_eq!(kind, RefusalKind::Invalid);
    assert!(message.contains("works with one reader only"), "{message}");
    assert_eq!(world.status().await.run, None);
    assert!(one.serving(2).join().await.is_ok());
}

/// Splits that workers claim until none is left for them, and the window that polls report.
async fn claimed(ranks: u32) -> (u32, u32) {
    let world = World::with(settings(ErrorPolicy::Fail), BATCH / 4).await;
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
    let polled = first.poll(None, None).await.unwrap();
    assert!(polled.window_full, "{polled:?}");
    assert_eq!(world.status().await.window, polled.window);
    (claimed, polled.window)
}

#[tokio::test]
async fn claims_of_a_run_of_many_ranks_fill_the_window_that_polls_report() {
    let (few, reported) = claimed(2).await;
    assert!(few <= reported && reported < 4 * 16, "{few} of {reported}");
    // A bundle at the end of the window that does not fit into it whole is left.
    let (claimed, window) = claimed(16).await;
    assert!(
        4 * 16 <= claimed && claimed <= window && window - claimed < 8,
        "{claimed} of {window}"
    );
}
