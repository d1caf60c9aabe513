//! Training with several ranks as shipped: fetchers that serve ranks, ranks that meet at a barrier after
//! each step, some of which take the same batches, and a launcher that starts a new run, of any size, when a process dies.

use crate::{
    FaultKind, ProcessKind, SimProcess,
    client::{ReceivedFrame, identity, receive, send_ack, send_hello, set_place},
    cloud::SimCloud,
    host::{HostFetcher, TrainerHost},
    scenario::{CachePosition, ExpectedBatches},
    trainer::{DeliveryLog, choose_checkpoint},
};
use futures::{StreamExt as _, stream::FuturesUnordered};
use gristmill_model::{
    splits::{Cursor, ranks::TrainingStep},
    wire::RegisterCall,
};
use run::{CheckpointReporters, OtherHostsStart};
pub use run::{LaunchedRun, RunRegistry};
use std::{sync::Arc, time::Duration};
use tokio::io::DuplexStream;

mod run;

/// Longest life of a run that its launcher ends.
const LONGEST_RUN_MS: u64 = 60_000;
/// Longest time that an old run stays awake.
const AWAKE_MS: u64 = 60_000;

/// The launcher of a job's training program.
pub struct RunLauncher {
    pub cloud: Arc<SimCloud>,
    pub log: Arc<DeliveryLog>,
    pub register: RegisterCall,
    pub expected: Arc<ExpectedBatches>,
}

impl RunLauncher {
    /// Starts runs until everything is delivered and acknowledged.
    pub async fn train(&self) {
        let sim = &self.cloud.sim;
        let mut last: Option<Arc<LaunchedRun>> = None;
        let mut awake = FuturesUnordered::new();
        for number in 0.. {
            if self.log.is_done() || self.log.is_given_up() || sim.is_violated() {
                return;
            }
            let run = Arc::new(self.begin(number, last.as_deref()));
            sim.event(format_args!("run {number} of {} begins", run.ranks()));
            self.cloud.store.runs.add(&run);
            if let Some(old) = last.replace(Arc::clone(&run))
                && old.has_joined()
                && sim.happens(FaultKind::OldRunWakes)
            {
                awake.push(self.stay_awake(Arc::new(old.again()), Arc::clone(&run)));
            }
            let life = async {
                self.live(&run, false).await;
                sim.time.sleep(sim.between_ms(100, 5_000)).await;
            };
            beside(life, &mut awake).await;
            if run.is_done() {
                return self.log.finish();
            }
        }
    }

    /// The next run, which goes on at a checkpoint of the last one or an earlier one.
    fn begin(&self, number: u32, last: Option<&LaunchedRun>) -> LaunchedRun {
        let sim = &self.cloud.sim;
        let epochs = self.register.spec.epochs;
        let checkpoint = choose_checkpoint(sim, &self.log);
        // Once all ranks have the end, the job may be over at any time, and nothing is left to return to.
        let is_over = last.is_some_and(|last| last.complete() >= Cursor::start_of(epochs));
        let from = if is_over { Cursor::start_of(epochs) } else { checkpoint };
        let text = last.and_then(|last| last.text(from));
        let from = if text.is_some() { from } else { Cursor::default() };
        let mut run =
            LaunchedRun::draw(sim, format!("run {number}"), from, text, epochs, &self.expected);
        // Only local workers work beyond the window, and an epoch is settled for caching by all readers.
        let spec = &self.register.spec;
        // There may be none if the scaler decides on them.
        let has_local_workers = spec.settings.local_workers > 0 && !spec.auto_placement;
        let works_alone =
            has_local_workers && self.cloud.store.scenario.cached == CachePosition::Nowhere;
        if run.others == OtherHostsStart::AtTheEnd && !works_alone {
            run.others = OtherHostsStart::AfterAStep;
        }
        if sim.happens(FaultKind::RankSlow) {
            let rank = sim.below(u64::from(run.ranks().count.get())) as u32;
            run.slow = Some((rank, sim.between_ms(1_000, 20_000)));
        }
        run
    }

    /// Runs all processes of `run` until it is done or one of its ranks dies.
    async fn live(&self, run: &Arc<LaunchedRun>, is_old: bool) {
        let Self { cloud, log, register, .. } = self;
        let sim = &cloud.sim;
        let hosts: Vec<_> =
            (0..run.hosts).map(|index| TrainerHost::new(sim, index, true)).collect();
        let serve = async |host: &Arc<TrainerHost>| {
            run.host_comes(host.index).await;
            let serving = HostFetcher {
                cloud: Arc::clone(cloud),
                run: Some(Arc::clone(run)),
                host: Arc::clone(host),
                log: Arc::clone(log),
                register: register.clone(),
                is_old,
            };
            serving.serve().await;
        };
        let train = async |rank: u32| {
            let host = &*hosts[(rank / run.per_host()) as usize];
            let process = SimProcess::new(sim, ProcessKind::Trainer);
            let _end = process.ends_with();
            let of_run = RankProcess { run, host, log, register, process: &process, rank };
            process.run(of_run.train()).await.is_some()
        };
        let mut fetchers: FuturesUnordered<_> = hosts.iter().map(serve).collect();
        let mut ranks: FuturesUnordered<_> = (0..run.ranks().count.get()).map(train).collect();
        let preempted = async {
            if sim.happens(FaultKind::RunRestarts) {
                sim.time.sleep(sim.between_ms(500, LONGEST_RUN_MS)).await
            } else {
                std::future::pending().await
            }
        };
        // A rank that dies takes the others with it. All processes end with their tasks.
        let trained = async { while ranks.next().await == Some(true) {} };
        tokio::select! {
            biased;
            () = preempted => {}
            () = beside(trained, &mut fetchers) => {}
        }
    }

    /// Processes of `old` that were thought to be gone, and that wake after `newer` has joined: before that, the job
    /// cannot know which run is the older one.
    async fn stay_awake(&self, old: Arc<LaunchedRun>, newer: Arc<LaunchedRun>) {
        let sim = &self.cloud.sim;
        newer.joined().await;
        sim.time.sleep(sim.between_ms(0, AWAKE_MS)).await;
        let over = sim.time.sleep(sim.between_ms(1_000, AWAKE_MS));
        tokio::select! {
            biased;
            () = over => {}
            () = self.live(&old, true) => {}
        }
    }
}

/// Runs `work` to its end, and `others` meanwhile.
async fn beside(
    work: impl Future<Output = ()>,
    others: &mut FuturesUnordered<impl Future<Output = ()>>,
) {
    let others = async {
        while others.next().await.is_some() {}
        std::future::pending().await
    };
    tokio::select! {
        biased;
        () = work => {}
        () = others => {}
    }
}

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
            self.process.sim.time.sleep(RECONNECT).await;
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
        self.process.sim.event(format_args!("rank {} says hello, at {:?}", self.rank, at.next));
        let mut after = None;
        loop {
            let frame = receive(stream).await?;
            match &frame.magic {
                b"GMBC" => {
                    let text = String::from_utf8(frame.payload.to_vec()).ok()?;
                    self.run.note_text(&self.process.sim, frame.at, &text);
                    after = Some(frame.at);
                }
                b"GMB1" | b"GMBR" => {
                    let Some(next) = after.take() else {
                        self.process.sim.violated("a batch came without its checkpoint");
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
        hello["replicas"] = self.run.ranks().replicas.to_string().into();
        if let Some(next) = next {
            set_place(&mut hello, next);
        }
        send_hello(stream, b"GMH1", &hello).await
    }

    /// Takes a batch, and meets the other ranks.
    async fn step(&self, frame: &ReceivedFrame, next: Cursor, at: &mut At) {
        let sim = &self.process.sim;
        let is_repeat = &frame.magic == b"GMBR";
        let step = self.run.take(sim, self.rank, frame.at, is_repeat, &frame.payload);
        if !is_repeat {
            let visitation = self.register.spec.settings.visitation;
            self.log.note(sim, visitation, frame.at, &frame.payload);
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
                send_ack(stream, b"GMA1", self.slot(at.step?)).await?;
            }
            CheckpointReporters::WholeJob => self.tell(stream, self.run.complete(), at).await?,
            CheckpointReporters::EachRank => {}
        }
        Some(())
    }

    async fn write(&self, next: Cursor) {
        self.process.point(50).await;
        self.log.save(next);
        self.run.save(&self.process.sim, self.rank, next);
        self.process.point(10).await;
    }

    /// The batch of this rank at `step`, or the one that its epoch lacks.
    fn slot(&self, step: TrainingStep) -> Cursor {
        Cursor::new(
            step.epoch,
            self.run.ranks().first_of(step) + u64::from(self.run.ranks().data_rank(self.rank)),
        )
    }

    /// Tells the fetcher that the checkpoint of the whole job at `next` is durable.
    async fn tell(&self, stream: &mut DuplexStream, next: Cursor, at: &mut At) -> Option<()> {
        let is_first = self.rank.is_multiple_of(self.run.per_host());
        if !is_first || next <= at.reported || next == self.run.ranks().from {
            return Some(());
        }
        at.reported = next;
        send_ack(stream, b"GMAJ", next).await
    }

    /// The last checkpoint contains everything.
    async fn end(&self, stream: &mut DuplexStream, at: &mut At) -> Option<()> {
        let sim = &self.process.sim;
        let end = Cursor::start_of(self.register.spec.epochs);
        sim.event(format_args!("rank {} is at the end", self.rank));
        self.run.meet_at_end(end).await;
        self.write(end).await;
        sim.event(format_args!("rank {} has saved the end", self.rank));
        let last = at.next.replace(end);
        match (self.run.speaks, at.step) {
            (CheckpointReporters::EachRank, Some(step)) => {
                send_ack(stream, b"GMA1", self.slot(step)).await?
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
        let (sim, why) = (&self.process.sim, String::from_utf8_lossy(&frame.payload));
        sim.event(format_args!("rank {} is refused: {why}", self.rank));
        let is_whole = sim.count(&[FaultKind::WritesLost]) == 0;
        if at.has_all && is_whole && why.contains("its run is safe up to") {
            sim.violated(format_args!("rank {} has all, and is refused: {why}", self.rank));
        }
        None
    }
}
