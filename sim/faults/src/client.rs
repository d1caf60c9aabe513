//! Connections of a trainer to a fetcher, written from the protocol's description, and clients that disturb it.

use crate::{
    FaultKind, FaultSimulation, ProcessKind, SimProcess,
    cloud::SimCloud,
    host::{TrainerHost, is_done},
    trainer::{DeliveryLog, choose_checkpoint},
};
use bytes::Bytes;
use gristmill_model::{splits::Cursor, wire::RegisterCall};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

/// Longest wait of a client that does not train.
const ROGUE_PATIENCE: Duration = Duration::from_secs(20);

/// The outcome of a connection.
pub enum ConnectionEnd {
    /// It broke, or could not be made.
    Nothing,
    /// Everything is delivered; the position after the last acknowledgement.
    Ended(Cursor),
    /// Refused, with the reason.
    Refused(String),
}

/// A trainer, or another client, on the trainer's machine.
pub struct SimClient<'a> {
    pub cloud: &'a SimCloud,
    pub host: &'a TrainerHost,
    pub log: &'a DeliveryLog,
    pub process: &'a SimProcess,
}

/// A frame of a fetcher: its kind, the numbers of its header, and its payload.
pub struct ReceivedFrame {
    pub magic: [u8; 4],
    pub at: Cursor,
    pub payload: Bytes,
}

/// Reads one frame of the server. `None` at the end of the connection.
pub async fn receive(stream: &mut DuplexStream) -> Option<ReceivedFrame> {
    let mut magic = [0; 4];
    stream.read_exact(&mut magic).await.ok()?;
    let at = Cursor::new(stream.read_u32_le().await.ok()?, stream.read_u64_le().await.ok()?);
    let mut payload = vec![0; usize::try_from(stream.read_u64_le().await.ok()?).ok()?];
    stream.read_exact(&mut payload).await.ok()?;
    Some(ReceivedFrame { magic, at, payload: payload.into() })
}

/// Says `hello`, as a trainer of all batches (`GMAH`) or as a rank (`GMH1`).
pub async fn send_hello(
    stream: &mut DuplexStream,
    magic: &[u8; 4],
    hello: &serde_json::Value,
) -> Option<()> {
    let text = hello.to_string();
    stream.write_all(magic).await.ok()?;
    stream.write_u32_le(text.len() as u32).await.ok()?;
    stream.write_all(text.as_bytes()).await.ok()
}

/// Acknowledges all batches before `at` in this and earlier epochs (`GMA1`), or a checkpoint there of the whole job
/// (`GMAJ`). `None` if the connection has ended.
pub async fn send_ack(stream: &mut DuplexStream, magic: &[u8; 4], at: Cursor) -> Option<()> {
    stream.write_all(magic).await.ok()?;
    stream.write_u32_le(at.epoch).await.ok()?;
    stream.write_u64_le(at.batch_index).await.ok()
}

/// The job named by the server's hello, for the client's.
pub fn identity(hello: &ReceivedFrame) -> Option<serde_json::Value> {
    let said: serde_json::Value = serde_json::from_slice(&hello.payload).ok()?;
    let field = |name: &str| said.get(name).cloned().unwrap_or_default();
    Some(serde_json::json!({
        "job": field("job"), "dataset": field("dataset"), "fingerprint": field("fingerprint"),
    }))
}

/// Makes `hello` ask for the batches from `at` on.
pub fn set_place(hello: &mut serde_json::Value, at: Cursor) {
    (hello["epoch"], hello["batch_index"]) = (at.epoch.into(), at.batch_index.into());
}

impl SimClient<'_> {
    fn sim(&self) -> &FaultSimulation {
        &self.cloud.sim
    }

    /// Connects, and trains until something ends it.
    pub async fn train(&self, register: &RegisterCall) -> ConnectionEnd {
        let Some(mut stream) = self.host.connect().await else { return ConnectionEnd::Nothing };
        self.visit(&mut stream, register).await.unwrap_or(ConnectionEnd::Nothing)
    }

    async fn visit(
        &self,
        stream: &mut DuplexStream,
        register: &RegisterCall,
    ) -> Option<ConnectionEnd> {
        let greeting = receive(stream).await?;
        if &greeting.magic != b"GMBH" {
            return Some(self.refused(&greeting, None));
        }
        let mut hello = identity(&greeting)?;
        let resume = self.host.trainer_keeps.then(|| choose_checkpoint(self.sim(), self.log));
        if let Some(resume) = resume {
            set_place(&mut hello, resume);
        }
        self.process.point(20).await;
        send_hello(stream, b"GMAH", &hello).await?;
        let step_ms = 1 + self.sim().below(60);
        let mut unsaved = None;
        loop {
            let frame = receive(stream).await?;
            match &frame.magic {
                b"GMB1" => {
                    let visitation = register.spec.settings.visitation;
                    self.log.note(self.sim(), visitation, frame.at, &frame.payload);
                    self.process.point(step_ms).await;
                    unsaved = Some(frame.at);
                    if self.sim().below(3) == 0 {
                        self.save(stream, &mut unsaved).await?;
                    }
                }
                b"GMBE" => {
                    self.save(stream, &mut unsaved).await?;
                    let last = self.log.latest();
                    self.log.save(Cursor::start_of(register.spec.epochs));
                    // The fetcher exits after receiving that.
                    let _ = receive(stream).await;
                    return Some(ConnectionEnd::Ended(last));
                }
                _ => return Some(self.refused(&frame, resume)),
            }
        }
    }

    /// Writes a checkpoint, and acknowledges it when it is durable.
    async fn save(&self, stream: &mut DuplexStream, last: &mut Option<Cursor>) -> Option<()> {
        let Some(last) = last.take() else { return Some(()) };
        self.process.point(50).await;
        self.log.save(last.next());
        self.process.point(10).await;
        send_ack(stream, b"GMA1", last).await
    }

    /// Judges the refusal of a legitimate trainer.
    fn refused(&self, frame: &ReceivedFrame, resume: Option<Cursor>) -> ConnectionEnd {
        let why = String::from_utf8_lossy(&frame.payload).into_owned();
        let newest = resume.is_none_or(|resume| resume == self.log.latest());
        let gone = why.contains("collected") || why.contains("deleted");
        if newest && gone && !why.contains("is done") {
            self.sim().violated(format_args!("invariant 12: a trainer is refused: {why}"));
        }
        ConnectionEnd::Refused(why)
    }

    /// Connects and sends invalid messages.
    pub async fn disturb(&self, register: &RegisterCall) {
        let Some(mut stream) = self.host.connect().await else { return };
        let sim = self.sim();
        tokio::select! {
            biased;
            _ = self.say_wrong(&mut stream, register) => {}
            () = sim.time.sleep(ROGUE_PATIENCE) => {}
        }
    }

    async fn say_wrong(&self, stream: &mut DuplexStream, register: &RegisterCall) -> Option<()> {
        let sim = self.sim();
        let greeting = receive(stream).await?;
        let mut hello = identity(&greeting)?;
        let epochs = register.spec.epochs;
        let mut meant = false;
        match sim.below(7) {
            0 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.ok()?,
            1 => send_ack(stream, b"GMA1", Cursor::new(7, 999)).await?,
            2 => {
                hello["job"] = "another".into();
                send_hello(stream, b"GMAH", &hello).await?;
            }
            3 => {
                set_place(&mut hello, Cursor::new(epochs + 7, 999));
                send_hello(stream, b"GMAH", &hello).await?;
            }
            4 => {
                meant = true;
                send_hello(stream, b"GMAH", &hello).await?;
                send_ack(stream, b"GMA1", Cursor::new(epochs - 1, u64::MAX)).await?;
            }
            // Connects and leaves at once.
            5 => return None,
            _ => {
                meant = true;
                send_hello(stream, b"GMAH", &hello).await?;
            }
        }
        while let Some(frame) = receive(stream).await {
            if &frame.magic == b"GMB1" {
                if !meant {
                    sim.violated("somebody who said nothing right was given a batch");
                }
                // One message is enough.
                return None;
            }
        }
        Some(())
    }
}

/// Trains over the connection until the job is done, resuming after every death.
pub async fn train(
    cloud: &SimCloud,
    host: &TrainerHost,
    log: &DeliveryLog,
    register: &RegisterCall,
) {
    let sim = &cloud.sim;
    while !log.is_done() && !log.is_given_up() && !sim.is_violated() {
        let process = SimProcess::new(sim, ProcessKind::Trainer);
        let client = SimClient { cloud, host, log, process: &process };
        match process.run(client.train(register)).await {
            // The job is finished unless its fetcher still waits for the last acknowledgement, or the table has lost it.
            Some(ConnectionEnd::Ended(last))
                if host.has_kept(last) && sim.count(&[FaultKind::WritesLost]) == 0 =>
            {
                return;
            }
            Some(ConnectionEnd::Ended(_)) => {}
            Some(ConnectionEnd::Refused(why)) if is_done(&why) => return log.finish(),
            Some(ConnectionEnd::Refused(why)) => {
                sim.event(format_args!("a trainer is refused: {why}"))
            }
            Some(ConnectionEnd::Nothing) | None => {}
        }
        sim.time.sleep(sim.between_ms(100, 5_000)).await;
    }
}

/// Connects malicious and faulty clients.
pub async fn disturb(
    cloud: &SimCloud,
    host: &TrainerHost,
    log: &DeliveryLog,
    register: &RegisterCall,
) {
    let sim = &cloud.sim;
    while !log.is_done() && !log.is_given_up() {
        sim.time.sleep(sim.between_ms(100, 20_000)).await;
        if !sim.happens(FaultKind::WrongClient) {
            continue;
        }
        let process = SimProcess::new(sim, ProcessKind::Observer);
        let client = SimClient { cloud, host, log, process: &process };
        for _ in 0..=sim.below(8) {
            client.disturb(register).await;
        }
    }
}
