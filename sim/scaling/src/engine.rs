//! One run in virtual time: workers claim, read, compute and put splits; a trainer takes batches in order; every
//! `report_batches` batches it reports, and the policy under test decides.
//!
//! Events are kept in a heap; the trainer's next batch and the next poll are scalars beside it, because they are the
//! most frequent events. Scenario, seed and policy determine everything.

use crate::{
    ModelConditions, ScalingScenario, SimulatedRun,
    model::{ModelPlatform, ModelSplits, ModelTrainer, NoiseStream, ReportMeter, SharedLimit},
    placer::{HostPlacer, PlacerInput},
    run::ScalingTick,
};
use gristmill_model::wire::TrainingReport;
use gristmill_policy::{
    placement::WorkerTarget,
    scaling::{Decision, Policy, PolicyName, Reason, ScalerFacts, Settings, top_up},
};
use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

/// One running function.
#[derive(Debug, Clone, Copy, Default)]
struct Worker {
    born_s: f64,
    /// Speed class of its environment.
    kind: usize,
    split: u64,
    /// Splits left in its lease after this one.
    lease_left: u32,
    turn: u32,
    started_s: f64,
    /// Execution mode in which its split was begun.
    mode: u32,
    /// Time of its split at the source, for computing and for storing.
    times_s: [f64; 3],
    holds_lease: bool,
    /// Whether it works on the trainer's host.
    is_local: bool,
}

/// Leases per worker in the window.
const LEASES_A_WORKER: u64 = 3;

pub(crate) struct ScalingEngine<'s> {
    scenario: &'s ScalingScenario,
    conditions: ModelConditions,
    phase: usize,
    policy: Policy,
    placer: HostPlacer,
    target: u32,
    /// Local workers to hold, those there are, and those at work.
    local_target: u32,
    locals: u32,
    locals_at_work: u32,
    /// Share of the batches that local workers made, by the last report.
    share_local: f64,
    now_s: f64,
    numbers: u64,
    events: BinaryHeap<Reverse<EngineEvent>>,
    workers: Vec<Worker>,
    idle_slots: Vec<u32>,
    platform: ModelPlatform,
    splits: ModelSplits,
    trainer: ModelTrainer,
    source: SharedLimit,
    gets: SharedLimit,
    puts: SharedLimit,
    table: SharedLimit,
    work_noise: NoiseStream,
    life_noise: NoiseStream,
    report_noise: NoiseStream,
    meter: ReportMeter,
    next_poll_s: f64,
    wants_workers: bool,
    run: SimulatedRun,
}

impl<'s> ScalingEngine<'s> {
    /// A run at its beginning, in the conditions of the scenario's first phase.
    pub fn new(scenario: &'s ScalingScenario, seed: u64, policy: PolicyName) -> Self {
        let conditions = scenario.phases[0].conditions.clone();
        let (placer, placed) = HostPlacer::begin(scenario, scenario.settings.start);
        let settings = Settings { start: placed.remote.max(1), ..scenario.settings };
        let policy = policy.begin(&settings, scenario.stored.as_ref());
        let target = match placer {
            HostPlacer::Held { .. } => scenario.held.unwrap_or_else(|| policy.target()),
            _ => placed.remote,
        };
        Self {
            target,
            policy,
            placer,
            local_target: placed.local,
            locals: 0,
            locals_at_work: 0,
            share_local: 0.0,
            phase: 0,
            now_s: 0.0,
            numbers: 0,
            events: BinaryHeap::new(),
            workers: Vec::new(),
            idle_slots: Vec::new(),
            platform: ModelPlatform::default(),
            splits: ModelSplits::new(scenario.batches, &conditions),
            trainer: ModelTrainer::new(NoiseStream::new(seed, 1)),
            source: SharedLimit::default(),
            gets: SharedLimit::default(),
            puts: SharedLimit::default(),
            table: SharedLimit::default(),
            work_noise: NoiseStream::new(seed, 2),
            life_noise: NoiseStream::new(seed, 3),
            report_noise: NoiseStream::new(seed, 4),
            meter: ReportMeter::default(),
            next_poll_s: 0.0,
            wants_workers: true,
            run: SimulatedRun { seed, start: target, ..SimulatedRun::default() },
            scenario,
            conditions,
        }
    }

    /// Runs to the scenario's last batch, or until `stop` accepts a report.
    pub fn run(mut self, mut stop: impl FnMut(&ScalingTick) -> bool) -> SimulatedRun {
        // A remainder of the division by clients is never taken.
        while self.splits.delivered + u64::from(self.conditions.clients) <= self.splits.batches {
            let take_s = self.trainer.next_take_s(&self.conditions);
            let event_s = self.events.peek().map_or(f64::INFINITY, |event| event.0.at_s);
            let at_s = take_s.min(event_s).min(self.next_poll_s);
            self.pass(at_s);
            if take_s <= event_s && take_s <= self.next_poll_s {
                if self.take() {
                    let tick = self.report();
                    let stops = stop(&tick);
                    self.run.ticks.push(tick);
                    if stops {
                        break;
                    }
                }
            } else if event_s <= self.next_poll_s {
                if let Some(Reverse(event)) = self.events.pop() {
                    self.handle(event);
                }
            } else {
                self.poll();
            }
        }
        self.run.metrics = self.policy.metrics();
        self.run.finish(self.now_s, self.splits.delivered, &self.scenario.prices);
        self.run
    }

    /// Advances time and accounts for it.
    fn pass(&mut self, to_s: f64) {
        let full = self.splits.is_full(&self.conditions);
        self.meter.pass(to_s - self.now_s, self.platform.at_work, full);
        self.meter.pass_local(to_s - self.now_s, self.locals_at_work);
        self.run.worker_s += (to_s - self.now_s) * f64::from(self.platform.outstanding);
        self.now_s = to_s;
    }

    fn schedule(&mut self, at_s: f64, what: EngineEventKind, worker: u32) {
        let turn = self.workers[worker as usize].turn;
        self.numbers += 1;
        self.events.push(Reverse(EngineEvent { at_s, number: self.numbers, what, worker, turn }));
    }

    /// As in the service, the window has room for three leases of each target worker, and one more.
    fn window(&self) -> u64 {
        let lease =
            u64::from(self.conditions.split_batches) * u64::from(self.conditions.lease_splits);
        let most = self.scenario.phases[0].conditions.window_batches;
        let workers = u64::from(self.target) + u64::from(self.local_target);
        most.min(LEASES_A_WORKER * (workers + 1) * lease)
    }

    /// A poll of the coordinator, which has the scaler top up workers.
    fn poll(&mut self) {
        self.next_poll_s = self.now_s + self.conditions.poll_s;
        self.conditions.window_batches = self.window();
        while self.locals < self.local_target && self.splits.claimable(&self.conditions) > 0 {
            self.start_local();
        }
        let ready = self.splits.ready();
        // As in the service: stopped when the window is full, woken below half.
        // Splits of dead workers may keep the trainer from all that is ready.
        self.wants_workers = match ready {
            _ if self.splits.has_returned() => true,
            ready if ready >= self.conditions.window_batches => false,
            ready if ready * 2 < self.conditions.window_batches => true,
            _ => self.wants_workers,
        };
        if !self.wants_workers {
            return;
        }
        let invoke = top_up(&self.facts(), self.target).invoke;
        if invoke == 0 {
            return;
        }
        let granted = self.platform.grant(invoke, self.now_s, &self.conditions);
        self.meter.throttled += invoke - granted;
        self.run.invocations += u64::from(granted);
        for _ in 0..granted {
            self.start();
        }
    }

    fn idle_slot(&mut self) -> u32 {
        let slot = self.idle_slots.pop().unwrap_or(self.workers.len() as u32);
        if slot as usize == self.workers.len() {
            self.workers.push(Worker::default());
        }
        slot
    }

    fn start_local(&mut self) {
        let slot = self.idle_slot();
        let turn = self.workers[slot as usize].turn + 1;
        self.workers[slot as usize] =
            Worker { born_s: self.now_s, turn, is_local: true, ..Worker::default() };
        self.locals += 1;
        self.claim(slot);
    }

    fn start(&mut self) {
        let slot = self.idle_slot();
        let (kind, is_cold) = self.platform.take_environment(&self.conditions);
        let cold_s = if is_cold { self.conditions.cold_start_s } else { 0.0 };
        let turn = self.workers[slot as usize].turn + 1;
        self.workers[slot as usize] =
            Worker { born_s: self.now_s, kind, turn, ..Worker::default() };
        self.schedule(
            self.now_s + self.conditions.invoke_delay_s + cold_s,
            EngineEventKind::Ready,
            slot,
        );
    }

    fn handle(&mut self, event: EngineEvent) {
        let worker = &mut self.workers[event.worker as usize];
        if worker.turn != event.turn {
            return;
        }
        match event.what {
            EngineEventKind::Ready => self.claim(event.worker),
            EngineEventKind::Computed if worker.is_local => {
                self.schedule(
                    self.now_s + self.conditions.call_s,
                    EngineEventKind::Committed,
                    event.worker,
                );
            }
            EngineEventKind::Computed => {
                let bytes = self.conditions.batch_bytes * self.splits.split_batches();
                let sent_s = bytes / self.conditions.network_per_s;
                let admitted = self.puts.serve(self.now_s, 1.0, self.conditions.puts_per_s);
                let put_s = admitted - self.now_s + sent_s;
                worker.times_s[2] = put_s;
                // Requested now: a request in the future would delay earlier ones.
                let flushed = self.table.serve(self.now_s, 1.0, self.conditions.table_per_s);
                let flushed_s = flushed + put_s + self.conditions.call_s;
                self.schedule(flushed_s, EngineEventKind::Committed, event.worker);
            }
            EngineEventKind::Committed => self.committed(event.worker),
            EngineEventKind::Died => {
                // Cancels its pending events.
                worker.turn += 1;
                worker.holds_lease = false;
                self.platform.at_work -= 1;
                self.run.deaths += 1;
                self.schedule(
                    self.now_s + self.conditions.death_notice_s,
                    EngineEventKind::Noticed,
                    event.worker,
                );
            }
            EngineEventKind::Noticed => {
                let (first, left) = (worker.split, worker.lease_left);
                self.splits.give_back(first, left);
                self.end(event.worker, false);
            }
        }
    }

    fn committed(&mut self, slot: u32) {
        let worker = self.workers[slot as usize];
        // The times of splits made in another mode are not reported.
        if worker.mode == self.conditions.mode && !worker.is_local {
            self.meter.flushed(worker.times_s, self.splits.split_batches());
        }
        self.meter.made(self.splits.split_batches(), worker.is_local);
        self.run.splits += 1;
        let (now_s, conditions) = (self.now_s, &self.conditions);
        let trainer = &mut self.trainer;
        self.splits.commit(worker.split, |batches| trainer.arrived(batches, now_s, conditions));
        if worker.lease_left > 0 {
            let worker = &mut self.workers[slot as usize];
            worker.lease_left -= 1;
            worker.split += 1;
            self.work(slot);
        } else {
            self.workers[slot as usize].holds_lease = false;
            *self.at_work(worker.is_local) -= 1;
            self.claim(slot);
        }
    }

    fn at_work(&mut self, is_local: bool) -> &mut u32 {
        if is_local { &mut self.locals_at_work } else { &mut self.platform.at_work }
    }

    /// A worker claims a lease; it leaves if there is none or the target is exceeded.
    fn claim(&mut self, slot: u32) {
        let age_s = self.now_s - self.workers[slot as usize].born_s;
        let lease_s = f64::from(self.conditions.split_batches * self.conditions.lease_splits)
            * self.conditions.worker_batch_s();
        // It leaves before the platform ends it, except on its first lease.
        let too_old =
            age_s > 0.0 && age_s + lease_s > self.conditions.lifetime_s && age_s > lease_s;
        let Worker { kind, is_local, .. } = self.workers[slot as usize];
        let leaves = if is_local {
            self.locals > self.local_target
        } else {
            too_old || self.platform.is_superfluous(kind, self.target)
        };
        let lease = if leaves { None } else { self.splits.claim(&self.conditions) };
        let Some((split, splits)) = lease else {
            self.end(slot, true);
            return;
        };
        let worker = &mut self.workers[slot as usize];
        worker.split = split;
        worker.lease_left = splits - 1;
        worker.holds_lease = true;
        *self.at_work(is_local) += 1;
        self.work(slot);
    }

    /// Begins a split: claim or mark, read, compute.
    fn work(&mut self, slot: u32) {
        let conditions = &self.conditions;
        let batches = self.splits.split_batches();
        let called_s = self.table.serve(self.now_s, 1.0, conditions.table_per_s) - self.now_s
            + conditions.call_s;
        let bytes = conditions.source_bytes * batches;
        let mut read_s = 0.0;
        if bytes > 0.0 {
            let admitted_s = self.gets.serve(self.now_s, 1.0, conditions.gets_per_s);
            let sent_s = admitted_s + bytes / conditions.network_per_s;
            let served_s = self.source.serve(self.now_s, bytes, conditions.source_per_s);
            read_s = served_s.max(sent_s) - self.now_s;
        }
        let others = f64::from(self.platform.at_work.saturating_sub(1));
        let decoding = self.decoding();
        let worker = &mut self.workers[slot as usize];
        let host = &conditions.host;
        let pace = if worker.is_local {
            host.local_slowing(f64::from(self.locals_at_work), decoding) / host.local_speed
        } else {
            conditions.speeds.get(worker.kind).copied().unwrap_or(1.0)
                * (1.0 + conditions.interference * others)
                / conditions.vcpus
        };
        let noise = self.work_noise.factor(conditions.worker_noise);
        let compute_s = conditions.compute_s * batches * pace * noise;
        worker.turn += 1;
        worker.started_s = self.now_s;
        worker.mode = conditions.mode;
        worker.times_s = [read_s, compute_s, 0.0];
        let done_s = self.now_s + called_s + read_s + compute_s;
        if conditions.mean_life_s.is_finite() && !worker.is_local {
            let dies_s = self.now_s + self.life_noise.exponential(conditions.mean_life_s);
            if dies_s < done_s {
                self.schedule(dies_s, EngineEventKind::Died, slot);
                return;
            }
        }
        self.schedule(done_s, EngineEventKind::Computed, slot);
    }

    /// Processors of the trainer's host that decode what remote workers make.
    fn decoding(&self) -> f64 {
        let conditions = &self.conditions;
        (1.0 - self.share_local) * conditions.host.decoding_s(conditions.batch_bytes)
            / conditions.step_s
    }

    fn end(&mut self, slot: u32, stays_warm: bool) {
        self.workers[slot as usize].turn += 1;
        let Worker { kind, is_local, .. } = self.workers[slot as usize];
        if is_local {
            self.locals -= 1;
        } else {
            self.platform.ended(kind, stays_warm);
        }
        self.idle_slots.push(slot);
    }

    /// The trainer takes its next batches; true when a report is due.
    fn take(&mut self) -> bool {
        let clients = self.conditions.clients;
        let busy = f64::from(self.locals_at_work) + self.decoding();
        let slowing = self.conditions.host.slowing(busy);
        let stall = self.trainer.take(self.now_s, slowing, &self.conditions);
        self.splits.delivered += u64::from(clients);
        self.meter.taken(&stall, self.trainer.step_s, self.splits.ready());
        let next = self.scenario.phases.get(self.phase + 1);
        if let Some(next) = next.filter(|next| self.splits.delivered >= next.from_batch) {
            let window_batches = self.conditions.window_batches;
            self.conditions = ModelConditions { window_batches, ..next.conditions.clone() };
            self.phase += 1;
        }
        self.meter.rounds >= self.conditions.report_batches
    }

    fn facts(&self) -> ScalerFacts {
        ScalerFacts {
            clients: self.conditions.clients,
            claimable: self.splits.claimable(&self.conditions),
            outstanding: self.platform.outstanding,
            throttled: self.meter.throttled,
            mode: self.conditions.mode,
        }
    }

    fn has_converged(&self) -> bool {
        let decides = matches!(self.placer, HostPlacer::Held { .. } | HostPlacer::Auto(_));
        let is_remote = decides && (self.target > 0 || self.local_target == 0);
        self.placer.has_converged() && (!is_remote || self.policy.has_converged())
    }

    fn report(&mut self) -> ScalingTick {
        let facts = self.facts();
        let decoding = self.decoding();
        let (conditions, noise) = (&self.conditions, &mut self.report_noise);
        let mut noisy = |value: f64| value * noise.factor(conditions.report_noise);
        let meter = std::mem::take(&mut self.meter);
        let (local_workers, local_share) = meter.local();
        let rounds = f64::from(meter.rounds.max(1));
        let busy = conditions.host.trainer_cores + decoding + local_workers;
        let busy_cores = if conditions.host.is_modelled() { busy } else { 0.0 };
        let times_s = meter.times_s().map(|times_s| times_s.map(&mut noisy));
        let [remote_source_s, remote_compute_s, remote_put_s] = times_s.unwrap_or_default();
        let report = TrainingReport {
            batches: self.splits.delivered,
            step_s: noisy(meter.step_s / rounds),
            stall_s: noisy(meter.stall_s / rounds),
            fetch_stall_s: noisy(meter.fetch_stall_s / rounds),
            queue_batches: noisy(meter.queue / rounds),
            ahead_batches: self.splits.ahead(),
            lease_batches: conditions.split_batches * conditions.lease_splits,
            window_full: meter.share_full(),
            remote_workers: meter.mean_workers(),
            remote_source_s,
            remote_compute_s,
            remote_put_s,
            local_workers,
            local_share,
            busy_cores,
            host_cores: conditions.host.cores,
        };
        self.share_local = local_share;
        let input = PlacerInput {
            report,
            facts,
            settings: &self.scenario.settings,
            conditions: &self.conditions,
            max_local: self.scenario.max_local,
            batches_left: self.splits.batches - self.splits.delivered,
        };
        let (mut decided, mut reason) = self.placer.decide(&input, &mut self.policy);
        if let Some(held) = self.scenario.held {
            (decided.remote, reason) = (held, Reason::Moved { from: held });
        }
        let WorkerTarget { remote, local } = decided;
        let before = std::mem::replace(&mut self.target, remote);
        self.local_target = local;
        ScalingTick {
            at_s: self.now_s,
            batches: report.batches,
            phase: self.phase,
            mode: facts.mode,
            batch_time_s: (meter.step_s + meter.stall_s) / rounds,
            stall_s: meter.stall_s / rounds,
            queue_batches: meter.queue / rounds,
            workers: report.remote_workers,
            worker_s: self.run.worker_s,
            made: self.splits.made(),
            before,
            decision: Decision { target: remote, reason },
            local,
            has_converged: self.has_converged(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct EngineEvent {
    pub at_s: f64,
    /// Order of creation, which orders simultaneous events.
    pub number: u64,
    pub what: EngineEventKind,
    pub worker: u32,
    /// The worker's turn when the event was created; the event is void if it has changed.
    pub turn: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EngineEventKind {
    /// Its environment has started.
    Ready,
    /// Its split is computed; the put is next.
    Computed,
    /// Its split is committed.
    Committed,
    /// It dies while working.
    Died,
    /// Its death is detected.
    Noticed,
}

impl Eq for EngineEvent {}
impl PartialOrd for EngineEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for EngineEvent {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at_s.total_cmp(&other.at_s).then(self.number.cmp(&other.number))
    }
}
