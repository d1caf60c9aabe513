//! Refusals as the poller takes them, and fetchers that join runs of a sample job.

use super::*;
use crate::{
    Fetcher, FetcherConfig, FetcherPorts, FolderBuckets, ServedRanks, StreamDelivery,
    ledger::SplitLedger,
    memory::MemoryBound,
    samples::{SampleJob, batch, split, view},
};
use gristmill_model::Nonce;
use gristmill_model::RunToken;
use gristmill_model::splits::ranks::{RunRanks, TailPolicy};
use gristmill_model::splits::readers::RankRange;
use gristmill_model::splits::run::TrainingRun;
use std::num::NonZeroU32;

async fn poller() -> CoordinatorPoller {
    let (_, ports, config) = SampleJob::new(0, 0).await;
    let progress = FetcherProgress::new(ServedRanks::one(Nonce([7; 8]), batch(0, 0)), batch(0, 0));
    progress.acks().take_over(0, 1, Nonce([0; 8]));
    progress.starts_at(batch(0, 0), batch(0, 0), split(0, 0), split(0, 0));
    progress.announce();
    let context = JobContext::load(ports.runner(&config), &config.job).await.unwrap();
    let ledger = SplitLedger::new(view(), split(0, 0), FolderBuckets::default());
    let bound = MemoryBound::new(config.prefetch, 0, 1, config.object_sizes);
    let state = StreamState::new(ledger, progress, bound, false, ports.clock);
    CoordinatorPoller { context, state }
}

/// The first request of a trainer that begins.
fn begins(poller: &CoordinatorPoller) -> ReaderRequest {
    let request = poller.state.progress.acks().request(true, false);
    assert!(request.ack().is_some());
    request
}

fn refusal(kind: RefusalKind) -> CallRefusal {
    CallRefusal { kind, message: "no".into() }
}

#[tokio::test]
async fn a_first_acknowledgement_that_is_refused_names_the_trainers_place() {
    let collected = poller().await;
    assert!(collected.refused(refusal(RefusalKind::Collected), &begins(&collected)).is_none());
    assert_eq!(collected.state.ledger.stream_error(), Some(FetchError::Collected("no".into())));
    assert_eq!(collected.state.ledger.error(), None, "the trainer may begin elsewhere");
    assert_eq!(
        collected.state.progress.acks().request(true, false).ack(),
        None,
        "nothing is sent before it does"
    );
    let misplaced = poller().await;
    misplaced.refused(refusal(RefusalKind::Invalid), &begins(&misplaced));
    assert_eq!(misplaced.state.ledger.stream_error(), Some(FetchError::Misplaced("no".into())));
}

#[tokio::test]
async fn later_refusals_end_the_run() {
    for (kind, joins) in [(RefusalKind::Invalid, false), (RefusalKind::NotFound, true)] {
        let poller = poller().await;
        let request = begins(&poller);
        let request = ReaderRequest { join: request.join.filter(|_| joins), ..request };
        assert!(poller.refused(refusal(kind), &request).is_none());
        assert_eq!(poller.state.ledger.error(), Some(FetchError::Refused("no".into())));
    }
    let fenced = poller().await;
    let begins = begins(&fenced);
    fenced.state.progress.acknowledged(begins.ack().unwrap());
    fenced.refused(refusal(RefusalKind::Fenced), &begins);
    assert_eq!(fenced.state.ledger.error(), Some(FetchError::Fenced("no".into())));
}

#[tokio::test]
async fn a_fetcher_that_is_refused_first_takes_over_once_and_then_asks_again() {
    let poller = poller().await;
    let first = begins(&poller);
    assert!(poller.refused(refusal(RefusalKind::Fenced), &first).is_none());
    assert_eq!(poller.state.ledger.error(), None, "a dead fetcher's message may have been late");
    poller.state.progress.acks().take_over(1 << 20, 2, Nonce([0; 8]));
    let second = begins(&poller);
    assert!(poller.refused(refusal(RefusalKind::Fenced), &second).is_some());
    assert_eq!(poller.state.ledger.error(), None, "the other may be its own");
}

/// `config` for `count` ranks from `first` on of a run of two ranks that begins at batch `from`.
fn run_config(config: &FetcherConfig, (first, count): (u32, u32), from: u64) -> FetcherConfig {
    let count_of = |count| NonZeroU32::new(count).unwrap();
    let ranks = RunRanks::new(count_of(2), batch(0, from), TailPolicy::Drop);
    let run = TrainingRun { token: RunToken::from_name("t"), ranks, epochs: None };
    let range = RankRange { first, count: count_of(count) };
    let own = Some(ServedRanks { run, range, is_successor: false, local_workers: 0 });
    FetcherConfig { own, resume: batch(0, from), ..config.clone() }
}

/// Takes all batches, which are durable at once, and returns their numbers.
async fn take_all(fetcher: &mut Fetcher) -> Vec<u64> {
    let mut taken = Vec::new();
    loop {
        match fetcher.next().await.unwrap() {
            StreamDelivery::Batch(batch) => {
                fetcher.checkpointed_before(batch.cursor().next());
                taken.push(batch.batch_index);
            }
            StreamDelivery::OfOthers { next } => fetcher.checkpointed_before(next),
            StreamDelivery::EpochEnd(totals) => fetcher.checkpointed_epochs(totals.epoch + 1),
            StreamDelivery::End => return taken,
        }
    }
}

async fn start(ports: &FetcherPorts, config: FetcherConfig) -> Fetcher {
    let fetcher = Fetcher::start(ports.clone(), config).await.unwrap();
    fetcher.admitted().await.unwrap();
    fetcher
}

#[tokio::test]
async fn the_only_reader_of_one_rank_or_of_several_joins_once() {
    for has_name in [false, true] {
        let (job, ports, config) = SampleJob::new(2, 2).await;
        let config = if has_name { run_config(&config, (0, 2), 0) } else { config };
        let mut fetcher = start(&ports, config).await;
        assert_eq!(take_all(&mut fetcher).await, (0..8).collect::<Vec<_>>());
        fetcher.settle().await.unwrap();
        assert_eq!((job.joins(), job.progress().unwrap().durable), (1, batch(1, 0)));
    }
}

#[tokio::test]
async fn a_trainer_that_goes_back_begins_a_new_run() {
    let (job, ports, config) = SampleJob::new(2, 2).await;
    let mut fetcher = start(&ports, config).await;
    assert_eq!(take_all(&mut fetcher).await.len(), 8);
    let first = job.progress().unwrap();
    for (at, joins) in [(4, 2), (2, 3)] {
        fetcher.reopen(batch(0, at)).await;
        fetcher.announce();
        fetcher.admitted().await.unwrap();
        let progress = job.progress().unwrap();
        assert_eq!((progress.durable, job.joins()), (batch(0, at), joins));
        assert!(progress.generation > first.generation && progress.run != first.run);
        assert_eq!(take_all(&mut fetcher).await, (at..8).collect::<Vec<_>>());
    }
    fetcher.settle().await.unwrap();
    assert!(fetcher.is_job_done());
}

#[tokio::test]
async fn two_readers_take_every_batch_once_and_the_job_ends_with_the_last_of_them() {
    let (job, ports, config) = SampleJob::new(2, 2).await;
    let mut first = start(&ports, run_config(&config, (0, 1), 0)).await;
    let mut second = start(&ports, run_config(&config, (1, 1), 0)).await;
    assert_eq!(take_all(&mut first).await, [0, 2, 4, 6]);
    assert!(!first.is_job_done() && job.progress().is_some_and(|job| job.durable == batch(0, 0)));
    let (settled, taken) = tokio::join!(first.settle(), take_all(&mut second));
    settled.unwrap();
    assert_eq!(taken, [1, 3, 5, 7]);
    second.settle().await.unwrap();
    assert!(first.is_job_done() && second.is_job_done());
    assert_eq!(job.progress().unwrap().durable, batch(1, 0));
}

#[tokio::test]
async fn a_reader_that_would_begin_elsewhere_learns_where_the_run_began() {
    let (_job, ports, config) = SampleJob::new(2, 2).await;
    let _first = start(&ports, run_config(&config, (0, 1), 0)).await;
    let mut second = Fetcher::start(ports, run_config(&config, (1, 1), 2)).await.unwrap();
    let error = second.admitted().await.unwrap_err();
    assert_eq!(error, FetchError::RunBegan { from: batch(0, 0), own: batch(0, 2) });
    second.begin_run(batch(0, 0)).await;
    second.located().await.unwrap();
    second.announce();
    second.admitted().await.unwrap();
    let (StreamDelivery::OfOthers { .. } | StreamDelivery::Batch(_)) = second.next().await.unwrap()
    else {
        panic!("it streams from the beginning of the run");
    };
}

#[tokio::test]
async fn a_successor_ends_the_reader_before_it() {
    let (_job, ports, config) = SampleJob::new(2, 2).await;
    for range in [(0, 2), (1, 1)] {
        let first = start(&ports, run_config(&config, range, 0)).await;
        let _second = start(&ports, run_config(&config, range, 0)).await;
        first.checkpointed_before(batch(0, 2));
        assert!(matches!(first.failed().await, FetchError::Fenced(_)), "{range:?}");
    }
}

/// The times of the polls within `seconds`, given the answers of `answer`.
fn polls(seconds: u64, starves: bool, answer: impl Fn(Duration) -> u32) -> Vec<Duration> {
    let (mut pace, mut now, mut polls) = (PollInterval::new(), Duration::ZERO, Vec::new());
    while now < Duration::from_secs(seconds) {
        polls.push(now);
        pace.answered(answer(now), now, 0, starves);
        now += pace.wait();
    }
    polls
}

#[test]
fn two_polls_a_second_while_nothing_changes() {
    let polls = polls(60, true, |_| 7);
    let late = polls.iter().filter(|at| **at >= Duration::from_secs(10)).count();
    assert!(late <= 100, "{late} polls in 50 s");
    let early = polls.iter().filter(|at| **at < Duration::from_secs(2)).count();
    assert!(early >= 39, "{early} polls in the first 2 s");
}

#[test]
fn any_change_makes_a_waiting_trainer_impatient() {
    let polls = polls(60, true, |now| u32::from(now >= Duration::from_secs(30)));
    let soon = polls.iter().filter(|at| (31..32).contains(&at.as_secs())).count();
    assert!(soon >= 19, "{soon} polls in the second after a change");
}

#[test]
fn a_trainer_with_batches_asks_rarely() {
    assert!(polls(60, false, |_| 7).len() < 40);
}

#[test]
fn news_keep_the_interval_short() {
    let mut pace = PollInterval::new();
    for i in 0..100 {
        pace.answered(7, Duration::from_secs(i), 1, false);
        assert_eq!(pace.wait(), FASTEST);
    }
    pace.answered(7, Duration::from_secs(100), MANY, true);
    assert_eq!(pace.wait(), Duration::ZERO, "there are more of them");
    pace.answered(7, Duration::from_secs(100), MANY, false);
    pace.failed();
    assert_eq!(pace.wait(), FASTEST * 2);
    pace.hurry();
    assert_eq!(pace.wait(), FASTEST);
}
