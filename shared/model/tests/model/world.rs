//! The small worlds: their parts, their actions, and how often each fault can occur.

use crate::mutants::Mutation;
use gristmill_model::splits::batches::{BatchJoiner, BatchRules, PlannedBatch};
use gristmill_model::splits::collect::{ChunkName, CollectionDecision};
use gristmill_model::splits::epoch::{EpochItem, EpochState};
use gristmill_model::splits::invariants::{FoundDeath, InvariantViolation};
use gristmill_model::splits::ranks::RunRanks;
use gristmill_model::splits::run::{RunJoin, TrainingRun};
use gristmill_model::splits::{
    Bundle, BundleState, Cursor, DeathEvidence, DeathLog, DeathRecord, JobProgress, ProgressAck,
    SplitKind, SplitPlace,
};
use gristmill_model::{Attempt, InvocationId, Nonce, Position, RunToken};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// Records of a split, and the batch size: one full batch and one row left over, so that batches
/// are joined across splits.
pub const SPLIT_RECORDS: u32 = 3;
pub const BATCH_SIZE: u32 = 2;

/// A world and its bounds.
#[derive(Debug, Clone)]
pub struct World {
    pub mutation: Mutation,
    /// Positions of each bundle.
    pub bundles: Vec<Range<Position>>,
    pub workers: u8,
    /// Restarts of each worker.
    pub restarts: u8,
    /// Workers 0 and 1 start under one invocation id.
    pub twins: bool,
    /// Worker 0 commits without objects.
    pub local: bool,
    pub trainer: bool,
    /// Rows are delivered in the order of the splits.
    pub in_order: bool,
    /// A split that kills every worker that runs it.
    pub poison: Option<Position>,
    /// States with more attempts are not explored.
    pub attempts: Attempt,
    pub budget: Budget,
}

/// Faults that may still occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Worker crashes that no split causes.
    pub crashes: u8,
    /// Leases that run out under a living worker.
    pub steals: u8,
    pub lost_answers: u8,
    /// Calls of which a copy arrives late.
    pub copies: u8,
    /// Failures a worker survives.
    pub fails: u8,
    /// Leases that their owner gives back without a failure.
    pub returns: u8,
    pub trainer_crashes: u8,
}

const NOTHING: Budget = Budget {
    crashes: 0,
    steals: 0,
    lost_answers: 0,
    copies: 0,
    fails: 0,
    returns: 0,
    trainer_crashes: 0,
};

impl World {
    fn small(bundles: Vec<Range<Position>>, workers: u8, attempts: Attempt) -> Self {
        Self {
            mutation: Mutation::None,
            bundles,
            workers,
            restarts: 1,
            twins: false,
            local: false,
            trainer: false,
            in_order: false,
            poison: None,
            attempts,
            budget: NOTHING,
        }
    }

    /// Two workers compete for a bundle of two splits.
    pub fn leases() -> Self {
        let budget = Budget { crashes: 1, steals: 1, lost_answers: 1, copies: 1, ..NOTHING };
        Self { local: true, budget, ..Self::small(vec![0..2], 2, 3) }
    }

    /// As [`World::leases`], with two workers under one invocation id, and failures that workers
    /// survive.
    pub fn twins() -> Self {
        let budget = Budget { crashes: 1, steals: 1, fails: 1, ..NOTHING };
        Self { twins: true, budget, ..Self::small(vec![0..2], 2, 3) }
    }

    /// As [`World::leases`], with leases that are given back.
    pub fn returns() -> Self {
        let budget = Budget { steals: 1, lost_answers: 1, copies: 1, returns: 1, ..NOTHING };
        Self { local: true, budget, ..Self::small(vec![0..2], 2, 2) }
    }

    /// A poison split beside a good one, and a host that kills workers too.
    pub fn poison() -> Self {
        let budget = Budget { crashes: 2, ..NOTHING };
        Self { poison: Some(1), restarts: 7, budget, ..Self::small(vec![0..2, 2..3], 1, 6) }
    }

    /// Two workers, one of them slow, meet a poison split.
    pub fn poison_and_two_workers() -> Self {
        let budget = Budget { steals: 1, ..NOTHING };
        Self { poison: Some(0), restarts: 2, budget, ..Self::small(vec![0..1, 1..2], 2, 6) }
    }

    /// A trainer that crashes and restores, and a collector.
    pub fn trainer() -> Self {
        let budget = Budget { fails: 1, copies: 1, trainer_crashes: 1, ..NOTHING };
        Self { trainer: true, budget, ..Self::small(vec![0..1, 1..2], 1, 2) }
    }

    /// A trainer that crashes twice, over work that never fails.
    pub fn trainer_that_crashes() -> Self {
        let budget = Budget { copies: 1, trainer_crashes: 2, ..NOTHING };
        Self { trainer: true, budget, ..Self::small(vec![0..1, 1..2], 1, 1) }
    }

    /// As [`World::trainer`], with batches that span splits.
    pub fn trainer_in_order() -> Self {
        Self { in_order: true, ..Self::trainer() }
    }

    /// How its rows become batches.
    pub fn cut(&self) -> BatchRules {
        BatchRules { size: BATCH_SIZE, drop_last: false, in_order: self.in_order }
    }

    pub fn n_splits(&self) -> u32 {
        self.bundles.last().map_or(0, |positions| positions.end)
    }

    /// The bundle that holds `position`.
    pub fn bundle_of(&self, position: Position) -> usize {
        self.bundles.iter().position(|range| range.contains(&position)).unwrap()
    }

    pub fn start(&self) -> State {
        let workers = (0..self.workers)
            .map(|w| Worker::new(w, if self.twins && w == 1 { 0 } else { w }))
            .collect();
        State {
            bundles: vec![None; self.bundles.len()],
            epoch: EpochItem { state: EpochState::Open, seed: 0, totals: None },
            progress: None,
            log: None,
            objects: BTreeMap::new(),
            workers,
            late: None,
            trainer: Trainer::new(self.cut()),
            doomed: None,
            budget: self.budget,
            seen: BTreeMap::new(),
            delivered: BTreeMap::new(),
            dead: BTreeSet::new(),
            found: Vec::new(),
            replayed: false,
            deleted_passed: false,
            violation: None,
        }
    }

    pub fn is_done(&self, state: &State) -> bool {
        let done = |bundle: &Option<Bundle>| {
            bundle.as_ref().is_some_and(|bundle| bundle.state == BundleState::Done)
        };
        state.bundles.iter().all(done)
    }

    /// Everything that can happen next.
    pub fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violation.is_some() {
            return;
        }
        for w in 0..self.workers {
            self.possible_of_worker(state, w, actions);
        }
        if state.late.is_some() {
            actions.push(Action::LateArrives);
        }
        for invocation in &state.dead {
            for bundle in 0..self.bundles.len() {
                actions.push(Action::Release { invocation: *invocation, bundle });
            }
        }
        if self.trainer {
            self.possible_of_trainer(state, actions);
        }
    }

    fn possible_of_worker(&self, state: &State, w: u8, actions: &mut Vec<Action>) {
        let worker = &state.workers[usize::from(w)];
        if !worker.alive {
            if worker.life < self.restarts {
                actions.push(Action::Restart(w));
            }
            return;
        }
        if state.budget.crashes > 0 {
            actions.push(Action::Crash(w));
        }
        if worker.pending.is_some() {
            actions.push(Action::Retry(w));
            return;
        }
        let mut calls = Vec::new();
        self.possible_calls(state, w, &mut calls, actions);
        for call in calls {
            if state.budget.lost_answers > 0 {
                actions.push(Action::Call { w, call: call.clone(), lost: true, copy: false });
            }
            if state.budget.copies > 0 && state.late.is_none() {
                actions.push(Action::Call { w, call: call.clone(), lost: false, copy: true });
            }
            actions.push(Action::Call { w, call, lost: false, copy: false });
        }
    }

    fn possible_calls(
        &self,
        state: &State,
        w: u8,
        calls: &mut Vec<Call>,
        actions: &mut Vec<Action>,
    ) {
        let worker = &state.workers[usize::from(w)];
        if let Some(held) = &worker.held {
            match held.next() {
                Some(_) if held.control => actions.push(Action::RunControl(w)),
                Some(at) if held.marks && held.marked != Some(at) => {
                    if held.put.is_empty() {
                        calls.push(Call::Mark(at));
                    }
                }
                Some(at) => actions.push(Action::Run { w, at }),
                None => {}
            }
            if !held.put.is_empty() {
                calls.push(Call::Flush(held.put.clone()));
            }
            if state.budget.fails > 0 {
                calls.push(Call::Fail);
            }
            if state.budget.returns > 0 && held.put.is_empty() {
                calls.push(Call::GiveBack);
            }
            return;
        }
        if worker.found.is_some() {
            actions.push(Action::RecordDeath(w));
            return;
        }
        if let Some((bundle, death)) = worker.death {
            // Recording and claiming are one call: the claim follows even if the bundle has
            // changed.
            let expired = state.bundles[bundle].as_ref().is_some_and(|bundle| {
                let lives = |w: &Worker| w.alive && nonce(w.nonce) == bundle.owner;
                let steal = state.budget.steals > 0 || !state.workers.iter().any(lives);
                bundle.state == BundleState::Leased && steal
            });
            calls.push(Call::Claim { bundle, expired, death: Some(death) });
            return;
        }
        for (b, bundle) in state.bundles.iter().enumerate() {
            let ended = |b: &Bundle| matches!(b.state, BundleState::Done | BundleState::Dead);
            if bundle.as_ref().is_some_and(ended) {
                continue;
            }
            let leased = bundle.as_ref().is_some_and(|b| b.state == BundleState::Leased);
            let call = |expired| Call::Claim { bundle: b, expired, death: None };
            if leased {
                let owner = bundle.as_ref().map(|bundle| bundle.owner);
                let lives = |w: &Worker| w.alive && Some(nonce(w.nonce)) == owner;
                if owner == Some(nonce(worker.nonce)) {
                    calls.push(call(false));
                } else if !state.workers.iter().any(lives) || state.budget.steals > 0 {
                    calls.push(call(true));
                }
            } else {
                calls.push(call(false));
            }
        }
    }

    fn possible_of_trainer(&self, state: &State, actions: &mut Vec<Action>) {
        let trainer = &state.trainer;
        if !trainer.alive {
            actions.push(Action::Restore { older: false });
            actions.push(Action::Restore { older: true });
        } else {
            if !trainer.queue.is_empty() {
                actions.push(Action::Deliver);
            } else if trainer.joiner.position() < self.n_splits() {
                actions.push(Action::Take);
            } else if !trainer.finished {
                actions.push(Action::Finish);
            }
            if trainer.checkpoint() != trainer.saved[0] {
                actions.push(Action::Save);
            }
            actions.push(Action::Ack { copy: false });
            if state.budget.copies > 0 && state.late.is_none() {
                actions.push(Action::Ack { copy: true });
            }
            if state.budget.trainer_crashes > 0 {
                actions.push(Action::TrainerCrash);
            }
        }
        actions.push(Action::Collect);
        match state.doomed {
            Some(_) => actions.push(Action::Delete),
            None => actions.extend(state.objects.keys().map(|name| Action::Doom(*name))),
        }
        actions.push(Action::Seal);
        actions.push(Action::Close);
    }
}

/// Actions of the model.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A worker calls the coordinator; the answer may be lost, and a copy may come again later.
    Call {
        w: u8,
        call: Call,
        lost: bool,
        copy: bool,
    },
    /// A worker sends an unanswered call again.
    Retry(u8),
    LateArrives,
    RecordDeath(u8),
    /// A worker completes its control.
    RunControl(u8),
    /// A worker runs a split and puts its object.
    Run {
        w: u8,
        at: u8,
    },
    Crash(u8),
    Restart(u8),
    Release {
        invocation: u8,
        bundle: usize,
    },
    Take,
    Finish,
    Deliver,
    Save,
    /// The trainer joins, or acknowledges; a copy may come again later.
    Ack {
        copy: bool,
    },
    TrainerCrash,
    Restore {
        older: bool,
    },
    Collect,
    Doom(ChunkName),
    Delete,
    Seal,
    Close,
}

/// Calls of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Call {
    Claim { bundle: usize, expired: bool, death: Option<DeathEvidence> },
    Mark(u8),
    Flush(Vec<u8>),
    Fail,
    GiveBack,
}

/// A call on its way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Message {
    pub nonce: u8,
    pub invocation: u8,
    pub bundle: usize,
    pub attempt: Attempt,
    pub call: Call,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Late {
    Worker(Message),
    Trainer(TrainerCall),
}

/// A call of the trainer, the only reader of a run of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TrainerCall {
    Join(RunJoin),
    Ack(ProgressAck),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Worker {
    pub alive: bool,
    pub life: u8,
    pub nonce: u8,
    pub invocation: u8,
    pub held: Option<Held>,
    /// A call that was not answered, and whether it was applied.
    pub pending: Option<(Message, bool)>,
    /// A death to be recorded before the next claim, and the split its owner had marked.
    pub found: Option<(DeathRecord, Option<u8>)>,
    /// The log's answer, and its bundle, which is claimed next.
    pub death: Option<(usize, DeathEvidence)>,
}

impl Worker {
    pub fn new(nonce: u8, invocation: u8) -> Self {
        Self {
            alive: true,
            life: 0,
            nonce,
            invocation,
            held: None,
            pending: None,
            found: None,
            death: None,
        }
    }
}

/// A lease from its owner's view.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Held {
    pub bundle: usize,
    pub attempt: Attempt,
    pub todo: Vec<u8>,
    pub marks: bool,
    pub marked: Option<u8>,
    /// It has a control to run before it marks anything.
    pub control: bool,
    /// Run and not yet flushed.
    pub put: Vec<u8>,
}

impl Held {
    /// The next split to run.
    pub fn next(&self) -> Option<u8> {
        self.todo.iter().copied().find(|at| !self.put.contains(at))
    }
}

/// The restart point of a trainer: the next batch, and the first split it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Checkpoint {
    pub batch_index: u64,
    pub position: Position,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Trainer {
    pub alive: bool,
    pub generation: u64,
    /// The generation found at its start.
    pub over: u64,
    /// The checkpoint at which its run began.
    pub began: Checkpoint,
    /// The horizon, if its run began behind it: it computes again the splits before that whose objects are deleted.
    pub began_behind: Option<Position>,
    pub joiner: BatchJoiner,
    pub finished: bool,
    /// The next batch to hand over.
    pub next: u64,
    /// Batches made and not yet handed over, each with the first split that a restart at it needs.
    pub queue: VecDeque<(PlannedBatch, Position)>,
    /// The latest checkpoint, and one before.
    pub saved: [Checkpoint; 2],
}

impl Trainer {
    fn new(cut: BatchRules) -> Self {
        Self {
            alive: true,
            generation: 1,
            over: 0,
            began: Checkpoint::default(),
            began_behind: None,
            joiner: BatchJoiner::new(cut),
            finished: false,
            next: 0,
            queue: VecDeque::new(),
            saved: [Checkpoint::default(); 2],
        }
    }

    /// The checkpoint it would save now.
    pub fn checkpoint(&self) -> Checkpoint {
        let kept = if self.finished { self.joiner.position() } else { self.joiner.first_needed() };
        let position = self.queue.front().map_or(kept, |(_, needed)| *needed);
        Checkpoint { batch_index: self.next, position }
    }

    /// Whether it does without the object of `position`.
    pub fn computes_again(&self, position: Position) -> bool {
        self.began_behind.is_some_and(|horizon| position < horizon)
    }

    /// Its progress when a restart would begin at `durable`.
    fn progress(&self, durable: Checkpoint) -> ProgressAck {
        let Checkpoint { batch_index, position } = durable;
        ProgressAck {
            generation: self.generation,
            over: self.over,
            delivered: SplitPlace { epoch: 0, position: self.joiner.position() },
            durable: Cursor { epoch: 0, batch_index },
            durable_place: SplitPlace { epoch: 0, position },
            ended: None,
            local_workers: 0,
        }
    }
}

/// The whole state, and an omniscient observer's memory of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub bundles: Vec<Option<Bundle>>,
    pub epoch: EpochItem,
    pub progress: Option<JobProgress>,
    pub log: Option<DeathLog>,
    pub objects: BTreeMap<ChunkName, u32>,
    pub workers: Vec<Worker>,
    pub late: Option<Late>,
    pub trainer: Trainer,
    /// An object the collector is about to delete.
    pub doomed: Option<(ChunkName, CollectionDecision)>,
    pub budget: Budget,
    pub seen: BTreeMap<SplitPlace, (SplitKind, Attempt, Nonce)>,
    pub delivered: BTreeMap<u64, PlannedBatch>,
    /// Invocations reported dead.
    pub dead: BTreeSet<u8>,
    /// Every death, in the order found.
    pub found: Vec<FoundDeath>,
    pub replayed: bool,
    pub deleted_passed: bool,
    pub violation: Option<InvariantViolation>,
}

impl State {
    pub fn has_poison(&self) -> bool {
        let entries = self.bundles.iter().flatten().flat_map(|bundle| &bundle.entries);
        entries.flatten().any(|entry| entry.outcome.kind == SplitKind::Poison)
    }

    pub fn is_closed(&self) -> bool {
        self.epoch.state == EpochState::Closed
    }

    /// The progress that says which objects must be kept. A run that began behind the horizon needs none before it.
    pub fn needed(&self) -> Option<JobProgress> {
        self.progress.map(|of| match self.trainer.began_behind {
            Some(_) => JobProgress {
                durable: of.durable.max(of.collected),
                durable_place: of.durable_place.max(of.collected_place),
                ..of
            },
            None => of,
        })
    }

    /// The trainer's next call: it joins with the beginning of its run, and reports its progress from then on.
    pub fn trainer_call(&self) -> TrainerCall {
        let Trainer { generation, began, saved, .. } = self.trainer;
        if self.progress.is_some_and(|progress| progress.generation == generation) {
            return TrainerCall::Ack(self.trainer.progress(saved[0]));
        }
        let start = self.trainer.progress(began);
        let token = RunToken::from_name(&generation.to_string());
        let run = TrainingRun { token, ranks: RunRanks::one(start.durable), epochs: None };
        TrainerCall::Join(RunJoin { run, start, is_successor: false })
    }
}

pub fn nonce(id: u8) -> Nonce {
    Nonce([id; 8])
}

pub fn invocation(id: u8) -> InvocationId {
    InvocationId(char::from(b'a' + id).to_string())
}
