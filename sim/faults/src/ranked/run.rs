//! The runs of a job with several ranks: what launcher and ranks know of each, and what their readers have reported.

use crate::{FaultSimulation, scenario::ExpectedBatches};
use gristmill_model::{
    Checkpoint, RunToken,
    splits::{
        Cursor, JobProgress, ProgressAck, invariants,
        ranks::{KnownBatches, RankAssignment, RunRanks, TailPolicy, TrainingStep},
        replicas::RankReplicas,
        run::TrainingRun,
    },
};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};
use tokio::sync::Notify;

/// The processes that report what is safe in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointReporters {
    /// Each rank for itself.
    EachRank,
    /// The first rank of each host, once all ranks have written their parts.
    WholeJob,
}

/// When the fetchers of other hosts than the first start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherHostsStart {
    AtOnce,
    /// Once a rank has taken a step.
    AfterAStep,
    /// Once a rank has come to the end. The ranks do not meet before, nor do they write checkpoints.
    AtTheEnd,
}

/// A run, from its launch to its end.
pub struct LaunchedRun {
    /// The text that names it.
    pub name: String,
    /// Without a checkpoint, the service decides where the run begins.
    ranks: RunRanks,
    pub hosts: u32,
    /// The checkpoint that it begins from; none if it begins anew.
    pub resume: Option<String>,
    /// Whether the fetchers have the checkpoint, and not only the ranks.
    pub tells_fetchers: bool,
    pub speaks: CheckpointReporters,
    /// Checkpoints are written after each step whose number is a multiple of it.
    pub save_every: u64,
    pub others: OtherHostsStart,
    /// A rank that takes longer for each step while there are faults.
    pub slow: Option<(u32, Duration)>,
    epochs: u32,
    expected: Arc<ExpectedBatches>,
    state: Mutex<State>,
    moved: Notify,
}

#[derive(Default)]
struct State {
    /// Batches taken, each with the data rank that took it.
    owners: BTreeMap<Cursor, u32>,
    /// The text of the checkpoint after each step.
    texts: BTreeMap<Cursor, String>,
    /// Ranks that have completed a step.
    met: BTreeMap<TrainingStep, u32>,
    /// The latest checkpoint of each rank.
    saved: BTreeMap<u32, Cursor>,
    hosts_done: u32,
    /// Whether a rank has taken a step, and whether one has come to the end.
    has_begun: bool,
    has_ended: bool,
    /// The beginning of this run according to the job's progress, once that was of this run.
    began: Option<Cursor>,
}

/// The least number of ranks, and the greatest.
pub const RANKS: (u32, u32) = (1, 6);

/// Draws which of `count` ranks take the same batches: in half of the runs, none.
fn draw_replicas(sim: &FaultSimulation, count: NonZeroU32) -> RankReplicas {
    if sim.below(2) == 0 {
        return RankReplicas::default();
    }
    let sizes = || (1..=count.get()).filter_map(NonZeroU32::new);
    let all = sizes().flat_map(|outer| sizes().map(move |inner| RankReplicas { outer, inner }));
    let whole: Vec<_> = all.filter(|replicas| replicas.data_ranks(count).is_some()).collect();
    whole[sim.below(whole.len() as u64) as usize]
}

impl LaunchedRun {
    /// Draws a run that begins at `from`.
    pub fn draw(
        sim: &FaultSimulation,
        name: String,
        from: Cursor,
        resume: Option<String>,
        epochs: u32,
        expected: &Arc<ExpectedBatches>,
    ) -> Self {
        let hosts = 1 + sim.below(3) as u32;
        let per_host = 1 + sim.below(u64::from(RANKS.1 / hosts)) as u32;
        let count = NonZeroU32::new((hosts * per_host).clamp(RANKS.0, RANKS.1));
        let tail =
            [TailPolicy::Drop, TailPolicy::Repeat, TailPolicy::Uneven][sim.below(3) as usize];
        let ranks = RunRanks::new(count.unwrap_or(NonZeroU32::MIN), from, tail);
        let ranks = RunRanks { replicas: draw_replicas(sim, ranks.count), ..ranks };
        Self {
            name,
            ranks,
            hosts,
            resume,
            tells_fetchers: sim.below(2) == 0,
            speaks: match sim.below(2) {
                0 => CheckpointReporters::EachRank,
                _ => CheckpointReporters::WholeJob,
            },
            save_every: 1 + sim.below(4),
            others: match sim.below(3) {
                0 => OtherHostsStart::AtOnce,
                1 => OtherHostsStart::AfterAStep,
                _ => OtherHostsStart::AtTheEnd,
            },
            slow: None,
            epochs,
            expected: Arc::clone(expected),
            state: Mutex::default(),
            moved: Notify::new(),
        }
    }

    /// The same run as its processes that were thought to be gone know it.
    pub fn again(&self) -> Self {
        let Self { name, resume, expected, .. } = self;
        Self {
            name: name.clone(),
            resume: resume.clone(),
            expected: Arc::clone(expected),
            state: Mutex::default(),
            moved: Notify::new(),
            ..*self
        }
    }

    pub fn token(&self) -> RunToken {
        RunToken::from_name(&self.name)
    }

    /// The ranks, and where the run begins.
    pub fn ranks(&self) -> RunRanks {
        self.ranks_in(&self.state.lock())
    }

    fn ranks_in(&self, state: &State) -> RunRanks {
        let began = state.began.filter(|_| self.resume.is_none());
        RunRanks { from: began.unwrap_or(self.ranks.from), ..self.ranks }
    }

    /// The number of ranks of a host.
    pub fn per_host(&self) -> u32 {
        self.ranks.count.get() / self.hosts
    }

    fn known(&self, epoch: u32) -> KnownBatches {
        let batches = self
            .expected
            .batches
            .range(Cursor::start_of(epoch)..Cursor::start_of(epoch.saturating_add(1)));
        KnownBatches { count: batches.count() as u64, is_all: true }
    }

    /// Records a batch that `rank` was given; `is_repeat` if it is marked as one. Returns its step.
    pub fn take(
        &self,
        sim: &FaultSimulation,
        rank: u32,
        cursor: Cursor,
        is_repeat: bool,
        frame: &[u8],
    ) -> TrainingStep {
        self.state.lock().has_begun = true;
        self.moved.notify_waiters();
        let (ranks, Cursor { epoch, batch_index: at }) = (self.ranks(), cursor);
        let step = ranks.step_of(cursor).unwrap_or(TrainingStep { epoch, number: 0 });
        let given = match ranks.assign(step, rank, self.known(epoch)) {
            RankAssignment::Batch { batch_index } if !is_repeat && batch_index == at => at,
            RankAssignment::Repeat { batch_index, slot } if is_repeat && slot == at => batch_index,
            _ => {
                sim.violated(format_args!(
                    "invariant 20: rank {rank} of {ranks} was given {cursor} (repeat: {is_repeat})"
                ));
                return step;
            }
        };
        let hash = self.expected.batches.get(&Cursor::new(epoch, given));
        if hash != Some(&blake3::hash(frame)) {
            sim.violated(format_args!("invariant 7: rank {rank} was given another {cursor}"));
        }
        if !is_repeat {
            let data_rank = ranks.data_rank(rank);
            let earlier = self.state.lock().owners.insert(cursor, data_rank);
            sim.check(invariants::invariant_20_batch_goes_to_one_rank(earlier, data_rank));
        }
        step
    }

    /// Records the text of the checkpoint at `next`, which is the same on all ranks.
    pub fn note_text(&self, sim: &FaultSimulation, next: Cursor, text: &str) {
        let earlier = self.state.lock().texts.insert(next, text.to_owned());
        if earlier.is_some_and(|earlier| earlier != text) {
            sim.violated(format_args!("two ranks have other checkpoints at {next}"));
        }
    }

    /// The text of a checkpoint at `next`, from that of another one of the same job.
    pub fn text(&self, next: Cursor) -> Option<String> {
        let known =
            self.state.lock().texts.values().next().cloned().or_else(|| self.resume.clone());
        let known: Checkpoint = known?.parse().ok()?;
        let Cursor { epoch, batch_index } = next;
        Some(Checkpoint { epoch, batch_index, ..known }.to_string())
    }

    /// Waits until every rank that takes `step` has completed it, as a collective operation does.
    pub async fn meet(&self, step: TrainingStep) {
        if self.others == OtherHostsStart::AtTheEnd {
            return;
        }
        *self.state.lock().met.entry(step).or_default() += 1;
        let left = self.known(step.epoch).count.saturating_sub(self.ranks().first_of(step));
        let takes = |rank: &u32| {
            self.ranks.tail != TailPolicy::Uneven || u64::from(self.ranks.data_rank(*rank)) < left
        };
        let takers = (0..self.ranks.count.get()).filter(takes).count();
        let have_met =
            |state: &State| state.met.get(&step).is_some_and(|met| *met as usize >= takers);
        self.wait_until(have_met).await;
    }

    /// Waits until every rank has reached the end of the job, or no fetcher is left for those that have not.
    pub async fn meet_at_end(&self, end: Cursor) {
        {
            let mut state = self.state.lock();
            (state.has_begun, state.has_ended) = (true, true);
        }
        self.moved.notify_waiters();
        let step = TrainingStep { epoch: end.epoch, number: 0 };
        *self.state.lock().met.entry(step).or_default() += 1;
        let count = self.ranks.count.get();
        let have_met = |state: &State| state.met.get(&step).is_some_and(|met| *met >= count);
        self.wait_until(|state| have_met(state) || self.are_done(state)).await;
    }

    /// Records that the checkpoint of `rank` at `next` is on durable storage.
    pub fn save(&self, sim: &FaultSimulation, rank: u32, next: Cursor) {
        self.check_covered(sim, next);
        self.state.lock().saved.insert(rank, next);
        self.moved.notify_waiters();
    }

    /// Invariant 8: each batch between the beginning and a checkpoint was taken once, or left out by
    /// the tail.
    fn check_covered(&self, sim: &FaultSimulation, next: Cursor) {
        let ranks = self.ranks();
        let from = ranks.from;
        let owners = &self.state.lock().owners;
        for cursor in self.expected.batches.range(from..next.max(from)).map(|(cursor, _)| cursor) {
            let known = self.known(cursor.epoch);
            let kept = known.count - ranks.left_out(cursor.epoch, known.count);
            let is_left_out = cursor.batch_index >= kept;
            if owners.contains_key(cursor) == is_left_out {
                sim.violated(format_args!(
                    "invariant 8: {cursor} was {} before a checkpoint at {next} of {ranks}",
                    if is_left_out { "taken though it is left out" } else { "taken by no rank" },
                ));
            }
        }
    }

    /// The checkpoint that all ranks have.
    pub fn complete(&self) -> Cursor {
        self.complete_in(&self.state.lock())
    }

    fn complete_in(&self, state: &State) -> Cursor {
        self.saved_in(state).map(|(_, saved)| saved).min().unwrap_or_default()
    }

    /// The latest checkpoint of each rank.
    fn saved_in(&self, state: &State) -> impl Iterator<Item = (u32, Cursor)> {
        let RunRanks { from, .. } = self.ranks_in(state);
        let saved = move |rank| state.saved.get(&rank).copied().unwrap_or(from);
        (0..self.ranks.count.get()).map(move |rank| (rank, saved(rank)))
    }

    /// Waits until all ranks have the checkpoint at `next`.
    pub async fn until_complete(&self, next: Cursor) {
        self.wait_until(|state| self.complete_in(state) >= next).await;
    }

    /// Invariant 21: the job's progress is durable for every rank of this run.
    pub fn check_durable(&self, sim: &FaultSimulation, after: &JobProgress) {
        let saved: Vec<_> = self.saved_in(&self.state.lock()).collect();
        let saved = saved.into_iter().map(|(rank, saved)| self.next_of(rank, saved));
        sim.check(invariants::invariant_21_durable_for_every_rank(after, saved));
    }

    /// The start of the next epoch if `rank` has no further batch in that of `cursor`.
    fn next_of(&self, rank: u32, mut cursor: Cursor) -> Cursor {
        while cursor.epoch < self.epochs {
            let ranks = self.ranks();
            let step = ranks.step_of(cursor);
            let known = self.known(cursor.epoch);
            let is_over = |step| ranks.assign(step, rank, known) == RankAssignment::End;
            if step.is_none_or(|step| !is_over(step)) {
                break;
            }
            cursor = Cursor::start_of(cursor.epoch + 1);
        }
        cursor
    }

    /// Records where the service says that this run began. Returns where it began first.
    pub fn begin_at(&self, from: Cursor) -> Cursor {
        let began = *self.state.lock().began.get_or_insert(from);
        self.moved.notify_waiters();
        began
    }

    /// Whether the job's progress was of this run at some time, so that its token is known.
    pub fn has_joined(&self) -> bool {
        self.state.lock().began.is_some()
    }

    /// Resolves once the job's progress is of this run.
    pub async fn joined(&self) {
        self.wait_until(|state| state.began.is_some()).await;
    }

    /// Resolves once the fetcher of the host of that number may start.
    pub async fn host_comes(&self, host: u32) {
        self.wait_until(|state| match self.others {
            // The first host may find that the job is done.
            _ if host == 0 || state.hosts_done > 0 => true,
            OtherHostsStart::AtOnce => true,
            OtherHostsStart::AfterAStep => state.has_begun,
            OtherHostsStart::AtTheEnd => state.has_ended,
        })
        .await;
    }

    /// Records that a host's fetcher has finished.
    pub fn host_is_done(&self) {
        self.state.lock().hosts_done += 1;
        self.moved.notify_waiters();
    }

    pub fn is_done(&self) -> bool {
        self.are_done(&self.state.lock())
    }

    fn are_done(&self, state: &State) -> bool {
        state.hosts_done >= self.hosts
    }

    async fn wait_until(&self, holds: impl Fn(&State) -> bool) {
        loop {
            let moved = self.moved.notified();
            if holds(&self.state.lock()) {
                return self.moved.notify_waiters();
            }
            moved.await;
        }
    }
}

/// All runs of a job, by their tokens.
#[derive(Default)]
pub struct RunRegistry {
    runs: Mutex<BTreeMap<RunToken, Arc<LaunchedRun>>>,
    /// The furthest point that any run has made durable.
    durable: Mutex<Cursor>,
    /// Generations of runs that began behind what was collected.
    behind: Mutex<BTreeSet<u64>>,
    /// The furthest position that readers of each generation have reported.
    reported: Mutex<BTreeMap<u64, Cursor>>,
    /// The furthest position reported to each registration of the job, by its time.
    reported_to: Mutex<BTreeMap<u64, Cursor>>,
}

impl RunRegistry {
    pub fn add(&self, run: &Arc<LaunchedRun>) {
        self.runs.lock().insert(run.token(), Arc::clone(run));
    }

    /// Records what a reader is about to report to the job registered at `registered_ms`.
    pub fn note_report(&self, registered_ms: u64, ack: &ProgressAck) {
        for (of, key) in [(&self.reported, ack.generation), (&self.reported_to, registered_ms)] {
            let mut reported = of.lock();
            let most = reported.entry(key).or_default();
            *most = ack.durable.max(*most);
        }
    }

    /// Checks the state file found by a restarted fetcher: it holds all that was reported as durable.
    pub fn check_kept(&self, sim: &FaultSimulation, registered_ms: u64, kept: Option<Cursor>) {
        let reported = self.reported_to.lock();
        let reported = reported.get(&registered_ms).copied().unwrap_or_default();
        let kept = kept.unwrap_or_default();
        if kept < reported {
            sim.violated(format_args!(
                "{reported} was reported as durable, and the state file holds {kept}"
            ));
        }
    }

    /// Invariant 11: only readers of a run move its position.
    fn check_reported(&self, sim: &FaultSimulation, after: &JobProgress) {
        let reported = self.reported.lock();
        // An earlier job of the name has other runs.
        let Some(most) = reported.get(&after.generation) else { return };
        if after.durable > *most {
            sim.violated(format_args!(
                "invariant 11: {} is durable, and the run's readers have reported {most}",
                after.durable
            ));
        }
    }

    /// Whether the run of that generation began behind what was collected.
    pub fn began_behind(&self, generation: u64) -> bool {
        self.behind.lock().contains(&generation)
    }

    /// Checks a written progress of the job against what its run's ranks have saved.
    pub fn check(&self, sim: &FaultSimulation, after: &JobProgress) {
        self.check_reported(sim, after);
        if after.durable < after.collected {
            self.behind.lock().insert(after.generation);
        }
        let before = *self.durable.lock();
        *self.durable.lock() = before.max(after.durable);
        let run = |of: TrainingRun| Some((of, self.runs.lock().get(&of.token).cloned()?));
        if let Some((of, run)) = after.run.and_then(run) {
            let began = run.begin_at(of.ranks.from);
            if run.resume.is_none() && began > before {
                sim.violated(format_args!(
                    "a run without a checkpoint began at {began}, and {before} was durable"
                ));
            }
            run.check_durable(sim, after);
        }
    }
}
