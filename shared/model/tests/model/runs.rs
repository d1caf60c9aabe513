//! Runs with several readers in a small world: two readers, one, and two again, one after the other.
//!
//! All orders are explored of joining, taking in, steps at a barrier, checkpoints, reports, merges
//! that read and then write, and collection, with late copies of calls, readers of superseded runs
//! that wake, a reader that dies, and resumes from the checkpoint of either rank or from an older one.

use crate::run_mutants::RunMutation;
use gristmill_model::RunToken;
use gristmill_model::splits::batches::{BatchJoiner, BatchRules, SplitCounts};
use gristmill_model::splits::invariants::{self, InvariantCheck, InvariantViolation};
use gristmill_model::splits::ranks::{
    KnownBatches, RankAssignment, RunRanks, TailPolicy, TrainingStep,
};
use gristmill_model::splits::readers::{RankRange, ReaderProgress, ReaderReport};
use gristmill_model::splits::replicas::RankReplicas;
use gristmill_model::splits::run::{RunJoin, TrainingRun};
use gristmill_model::splits::{
    Cursor, JobProgress, ProgressAck, SplitPlace, TransitionOutcome, TransitionRefusal, ack,
    collected,
};
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

/// Batches of each split; a filter left one of them empty.
const BATCHES: [u32; 3] = [1, 0, 1];
const SPLITS: u32 = BATCHES.len() as u32;
const CUT: BatchRules = BatchRules { size: 1, drop_last: false, in_order: false };
const END: Cursor = Cursor { epoch: 1, batch_index: 0 };

/// A world, and how often things go wrong in it.
#[derive(Debug, Clone)]
pub struct Runs {
    pub mutation: RunMutation,
    /// Ranks of each run; each rank has a reader.
    pub sizes: Vec<u32>,
    pub copies: u8,
    pub wakes: u8,
    pub deaths: u8,
    /// Whether a run may begin at the first batch, even if that has been collected.
    pub rewinds: bool,
    /// Whether all ranks of a run take the same batches.
    pub replicas: bool,
}

impl Runs {
    /// Two ranks, one and two again.
    pub fn resized() -> Self {
        let sizes = vec![2, 1, 2];
        let mutation = RunMutation::None;
        Self { mutation, sizes, copies: 0, wakes: 1, deaths: 0, rewinds: false, replicas: false }
    }

    /// Two ranks and then one, with a call that arrives late.
    pub fn with_late_calls() -> Self {
        Self { sizes: vec![2, 1], copies: 1, wakes: 0, ..Self::resized() }
    }

    /// Two ranks, one of which loses its reader, with a call that arrives late.
    pub fn with_a_reader_that_dies() -> Self {
        Self { sizes: vec![2], wakes: 0, deaths: 1, copies: 1, ..Self::resized() }
    }

    /// Two ranks that take the same batches, and then one.
    pub fn with_replicas() -> Self {
        Self { sizes: vec![2, 1], replicas: true, ..Self::resized() }
    }

    /// As [`Runs::with_replicas`], where one of the two loses its reader, and a call arrives late.
    pub fn with_replicas_that_die() -> Self {
        Self { replicas: true, ..Self::with_a_reader_that_dies() }
    }

    /// Two ranks, and then two that go back to the first batch.
    pub fn rewound() -> Self {
        Self { sizes: vec![2, 2], wakes: 0, rewinds: true, ..Self::resized() }
    }
}

/// A reader process, which serves one rank.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reader {
    rank: u32,
    /// The number of this process, and of the one whose place it took.
    reader: u64,
    over_reader: u64,
    /// That of its run, once it has joined.
    generation: Option<u64>,
    /// The first split that it has not taken in.
    taken: u32,
}

impl Reader {
    fn new(rank: u32) -> Self {
        Self { rank, reader: 1, over_reader: 0, generation: None, taken: 0 }
    }
}

/// A rank of the training program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rank {
    /// Steps taken.
    steps: u64,
    /// Its latest checkpoint.
    saved: Cursor,
    has_ended: bool,
}

impl Rank {
    /// The first batch of the step that it takes next.
    fn next(&self, ranks: &RunRanks) -> Cursor {
        let step = TrainingStep { epoch: ranks.from.epoch, number: self.steps };
        if self.has_ended {
            END
        } else {
            let next = Cursor { epoch: step.epoch, batch_index: ranks.first_of(step) };
            next.max(self.saved)
        }
    }
}

/// A call on its way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Call {
    Join(RunJoin),
    /// From the only reader of a run.
    Ack(ProgressAck),
    Report(ReaderReport),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Commit,
    /// A run begins at the checkpoint of a rank of the run before.
    Begin {
        copy: usize,
    },
    /// A run begins at the first batch.
    Rewind,
    Join {
        reader: usize,
        copy: bool,
    },
    TakeIn(usize),
    TakeStep(usize),
    Save(usize),
    Report {
        reader: usize,
        copy: bool,
    },
    MergeRead,
    MergeWrite,
    Collect,
    LateArrives,
    /// A reader of a superseded run restarts.
    Wakes(usize),
    /// A reader dies, and another process takes its place.
    Dies(usize),
}

/// A run as its launcher knows it, with the processes it started.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Launched {
    number: usize,
    ranks: RunRanks,
    readers: Vec<Reader>,
    trainer: Vec<Rank>,
    /// Whether it begins before the latest checkpoint of the run before.
    goes_back: bool,
    /// Objects before this place may have been deleted when it joined.
    may_lack: SplitPlace,
}

impl Launched {
    fn new(number: usize, count: u32, from: Cursor, replicas: bool) -> Self {
        let rank = Rank { steps: 0, saved: from, has_ended: false };
        let ranks = RunRanks::new(NonZeroU32::new(count).unwrap(), from, TailPolicy::Drop);
        let inner = if replicas { ranks.count } else { NonZeroU32::MIN };
        let replicas = RankReplicas { inner, ..RankReplicas::default() };
        let ranks = RunRanks { replicas, ..ranks };
        let readers = (0..count).map(Reader::new).collect();
        let trainer = vec![rank; count as usize];
        Self { number, ranks, readers, trainer, goes_back: false, may_lack: SplitPlace::default() }
    }

    fn token(&self) -> RunToken {
        RunToken([u8::try_from(self.number).unwrap(); 16])
    }

    fn run(&self) -> TrainingRun {
        TrainingRun { token: self.token(), ranks: self.ranks, epochs: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    job: Option<JobProgress>,
    reports: BTreeMap<u32, ReaderProgress>,
    /// Splits committed, from position 0 on: the first at the start, the others at once.
    committed: u32,
    /// The run whose trainer lives, and before it the superseded ones.
    runs: Vec<Launched>,
    /// Reports that a merge has read.
    read: Option<Vec<ReaderProgress>>,
    late: Option<Call>,
    /// Objects before this place are deleted.
    deleted: SplitPlace,
    /// Batches taken in the current run, and by which data rank.
    owners: BTreeMap<u64, u32>,
    /// Batches taken by earlier runs before the checkpoint at which the next one began.
    before: BTreeSet<u64>,
    copies: u8,
    wakes: u8,
    deaths: u8,
    pub violation: Option<InvariantViolation>,
}

fn counts(splits: u32) -> impl Iterator<Item = SplitCounts> {
    BATCHES
        .into_iter()
        .take(splits as usize)
        .map(|batches| SplitCounts { batches, remainder_rows: 0 })
}

/// The batches that so many splits complete.
fn known(splits: u32) -> KnownBatches {
    let mut joiner = BatchJoiner::new(CUT);
    counts(splits).for_each(|counts| joiner.push(counts, |_| {}));
    KnownBatches::from_joiner(&joiner, SPLITS)
}

/// The next split of a stream from `cursor` on, when `committed` are known.
fn next_split(cursor: Cursor, committed: u32) -> SplitPlace {
    match cursor.epoch {
        0 => {
            let joiner = BatchJoiner::seek(CUT, cursor.batch_index, counts(committed));
            SplitPlace::from_linear(u64::from(joiner.position()), SPLITS)
        }
        _ => SplitPlace::start_of(cursor.epoch),
    }
}

/// The first split that a restart at `cursor` needs. Behind the last batch of an epoch, a reader keeps the last
/// split, because it reports the place as its rank named it.
fn needed(cursor: Cursor, committed: u32) -> SplitPlace {
    let last = SplitPlace::new(cursor.epoch, SPLITS - 1);
    next_split(cursor, committed).min(last)
}

impl Model for Runs {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            job: None,
            reports: BTreeMap::new(),
            committed: 1,
            runs: vec![Launched::new(0, self.sizes[0], Cursor::default(), self.replicas)],
            read: None,
            late: None,
            deleted: SplitPlace::default(),
            owners: BTreeMap::new(),
            before: BTreeSet::new(),
            copies: self.copies,
            wakes: self.wakes,
            deaths: self.deaths,
            violation: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violation.is_some() {
            return;
        }
        let run = state.current();
        if state.committed < SPLITS {
            actions.push(Action::Commit);
        }
        let has_joined = run.readers.iter().any(|reader| reader.generation.is_some());
        if has_joined && state.runs.len() < self.sizes.len() {
            actions.extend((0..run.trainer.len()).map(|copy| Action::Begin { copy }));
            actions.extend(self.rewinds.then_some(Action::Rewind));
        }
        for reader in 0..run.readers.len() {
            possible_of_reader(state, reader, actions);
        }
        if state.wakes > 0 {
            actions.extend((0..state.runs.len() - 1).map(Action::Wakes));
        }
        match state.read {
            Some(_) => actions.push(Action::MergeWrite),
            None if !state.reports.is_empty() => actions.push(Action::MergeRead),
            None => {}
        }
        actions.push(Action::Collect);
        if state.late.is_some() {
            actions.push(Action::LateArrives);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        if let Err(violation) = self.step(&mut next, &action) {
            next.violation = Some(violation);
        }
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties =
            vec![Property::<Self>::always("safe", |_, state: &State| state.violation.is_none())];
        if self.mutation == RunMutation::None {
            properties.push(Property::sometimes("ended", |runs: &Self, state: &State| {
                state.runs.len() == runs.sizes.len() && state.has_ended()
            }));
            properties.push(Property::sometimes("merged", |_, state: &State| {
                state.job.is_some_and(|job| job.durable > Cursor::default())
                    && state.runs.len() == 1
            }));
            if self.sizes.len() > 1 {
                properties.push(Property::sometimes("resumed behind", |_, state: &State| {
                    let is_old = |report: &&ReaderProgress| report.generation < state.generation();
                    let from = state.current().ranks.from;
                    state.reports.values().filter(is_old).any(|old| old.durable > from)
                }));
            }
            if self.rewinds {
                properties.push(Property::sometimes("rewound", |_, state: &State| {
                    state.job.is_some_and(|job| job.durable < job.collected) && state.has_ended()
                }));
            }
            properties.push(Property::sometimes("collected", |_, state: &State| {
                state.deleted > SplitPlace::default()
            }));
        }
        properties
    }
}

fn possible_of_reader(state: &State, r: usize, actions: &mut Vec<Action>) {
    let run = state.current();
    let (reader, rank) = (&run.readers[r], &run.trainer[r]);
    // Late acknowledgements of a single reader are another world's.
    let may_copy = state.may_copy() && run.readers.len() > 1;
    let copies = [false, true].into_iter().take(if may_copy { 2 } else { 1 });
    if reader.generation.is_none() {
        actions.extend(copies.map(|copy| Action::Join { reader: r, copy }));
        return;
    }
    if reader.taken < state.committed {
        actions.push(Action::TakeIn(r));
    }
    // Ranks meet at a barrier: none saves a step, or begins the next one, before all have completed it.
    let is_met = run.trainer.iter().all(|other| other.has_ended || other.steps >= rank.steps);
    if !rank.has_ended && is_met {
        actions.push(Action::TakeStep(r));
    }
    if rank.steps > 0 && is_met {
        actions.push(Action::Save(r));
    }
    actions.extend(copies.map(|copy| Action::Report { reader: r, copy }));
    if state.deaths > 0 {
        actions.push(Action::Dies(r));
    }
}

impl State {
    fn current(&self) -> &Launched {
        self.runs.last().unwrap()
    }

    fn current_mut(&mut self) -> &mut Launched {
        self.runs.last_mut().unwrap()
    }

    fn may_copy(&self) -> bool {
        self.copies > 0 && self.late.is_none()
    }

    fn has_ended(&self) -> bool {
        self.current().trainer.iter().all(|rank| rank.has_ended)
    }

    /// Keeps a copy of a call, which may arrive at any time later.
    fn copied(&mut self, copy: bool, call: &Call) {
        if copy {
            self.copies -= 1;
            self.late = Some(call.clone());
        }
    }

    fn generation(&self) -> u64 {
        self.job.map_or(0, |job| job.generation)
    }
}

impl Runs {
    fn step(&self, state: &mut State, action: &Action) -> InvariantCheck {
        match *action {
            Action::Commit => state.committed = SPLITS,
            Action::Begin { copy } => self.begin(state, state.current().trainer[copy].saved),
            Action::Rewind => {
                self.begin(state, Cursor::default());
                state.current_mut().goes_back = true;
            }
            Action::Join { reader, copy } => self.join(state, reader, copy)?,
            Action::TakeIn(r) => take_in(state, r)?,
            Action::TakeStep(r) => self.take_step(state, r)?,
            Action::Save(r) => {
                let known = known(state.committed);
                let Launched { ranks, trainer, .. } = state.current_mut();
                let step = TrainingStep { epoch: 0, number: trainer[r].steps - 1 };
                trainer[r].saved = trainer[r].saved.max(ranks.cursor_after(step, known));
            }
            Action::Report { reader, copy } => {
                let call = report_of(state, reader);
                state.copied(copy, &call);
                self.apply(state, &call)?;
            }
            Action::MergeRead => state.read = Some(state.reports.values().copied().collect()),
            Action::MergeWrite => {
                let read = state.read.take().unwrap_or_default();
                if let Ok(outcome) = self.mutation.merge(state.job.as_ref(), &read) {
                    write(state, outcome.into_item())?;
                }
            }
            Action::Collect => {
                if let Ok(outcome) = collected(state.job.as_ref()) {
                    state.deleted = state.deleted.max(outcome.item().collected_place);
                    write(state, outcome.into_item())?;
                }
            }
            Action::LateArrives => {
                let call = state.late.take();
                call.map_or(Ok(()), |call| self.apply(state, &call).map(|_| ()))?;
            }
            Action::Wakes(run) => {
                state.wakes -= 1;
                let call = Call::Join(join_of(state, run, 0));
                self.apply(state, &call)?;
            }
            Action::Dies(r) => {
                state.deaths -= 1;
                let rank = state.current().readers[r].rank;
                let found = state.reports.get(&rank).map_or(0, |report| report.reader);
                let place = Reader { reader: 2, over_reader: found, ..Reader::new(rank) };
                state.current_mut().readers[r] = place;
            }
        }
        Ok(())
    }

    /// The launcher ends the trainer and starts another one at `from`.
    fn begin(&self, state: &mut State, from: Cursor) {
        let end = if from.epoch > 0 { u64::MAX } else { from.batch_index };
        let taken: Vec<u64> = state.owners.keys().copied().filter(|batch| *batch < end).collect();
        state.before.extend(taken);
        state.before.retain(|batch| *batch < end);
        state.owners.clear();
        let number = state.runs.len();
        // Nothing but its checkpoints and its token matters of a trainer that has ended.
        let ended = state.current_mut();
        ended.readers = vec![Reader::new(0)];
        for rank in &mut ended.trainer {
            (rank.steps, rank.has_ended) = (0, false);
        }
        state.runs.push(Launched::new(number, self.sizes[number], from, self.replicas));
    }

    fn join(&self, state: &mut State, r: usize, copy: bool) -> InvariantCheck {
        let run = state.runs.len() - 1;
        let command = join_of(state, run, r);
        let call = Call::Join(command);
        state.copied(copy, &call);
        if !self.apply(state, &call)? {
            return Err(InvariantViolation { number: 12, what: "a checkpoint was refused" });
        }
        let job = state.job.unwrap_or_default();
        match state.current().goes_back {
            true if command.start.durable < job.collected => {
                let current = state.current_mut();
                current.may_lack = current.may_lack.max(job.collected_place);
            }
            false if job.durable < job.collected => {
                let what = "the latest checkpoint of a rank was collected";
                return Err(InvariantViolation { number: 12, what });
            }
            _ => {}
        }
        let generation = state.generation();
        let reader = &mut state.current_mut().readers[r];
        reader.generation = Some(generation);
        let taken = command.start.delivered.linear(SPLITS);
        reader.taken = u32::try_from(taken).unwrap().min(SPLITS);
        Ok(())
    }

    fn take_step(&self, state: &mut State, r: usize) -> InvariantCheck {
        let committed = known(state.committed);
        let Launched { ranks, readers, trainer, .. } = state.current().clone();
        let (reader, rank) = (&readers[r], &trainer[r]);
        let step = TrainingStep { epoch: ranks.from.epoch, number: rank.steps };
        let assigned = match step.epoch {
            0 => self.mutation.assign(&ranks, step, reader.rank, committed),
            _ => RankAssignment::End,
        };
        match assigned {
            RankAssignment::Wait => {}
            RankAssignment::Batch { batch_index } => {
                // The split of the batch has not arrived yet.
                if batch_index >= known(reader.taken).count {
                    return Ok(());
                }
                invariants::invariant_23_step_is_released_whole(&ranks, step, committed)?;
                let data_rank = ranks.data_rank(reader.rank);
                let earlier = state.owners.insert(batch_index, data_rank);
                invariants::invariant_20_batch_goes_to_one_rank(earlier, data_rank)?;
                state.current_mut().trainer[r].steps += 1;
            }
            RankAssignment::Repeat { .. } => {
                return Err(InvariantViolation {
                    number: 0,
                    what: "a repeat though the tail is dropped",
                });
            }
            RankAssignment::End => {
                state.current_mut().trainer[r].has_ended = true;
                check_end(state)?;
            }
        }
        Ok(())
    }

    /// One call at the coordinator; returns whether it was accepted.
    fn apply(&self, state: &mut State, call: &Call) -> Result<bool, InvariantViolation> {
        let job = state.job.as_ref();
        match call {
            Call::Join(command) => {
                let answer = self.mutation.join(job, command);
                accept(state, answer)
            }
            Call::Ack(command) => accept(state, ack(job, command, 0)),
            Call::Report(command) => {
                let first = command.ranks.first;
                let answer = self.mutation.report(state.reports.get(&first), command);
                let Ok(outcome) = answer else { return Ok(false) };
                let after = outcome.into_item();
                if let Some(before) = state.reports.get(&first) {
                    invariants::invariant_21_reader_is_monotone(before, &after)?;
                }
                state.reports.insert(first, after);
                Ok(true)
            }
        }
    }
}

fn accept(
    state: &mut State,
    answer: Result<TransitionOutcome<JobProgress>, TransitionRefusal>,
) -> Result<bool, InvariantViolation> {
    match answer {
        Ok(outcome) => write(state, outcome.into_item()).map(|()| true),
        Err(TransitionRefusal::Fenced { .. }) => Ok(false),
        Err(_) => Err(InvariantViolation { number: 0, what: "a call was refused as malformed" }),
    }
}

/// Writes the job's progress, after checking the step.
fn write(state: &mut State, after: JobProgress) -> InvariantCheck {
    if state.job == Some(after) {
        return Ok(());
    }
    invariants::progress_step(state.job.as_ref(), &after)?;
    state.job = Some(after);
    for run in &mut state.runs {
        if after.past.contains(run.token()) {
            run.trainer.clear();
        }
    }
    let of_job = |run: &&Launched| after.run.is_some_and(|current| current.token == run.token());
    let saved = state.runs.iter().find(of_job).map_or(&[][..], |run| &run.trainer);
    invariants::invariant_21_durable_for_every_rank(&after, saved.iter().map(|rank| rank.saved))
}

/// A reader takes in all that is committed. The objects exist, unless the reader is superseded or its
/// run went back: then it computes again what has been collected.
fn take_in(state: &mut State, r: usize) -> InvariantCheck {
    let run = state.current();
    let is_current = state.job.and_then(|job| job.run).is_some_and(|job| job.token == run.token());
    let misses = (run.readers[r].taken..state.committed).any(|position| {
        let place = SplitPlace { epoch: 0, position };
        place < state.deleted && place >= run.may_lack && BATCHES[position as usize] > 0
    });
    if is_current && misses {
        return Err(InvariantViolation { number: 5, what: "a reader misses an object" });
    }
    state.current_mut().readers[r].taken = state.committed;
    Ok(())
}

/// The reader begins at the checkpoint of its run; the successor of a reader that died, where its
/// living rank goes on.
fn join_of(state: &State, run: usize, r: usize) -> RunJoin {
    let found = state.generation();
    let Launched { number, ranks, trainer, readers, .. } = &state.runs[run];
    let is_successor = readers[r].reader > 1;
    let (durable, next) = if is_successor {
        (trainer[r].saved, trainer[r].next(ranks))
    } else {
        (ranks.from, ranks.from)
    };
    let (durable_place, delivered) =
        (needed(durable, state.committed), next_split(next, state.committed));
    let generation = found + 1 + u64::try_from(*number).unwrap();
    let start = ProgressAck {
        generation,
        over: found,
        delivered,
        durable,
        durable_place,
        ended: None,
        local_workers: 0,
    };
    RunJoin { run: state.runs[run].run(), start, is_successor }
}

fn report_of(state: &State, r: usize) -> Call {
    let run = state.current();
    let (reader, rank) = (&run.readers[r], &run.trainer[r]);
    let generation = reader.generation.unwrap_or_default();
    let delivered = SplitPlace::from_linear(u64::from(reader.taken), SPLITS);
    let durable_place = needed(rank.saved, reader.taken);
    let ack = ProgressAck {
        generation,
        over: 0,
        delivered,
        durable: rank.saved,
        durable_place,
        ended: None,
        local_workers: 0,
    };
    let ranks = RankRange { first: reader.rank, count: NonZeroU32::MIN };
    let Reader { reader, over_reader, .. } = *reader;
    if ranks == RankRange::all(run.ranks.count) {
        Call::Ack(ack)
    } else {
        Call::Report(ReaderReport { reader, over_reader, ranks, ack })
    }
}

/// Checks a run some of whose ranks have reached the end.
fn check_end(state: &State) -> InvariantCheck {
    let Launched { ranks, trainer, .. } = state.current();
    let steps: Vec<u64> = trainer.iter().filter(|r| r.has_ended).map(|r| r.steps).collect();
    invariants::invariant_19_ranks_take_equal_steps(ranks.tail, &steps)?;
    if !state.has_ended() || ranks.from == END {
        return Ok(());
    }
    let total = known(SPLITS).count;
    let mut times = vec![0; usize::try_from(total).unwrap()];
    let left_out = total - ranks.left_out(0, total)..total;
    let taken = state.before.iter().chain(state.owners.keys()).copied();
    taken.chain(left_out).for_each(|batch| times[batch as usize] += 1);
    invariants::invariant_08_exactly_once(times)
}
