//! Trainers of all batches at the other end of a pipe, over a sample job.

use super::*;
use crate::cursor::NoCursorStore;
use gristmill_model::wire::RefusalKind;
use gristmill_stream::samples::{self, SampleJob, batch};
use std::sync::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    task::JoinHandle,
};

/// A position in memory.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Option<SavedCursor>>>);

impl CursorStore for Kept {
    fn load(&mut self) -> io::Result<Option<SavedCursor>> {
        Ok(self.0.lock().unwrap().clone())
    }

    fn save(&mut self, saved: &SavedCursor) -> io::Result<()> {
        *self.0.lock().unwrap() = Some(saved.clone());
        Ok(())
    }

    fn name(&self) -> Option<String> {
        Some("state file s".into())
    }
}

/// A server that runs, and the way to connect to it.
struct Serving {
    visitors: mpsc::Sender<ConnectedClient<DuplexStream>>,
    served: JoinHandle<(Result<(), ServeError>, f64)>,
}

impl Serving {
    async fn start(
        (job, ports, config): &(
            Arc<SampleJob>,
            gristmill_stream::FetcherPorts,
            gristmill_stream::FetcherConfig,
        ),
        store: impl CursorStore + 'static,
    ) -> Self {
        let fetcher = Fetcher::open(ports.clone(), config.clone()).await.unwrap();
        assert_eq!(job.progress(), None, "a stream that is only open takes nothing over");
        let mut server =
            RankServer::new(fetcher, Box::new(store), StartCandidates::default()).unwrap();
        let (visitors, arriving) = mpsc::channel(1);
        let served = tokio::spawn(async move {
            let served = server.serve(arriving).await;
            (served, server.fetcher().waited().as_secs_f64())
        });
        Self { visitors, served }
    }

    async fn connect(&self) -> Client {
        // Room for several frames, as sockets have.
        self.connect_by(1 << 16).await
    }

    async fn connect_by(&self, pipe_bytes: usize) -> Client {
        let (stream, theirs) = duplex(pipe_bytes);
        assert!(self.visitors.send(theirs.into()).await.is_ok());
        let mut client = Client { stream, identity: None };
        let (magic, _, payload) = client.frame().await;
        assert_eq!(&magic, b"GMBH");
        client.identity = serde_json::from_slice(&payload).unwrap();
        client
    }
}

/// A trainer at the other end of a connection.
struct Client {
    stream: DuplexStream,
    identity: Option<StreamIdentity>,
}

impl Client {
    async fn frame(&mut self) -> ([u8; 4], Cursor, Vec<u8>) {
        samples::frame(&mut self.stream).await
    }

    /// The next frame, which is an error.
    async fn error(&mut self) -> String {
        let (magic, _, payload) = self.frame().await;
        assert_eq!(&magic, b"GMBX");
        String::from_utf8(payload).unwrap()
    }

    /// The next frame, which is batch `index` of epoch 0.
    async fn batch(&mut self, index: u64) {
        let (magic, at, payload) = self.frame().await;
        assert_eq!((&magic, at), (b"GMB1", batch(0, index)), "{payload:?}");
    }

    async fn hello(&mut self, at: Option<Cursor>) {
        let mut hello = serde_json::to_value(&self.identity).unwrap();
        if let Some(at) = at {
            hello["epoch"] = at.epoch.into();
            hello["batch_index"] = at.batch_index.into();
        }
        let text = hello.to_string();
        self.stream.write_all(b"GMAH").await.unwrap();
        self.stream.write_u32_le(text.len() as u32).await.unwrap();
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    async fn ack(&mut self, index: u64) {
        self.stream.write_all(b"GMA1\0\0\0\0").await.unwrap();
        self.stream.write_u64_le(index).await.unwrap();
    }

    async fn waits(&mut self) {
        self.stream.write_all(b"GMAW").await.unwrap();
    }
}

#[tokio::test]
async fn a_trainer_gets_every_batch_and_the_job_is_closed_after_its_last_acknowledgement() {
    let sample = SampleJob::new(2, 2).await;
    let serving = Serving::start(&sample, NoCursorStore).await;
    let mut client = serving.connect().await;
    client.hello(None).await;
    for index in 0..8 {
        client.batch(index).await;
    }
    let (magic, at, _) = client.frame().await;
    assert_eq!((&magic, at), (b"GMBE", batch(1, 0)));
    client.ack(7).await;
    serving.served.await.unwrap().0.unwrap();
    assert_eq!(sample.0.progress().unwrap().durable, batch(1, 0));
}

#[tokio::test]
async fn a_trainer_that_returns_goes_on_after_its_last_acknowledgement() {
    let sample = SampleJob::new(2, 2).await;
    let kept = Kept::default();
    let serving = Serving::start(&sample, kept.clone()).await;
    let mut client = serving.connect().await;
    client.hello(None).await;
    for index in 0..4 {
        client.batch(index).await;
    }
    client.ack(1).await;
    drop(client);
    let mut client = serving.connect().await;
    assert_eq!(kept.0.lock().unwrap().as_ref().unwrap().cursor, batch(0, 2));
    client.hello(None).await;
    client.batch(2).await;
    // An older checkpoint is served too, while nothing is deleted.
    drop(client);
    let mut client = serving.connect().await;
    client.hello(Some(batch(0, 1))).await;
    client.batch(1).await;
    assert_eq!(kept.0.lock().unwrap().as_ref().unwrap().cursor, batch(0, 1));
}

#[tokio::test]
async fn an_invalid_message_is_refused_and_the_next_trainer_is_served() {
    let sample = SampleJob::new(2, 2).await;
    let serving = Serving::start(&sample, NoCursorStore).await;
    let mut client = serving.connect().await;
    client.ack(0).await;
    assert!(client.error().await.contains("before a hello"));
    let mut client = serving.connect().await;
    client.identity.as_mut().unwrap().fingerprint = "another".into();
    client.hello(None).await;
    assert!(client.error().await.contains("another pipeline, seed or split size"));
    let mut client = serving.connect().await;
    client.hello(Some(batch(0, 99))).await;
    assert!(client.error().await.contains("the epoch has 8 batches"));
    let mut client = serving.connect().await;
    client.hello(None).await;
    client.batch(0).await;
    client.ack(8).await;
    let why = loop {
        let (magic, _, payload) = client.frame().await;
        if &magic == b"GMBX" {
            break String::from_utf8(payload).unwrap();
        }
    };
    assert!(why.contains("acknowledges batch 8 of epoch 0"), "{why}");
    let mut client = serving.connect().await;
    client.hello(None).await;
    client.batch(0).await;
}

#[tokio::test]
async fn a_start_that_the_coordinator_refuses_ends_the_visit() {
    let sample = SampleJob::new(2, 2).await;
    sample.0.refuse(RefusalKind::Collected);
    let serving = Serving::start(&sample, NoCursorStore).await;
    let mut client = serving.connect().await;
    client.hello(Some(batch(0, 3))).await;
    assert!(client.error().await.contains("refused as asked"));
    let mut client = serving.connect().await;
    client.hello(Some(batch(0, 3))).await;
    client.batch(3).await;
}

#[tokio::test]
async fn only_time_in_which_the_trainer_waits_counts_if_it_says_so() {
    let sample = SampleJob::new(2, 1).await;
    let serving = Serving::start(&sample, NoCursorStore).await;
    let mut client = serving.connect().await;
    client.hello(None).await;
    for index in 0..4 {
        client.waits().await;
        client.batch(index).await;
    }
    // It computes while the next split is not committed, then waits for it.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    client.waits().await;
    sample.0.commit(2);
    for index in 4..8 {
        client.batch(index).await;
        client.waits().await;
    }
    client.ack(7).await;
    let (served, waited_s) = serving.served.await.unwrap();
    served.unwrap();
    assert!(waited_s < 1.5, "{waited_s}");
}

/// The frames that a client gets until the stream ends, or for `most` of them.
async fn frames(stream: &mut DuplexStream, most: usize) -> Vec<([u8; 4], u64)> {
    let mut frames = Vec::new();
    while frames.len() < most {
        let (magic, at, _) = samples::frame(stream).await;
        frames.push((magic, at.batch_index));
        if &magic == b"GMBE" {
            break;
        }
    }
    frames
}

#[tokio::test]
async fn a_trainer_may_speak_as_rank_0_of_1() {
    let sample = SampleJob::new(2, 2).await;
    let serving = Serving::start(&sample, NoCursorStore).await;
    let mut client = serving.connect().await;
    let mut hello = serde_json::to_value(&client.identity).unwrap();
    (hello["rank"], hello["of"]) = (0.into(), 1.into());
    let text = hello.to_string();
    client.stream.write_all(b"GMH1").await.unwrap();
    client.stream.write_u32_le(text.len() as u32).await.unwrap();
    client.stream.write_all(text.as_bytes()).await.unwrap();
    assert_eq!(frames(&mut client.stream, 2).await, [(*b"GMBC", 1), (*b"GMB1", 0)]);
    (hello["rank"], hello["of"]) = (3.into(), 4.into());
    let text = hello.to_string();
    let mut other = serving.connect().await;
    other.stream.write_all(b"GMH1").await.unwrap();
    other.stream.write_u32_le(text.len() as u32).await.unwrap();
    other.stream.write_all(text.as_bytes()).await.unwrap();
    let why = other.error().await;
    assert!(why.contains("rank 3 says hello") && why.contains("start it with --ranks"), "{why}");
}

#[tokio::test]
async fn a_reader_that_says_nothing_gets_every_frame_and_acknowledges_by_reading() {
    let (job, ports, config) = SampleJob::new(2, 2).await;
    let fetcher = Fetcher::open(ports, config).await.unwrap();
    let kept = Kept::default();
    let mut server =
        RankServer::new(fetcher, Box::new(kept.clone()), StartCandidates::default()).unwrap();
    let (out, mut reads) = duplex(600);
    let served = tokio::spawn(async move { server.write_all(out).await });
    assert_eq!(samples::frame(&mut reads).await.0, *b"GMBH");
    let got = frames(&mut reads, 4).await;
    assert_eq!(got, (0..4).map(|index| (*b"GMB1", index)).collect::<Vec<_>>());
    let durable = kept.0.lock().unwrap().as_ref().unwrap().cursor;
    assert!(durable > batch(0, 1) && durable < batch(0, 8), "{durable}: as far as it is written");
    let rest = frames(&mut reads, 9).await;
    assert_eq!((rest.len(), rest[4].0), (5, *b"GMBE"));
    served.await.unwrap().unwrap();
    assert_eq!(reads.read(&mut [0; 1]).await.unwrap(), 0, "one last frame");
    assert_eq!(job.progress().unwrap().durable, batch(1, 0));
}

#[tokio::test]
async fn a_reader_that_closes_its_end_ends_serving() {
    let (job, ports, config) = SampleJob::new(2, 2).await;
    let fetcher = Fetcher::open(ports, config).await.unwrap();
    let mut server =
        RankServer::new(fetcher, Box::new(NoCursorStore), StartCandidates::default()).unwrap();
    let (out, mut reads) = duplex(600);
    let (silent, _end) = duplex(1);
    let served = tokio::spawn(async move { server.write_all(tokio::io::join(silent, out)).await });
    frames(&mut reads, 2).await;
    drop(reads);
    assert!(matches!(served.await.unwrap(), Err(ServeError::Io(_))));
    assert!(!job.is_done());
}

#[tokio::test]
async fn without_acknowledgements_no_batch_comes_twice() {
    for visitation in [Visitation::AtMostOnce, Visitation::ZeroOnceOrMore] {
        let mut sample = SampleJob::new(2, 2).await;
        sample.0 = sample.0.visited(visitation);
        sample.1.coordinator = Arc::<SampleJob>::clone(&sample.0);
        let serving = Serving::start(&sample, NoCursorStore).await;
        let mut client = serving.connect_by(600).await;
        client.hello(None).await;
        for index in 0..3 {
            client.batch(index).await;
        }
        drop(client);
        let mut client = serving.connect().await;
        client.hello(Some(batch(0, 0))).await;
        let rest = frames(&mut client.stream, 9).await;
        let (end, numbers) = rest.split_last().unwrap();
        assert_eq!(&end.0, b"GMBE");
        assert!(numbers.iter().all(|(_, index)| *index > 2), "{visitation}: {numbers:?}");
        assert!(numbers.len() >= 2, "{visitation}: few are lost on the way: {numbers:?}");
        serving.served.await.unwrap().0.unwrap();
        assert!(sample.0.is_done());
    }
}

#[tokio::test]
async fn a_position_that_is_not_of_the_job_is_named_by_its_file() {
    let sample = SampleJob::new(2, 2).await;
    let (_, ports, config) = &sample;
    let beginning = StartCandidates { kept: Some(batch(0, 99)), ..StartCandidates::default() };
    let config = gristmill_stream::FetcherConfig { resume: batch(0, 99), ..config.clone() };
    let fetcher = Fetcher::open(ports.clone(), config).await.unwrap();
    let mut server = RankServer::new(fetcher, Box::new(Kept::default()), beginning).unwrap();
    let (_visitors, arriving) = mpsc::channel::<ConnectedClient<DuplexStream>>(1);
    let error = server.serve(arriving).await.unwrap_err();
    assert!(
        matches!(&error, ServeError::State(why) if why.starts_with("state file s: ")),
        "{error}"
    );
}

#[tokio::test]
async fn a_job_whose_last_batch_was_acknowledged_is_closed_without_its_trainer() {
    for kept in [batch(0, 8), batch(1, 0)] {
        let sample = SampleJob::new(2, 2).await;
        let (job, ports, config) = &sample;
        let config = gristmill_stream::FetcherConfig { resume: kept, ..config.clone() };
        let fetcher = Fetcher::open(ports.clone(), config).await.unwrap();
        let beginning = StartCandidates { kept: Some(kept), ..StartCandidates::default() };
        let mut server = RankServer::new(fetcher, Box::new(Kept::default()), beginning).unwrap();
        let (_visitors, arriving) = mpsc::channel::<ConnectedClient<DuplexStream>>(1);
        server.serve(arriving).await.unwrap();
        assert!(job.is_done(), "{kept}");
    }
}
