//! One rank: connects to the fetcher of its host as a training process does, and again when the fetcher dies.

use super::{FetcherSummary, processes::FetcherHistory};
use bytes::Bytes;
use gristmill_client::ProgramFailure;
use gristmill_model::splits::Cursor;
use gristmill_ports::{SystemClock, time_run};
use gristmill_serve::{
    cursor::StreamIdentity,
    framing::{SocketFrame, SocketFrameKind, read_frame},
};
use serde_json::json;
use std::{io, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::mpsc,
};

/// Rest before another attempt to connect.
const REST: Duration = Duration::from_millis(20);

/// A batch of one rank at one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankStepBatch {
    /// The number of the batch; of the one that the epoch lacks, if this one is a repeat.
    pub at: Cursor,
    pub is_repeat: bool,
    pub frame: Bytes,
    /// The first batch of the step after this one.
    pub next: Cursor,
}

/// A delivery to a rank.
#[derive(Debug, Clone)]
pub enum RankDelivery {
    Step(RankStepBatch),
    /// All steps are over.
    End(FetcherSummary),
}

/// The place of a rank.
#[derive(Debug, Clone)]
pub struct RankEndpoint {
    pub socket: PathBuf,
    pub rank: u32,
    pub of: u32,
    /// The name of the run.
    pub run: String,
    /// How long the rank waits for a fetcher that does not answer.
    pub patience: Duration,
    /// The fetcher of its host.
    pub life: Arc<FetcherHistory>,
}

/// The rank's end of its connection, and where it is.
struct Client {
    place: RankEndpoint,
    /// The batches that its positions count, as the first fetcher named them.
    identity: Option<StreamIdentity>,
    link: Option<BufReader<UnixStream>>,
    /// The first batch of the step that it wants next; none before its first step.
    next: Option<Cursor>,
    /// Its own batch of the last step that its checkpoint contains.
    durable: Option<Cursor>,
}

/// Runs a rank: sends what it receives to `to`, and acknowledges a step once `trained` says that it is in the rank's
/// checkpoint. Ends when the job is closed.
pub async fn run(
    place: RankEndpoint,
    to: mpsc::Sender<Result<RankDelivery, ProgramFailure>>,
    mut trained: mpsc::Receiver<()>,
) -> Result<(), ProgramFailure> {
    let mut client = Client { place, identity: None, link: None, next: None, durable: None };
    loop {
        let received = client.receive().await;
        let own = match &received {
            Ok(RankDelivery::Step(given)) => Some((given.at, given.next)),
            Ok(RankDelivery::End(_)) | Err(_) => None,
        };
        let failed = received.is_err();
        if to.send(received).await.is_err() || failed {
            return Ok(());
        }
        let Some((at, next)) = own else { return client.leave().await };
        client.next = Some(next);
        if trained.recv().await.is_none() {
            return Ok(());
        }
        client.durable = Some(at);
        client.acknowledge().await;
    }
}

impl Client {
    /// The next step, or the end; connects again if the fetcher dies.
    async fn receive(&mut self) -> Result<RankDelivery, ProgramFailure> {
        loop {
            self.connect().await?;
            match self.step().await {
                Ok(Ok(received)) => return Ok(received),
                Ok(Err(why)) => {
                    let rank = self.place.rank;
                    let why = format!("rank {rank}: its fetcher ended the run: {why}");
                    return Err(ProgramFailure::failed(why));
                }
                Err(_) => self.link = None,
            }
        }
    }

    /// Waits until the job is closed, so that the last acknowledgement is known to have arrived.
    async fn leave(&mut self) -> Result<(), ProgramFailure> {
        loop {
            // A fetcher that has ended well got all acknowledgements.
            if self.place.life.has_ended() {
                return Ok(());
            }
            if self.link.is_none() && self.try_connect().await.is_err() {
                tokio::time::sleep(REST).await;
                continue;
            }
            match self.step().await {
                Ok(Ok(RankDelivery::End(FetcherSummary { closed: true, .. }))) => return Ok(()),
                // It may have closed the job between a look at its end and this connection.
                Ok(Ok(_) | Err(_)) => {}
                Err(_) => self.link = None,
            }
        }
    }

    /// The next step or the end; the inner error is the fetcher's.
    async fn step(&mut self) -> io::Result<Result<RankDelivery, String>> {
        let link = self.link.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        link.write_all(b"GMAW").await?;
        let frame = read_frame(link).await?;
        let SocketFrame { kind: SocketFrameKind::Checkpoint, at: next, .. } = frame else {
            return match frame.kind {
                SocketFrameKind::Error => Ok(Err(frame.text())),
                SocketFrameKind::End => {
                    let summary = serde_json::from_slice(&frame.payload);
                    Ok(summary.map(RankDelivery::End).map_err(|error| error.to_string()))
                }
                kind => Ok(Err(format!("{kind:?} of {} without a checkpoint", frame.at))),
            };
        };
        let SocketFrame { kind, at, payload } = read_frame(link).await?;
        let is_repeat = match kind {
            SocketFrameKind::Batch => false,
            SocketFrameKind::Repeat => true,
            kind => return Ok(Err(format!("{kind:?} after a checkpoint"))),
        };
        self.place.life.served();
        Ok(Ok(RankDelivery::Step(RankStepBatch { at, is_repeat, frame: payload, next })))
    }

    /// Connects, if there is no connection, to a fetcher that may have to start first.
    async fn connect(&mut self) -> Result<(), ProgramFailure> {
        let mut waited = Duration::ZERO;
        while self.link.is_none() {
            let Err(error) = self.try_connect().await else { break };
            if waited >= self.place.patience {
                let RankEndpoint { rank, socket, patience, .. } = &self.place;
                return Err(ProgramFailure::failed(format!(
                    "rank {rank} waited {} s for a fetcher at {}: {error}",
                    patience.as_secs(),
                    socket.display()
                )));
            }
            waited += time_run(&SystemClock, REST).await;
        }
        Ok(())
    }

    async fn try_connect(&mut self) -> io::Result<()> {
        let stream = UnixStream::connect(&self.place.socket).await?;
        let mut link = BufReader::new(stream);
        let hello = read_frame(&mut link).await?;
        if hello.kind != SocketFrameKind::Hello {
            return Err(io::Error::other(format!(
                "it said {:?} first: {}",
                hello.kind,
                hello.text()
            )));
        }
        let said = || serde_json::from_slice(&hello.payload).map_err(io::Error::other);
        let identity = match self.identity.take() {
            Some(identity) => identity,
            None => said()?,
        };
        link.write_all(&hello_of(&self.place, &identity, self.next)).await?;
        self.identity = Some(identity);
        self.link = Some(link);
        // An earlier fetcher may have died before it took the acknowledgement.
        self.acknowledge().await;
        Ok(())
    }

    /// Says what the rank's checkpoint contains. If that fails, it is said again to the next fetcher.
    async fn acknowledge(&mut self) {
        let Some(Cursor { epoch, batch_index }) = self.durable else { return };
        let Some(link) = &mut self.link else { return };
        let message = [&b"GMA1"[..], &epoch.to_le_bytes(), &batch_index.to_le_bytes()].concat();
        if link.write_all(&message).await.is_err() {
            self.link = None;
        }
    }
}

/// The hello of a rank that wants the step at `next`.
fn hello_of(place: &RankEndpoint, identity: &StreamIdentity, next: Option<Cursor>) -> Vec<u8> {
    let RankEndpoint { rank, of, run, .. } = place;
    let mut hello = json!({
        "job": identity.job,
        "dataset": identity.dataset,
        "fingerprint": identity.fingerprint,
        "rank": rank,
        "of": of,
        "run": run,
    });
    if let Some(next) = next {
        hello["epoch"] = next.epoch.into();
        hello["batch_index"] = next.batch_index.into();
    }
    let hello = hello.to_string();
    let bytes = u32::try_from(hello.len()).unwrap_or(u32::MAX);
    [&b"GMH1"[..], &bytes.to_le_bytes(), hello.as_bytes()].concat()
}

#[cfg(test)]
mod tests;
