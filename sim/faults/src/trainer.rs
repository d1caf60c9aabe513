//! Trainers: they receive batches, write checkpoints, die, and resume from a checkpoint.

use crate::{
    FaultKind, FaultSimulation, ProcessKind, SimClock, SimProcess,
    checks::{TrainerEnd, judge},
    cloud::{BUCKET, SimCloud},
    scenario::{ExpectedBatches, FaultScenario},
};
use bytes::Bytes;
use gristmill_chunk::{ChunkFrame, ChunkLimits};
use gristmill_model::splits::{
    Cursor,
    invariants::{
        invariant_07_replay_is_identical, invariant_08_exactly_once, invariant_09_at_most_once,
        invariant_28_in_order,
    },
    order::BundleDivision,
};
use gristmill_model::wire::RegisterCall;
use gristmill_model::{Epoch, Visitation};
use gristmill_pipeline::{COPY_FIELD, KEY_FIELD};
use gristmill_stream::{
    FetchError, Fetcher, FetcherConfig, FetcherPorts, PrefetchMemory, StreamDelivery,
};
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Time for a trainer to register its job.
pub const REGISTER_PATIENCE: Duration = Duration::from_secs(30);

/// Prefetched chunks of jobs with much to fetch.
const LARGE_PREFETCH_BYTES: u64 = 32 << 20;

/// Deliveries to all trainers of a job, and their checkpoints.
#[derive(Default)]
pub struct DeliveryLog(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    batches: BTreeMap<Cursor, blake3::Hash>,
    /// Deliveries of each record; replays count once.
    records: BTreeMap<(Epoch, u64, u32), u32>,
    /// Records of each batch, as copies of the dataset and keys.
    order: BTreeMap<Cursor, Vec<(u32, u64)>>,
    replays: u64,
    /// Checkpoints on durable storage, oldest first: the batch to resume at.
    saved: Vec<Cursor>,
    done: bool,
    /// Whether a trainer has died of the batch named by the scenario.
    died: bool,
    /// Time of the last batch.
    fed: Duration,
    /// Whether the job failed as its error policy says.
    given_up: bool,
}

impl DeliveryLog {
    /// Whether the trainer has received all that it will.
    pub fn is_done(&self) -> bool {
        self.0.lock().done
    }

    /// Whether the job was given up for a split that seemed to kill its workers.
    pub fn is_given_up(&self) -> bool {
        self.0.lock().given_up
    }

    /// Time of the last batch.
    pub fn fed(&self) -> Duration {
        self.0.lock().fed
    }

    /// Whether a trainer has died of the named batch; true from now on.
    fn has_died(&self) -> bool {
        std::mem::replace(&mut self.0.lock().died, true)
    }

    /// The newest checkpoint.
    pub fn latest(&self) -> Cursor {
        self.0.lock().saved.iter().max().copied().unwrap_or_default()
    }

    /// Batches that were received again after a checkpoint was loaded.
    pub fn replays(&self) -> u64 {
        self.0.lock().replays
    }

    /// The batches that the trainer has received, by name.
    pub fn delivered(&self) -> ExpectedBatches {
        ExpectedBatches { batches: self.0.lock().batches.clone() }
    }

    /// Records a checkpoint on durable storage.
    pub fn save(&self, next: Cursor) {
        self.0.lock().saved.push(next);
    }

    /// Records that everything is delivered and acknowledged.
    pub fn finish(&self) {
        self.0.lock().done = true;
    }

    /// Records that the job failed as its error policy says.
    pub fn give_up(&self) {
        self.0.lock().given_up = true;
    }

    /// Records a batch; a replayed one must be identical.
    pub fn note(&self, sim: &FaultSimulation, visitation: Visitation, at: Cursor, frame: &Bytes) {
        let hash = blake3::hash(frame);
        sim.event(format_args!("{at}"));
        let mut entries = self.0.lock();
        entries.fed = sim.time.now();
        if let Some(before) = entries.batches.insert(at, hash) {
            entries.replays += 1;
            if visitation == Visitation::AtMostOnce {
                sim.check(invariant_09_at_most_once([2]));
            }
            return sim.check(invariant_07_replay_is_identical(&before, &hash));
        }
        let frame = ChunkFrame::parse(frame.clone(), &ChunkLimits::default());
        let Ok(frame) = frame else { return sim.violated("a batch cannot be read") };
        let (Some(keys), Some(copies)) = (frame.get(KEY_FIELD), frame.get(COPY_FIELD)) else {
            return sim.violated("a batch does not say where its rows come from");
        };
        let (keys, _) = keys.values().as_chunks::<8>();
        let (copies, _) = copies.values().as_chunks::<4>();
        for (key, copy) in keys.iter().zip(copies) {
            let visit = (at.epoch, u64::from_le_bytes(*key), u32::from_le_bytes(*copy));
            *entries.records.entry(visit).or_default() += 1;
            entries.order.entry(at).or_default().push((visit.2, visit.1));
        }
    }

    /// Invariant 8: every record of every epoch was delivered once, except those dropped for incomplete batches. Or
    /// invariant 9: at most once, if a trainer that died may have lost some.
    pub fn check_visits(&self, sim: &FaultSimulation, scenario: &FaultScenario) {
        let entries = self.0.lock();
        for epoch in 0..scenario.epochs {
            if scenario.in_order {
                let batches =
                    entries.order.range(Cursor::start_of(epoch)..Cursor::start_of(epoch + 1));
                let places: Vec<_> = batches.flat_map(|(_, records)| records).copied().collect();
                sim.check(invariant_28_in_order(&places));
            }
            let times =
                |(key, copy)| entries.records.get(&(epoch, key, copy)).copied().unwrap_or(0);
            if scenario.visitation != Visitation::ExactlyOnce {
                sim.check(invariant_09_at_most_once(scenario.visits().map(times)));
                continue;
            }
            let missing = scenario.visits().filter(|&visit| times(visit) == 0).count();
            if missing != scenario.remainder_records() {
                sim.violated(format_args!(
                    "invariant 8: epoch {epoch} lacks {missing} records, not {}",
                    scenario.remainder_records()
                ));
            }
            let present = scenario.visits().map(times).filter(|&times| times > 0);
            sim.check(invariant_08_exactly_once(present));
        }
    }
}

/// Trains until the job is done or another trainer has taken it over, resuming after every death.
pub async fn train(cloud: &Arc<SimCloud>, log: &DeliveryLog, register: &RegisterCall) {
    let sim = &cloud.sim;
    // A trainer that was let in may have opened an ended job again: its user sees it through.
    let mut was_let_in = false;
    while !log.is_given_up() && (was_let_in || !log.is_done()) {
        let exactly = register.spec.settings.visitation == Visitation::ExactlyOnce;
        // Otherwise the trainer's position is not checkpointed.
        let resume = if exactly { choose_checkpoint(sim, log) } else { Cursor::default() };
        let process = SimProcess::new(sim, ProcessKind::Trainer);
        cloud.deployed.host_starts(&process).await;
        sim.event(format_args!("a trainer starts at {resume}"));
        let lived = process.run(run_once(cloud, &process, log, register, resume)).await;
        was_let_in |= process.generation().is_some();
        match lived {
            Some(Ok(())) => return log.finish(),
            Some(Err(error)) => {
                sim.event(format_args!("a trainer ends: {error}"));
                let accepted = process.generation().is_some();
                let entitled = exactly && (accepted || resume == log.latest());
                match judge(sim, &error, &register.spec, accepted, entitled) {
                    TrainerEnd::GivenUp => log.give_up(),
                    TrainerEnd::Broken | TrainerEnd::Superseded => return,
                    TrainerEnd::Again => {}
                }
            }
            None => {}
        }
        sim.time.sleep(sim.between_ms(100, 5_000)).await;
    }
}

/// Invariant 12: a trainer that began at the horizon or later, and that was not superseded, finds all objects it needs,
/// though it could recompute them.
async fn check_loss(cloud: &SimCloud, process: &SimProcess, fetcher: &Fetcher) {
    // A table that has lost its last writes names objects that were collected. Damaged objects are recomputed too.
    let is_whole = cloud.sim.count(&[FaultKind::WritesLost, FaultKind::ObjectDamaged]) == 0;
    let lacking = process.missing().min(u64::from(fetcher.statistics().healed));
    let lacking = if is_whole { lacking } else { 0 };
    let (Some(generation), 1..) = (process.generation(), lacking) else { return };
    if cloud.store.runs.began_behind(generation) {
        return;
    }
    if let Some(progress) = cloud.progress().await
        && progress.generation <= generation
    {
        let sim = &cloud.sim;
        sim.violated(format_args!(
            "invariant 12: a trainer that was let in lacks {lacking} objects"
        ));
    }
}

/// The splits that local workers hold stay within their bounds.
fn check_memory(cloud: &SimCloud, fetcher: &Fetcher, register: &RegisterCall) {
    let (sim, snapshot) = (&cloud.sim, fetcher.statistics());
    if sim.plan.memory.exceeds(&snapshot, register.spec.settings.local_workers) {
        let (held, bound) = (snapshot.local_bytes, snapshot.prefetch_bytes);
        sim.violated(format_args!(
            "{held} bytes of splits made here are held: the bound is {bound}"
        ));
    }
}

/// Checks that everything which local workers made was taken or dropped.
pub fn check_emptied(cloud: &SimCloud, fetcher: &Fetcher) {
    let held = fetcher.statistics().local_bytes;
    if held > 0 {
        cloud.sim.violated(format_args!("{held} bytes of splits made here are held at the end"));
    }
}

/// The last checkpoint, or occasionally an earlier one.
pub fn choose_checkpoint(sim: &FaultSimulation, log: &DeliveryLog) -> Cursor {
    let saved = log.0.lock().saved.clone();
    if saved.len() > 1 && sim.happens(FaultKind::OldCheckpoint) {
        return saved[sim.below(saved.len() as u64) as usize];
    }
    log.latest()
}

/// Ports and configuration of the job's fetcher in `process`.
pub fn fetcher_of(
    cloud: &Arc<SimCloud>,
    process: &SimProcess,
    register: &RegisterCall,
) -> (FetcherPorts, FetcherConfig) {
    let ports = FetcherPorts {
        coordinator: cloud.link(process),
        objects: cloud.objects(process),
        clock: Arc::new(SimClock(process.clone())),
        compute: cloud.sim.plan.memory.compute,
        operators: Arc::new(gristmill_operators::registry().clone()),
    };
    let memory = cloud.sim.plan.memory;
    let RegisterCall { job, spec, .. } = register;
    let config = FetcherConfig {
        local_workers: spec.settings.local_workers,
        prefetch: if cloud.store.scenario.dies_at.is_some() {
            PrefetchMemory::Bytes(LARGE_PREFETCH_BYTES)
        } else {
            memory.prefetch
        },
        object_sizes: memory.sizes,
        ..FetcherConfig::new(cloud.store.ns.clone(), BUCKET.to_owned(), job.clone())
    };
    (ports, config)
}

async fn run_once(
    cloud: &Arc<SimCloud>,
    process: &SimProcess,
    log: &DeliveryLog,
    register: &RegisterCall,
    resume: Cursor,
) -> Result<(), FetchError> {
    let sim = &cloud.sim;
    let (ports, config) = fetcher_of(cloud, process, register);
    let given = sim.budget.given(register);
    Fetcher::register(&ports, &cloud.store.ns, BUCKET, given, REGISTER_PATIENCE).await?;
    let spec = &register.spec;
    let config = FetcherConfig { resume, ..config };
    let mut fetcher = Fetcher::start(ports, config).await?;
    let (step_ms, pause_ms) = (1 + sim.below(60), sim.plan.memory.pause_ms);
    let (mut unsaved, mut batches) = (None, 0);
    loop {
        match fetcher.next().await? {
            StreamDelivery::Batch(batch) => {
                batches += 1;
                if let Some(plan) = fetcher.view().and_then(|view| view.plan) {
                    let division = BundleDivision::new(plan.n_splits, plan.max_bundle_splits);
                    cloud.store.set_division(division);
                }
                check_loss(cloud, process, &fetcher).await;
                check_memory(cloud, &fetcher, register);
                log.note(sim, spec.settings.visitation, batch.cursor(), &batch.frame);
                if cloud.store.scenario.dies_at == Some(batch.batch_index) && !log.has_died() {
                    process.kill();
                }
                process.point(step_ms).await;
                if pause_ms > 0 {
                    sim.time.sleep(sim.between_ms(0, pause_ms)).await;
                }
                unsaved = Some(batch.cursor());
                if sim.below(3) == 0 {
                    save(process, log, &fetcher, unsaved.take()).await;
                }
            }
            StreamDelivery::EpochEnd(totals) => {
                sim.event(format_args!("{totals:?}"));
            }
            StreamDelivery::OfOthers { .. } => {}
            StreamDelivery::End => break,
        }
    }
    check_emptied(cloud, &fetcher);
    save(process, log, &fetcher, unsaved).await;
    log.save(Cursor::start_of(spec.epochs));
    process.point(10).await;
    fetcher.checkpointed_epochs(spec.epochs);
    fetcher.settle().await?;
    check_emptied(cloud, &fetcher);
    let counted = fetcher.statistics().metrics.batches;
    if counted != batches {
        sim.violated(format_args!("{batches} batches were counted as {counted}"));
    }
    Ok(())
}

/// Writes a checkpoint, and acknowledges it when it is durable.
async fn save(process: &SimProcess, log: &DeliveryLog, fetcher: &Fetcher, last: Option<Cursor>) {
    let Some(last) = last else { return };
    process.point(50).await;
    log.save(last.next());
    process.point(10).await;
    fetcher.checkpointed(last);
}

/// A second trainer, some time after the first.
pub async fn train_second(cloud: &Arc<SimCloud>, log: &DeliveryLog, register: &RegisterCall) {
    let sim = &cloud.sim;
    sim.time.sleep(sim.between_ms(100, 30_000)).await;
    if sim.happens(FaultKind::SecondTrainer) {
        train(cloud, log, register).await;
    }
}
