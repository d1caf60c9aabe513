//! The effect of each action on the state, with every invariant checked on the way.

use crate::mutants::Mutation;
use crate::world::{
    Action, BATCH_SIZE, Call, Held, Late, Message, SPLIT_RECORDS, State, TrainerCall, Worker,
    World, invocation, nonce,
};
use gristmill_model::splits::batches::{BatchJoiner, BatchLocation, SplitRows};
use gristmill_model::splits::collect::{ChunkName, CollectionDecision};
use gristmill_model::splits::epoch::{self, EpochState, SealTransition};
use gristmill_model::splits::invariants::{
    self, EpochView, FoundDeath, InvariantCheck, InvariantViolation,
};
use gristmill_model::splits::{
    Bundle, BundleRetryLimits, BundleState, ClaimTransition, CommittedSplit, Cursor, DeathRecord,
    FailTransition, FlushTransition, JobProgress, LeaseTerm, MarkTransition, ReleaseTransition,
    SplitCommit, SplitKind, SplitOutcome, SplitPlace, TransitionOutcome, TransitionRefusal,
    WorkerTimes, give_back,
};
use gristmill_model::{Attempt, ErrorPolicy, Nonce, Position};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Content differs between attempts here, so that a commit of the wrong object shows.
fn checksum(attempt: Attempt, nonce: Nonce) -> u32 {
    attempt * 256 + u32::from(nonce.0[0])
}

/// A fault of the model or of a caller: no command it sends is ever malformed.
fn unexpected(what: &'static str) -> InvariantViolation {
    InvariantViolation { number: 0, what }
}

const LIMITS: BundleRetryLimits = BundleRetryLimits {
    max_attempts: 50,
    retry_ms: 0,
    poison_strikes: 3,
    on_error: ErrorPolicy::Skip,
};

impl World {
    pub fn step(&self, state: &mut State, action: &Action) -> InvariantCheck {
        match action {
            Action::Call { w, call, lost, copy } => {
                let message = message(state, *w, call);
                if *copy {
                    state.budget.copies -= 1;
                    state.late = Some(Late::Worker(message.clone()));
                }
                self.send(state, *w, message, false, *lost)?;
            }
            Action::Retry(w) => {
                if let Some((message, applied)) = state.workers[usize::from(*w)].pending.take() {
                    self.send(state, *w, message, applied, false)?;
                }
            }
            Action::LateArrives => self.late_arrives(state)?,
            Action::RecordDeath(w) => record_death(self.mutation, state, *w),
            Action::RunControl(w) => {
                if let Some(held) = &mut state.workers[usize::from(*w)].held {
                    held.control = false;
                }
            }
            Action::Run { w, at } => self.run(state, *w, *at),
            Action::Crash(w) => {
                state.budget.crashes -= 1;
                die(state, *w);
            }
            Action::Restart(w) => {
                let worker = &mut state.workers[usize::from(*w)];
                let life = worker.life + 1;
                *worker = Worker { life, ..Worker::new(w + 4 * life, w + 4 * life) };
            }
            Action::Release { invocation, bundle } => self.release(state, *invocation, *bundle)?,
            Action::Take
            | Action::Finish
            | Action::Deliver
            | Action::Save
            | Action::Ack { .. }
            | Action::TrainerCrash
            | Action::Restore { .. } => self.step_trainer(state, action)?,
            Action::Collect | Action::Doom(_) | Action::Delete | Action::Seal | Action::Close => {
                self.step_collector(state, action)?;
            }
        }
        self.check(state)
    }

    /// The invariants of every state.
    fn check(&self, state: &State) -> InvariantCheck {
        let bundles =
            self.bundles.iter().zip(&state.bundles).map(|(r, b)| (r.start, b.as_ref())).collect();
        let progress = state.needed();
        let view = EpochView { epoch: 0, item: Some(&state.epoch), bundles };
        invariants::world(&invariants::SystemView {
            epochs: vec![view],
            progress: progress.as_slice(),
            objects: &self.named(state),
        })?;
        for bundle in state.bundles.iter().flatten() {
            invariants::invariant_14_released_was_reported(bundle, |reported| {
                state.dead.iter().any(|dead| invocation(*dead) == *reported)
            })?;
            invariants::invariant_16_attempts_are_bounded(bundle, LIMITS.max_attempts)?;
        }
        Ok(())
    }

    /// The objects under the names that entries use; a mutation may store them under other keys.
    fn named<'a>(&self, state: &'a State) -> Cow<'a, BTreeMap<ChunkName, u32>> {
        if self.mutation != Mutation::KeyWithoutAttempt {
            return Cow::Borrowed(&state.objects);
        }
        let positions = 0..self.n_splits();
        let named = positions.filter_map(|position| {
            let CommittedSplit { attempt, nonce, .. } = *self.entry(state, position)?;
            let name = ChunkName { epoch: 0, position, attempt, nonce };
            Some((name, *state.objects.get(&self.mutation.key(name))?))
        });
        Cow::Owned(named.collect())
    }

    // ---- workers

    fn send(
        &self,
        state: &mut State,
        w: u8,
        message: Message,
        applied: bool,
        lost: bool,
    ) -> InvariantCheck {
        let answer = self.apply(state, &message);
        if matches!(message.call, Call::Flush(_)) {
            invariants::invariant_13_applied_is_never_failed(applied, &answer)?;
        }
        let worker = &mut state.workers[usize::from(w)];
        if lost {
            state.budget.lost_answers -= 1;
            worker.pending = Some((message, answer.is_ok()));
            return Ok(());
        }
        hear(worker, &message, answer)
    }

    /// Delivers the copy of a call; its answer is dropped.
    fn late_arrives(&self, state: &mut State) -> InvariantCheck {
        match state.late.take() {
            Some(Late::Worker(message)) => {
                let _ = self.apply(state, &message);
            }
            Some(Late::Trainer(call)) => {
                self.apply_trainer(state, &call)?;
            }
            None => {}
        }
        Ok(())
    }

    /// One call at the coordinator: read, decide, write.
    fn apply(
        &self,
        state: &mut State,
        message: &Message,
    ) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
        let before = state.bundles[message.bundle].clone();
        let (attempt, nonce) = (message.attempt, nonce(message.nonce));
        let answer = match &message.call {
            Call::Claim { expired, death, .. } => {
                let control = self.control(state);
                self.claim(before.as_ref(), message, *expired, *death, control)
            }
            Call::Mark(split_index) => self.mutation.mark(
                before.as_ref(),
                &MarkTransition { attempt, nonce, split_index: *split_index },
            ),
            Call::Flush(put) => {
                let commits: Vec<_> = put
                    .iter()
                    .map(|at| commit(message, *at, self.is_local(message.nonce)))
                    .collect();
                let term = LeaseTerm { now_ms: 0, remaining_ms: 0, predicted_ms: 0 };
                let times = WorkerTimes::default();
                let command =
                    FlushTransition { attempt, nonce, commits: &commits, next: None, term, times };
                self.mutation.flush(before.as_ref(), &command)
            }
            Call::Fail => {
                let command =
                    FailTransition { attempt, nonce, error: "", retry_at_ms: 0, fatal: false };
                self.mutation.fail(before.as_ref(), &command)
            }
            Call::GiveBack => give_back(before.as_ref(), attempt, nonce),
        };
        if let (
            Call::Claim { death: Some(death), .. },
            Ok(TransitionOutcome::Write(_)),
            Some(before),
        ) = (&message.call, &answer, &before)
        {
            // The claim's view of the mark counts, not the one when the death was recorded.
            let bundle = u32::try_from(message.bundle).unwrap();
            let record = DeathRecord { epoch: 0, bundle, attempt: before.attempt };
            if death.attempt == before.attempt
                && matches!(before.state, BundleState::Leased | BundleState::Released)
                && let Some(found) = state.found.iter_mut().find(|found| found.death == record)
            {
                found.split_index = before.current_split;
                found.controlled = before.had_control();
            }
        }
        if let Ok(TransitionOutcome::Write(after)) = &answer
            && let Err(violation) = self.write(state, message.bundle, after.clone())
        {
            state.violation = Some(violation);
        }
        answer
    }

    fn claim(
        &self,
        before: Option<&Bundle>,
        message: &Message,
        expired: bool,
        death: Option<gristmill_model::splits::DeathEvidence>,
        control: Option<SplitPlace>,
    ) -> Result<TransitionOutcome<Bundle>, TransitionRefusal> {
        let positions = &self.bundles[message.bundle];
        // The time is chosen for each bundle: within its lease, or at its end.
        let due = before.map_or(0, |before| match before.state {
            BundleState::Failed => before.retry_at_ms,
            _ if expired => before.until_ms,
            _ => 0,
        });
        let command = ClaimTransition {
            nonce: nonce(message.nonce),
            invocation: &invocation(message.invocation),
            term: LeaseTerm { now_ms: due, remaining_ms: 0, predicted_ms: 0 },
            first: positions.start,
            records: &vec![SPLIT_RECORDS; positions.len()],
            death,
            control,
        };
        self.mutation.claim(before, &command, &LIMITS)
    }

    /// A committed split, if there is one.
    fn control(&self, state: &State) -> Option<SplitPlace> {
        let committed = |position: &Position| {
            self.entry(state, *position)
                .is_some_and(|entry| entry.outcome.kind != SplitKind::Poison)
        };
        (0..self.n_splits()).find(committed).map(|position| SplitPlace { epoch: 0, position })
    }

    /// Writes a bundle to the table, after checking the step.
    fn write(&self, state: &mut State, b: usize, mut after: Bundle) -> InvariantCheck {
        let before = state.bundles[b].as_ref();
        invariants::bundle_step(before, &after)?;
        let first = self.bundles[b].start;
        invariants::invariant_02_one_commit_per_split(&mut state.seen, 0, first, &after)?;
        let poisoned = |bundle: &Bundle| {
            let poison = |e: &&CommittedSplit| e.outcome.kind == SplitKind::Poison;
            bundle.entries.iter().flatten().filter(poison).count()
        };
        if before.map_or(0, poisoned) < poisoned(&after) {
            let index = u32::try_from(b).unwrap();
            invariants::invariant_14_deaths_were_isolated(0, index, &after, &state.found)?;
        }
        // Absolute times and messages would distinguish equal states.
        if after.state == BundleState::Leased {
            after.until_ms = 1;
        }
        after.retry_at_ms = after.retry_at_ms.min(1);
        after.since_ms = 0;
        after.error = None;
        state.bundles[b] = Some(after);
        Ok(())
    }

    /// The first run of worker 0 is inside the trainer's host, in worlds that have local workers.
    fn is_local(&self, nonce: u8) -> bool {
        self.local && nonce == 0
    }

    fn run(&self, state: &mut State, w: u8, at: u8) {
        let worker = &mut state.workers[usize::from(w)];
        let Some(held) = &mut worker.held else { return };
        let position = self.bundles[held.bundle].start + u32::from(at);
        if self.poison == Some(position) {
            die(state, w);
            return;
        }
        held.put.push(at);
        if self.is_local(worker.nonce) {
            return;
        }
        let (attempt, nonce) = (held.attempt, nonce(worker.nonce));
        let name = ChunkName { epoch: 0, position, attempt, nonce };
        // If-None-Match: the first put stays.
        let content = checksum(attempt, nonce);
        state.objects.entry(self.mutation.key(name)).or_insert(content);
    }

    fn release(&self, state: &mut State, dead: u8, b: usize) -> InvariantCheck {
        let command =
            ReleaseTransition { invocation: &invocation(dead), attempt: None, blameless: false };
        let answer = self.mutation.release(state.bundles[b].as_ref(), &command);
        match answer {
            Ok(TransitionOutcome::Write(after)) => self.write(state, b, after),
            _ => Ok(()),
        }
    }

    // ---- the trainer

    fn step_trainer(&self, state: &mut State, action: &Action) -> InvariantCheck {
        match action {
            Action::Take => self.take(state)?,
            Action::Finish => {
                let trainer = &mut state.trainer;
                trainer.finished = true;
                let (joiner, needed) = (trainer.joiner.clone(), trainer.joiner.first_needed());
                let last = joiner.finish().filter(|batch| batch.batch_index >= trainer.next);
                trainer.queue.extend(last.map(|batch| (batch, needed)));
            }
            Action::Deliver => {
                let Some((batch, _)) = state.trainer.queue.pop_front() else { return Ok(()) };
                state.trainer.next = batch.batch_index + 1;
                if let Some(first) = state.delivered.insert(batch.batch_index, batch.clone()) {
                    state.replayed = true;
                    invariants::invariant_07_replay_is_identical(&first, &batch)?;
                }
            }
            Action::Save => {
                let trainer = &mut state.trainer;
                trainer.saved = [trainer.checkpoint(), trainer.saved[0]];
            }
            Action::Ack { copy } => {
                let call = state.trainer_call();
                if *copy {
                    state.budget.copies -= 1;
                    state.late = Some(Late::Trainer(call.clone()));
                }
                self.apply_trainer(state, &call)?;
            }
            Action::TrainerCrash => {
                state.budget.trainer_crashes -= 1;
                state.trainer.alive = false;
            }
            Action::Restore { older } => self.restore(state, *older)?,
            _ => {}
        }
        Ok(())
    }

    fn entry<'a>(&self, state: &'a State, position: Position) -> Option<&'a CommittedSplit> {
        let b = self.bundle_of(position);
        let at = u8::try_from(position - self.bundles[b].start).ok()?;
        state.bundles[b].as_ref()?.entry(at)
    }

    /// Reads the next split if it is committed.
    fn take(&self, state: &mut State) -> InvariantCheck {
        let Some(entry) = self.entry(state, state.trainer.joiner.position()).copied() else {
            return Ok(());
        };
        self.read(state, state.trainer.joiner.position())?;
        let mut made = Vec::new();
        let trainer = &mut state.trainer;
        let needed = trainer.joiner.first_needed();
        trainer.joiner.push(entry.outcome.counts(), |batch| made.push(batch));
        let made = made.into_iter().filter(|batch| batch.batch_index >= trainer.next);
        trainer.queue.extend(made.map(|batch| (batch, needed)));
        Ok(())
    }

    /// A trainer that is not fenced finds every object it asks for. One whose run began behind the horizon computes
    /// again what is deleted there.
    fn read(&self, state: &State, position: Position) -> InvariantCheck {
        let entry = self.entry(state, position).ok_or(unexpected("read before commit"))?;
        if entry.outcome.kind != SplitKind::Object {
            return Ok(());
        }
        let is_found = match self.object(state, position, entry) {
            Some(content) => content == entry.outcome.crc32c,
            None => state.trainer.computes_again(position),
        };
        if is_found {
            Ok(())
        } else {
            Err(InvariantViolation { number: 5, what: "the trainer misses an object" })
        }
    }

    /// The content of the object of a committed split, if it exists.
    fn object(&self, state: &State, position: Position, entry: &CommittedSplit) -> Option<u32> {
        let CommittedSplit { attempt, nonce, .. } = *entry;
        let name = self.mutation.key(ChunkName { epoch: 0, position, attempt, nonce });
        state.objects.get(&name).copied()
    }

    /// Whether the next split that the trainer takes is one that it computes again.
    pub fn is_computed_again(&self, state: &State) -> bool {
        let trainer = &state.trainer;
        let position = trainer.joiner.position();
        let is_gone = |entry: &CommittedSplit| self.object(state, position, entry).is_none();
        trainer.alive
            && trainer.computes_again(position)
            && self.entry(state, position).is_some_and(is_gone)
    }

    /// One call of the trainer at the coordinator; returns whether it was accepted.
    fn apply_trainer(
        &self,
        state: &mut State,
        call: &TrainerCall,
    ) -> Result<bool, InvariantViolation> {
        let before = state.progress;
        let (generation, answer) = match call {
            TrainerCall::Join(join) => {
                (join.start.generation, self.mutation.join(before.as_ref(), join))
            }
            TrainerCall::Ack(ack) => (ack.generation, self.mutation.ack(before.as_ref(), ack)),
        };
        match answer {
            Ok(TransitionOutcome::Write(after)) => {
                invariants::invariant_11_old_generations_are_fenced(
                    before.as_ref(),
                    generation,
                    true,
                )?;
                invariants::progress_step(before.as_ref(), &after)?;
                state.progress = Some(after);
                Ok(true)
            }
            Ok(TransitionOutcome::AlreadyApplied(_)) => Ok(true),
            Err(TransitionRefusal::Fenced { .. }) => Ok(false),
            Err(_) => Err(unexpected("a trainer's call was refused as malformed")),
        }
    }

    /// Restarts the trainer from a checkpoint, which may lie behind the horizon.
    fn restore(&self, state: &mut State, older: bool) -> InvariantCheck {
        let saved = state.trainer.saved[usize::from(older)];
        let counts = (0..self.n_splits())
            .map_while(|p| self.entry(state, p))
            .map(|entry| entry.outcome.counts());
        let joiner = BatchJoiner::seek(self.cut(), saved.batch_index, counts);
        let needed: Vec<_> = joiner.carry().map(|piece| piece.position).collect();
        let trainer = &mut state.trainer;
        let JobProgress { generation, collected, collected_place, .. } =
            state.progress.unwrap_or_default();
        trainer.generation += 1;
        trainer.over = generation;
        trainer.began = saved;
        let is_behind = Cursor::new(0, saved.batch_index) < collected;
        trainer.began_behind = is_behind.then_some(collected_place.position);
        trainer.alive = true;
        trainer.finished = false;
        trainer.queue.clear();
        trainer.next = saved.batch_index;
        trainer.joiner = joiner;
        trainer.saved = [saved, saved];
        let call = state.trainer_call();
        if !self.apply_trainer(state, &call)? {
            return Err(InvariantViolation { number: 12, what: "a checkpoint was refused" });
        }
        needed.into_iter().try_for_each(|position| self.read(state, position))
    }

    // ---- the collector

    fn step_collector(&self, state: &mut State, action: &Action) -> InvariantCheck {
        match action {
            Action::Collect => {
                if let Ok(TransitionOutcome::Write(after)) =
                    self.mutation.collected(state.progress.as_ref())
                {
                    let before = state.progress;
                    state.progress = Some(after);
                    invariants::progress_step(before.as_ref(), &after)?;
                }
            }
            Action::Doom(name) => {
                let b = self.bundle_of(name.position);
                let horizon = state.progress.map_or(SplitPlace::default(), |of| of.collected_place);
                let bundle = state.bundles[b].as_ref();
                let first = self.bundles[b].start;
                let decision = self.mutation.decide(name, bundle, first, horizon);
                if decision != CollectionDecision::Keep {
                    state.doomed = Some((*name, decision));
                }
            }
            Action::Delete => {
                let Some((name, decision)) = state.doomed.take() else { return Ok(()) };
                let b = self.bundle_of(name.position);
                let progress = state.needed();
                let (bundle, first) = (state.bundles[b].as_ref(), self.bundles[b].start);
                invariants::invariant_06_only_useless_objects_go(
                    &name,
                    decision,
                    bundle,
                    first,
                    progress.as_slice(),
                )?;
                state.objects.remove(&name);
                state.deleted_passed |= decision == CollectionDecision::DeletePassed;
            }
            Action::Seal => self.seal(state)?,
            Action::Close => {
                if let Some(progress) = &state.progress
                    && let Ok(TransitionOutcome::Write(after)) =
                        epoch::close(Some(&state.epoch), 0, progress.durable)
                {
                    state.epoch = after;
                    self.check_exactly_once(state)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn seal(&self, state: &mut State) -> InvariantCheck {
        let bundles: Vec<_> = state.bundles.iter().map(Option::as_ref).collect();
        let command = SealTransition {
            bundles: &bundles,
            cached: None,
            batch_size: BATCH_SIZE,
            drop_last: false,
            max_skipped: 100,
        };
        if let Ok(TransitionOutcome::Write(after)) = epoch::seal(Some(&state.epoch), &command) {
            state.epoch = after;
        }
        Ok(())
    }

    fn check_exactly_once(&self, state: &State) -> InvariantCheck {
        debug_assert_eq!(state.epoch.state, EpochState::Closed);
        let mut times = vec![0; (self.n_splits() * SPLIT_RECORDS) as usize];
        let rows = state.delivered.values().flat_map(|batch| match &batch.source {
            BatchLocation::Whole { position, frame } => {
                vec![SplitRows {
                    position: *position,
                    rows: frame * BATCH_SIZE..(frame + 1) * BATCH_SIZE,
                }]
            }
            BatchLocation::Joined(pieces) => pieces.clone(),
        });
        let records: Vec<u32> = rows
            .flat_map(|SplitRows { position, rows }| {
                rows.map(move |row| position * SPLIT_RECORDS + row)
            })
            .collect();
        records.iter().for_each(|record| times[*record as usize] += 1);
        if self.in_order {
            invariants::invariant_28_in_order(&records)?;
        }
        invariants::invariant_08_exactly_once(times)
    }
}

/// Message of a worker.
fn message(state: &mut State, w: u8, call: &Call) -> Message {
    let worker = &state.workers[usize::from(w)];
    let (bundle, attempt) = match (call, &worker.held) {
        (Call::Claim { bundle, .. }, _) => (*bundle, 0),
        (_, held) => held.as_ref().map_or((0, 0), |held| (held.bundle, held.attempt)),
    };
    if let Call::Claim { expired: true, death: Some(_), .. } = call {
        let owner = state.bundles[bundle].as_ref().map(|bundle| bundle.owner);
        let lives = |w: &Worker| w.alive && Some(nonce(w.nonce)) == owner;
        let steals = u8::from(state.workers.iter().any(lives));
        state.budget.steals = state.budget.steals.saturating_sub(steals);
    }
    let worker = &state.workers[usize::from(w)];
    Message {
        nonce: worker.nonce,
        invocation: worker.invocation,
        bundle,
        attempt,
        call: call.clone(),
    }
}

/// A worker receives the answer to its call.
fn hear(
    worker: &mut Worker,
    message: &Message,
    answer: Result<TransitionOutcome<Bundle>, TransitionRefusal>,
) -> InvariantCheck {
    match (&message.call, answer) {
        (Call::Claim { bundle, .. }, Ok(outcome)) => {
            worker.death = None;
            let after = outcome.item();
            worker.held = after.is_held_by(nonce(message.nonce)).then(|| Held {
                bundle: *bundle,
                attempt: after.attempt,
                todo: after.todo(),
                marks: after.attempt >= 2,
                marked: None,
                control: after.control.is_some(),
                put: Vec::new(),
            });
        }
        (
            Call::Claim { bundle, .. },
            Err(TransitionRefusal::DeathUnrecorded { attempt, split_index: at }),
        ) => {
            let bundle = u32::try_from(*bundle).unwrap();
            worker.found = Some((DeathRecord { epoch: 0, bundle, attempt }, at));
        }
        (Call::Claim { .. }, Err(_)) => worker.death = None,
        (Call::Fail | Call::GiveBack, _) | (_, Err(TransitionRefusal::Lost)) => worker.held = None,
        (Call::Mark(at), Ok(_)) => {
            if let Some(held) = &mut worker.held {
                held.marked = Some(*at);
            }
        }
        (Call::Flush(put), Ok(_)) => {
            if let Some(held) = &mut worker.held {
                held.todo.retain(|at| !put.contains(at));
                held.put.clear();
                held.marked = None;
            }
            if worker.held.as_ref().is_some_and(|held| held.todo.is_empty()) {
                worker.held = None;
            }
        }
        (_, Err(_)) => return Err(unexpected("a worker's call was refused as malformed")),
    }
    Ok(())
}

fn record_death(mutation: Mutation, state: &mut State, w: u8) {
    let worker = &mut state.workers[usize::from(w)];
    let Some((death, at)) = worker.found.take() else { return };
    let outcome = mutation.record(state.log.as_ref(), death, at.is_some());
    if let TransitionOutcome::Write(log) = &outcome {
        state.found.retain(|found| found.death != death);
        state.log = Some(log.clone());
    }
    // Includes deaths that are not written to the log.
    if !state.found.iter().any(|found| found.death == death) {
        state.found.push(FoundDeath { death, split_index: at, controlled: false });
    }
    let bundle = usize::try_from(death.bundle).unwrap();
    worker.death = Some((bundle, outcome.item().death(death, at.is_some())));
}

fn die(state: &mut State, w: u8) {
    let worker = &mut state.workers[usize::from(w)];
    worker.alive = false;
    worker.held = None;
    worker.pending = None;
    worker.found = None;
    worker.death = None;
    state.dead.insert(worker.invocation);
}

fn commit(message: &Message, at: u8, local: bool) -> SplitCommit {
    SplitCommit {
        split_index: at,
        outcome: SplitOutcome {
            kind: if local { SplitKind::Local } else { SplitKind::Object },
            object_bytes: 1,
            crc32c: checksum(message.attempt, nonce(message.nonce)),
            rows: SPLIT_RECORDS,
            batches: SPLIT_RECORDS / BATCH_SIZE,
            remainder_rows: SPLIT_RECORDS % BATCH_SIZE,
            skipped_records: 0,
        },
    }
}
