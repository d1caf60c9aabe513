//! The trainer of a history: its connections, valid and invalid messages, and checkpoints.

use super::HistoryOutcome;
use crate::{
    FaultSimulation,
    client::{ReceivedFrame, identity, receive, send_ack, send_hello},
    host::TrainerHost,
    scenario::{BatchName, FaultScenario},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::io::DuplexStream;

/// Time without a frame after which a trainer assumes that the server is dead.
const SILENCE: Duration = Duration::from_secs(900);

/// A trainer with its memory and its checkpoints.
pub(super) struct HistoryTrainer {
    sim: Arc<FaultSimulation>,
    host: Arc<TrainerHost>,
    /// Checkpoints that it may resume from, oldest first, each with the next batch; it is at the last one.
    checkpoints: Vec<(BatchName, BTreeMap<BatchName, blake3::Hash>)>,
    pub history: HistoryOutcome,
}

/// How a connection ended.
enum VisitEnd {
    /// The connection broke, or the trainer closed it.
    Gone,
    Refused(String),
    Ended,
}

impl HistoryTrainer {
    pub(super) fn new(sim: &Arc<FaultSimulation>, host: Arc<TrainerHost>) -> Self {
        Self {
            sim: Arc::clone(sim),
            host,
            checkpoints: vec![((0, 0), BTreeMap::new())],
            history: HistoryOutcome::default(),
        }
    }

    pub(super) async fn train(&mut self, done: &AtomicBool) {
        while !done.load(Ordering::Relaxed) {
            self.sim.time.sleep(self.sim.between_ms(1, 1_000)).await;
            let Some(mine) = self.host.connect().await else { continue };
            self.history.visits += 1;
            self.visit(mine).await;
        }
    }

    async fn visit(&mut self, mut stream: DuplexStream) {
        let greeting = self.frame(&mut stream).await.filter(|frame| &frame.magic == b"GMBH");
        let Some(greeting) = greeting else { return };
        let Some(names) = identity(&greeting) else {
            return self.sim.violated("a hello cannot be read");
        };
        let last = self.checkpoints.len() - 1;
        let behind = match self.sim.below(10) {
            0 => self.sim.below(last as u64 + 1) as usize,
            _ => last,
        };
        let at = self.checkpoints[behind].0;
        let hello = |(epoch, g): BatchName| {
            let mut hello = names.clone();
            (hello["epoch"], hello["batch_index"]) = (epoch.into(), g.into());
            hello
        };
        let mut of_another = hello(at);
        of_another["job"] = "another".into();
        let wrong = match self.sim.below(12) {
            0 => return,
            1 => Some(of_another),
            2 => Some(hello((at.0 + 50, 0))),
            3 => Some(hello((at.0, at.1 + 10_000))),
            4 => None,
            _ => {
                if send_hello(&mut stream, b"GMAH", &hello(at)).await.is_some() {
                    self.train_on(&mut stream, (behind, last)).await;
                }
                return;
            }
        };
        let _ = match wrong {
            Some(hello) => send_hello(&mut stream, b"GMAH", &hello).await,
            None => send_ack(&mut stream, at).await,
        };
        match self.frame(&mut stream).await {
            Some(ReceivedFrame { magic, .. }) if &magic == b"GMBX" => self.history.refusals += 1,
            Some(ReceivedFrame { magic, at: name, .. }) => {
                let magic = String::from_utf8_lossy(&magic);
                self.sim.violated(format_args!(
                    "a wrong message at {at:?} was answered with {magic} {name:?}"
                ));
            }
            None => {}
        }
    }

    /// Trains on the batches after checkpoint `behind`, and judges a refusal; `last` is the newest.
    async fn train_on(&mut self, stream: &mut DuplexStream, (behind, last): (usize, usize)) {
        match self.take(stream, behind).await {
            VisitEnd::Gone | VisitEnd::Ended => {}
            VisitEnd::Refused(why) => {
                self.history.refusals += 1;
                // An older checkpoint may have expired; the last one never has.
                if behind == last && why.contains("collected") {
                    self.sim.violated(format_args!("a trainer at its last checkpoint: {why}"));
                }
            }
        }
    }

    /// Trains on the batches after checkpoint `from`, the one it loaded.
    async fn take(&mut self, stream: &mut DuplexStream, from: usize) -> VisitEnd {
        let (mut next, mut memory) = self.checkpoints[from].clone();
        let mut accepted = false;
        for _ in 0..=self.sim.below(40) {
            let Some(ReceivedFrame { magic, at: name, payload }) = self.frame(stream).await else {
                return VisitEnd::Gone;
            };
            if &magic != b"GMBX" && !accepted {
                // The trainer has gone back: later batches are trained on again.
                accepted = true;
                self.checkpoints.truncate(from + 1);
            }
            match &magic {
                b"GMBX" => {
                    return VisitEnd::Refused(String::from_utf8_lossy(&payload).into_owned());
                }
                b"GMBE" => {
                    self.save(next, &memory);
                    if let Some((&last, _)) = memory.last_key_value() {
                        let _ = send_ack(stream, last).await;
                    }
                    // Until the server has confirmed it, the trainer may start over.
                    self.frame(stream).await;
                    return VisitEnd::Ended;
                }
                _ => {}
            }
            if name != next && name != (next.0 + 1, 0) {
                self.sim.violated(format_args!("batch {name:?} came where {next:?} was due"));
            }
            if memory.insert(name, blake3::hash(&payload)).is_some() {
                self.sim.violated(format_args!("batch {name:?} came twice"));
            }
            next = (name.0, name.1 + 1);
            let said = match self.sim.below(20) {
                0 => return VisitEnd::Gone,
                1 => (7, 999),
                2 => (u32::MAX, u64::MAX),
                3 => (name.0, name.1 + 40),
                // Saved, but died before the acknowledgement.
                4 => {
                    self.save(next, &memory);
                    return VisitEnd::Gone;
                }
                5..10 => {
                    self.save(next, &memory);
                    name
                }
                _ => continue,
            };
            if send_ack(stream, said).await.is_none() {
                return VisitEnd::Gone;
            }
        }
        VisitEnd::Gone
    }

    /// Content of the last checkpoint: the job may be closed while the trainer is away.
    pub(super) fn kept(&self) -> &BTreeMap<BatchName, blake3::Hash> {
        &self.checkpoints[self.checkpoints.len() - 1].1
    }

    fn save(&mut self, next: BatchName, memory: &BTreeMap<BatchName, blake3::Hash>) {
        self.checkpoints.push((next, memory.clone()));
    }

    /// The next frame; `None` if the server is gone.
    async fn frame(&self, stream: &mut DuplexStream) -> Option<ReceivedFrame> {
        tokio::select! {
            biased;
            frame = receive(stream) => frame,
            () = self.sim.time.sleep(SILENCE) => None,
        }
    }

    /// Checks that every record of every epoch was trained on once: batches are consecutive and complete.
    pub(super) fn check(&mut self, scenario: &FaultScenario) {
        let mut next = (0, 0);
        for &name in self.kept().keys() {
            if name != next && name != (next.0 + 1, 0) {
                self.sim.violated(format_args!("of what is kept, {next:?} is missing"));
            }
            next = (name.0, name.1 + 1);
        }
        let visits = scenario.visits().count() as u64;
        let left_out = scenario.left_out() as u64;
        let batches = (visits - left_out).div_ceil(u64::from(scenario.batch_size));
        let all = batches as usize * scenario.epochs as usize;
        let had = self.kept().len();
        if had != all && self.history.given_up.is_none() {
            self.sim.violated(format_args!("{had} batches are kept and not {all}"));
        }
    }
}
