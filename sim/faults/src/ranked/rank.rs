//! A rank of a training program, written from the protocol's description: it takes one batch a step,
//! meets the others, and writes checkpoints.

use super::run::{CheckpointReporters, LaunchedRun, OtherHostsStart};
use crate::{
    FaultKind, SimProcess,
    client::{ReceivedFrame, identity, receive, send_ack, send_hello},
    host::TrainerHost,
    trainer::{DeliveryLog, ReceivedBatch},
};
use gristmill_model::splits::{Cursor, ranks::TrainingStep};
use gristmill_model::wire::RegisterCall;
use std::time::Duration;
use tokio::io::{AsyncWriteExt as _, DuplexStream};

/// Pause before a rank connects again.
const RECONNECT: Duration = Duration::from_millis(500);

/// One rank of a run, as one process.
pub struct RankProcess<'a> {
    pub run: &'a LaunchedRun,
    pub host: &'a TrainerHost,
    pub log: &'a DeliveryLog,
    pub register: &'a RegisterCall,
    pub process: &'a SimProcess,
    pub rank: u32,
}

/// The position of a rank.
struct At {
    /// The first batch of its next step; none until it knows.
    next: Option<Cursor>,
    /// The step it has completed most recently.
    step: Option<TrainingStep>,
    /// The latest checkpoint that was reported to a fetcher.
    reported: Cursor,
    /// Whether it returns after it had everything, and so must be let in.
    has_all: bool,
}

impl RankProcess<'_> {
    /// Trains until all is delivered and acknowledged, or the job failed.
    pub async fn train(&self) {
        let from = self.run.resume.as_ref().map(|_| self.run.ranks().from);
        let mut at = At { next: from, step: None, reported: Cursor::default(), has_all: false };
        while !self.run.is_done() && !self.log.is_given_up() {
            if let Some(mut stream) = self.host.connect().await {
                let _ = self.visit(&mut stream, &mut at).await;
            }
            self.process.sim().time.sleep(RECONNECT).await;
        }
    }

    /// One connection. None when it breaks.
    async fn visit(&self, stream: &mut DuplexStream, at: &mut At) -> Option<()> {
        let greeting = receive(stream).await?;
        if &greeting.magic != b"GMBH" {
            return self.refused(&greeting, at);
        }
        self.process.point(20).await;
        self.send_hello(stream, &greeting, at.next).await?;
        self.process.sim().event(format_args!("rank {} says hello, at {:?}", self.rank, at.next));
        let mut after = None;
        loop {
            let frame = receive(stream).await?;
            match &frame.magic {
                b"GMBC" => {
                    let next = Cursor::new(frame.at.0, frame.at.1);
                    let text = String::from_utf8(frame.payload.to_vec()).ok()?;
                    self.run.note_text(self.process.sim(), next, &text);
                    after = Some(next);
                }
                b"GMB1" | b"GMBR" => {
                    let Some(next) = after.take() else {
                        self.process.sim().violated("a batch came without its checkpoint");
                        return None;
                    };
                    self.step(&frame, next, at).await;
                    self.save(stream, next, at).await?;
                }
                b"GMBE" => return self.end(stream, at).await,
                _ => return self.refused(&frame, at),
            }
        }
    }

    async fn send_hello(
        &self,
        stream: &mut DuplexStream,
        greeting: &ReceivedFrame,
        next: Option<Cursor>,
    ) -> Option<()> {
        let mut hello = identity(greeting)?;
        hello["rank"] = self.rank.into();
        hello["of"] = self.run.ranks().count.get().into();
        hello["run"] = self.run.name.clone().into();
        if let Some(next) = next {
            hello["epoch"] = next.epoch.into();
            hello["batch_index"] = next.batch_index.into();
        }
        send_hello(stream, b"GMH1", &hello).await
    }

    /// Takes a batch, and meets the other ranks.
    async fn step(&self, frame: &ReceivedFrame, next: Cursor, at: &mut At) {
        let sim = self.process.sim();
        let is_repeat = &frame.magic == b"GMBR";
        let step = self.run.take(sim, self.rank, (frame.at, is_repeat), &frame.payload);
        if !is_repeat {
            let (epoch, g) = frame.at;
            let seen = ReceivedBatch { epoch, g, frame: &frame.payload };
            self.log.note(sim, self.register.spec.settings.visitation, &seen);
        }
        self.process.point(30).await;
        if let Some((_, pause)) = self.run.slow.filter(|(slow, _)| *slow == self.rank)
            && sim.time.now() < sim.settled()
        {
            sim.time.sleep(pause).await;
        }
        sim.event(format_args!("rank {} comes to the end of {step:?}", self.rank));
        self.run.meet(step).await;
        (at.next, at.step) = (Some(next), Some(step));
    }

    /// Writes a checkpoint after some steps, and says so when it is durable.
    async fn save(&self, stream: &mut DuplexStream, next: Cursor, at: &mut At) -> Option<()> {
        let is_due = at.step.is_some_and(|step| step.number.is_multiple_of(self.run.save_every))
            && self.run.others != OtherHostsStart::AtTheEnd;
        if is_due {
            self.write(next).await;
        }
        match self.run.speaks {
            CheckpointReporters::EachRank if is_due => {
                let slot = self.slot(at.step?);
                send_ack(stream, slot).await?;
            }
            CheckpointReporters::WholeJob => self.tell(stream, self.run.complete(), at).await?,
            CheckpointReporters::EachRank => {}
        }
        Some(())
    }

    async fn write(&self, next: Cursor) {
        self.process.point(50).await;
        self.log.save((next.epoch, next.batch_index));
        self.run.save(self.process.sim(), self.rank, next);
        self.process.point(10).await;
    }

    /// The batch of this rank at `step`, or the one that its epoch lacks.
    fn slot(&self, step: TrainingStep) -> (u32, u64) {
        (step.epoch, self.run.ranks().first_of(step) + u64::from(self.rank))
    }

    /// Tells the fetcher that the checkpoint of the whole job at `next` is durable.
    async fn tell(&self, stream: &mut DuplexStream, next: Cursor, at: &mut At) -> Option<()> {
        let is_first = self.rank.is_multiple_of(self.run.per_host());
        if !is_first || next <= at.reported || next == self.run.ranks().from {
            return Some(());
        }
        at.reported = next;
        stream.write_all(b"GMAJ").await.ok()?;
        stream.write_u32_le(next.epoch).await.ok()?;
        stream.write_u64_le(next.batch_index).await.ok()
    }

    /// The last checkpoint contains everything.
    async fn end(&self, stream: &mut DuplexStream, at: &mut At) -> Option<()> {
        let sim = self.process.sim();
        let end = Cursor::start_of(self.register.spec.epochs);
        sim.event(format_args!("rank {} is at the end", self.rank));
        self.run.meet_at_end(end).await;
        self.write(end).await;
        sim.event(format_args!("rank {} has saved the end", self.rank));
        let last = at.next.replace(end);
        match (self.run.speaks, at.step) {
            (CheckpointReporters::EachRank, Some(step)) => {
                send_ack(stream, self.slot(step)).await?
            }
            // It took no batch, so the job ends where the run began.
            (CheckpointReporters::EachRank, None) => {}
            (CheckpointReporters::WholeJob, _) => {
                self.run.until_complete(end).await;
                at.reported = Cursor::default();
                self.tell(stream, end, at).await?;
            }
        }
        if last.is_some() && sim.happens(FaultKind::FinishedRankReturns) {
            (at.next, at.has_all) = (last, true);
            return None;
        }
        // The fetcher closes the connection when the job is done.
        let _ = receive(stream).await;
        None
    }

    fn refused(&self, frame: &ReceivedFrame, at: &At) -> Option<()> {
        let (sim, why) = (self.process.sim(), String::from_utf8_lossy(&frame.payload));
        sim.event(format_args!("rank {} is refused: {why}", self.rank));
        let is_whole = sim.count(&[FaultKind::WritesLost]) == 0;
        if at.has_all && is_whole && why.contains("its run is safe up to") {
            sim.violated(format_args!("rank {} has all, and is refused: {why}", self.rank));
        }
        None
    }
}
