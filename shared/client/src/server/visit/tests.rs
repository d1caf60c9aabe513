//! Visits to a server over a sample job, by trainers at the other end of a pipe.

use super::*;
use crate::{
    Fetcher,
    cursor::{Identity, NoCursor, Saved},
    samples::{self, SampleJob, batch},
    server::Visitor,
};
use gristmill_model::wire::RefusalKind;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncWriteExt, DuplexStream, duplex},
    sync::mpsc,
    task::JoinHandle,
};

/// A position in memory.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Option<Saved>>>);

impl CursorStore for Kept {
    fn load(&mut self) -> io::Result<Option<Saved>> {
        Ok(self.0.lock().unwrap().clone())
    }

    fn save(&mut self, saved: &Saved) -> io::Result<()> {
        *self.0.lock().unwrap() = Some(saved.clone());
        Ok(())
    }

    fn name(&self) -> Option<String> {
        Some("state file s".into())
    }
}

/// A server that runs, and the way to connect to it.
struct Serving {
    visitors: mpsc::Sender<Visitor<DuplexStream>>,
    served: JoinHandle<(Result<(), ServeError>, f64)>,
}

impl Serving {
    async fn start(
        (job, ports, config): &(Arc<SampleJob>, crate::FetcherPorts, crate::FetcherConfig),
        store: impl CursorStore + Sync + 'static,
    ) -> Self {
        let fetcher = Fetcher::open(ports.clone(), config.clone()).await.unwrap();
        assert_eq!(job.last_ack(), None, "a stream that is only open takes nothing over");
        let mut server = Server::new(fetcher, store, Cursor::default()).unwrap();
        let (visitors, arriving) = mpsc::channel(1);
        let served = tokio::spawn(async move {
            let served = server.serve(arriving).await;
            (served, server.fetcher().waited().as_secs_f64())
        });
        Self { visitors, served }
    }

    async fn connect(&self) -> Client {
        // Room for several frames, as sockets have.
        let (stream, theirs) = duplex(1 << 16);
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
    identity: Option<Identity>,
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
    let serving = Serving::start(&sample, NoCursor).await;
    let mut client = serving.connect().await;
    client.hello(None).await;
    for index in 0..8 {
        client.batch(index).await;
    }
    let (magic, at, _) = client.frame().await;
    assert_eq!((&magic, at), (b"GMBE", batch(1, 0)));
    client.ack(7).await;
    serving.served.await.unwrap().0.unwrap();
    assert_eq!(sample.0.last_ack().unwrap().durable, batch(1, 0));
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
async fn what_a_trainer_may_not_say_is_refused_and_the_next_one_is_served() {
    let sample = SampleJob::new(2, 2).await;
    let serving = Serving::start(&sample, NoCursor).await;
    let mut client = serving.connect().await;
    client.ack(0).await;
    assert!(client.error().await.contains("before a hello"));
    let mut client = serving.connect().await;
    client.identity.as_mut().unwrap().fingerprint = "another".into();
    client.hello(None).await;
    assert!(client.error().await.contains("another pipeline or seed"));
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
    let serving = Serving::start(&sample, NoCursor).await;
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
    let serving = Serving::start(&sample, NoCursor).await;
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

#[test]
fn a_trainer_computes_between_the_waits_that_it_announces() {
    let computes = |announced, sent| Turns { announced, sent }.trainer_computes();
    assert!(!computes(0, 0) && !computes(0, 5), "it announces nothing");
    assert!(!computes(1, 0) && computes(1, 1) && !computes(2, 1) && computes(2, 2));
}
