//! Ranks at the other ends of pipes, over a sample job of eight batches.

use super::*;
use crate::cursor::NoCursorStore;
use gristmill_model::RunToken;
use gristmill_model::splits::ranks::{RunRanks, TailPolicy};
use gristmill_model::splits::run::TrainingRun;
use gristmill_stream::DeliveryWaits;
use gristmill_stream::{
    ServedRanks,
    samples::{self, SampleJob, batch},
};
use std::num::NonZeroU32;
use std::time::Duration;
use tokio::{
    io::{AsyncWriteExt, DuplexStream, duplex},
    task::JoinHandle,
};

/// A server that runs, and the way to connect to it.
struct Serving {
    job: Arc<SampleJob>,
    of: u32,
    visitors: mpsc::Sender<ConnectedClient<DuplexStream>>,
    served: JoinHandle<(Result<(), ServeError>, ServedCounts)>,
}

impl Serving {
    /// Serves all ranks of a run of `of`.
    async fn start(of: u32, tail: TailPolicy, beginning: StartCandidates) -> Self {
        let (job, ports, mut config) = SampleJob::new(2, 2).await;
        let count = NonZeroU32::new(of).unwrap();
        let from = beginning.resume.unwrap_or_default();
        let run = TrainingRun {
            token: RunToken::from_name("r"),
            ranks: RunRanks::new(count, from, tail),
            epochs: None,
        };
        let is_successor = beginning.is_successor();
        config.own = Some(ServedRanks { is_successor, ..ServedRanks::all(run) });
        config.resume = beginning.known();
        let fetcher = Fetcher::open(ports, config).await.unwrap();
        let mut server = RankServer::new(fetcher, Box::new(NoCursorStore), beginning).unwrap();
        let (visitors, arriving) = mpsc::channel(1);
        let served = tokio::spawn(async move {
            let served = server.serve(arriving).await;
            (served, server.counts())
        });
        Self { job, of, visitors, served }
    }

    async fn connect(&self) -> Client {
        // Room for a frame or two, as sockets have.
        let (stream, theirs) = duplex(1 << 10);
        assert!(self.visitors.send(theirs.into()).await.is_ok());
        let mut client = Client { stream, hello: serde_json::Value::Null };
        let (magic, _, payload) = client.frame().await;
        assert_eq!(&magic, b"GMBH");
        client.hello = serde_json::from_slice(&payload).unwrap();
        client
    }

    /// A client that said hello as `rank`.
    async fn rank(&self, rank: u32, at: Option<Cursor>) -> Client {
        let mut client = self.connect().await;
        client.greet(rank, self.of, Some("r"), at).await;
        client
    }
}

/// A rank at the other end of a connection.
struct Client {
    stream: DuplexStream,
    hello: serde_json::Value,
}

impl Client {
    async fn frame(&mut self) -> ([u8; 4], Cursor, Vec<u8>) {
        samples::frame(&mut self.stream).await
    }

    async fn greet(&mut self, rank: u32, of: u32, run: Option<&str>, at: Option<Cursor>) {
        let mut hello = serde_json::json!({
            "job": self.hello["job"], "dataset": self.hello["dataset"],
            "fingerprint": self.hello["fingerprint"], "rank": rank, "of": of, "run": run,
        });
        if let Some(at) = at {
            hello["epoch"] = at.epoch.into();
            hello["batch_index"] = at.batch_index.into();
        }
        let text = hello.to_string();
        self.stream.write_all(b"GMH1").await.unwrap();
        self.stream.write_u32_le(text.len() as u32).await.unwrap();
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// The next step: the cursor after it, the batch's frame and number, and its bytes.
    async fn step(&mut self) -> (Cursor, [u8; 4], u64, Vec<u8>) {
        let (magic, next, checkpoint) = self.frame().await;
        assert_eq!(&magic, b"GMBC", "{}", String::from_utf8_lossy(&checkpoint));
        let checkpoint: Checkpoint = std::str::from_utf8(&checkpoint).unwrap().parse().unwrap();
        assert_eq!((checkpoint.epoch, checkpoint.batch_index), (next.epoch, next.batch_index));
        let (magic, at, payload) = self.frame().await;
        (next, magic, at.batch_index, payload)
    }

    /// The next step, which is batch `index`.
    async fn takes(&mut self, index: u64) -> Vec<u8> {
        let (_, magic, found, payload) = self.step().await;
        assert_eq!((&magic, found), (b"GMB1", index));
        payload
    }

    async fn error(&mut self) -> String {
        let (magic, _, payload) = self.frame().await;
        assert_eq!(&magic, b"GMBX");
        String::from_utf8(payload).unwrap()
    }

    /// The next frame is the end; whether the job is closed.
    async fn end(&mut self) -> bool {
        let (magic, at, payload) = self.frame().await;
        assert_eq!((&magic, at), (b"GMBE", batch(1, 0)));
        let summary: serde_json::Value = serde_json::from_slice(&payload).unwrap();
        assert_eq!(summary["totals"][0]["rows"], 64);
        summary["closed"].as_bool().unwrap()
    }

    async fn says(&mut self, magic: &[u8; 4], at: Cursor) {
        self.stream.write_all(magic).await.unwrap();
        self.stream.write_u32_le(at.epoch).await.unwrap();
        self.stream.write_u64_le(at.batch_index).await.unwrap();
    }

    async fn acks(&mut self, index: u64) {
        self.says(b"GMA1", batch(0, index)).await;
    }
}

#[tokio::test]
async fn each_rank_gets_its_batch_of_every_step_and_the_last_acknowledgement_closes_the_job() {
    let serving = Serving::start(2, TailPolicy::Repeat, StartCandidates::default()).await;
    let (mut zero, mut one) = (serving.rank(0, None).await, serving.rank(1, None).await);
    for step in 0..4 {
        let next = zero.step().await.0;
        assert_eq!(next.batch_index, 2 * step + 2);
        one.takes(2 * step + 1).await;
    }
    assert!(!zero.end().await && !one.end().await);
    zero.acks(6).await;
    assert!(serving.job.progress().is_none_or(|job| job.durable < batch(1, 0)));
    one.acks(7).await;
    assert!(zero.end().await && one.end().await, "the job is closed");
    drop((zero, one));
    let (served, counts) = serving.served.await.unwrap();
    served.unwrap();
    assert_eq!(serving.job.progress().unwrap().durable, batch(1, 0));
    assert_eq!(counts.ranks.iter().map(|rank| rank.steps).collect::<Vec<_>>(), [4, 4]);
}

#[tokio::test]
async fn a_rank_that_returns_gets_the_same_bytes_and_no_other_rank_a_step_twice() {
    let serving = Serving::start(2, TailPolicy::Repeat, StartCandidates::default()).await;
    let (mut zero, mut one) = (serving.rank(0, None).await, serving.rank(1, None).await);
    let mut first = Vec::new();
    for step in 0..3 {
        zero.takes(2 * step).await;
        first.push(one.takes(2 * step + 1).await);
    }
    zero.acks(4).await;
    one.acks(1).await;
    drop(one);
    let mut one = serving.rank(1, Some(batch(0, 2))).await;
    assert_eq!([one.takes(3).await, one.takes(5).await], first[1..]);
    zero.takes(6).await;
    one.takes(7).await;
    drop(one);
    let mut one = serving.rank(1, Some(batch(0, 0))).await;
    let why = one.error().await;
    assert!(why.contains("wants batch 0 of epoch 0, and its run is safe up to batch 2"), "{why}");
    let mut one = serving.rank(1, None).await;
    one.takes(3).await;
    serving.served.abort();
}

#[tokio::test]
async fn a_second_client_of_a_rank_is_served_once_the_first_leaves() {
    let serving = Serving::start(1, TailPolicy::Repeat, StartCandidates::default()).await;
    let mut first = serving.rank(0, None).await;
    first.takes(0).await;
    let mut second = serving.rank(0, Some(batch(0, 1))).await;
    drop(first);
    second.takes(1).await;
    serving.served.abort();
}

#[tokio::test]
async fn a_hello_that_does_not_fit_is_refused_by_what_differs() {
    let serving = Serving::start(2, TailPolicy::Repeat, StartCandidates::default()).await;
    let refused = async |rank, of, run: Option<&'static str>| {
        let mut client = serving.connect().await;
        client.greet(rank, of, run, None).await;
        client.error().await
    };
    let why = refused(0, 3, Some("r")).await;
    assert!(why.contains("rank 0 is of 3 ranks, and this fetcher's run has 2"), "{why}");
    let why = refused(0, 2, Some("other")).await;
    assert!(why.contains("rank 0 is of run other (token "), "{why}");
    let why = refused(2, 2, None).await;
    assert!(why.contains("this fetcher serves ranks 0-1 of 2, and not rank 2"), "{why}");
    let mut client = serving.connect().await;
    client.acks(0).await;
    assert!(client.error().await.contains("a message before a hello"));
    let mut client = serving.connect().await;
    client.stream.write_all(b"GMAHxxxx").await.unwrap();
    drop(client);
    let mut client = serving.connect().await;
    client.hello["job"] = "k".into();
    client.greet(0, 2, None, None).await;
    assert!(client.error().await.contains("is of job k, and this is job j"));
    serving.served.abort();
}

#[tokio::test]
async fn the_first_rank_with_a_checkpoint_decides_where_a_run_begins() {
    let serving = Serving::start(2, TailPolicy::Repeat, StartCandidates::default()).await;
    let mut one = serving.rank(1, Some(batch(0, 3))).await;
    one.takes(4).await;
    let mut zero = serving.rank(0, Some(batch(0, 5))).await;
    let why = zero.error().await;
    assert!(why.contains("rank 0 wants batch 5 of epoch 0"), "{why}");
    let mut zero = serving.rank(0, Some(batch(0, 3))).await;
    zero.takes(3).await;
    serving.served.abort();
}

#[tokio::test]
async fn a_beginning_beyond_the_job_is_refused_and_another_may_be_named() {
    let serving = Serving::start(2, TailPolicy::Repeat, StartCandidates::default()).await;
    let mut zero = serving.rank(0, Some(batch(0, 30))).await;
    let why = zero.error().await;
    assert!(why.contains("there is no batch 30 of epoch 0 to continue at"), "{why}");
    let mut zero = serving.rank(0, Some(batch(0, 2))).await;
    zero.takes(2).await;
    serving.served.abort();
}

#[tokio::test]
async fn a_last_step_that_is_too_short_has_a_repeat() {
    let serving = Serving::start(3, TailPolicy::Repeat, StartCandidates::default()).await;
    let mut ranks = Vec::new();
    for rank in 0..3 {
        ranks.push(serving.rank(rank, None).await);
    }
    let mut last = Vec::new();
    for step in 0..3 {
        last.clear();
        for client in &mut ranks {
            last.push(client.step().await);
        }
        assert!(last.iter().all(|(next, ..)| *next == last[0].0), "one checkpoint for all: {step}");
    }
    let [zero, one, two] = &last[..] else { panic!() };
    assert_eq!((&zero.1, zero.2, &one.1, one.2), (b"GMB1", 6, b"GMB1", 7));
    assert_eq!((&two.1, two.2), (b"GMBR", 8));
    assert_eq!(two.3, one.3);
    for (index, client) in (6..).zip(&mut ranks) {
        client.end().await;
        client.acks(index).await;
    }
    for client in &mut ranks {
        assert!(client.end().await);
    }
    drop(ranks);
    let (served, counts) = serving.served.await.unwrap();
    served.unwrap();
    assert_eq!(counts.ranks.iter().map(|rank| rank.repeats).collect::<Vec<_>>(), [0, 0, 1]);
}

#[tokio::test]
async fn one_rank_may_say_that_the_whole_job_is_safe() {
    let serving = Serving::start(2, TailPolicy::Repeat, StartCandidates::default()).await;
    let (mut zero, mut one) = (serving.rank(0, None).await, serving.rank(1, None).await);
    for step in 0..4 {
        zero.takes(2 * step).await;
        one.takes(2 * step + 1).await;
    }
    assert!(!zero.end().await && !one.end().await);
    one.says(b"GMAJ", batch(0, 8)).await;
    assert!(zero.end().await && one.end().await);
    drop((zero, one));
    serving.served.await.unwrap().0.unwrap();
}

#[tokio::test]
async fn ranks_go_on_with_the_fetcher_that_succeeds_theirs() {
    let beginning = StartCandidates { succeeds: Some(batch(0, 2)), ..StartCandidates::default() };
    let serving = Serving::start(2, TailPolicy::Repeat, beginning).await;
    let (mut zero, mut one) =
        (serving.rank(0, Some(batch(0, 6))).await, serving.rank(1, Some(batch(0, 4))).await);
    zero.acks(4).await;
    one.takes(5).await;
    zero.takes(6).await;
    one.takes(7).await;
    serving.served.abort();
}

#[test]
fn waits_of_an_epoch_that_ends_again_add_up() {
    let waits = DeliveryWaits { fetch: Duration::from_secs(1), ..DeliveryWaits::default() };
    let mut counts = ServedCounts::new(0..1);
    for _ in 0..2 {
        counts.end_epoch(&EpochTotals { rows: 5, waits, ..EpochTotals::default() }, 0);
    }
    let EpochTotals { rows, waits, .. } = counts.epochs[&0].totals;
    assert_eq!((rows, waits.fetch), (5, Duration::from_secs(2)));
}
