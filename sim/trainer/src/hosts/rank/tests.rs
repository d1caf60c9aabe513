//! A rank over a connection whose other end the tests write.

use super::*;
use gristmill_serve::framing::HEADER_BYTES;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixListener,
    task::JoinHandle,
};

/// A frame as a fetcher sends it.
fn frame(magic: &[u8; 4], at: Cursor, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [&magic[..], &at.epoch.to_le_bytes(), &at.batch_index.to_le_bytes()].concat();
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    assert_eq!(bytes.len(), HEADER_BYTES);
    bytes.extend_from_slice(payload);
    bytes
}

fn at(epoch: u32, batch_index: u64) -> Cursor {
    Cursor { epoch, batch_index }
}

/// A fetcher that plays one rank's part of the protocol.
struct Fetcher {
    listener: UnixListener,
    link: Option<UnixStream>,
}

impl Fetcher {
    fn link(&mut self) -> &mut UnixStream {
        self.link.as_mut().unwrap()
    }

    /// Accepts the rank; returns its hello.
    async fn accept(&mut self) -> Value {
        let (link, _) = self.listener.accept().await.unwrap();
        self.link = Some(link);
        let names = br#"{"job":"j","dataset":"d","fingerprint":"f"}"#;
        self.send(b"GMBH", at(0, 0), names).await;
        let mut magic = [0; 4];
        self.link().read_exact(&mut magic).await.unwrap();
        assert_eq!(&magic, b"GMH1");
        let bytes = self.link().read_u32_le().await.unwrap();
        let mut hello = vec![0; bytes as usize];
        self.link().read_exact(&mut hello).await.unwrap();
        serde_json::from_slice(&hello).unwrap()
    }

    async fn send(&mut self, magic: &[u8; 4], at: Cursor, payload: &[u8]) {
        self.link().write_all(&frame(magic, at, payload)).await.unwrap();
    }

    async fn step(&mut self, magic: &[u8; 4], own: Cursor, next: Cursor) {
        self.send(b"GMBC", next, format!("checkpoint {next}").as_bytes()).await;
        self.send(magic, own, b"rows").await;
    }

    /// The next acknowledgement, past what the rank says of its waits.
    async fn acknowledged(&mut self) -> Cursor {
        loop {
            let mut magic = [0; 4];
            self.link().read_exact(&mut magic).await.unwrap();
            match &magic {
                b"GMAW" => {}
                b"GMA1" => {
                    let epoch = self.link().read_u32_le().await.unwrap();
                    let batch_index = self.link().read_u64_le().await.unwrap();
                    return at(epoch, batch_index);
                }
                other => panic!("{:?}", String::from_utf8_lossy(other)),
            }
        }
    }
}

/// A rank, and the fetcher that it connects to.
struct Rank {
    fetcher: Fetcher,
    received: mpsc::Receiver<Result<RankDelivery, ProgramFailure>>,
    trained: mpsc::Sender<()>,
    ended: JoinHandle<Result<(), ProgramFailure>>,
    _dir: tempfile::TempDir,
}

fn start(patience: Duration) -> Rank {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let fetcher = Fetcher { listener: UnixListener::bind(&socket).unwrap(), link: None };
    let (rank, of, name, life) = (1, 2, "r".to_owned(), Arc::default());
    let place = RankEndpoint { socket, rank, of, run: name, patience, life };
    let ((to, received), (trained, acks)) = (mpsc::channel(1), mpsc::channel(1));
    Rank { fetcher, received, trained, ended: tokio::spawn(run(place, to, acks)), _dir: dir }
}

impl Rank {
    async fn given(&mut self) -> RankStepBatch {
        match self.received.recv().await.unwrap().unwrap() {
            RankDelivery::Step(given) => given,
            RankDelivery::End(summary) => panic!("{summary:?}"),
        }
    }
}

const TIMEOUT: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_rank_takes_steps_and_acknowledges_what_it_trained_on() {
    let mut rank = start(TIMEOUT);
    let hello = rank.fetcher.accept().await;
    assert_eq!((&hello["rank"], &hello["of"], &hello["run"]), (&1.into(), &2.into(), &"r".into()));
    assert!(hello.get("epoch").is_none(), "a new rank begins where its fetcher does: {hello}");
    rank.fetcher.step(b"GMB1", at(0, 1), at(0, 2)).await;
    let given = rank.given().await;
    assert_eq!((given.at, given.is_repeat, &given.frame[..]), (at(0, 1), false, &b"rows"[..]));
    assert_eq!(given.next, at(0, 2));
    rank.trained.send(()).await.unwrap();
    assert_eq!(rank.fetcher.acknowledged().await, at(0, 1));
    rank.fetcher.step(b"GMBR", at(0, 3), at(1, 0)).await;
    assert!(rank.given().await.is_repeat);
    rank.trained.send(()).await.unwrap();
    assert_eq!(rank.fetcher.acknowledged().await, at(0, 3));
    rank.fetcher.send(b"GMBE", at(1, 0), br#"{"closed":false}"#).await;
    let end = rank.received.recv().await.unwrap().unwrap();
    assert!(matches!(end, RankDelivery::End(FetcherSummary { closed: false, .. })), "{end:?}");
    rank.fetcher.send(b"GMBE", at(1, 0), br#"{"closed":true}"#).await;
    rank.ended.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_rank_goes_on_with_the_next_fetcher_where_it_is() {
    let mut rank = start(TIMEOUT);
    rank.fetcher.accept().await;
    rank.fetcher.step(b"GMB1", at(0, 1), at(0, 2)).await;
    rank.given().await;
    rank.trained.send(()).await.unwrap();
    assert_eq!(rank.fetcher.acknowledged().await, at(0, 1));
    // The fetcher dies within a batch.
    let half = frame(b"GMB1", at(0, 3), b"rows");
    rank.fetcher.send(b"GMBC", at(0, 4), b"checkpoint").await;
    rank.fetcher.link().write_all(&half[..HEADER_BYTES + 2]).await.unwrap();
    rank.fetcher.link = None;
    let hello = rank.fetcher.accept().await;
    assert_eq!((&hello["epoch"], &hello["batch_index"]), (&0.into(), &2.into()));
    // The earlier one may not have taken the acknowledgement.
    assert_eq!(rank.fetcher.acknowledged().await, at(0, 1));
    rank.fetcher.step(b"GMB1", at(0, 3), at(0, 4)).await;
    assert_eq!(rank.given().await.at, at(0, 3));
    // It dies while the rank trains, and again before the job is closed.
    rank.fetcher.link = None;
    rank.trained.send(()).await.unwrap();
    let hello = rank.fetcher.accept().await;
    assert_eq!(hello["batch_index"], 4);
    assert_eq!(rank.fetcher.acknowledged().await, at(0, 3));
    rank.fetcher.send(b"GMBE", at(1, 0), br#"{"closed":false}"#).await;
    assert!(matches!(rank.received.recv().await.unwrap(), Ok(RankDelivery::End(_))));
    rank.fetcher.link = None;
    rank.fetcher.accept().await;
    assert_eq!(rank.fetcher.acknowledged().await, at(0, 3));
    rank.fetcher.send(b"GMBE", at(1, 0), br#"{"closed":true}"#).await;
    rank.ended.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_fetchers_refusal_names_the_rank() {
    let mut rank = start(TIMEOUT);
    rank.fetcher.accept().await;
    rank.fetcher.send(b"GMBX", at(0, 0), b"rank 1 is of 2 ranks").await;
    let why = rank.received.recv().await.unwrap().unwrap_err().to_string();
    assert_eq!(why, "rank 1: its fetcher ended the run: rank 1 is of 2 ranks");
}

#[tokio::test]
async fn a_rank_gives_up_a_fetcher_that_never_comes() {
    let mut rank = start(Duration::ZERO);
    let socket = rank.fetcher.listener.local_addr().unwrap();
    let socket = socket.as_pathname().unwrap().to_owned();
    rank.fetcher.accept().await;
    drop(rank.fetcher);
    let why = rank.received.recv().await.unwrap().unwrap_err().to_string();
    let waited = format!("rank 1 waited 0 s for a fetcher at {}: ", socket.display());
    assert!(why.starts_with(&waited), "{why}");
}
