//! Training with several ranks as shipped: fetchers that serve ranks, ranks that meet at a barrier after
//! each step, and a launcher that starts a new run, of any size, when a process dies.

pub mod mistakes;
mod rank;
mod run;
mod runs;

use crate::trainer::choose_checkpoint;
use crate::{
    FaultKind, ProcessKind, SimProcess,
    cloud::SimCloud,
    host::{HostFetcher, TrainerHost},
    scenario::ExpectedBatches,
    trainer::DeliveryLog,
};
use futures::{StreamExt as _, stream::FuturesUnordered};
use gristmill_model::splits::Cursor;
use gristmill_model::wire::RegisterCall;
use rank::RankProcess;
pub use run::LaunchedRun;
use run::OtherHostsStart;
pub use runs::RunRegistry;
use std::sync::Arc;

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
                let old = Arc::new(old.again());
                awake.push(self.with(old).stay_awake(Arc::clone(&run)));
            }
            let life = self.with(Arc::clone(&run)).live(false);
            let life = async {
                life.await;
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
        let (epoch, batch_index) = choose_checkpoint(sim, &self.log);
        // Once all ranks have the end, the job may be over at any time, and nothing is left to return to.
        let is_over = last.is_some_and(|last| last.complete() >= Cursor::start_of(epochs));
        let from = if is_over { Cursor::start_of(epochs) } else { Cursor { epoch, batch_index } };
        let text = last.and_then(|last| last.text(from));
        let from = match &text {
            Some(_) => from,
            None => Cursor::default(),
        };
        let mut run =
            LaunchedRun::draw(sim, format!("run {number}"), (from, text), (epochs, &self.expected));
        // Only local workers work beyond the window, and an epoch is settled for caching by all readers.
        let has_local_workers = self.register.spec.settings.local_workers > 0;
        let works_alone = has_local_workers && !self.cloud.store.is_cached();
        if run.others == OtherHostsStart::AtTheEnd && !works_alone {
            run.others = OtherHostsStart::AfterAStep;
        }
        if sim.happens(FaultKind::RankSlow) {
            let rank = sim.below(u64::from(run.ranks().count.get())) as u32;
            run.slow = Some((rank, sim.between_ms(1_000, 20_000)));
        }
        run
    }

    fn with(&self, run: Arc<LaunchedRun>) -> Life {
        let Self { cloud, log, register, .. } = self;
        Life { cloud: Arc::clone(cloud), log: Arc::clone(log), register: register.clone(), run }
    }
}

/// The processes of one run.
struct Life {
    cloud: Arc<SimCloud>,
    log: Arc<DeliveryLog>,
    register: RegisterCall,
    run: Arc<LaunchedRun>,
}

impl Life {
    /// Runs all processes until the run is done or one of its ranks dies.
    async fn live(self, is_old: bool) {
        let Self { cloud, log, register, run } = &self;
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

    /// Processes of a run that were thought to be gone, and that wake after `newer` has joined: before that, the job
    /// cannot know which run is the older one.
    async fn stay_awake(self, newer: Arc<LaunchedRun>) {
        let cloud = Arc::clone(&self.cloud);
        let sim = &cloud.sim;
        newer.joined().await;
        sim.time.sleep(sim.between_ms(0, AWAKE_MS)).await;
        let over = sim.time.sleep(sim.between_ms(1_000, AWAKE_MS));
        tokio::select! {
            biased;
            () = over => {}
            () = self.live(true) => {}
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
