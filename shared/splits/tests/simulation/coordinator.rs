//! Coordinators: each call is a task that reads, decides and writes in steps of its own, so that any
//! two calls interleave in any way, and that may die between two of them.

use crate::sim::{BundleKey, Event, Sim, Versioned};
use gristmill_splits::epoch::{self, Seal};
use gristmill_splits::invariants::{self, Check};
use gristmill_splits::window::Ahead;
use gristmill_splits::{
    Ack, Bundle, BundleState, Claim, Commit, Consumer, Cursor, Death, DeathLog, DeathRecord, Fail,
    Flush, LeaseView, Mark, Metrics, Outcome, Refusal, Release, Term, ack, claim, collected, fail,
    flush, mark, release, retry_delay_ms,
};
use gristmill_types::{Attempt, Epoch, InvocationId, Nonce};
use std::collections::VecDeque;

#[derive(Debug, Clone)]
pub enum Call {
    Claim { nonce: Nonce, invocation: InvocationId },
    Mark { key: BundleKey, attempt: Attempt, nonce: Nonce, cur: u8 },
    Flush { key: BundleKey, attempt: Attempt, nonce: Nonce, commits: Vec<Commit>, next: Option<u8> },
    Fail { key: BundleKey, attempt: Attempt, nonce: Nonce },
    Release { invocation: InvocationId, key: BundleKey },
    Ack(Ack),
    Collect,
    Seal(Epoch),
    Close(Epoch),
}

/// What a worker is told.
#[derive(Debug, Clone)]
pub enum Answer {
    Leased(BundleKey, LeaseView),
    Idle,
    Applied,
    Refused(Refusal),
}

/// A call under way at one coordinator.
#[derive(Debug, Clone)]
pub struct Task {
    /// Names the call; copies and repetitions keep the number.
    pub number: u64,
    pub caller: Option<usize>,
    pub call: Call,
    /// How far this coordinator's clock is off; 600,000 is right.
    skew_ms: u64,
    step: Step,
}

#[derive(Debug, Clone)]
enum Step {
    Read,
    Bundle {
        key: BundleKey,
        read: Versioned<Bundle>,
        death: Option<Death>,
        rest: VecDeque<BundleKey>,
    },
    Log {
        key: BundleKey,
        death: DeathRecord,
        at: Option<u8>,
        read: Versioned<DeathLog>,
        rest: VecDeque<BundleKey>,
    },
    Consumer {
        read: Versioned<Consumer>,
    },
}

impl Task {
    pub fn new(number: u64, caller: Option<usize>, call: Call, skew_ms: u64) -> Self {
        Self { number, caller, call, skew_ms, step: Step::Read }
    }
}

/// Compare-and-set: the item as it is when somebody else was faster.
fn put<T: Clone>(slot: &mut Versioned<T>, expected: u64, item: T) -> Result<(), Versioned<T>> {
    if slot.version != expected {
        return Err(slot.clone());
    }
    *slot = Versioned { version: expected + 1, item: Some(item) };
    Ok(())
}

impl Sim {
    /// One step of one call.
    pub fn coordinate(&mut self, mut task: Task) -> Check {
        if self.fault(1) {
            return Ok(()); // The coordinator dies; whoever called waits in vain.
        }
        let now_ms = (self.now_ms + 1_000_000 + task.skew_ms).saturating_sub(600_000);
        match task.step.clone() {
            Step::Read => self.read(task, now_ms),
            Step::Bundle { key, read, death, rest } => {
                self.write_bundle(task, now_ms, key, read, death, rest)
            }
            Step::Log { key, death, at, read, rest } => {
                let outcome = DeathLog::record(read.item.as_ref(), death);
                if let Outcome::Write(log) = &outcome {
                    if let Err(current) = put(&mut self.table.log, read.version, log.clone()) {
                        self.conflicts += 1;
                        task.step = Step::Log { key, death, at, read: current, rest };
                        return self.go_on(task);
                    }
                    self.found.push((death, at));
                }
                let death = outcome.item().death(death);
                let read = self.table.bundles.get(&key).cloned().unwrap_or_default();
                task.step = Step::Bundle { key, read, death, rest };
                self.go_on(task)
            }
            Step::Consumer { read } => self.write_consumer(task, now_ms, read),
        }
    }

    fn go_on(&mut self, task: Task) -> Check {
        let latency_ms = self.latency_ms();
        self.schedule(latency_ms, Event::Coordinate(Box::new(task)));
        Ok(())
    }

    fn read(&mut self, mut task: Task, now_ms: u64) -> Check {
        let mut rest = VecDeque::new();
        match &task.call {
            Call::Claim { nonce, .. } => rest = self.candidates(*nonce, now_ms),
            Call::Mark { key, .. }
            | Call::Flush { key, .. }
            | Call::Fail { key, .. }
            | Call::Release { key, .. } => rest.push_back(*key),
            Call::Ack(_) | Call::Collect => {
                task.step = Step::Consumer { read: self.table.consumer.clone() };
                return self.go_on(task);
            }
            Call::Seal(epoch) => return self.seal(*epoch),
            Call::Close(epoch) => return self.close(*epoch),
        }
        let Some(key) = rest.pop_front() else { return self.answer(&task, Answer::Idle) };
        let read = self.table.bundles.get(&key).cloned().unwrap_or_default();
        task.step = Step::Bundle { key, read, death: None, rest };
        self.go_on(task)
    }

    /// Bundles in the window that may be claimed, the caller's own first.
    fn candidates(&self, nonce: Nonce, now_ms: u64) -> VecDeque<BundleKey> {
        let n = self.ramp.n_splits();
        let consumer = self.table.consumer.item.unwrap_or_default();
        let delivered = consumer.delivered.linear(n);
        let mut ahead = Ahead { delivered, ready: 0, ready_bytes: 0 };
        let linear = |(epoch, bundle): BundleKey| {
            let start = u64::from(epoch) * u64::from(n);
            let positions = self.ramp.positions(bundle);
            start + u64::from(positions.start)..start + u64::from(positions.end)
        };
        for key in self.bundles() {
            let entries = self.bundle(key).into_iter().flat_map(|bundle| &bundle.entries);
            for (at, entry) in linear(key).zip(entries) {
                if let Some(entry) = entry.filter(|_| at >= delivered) {
                    ahead.ready += 1;
                    ahead.ready_bytes += entry.bytes;
                }
            }
        }
        let own = |key: &BundleKey| {
            self.bundle(*key).is_some_and(|b| b.state == BundleState::Leased && b.owner == nonce)
        };
        let due = |key: &BundleKey| {
            let at_ms = self.bundle(*key).map_or(Some(0), Bundle::claimable_at_ms);
            at_ms.is_some_and(|at_ms| at_ms <= now_ms) && self.window.admits(ahead, &linear(*key))
        };
        let others = self.bundles().filter(|key| due(key) && !own(key));
        self.bundles().filter(own).chain(others).collect()
    }

    fn write_bundle(
        &mut self,
        mut task: Task,
        now_ms: u64,
        key: BundleKey,
        read: Versioned<Bundle>,
        death: Option<Death>,
        mut rest: VecDeque<BundleKey>,
    ) -> Check {
        let decided = self.decide(&task.call, now_ms, key, read.item.as_ref(), death);
        if let Ok(Outcome::Write(after)) = &decided {
            // On a failed condition the table says what is there: decide again on that.
            let slot = self.table.bundles.entry(key).or_default();
            if slot.version != read.version {
                self.conflicts += 1;
                task.step = Step::Bundle { key, read: slot.clone(), death, rest };
                return self.go_on(task);
            }
            self.note_mark(&task.call, read.item.as_ref(), death);
            self.check_write(key, after)?;
            let slot = self.table.bundles.entry(key).or_default();
            let written = put(slot, read.version, after.clone());
            debug_assert!(written.is_ok());
            self.changed = true;
            self.applied.insert(task.number);
            self.notice_death_of_job(after);
        }
        if let (Call::Claim { nonce, .. }, decided) = (&task.call, &decided) {
            let answer = match decided {
                Ok(outcome) => {
                    let held = outcome.item().lease().filter(|_| outcome.item().owner == *nonce);
                    held.map(|lease| Answer::Leased(key, lease))
                }
                Err(Refusal::DeathUnrecorded { attempt, at }) => {
                    let death = DeathRecord { epoch: key.0, bundle: key.1, attempt: *attempt };
                    let read = self.table.log.clone();
                    task.step = Step::Log { key, death, at: *at, read, rest };
                    return self.go_on(task);
                }
                Err(_) => None,
            };
            let Some(answer) = answer else {
                let Some(key) = rest.pop_front() else { return self.answer(&task, Answer::Idle) };
                let read = self.table.bundles.get(&key).cloned().unwrap_or_default();
                task.step = Step::Bundle { key, read, death: None, rest };
                return self.go_on(task);
            };
            return self.answer(&task, answer);
        }
        if matches!(task.call, Call::Flush { .. }) {
            let applied = self.applied.contains(&task.number);
            invariants::invariant_13_applied_is_never_failed(applied, &decided)?;
        }
        match decided {
            Ok(_) => self.answer(&task, Answer::Applied),
            Err(refusal) => self.answer(&task, Answer::Refused(refusal)),
        }
    }

    /// What counts of a death is the mark the claim sees, not the one seen when it was recorded.
    fn note_mark(&mut self, call: &Call, before: Option<&Bundle>, death: Option<Death>) {
        let (Call::Claim { .. }, Some(before), Some(death)) = (call, before, death) else { return };
        let ordinal = usize::try_from(death.ordinal).unwrap();
        if let Some((record, at)) = self.found.get_mut(ordinal - 1)
            && record.attempt == before.attempt
            && matches!(before.state, BundleState::Leased | BundleState::Released)
        {
            *at = before.cur;
        }
    }

    fn decide(
        &self,
        call: &Call,
        now_ms: u64,
        key: BundleKey,
        before: Option<&Bundle>,
        death: Option<Death>,
    ) -> Result<Outcome<Bundle>, Refusal> {
        let term = Term { now_ms, remaining_ms: 60_000, predicted_ms: 500 };
        match call {
            Call::Claim { nonce, invocation } => {
                let first = self.ramp.positions(key.1).start;
                let records = &self.records(key);
                let nonce = *nonce;
                let command = Claim { nonce, invocation, term, first, records, death };
                claim(before, &command, &self.limits)
            }
            Call::Mark { attempt, nonce, cur, .. } => {
                mark(before, &Mark { attempt: *attempt, nonce: *nonce, cur: *cur })
            }
            Call::Flush { attempt, nonce, commits, next, .. } => {
                let (attempt, nonce, next) = (*attempt, *nonce, *next);
                let spent = Metrics { source_ms: 1, compute_ms: 2, put_ms: 3 };
                flush(before, &Flush { attempt, nonce, commits, next, term, spent })
            }
            Call::Fail { attempt, nonce, .. } => {
                let retry_at_ms = now_ms + retry_delay_ms(*attempt);
                let (attempt, nonce, error) = (*attempt, *nonce, "storage is throttled");
                fail(before, &Fail { attempt, nonce, error, retry_at_ms, fatal: false })
            }
            Call::Release { invocation, .. } => {
                release(before, &Release { invocation, attempt: None, blameless: false })
            }
            Call::Ack(_) | Call::Collect | Call::Seal(_) | Call::Close(_) => Err(Refusal::Lost),
        }
    }

    fn write_consumer(&mut self, mut task: Task, now_ms: u64, read: Versioned<Consumer>) -> Check {
        let before = read.item.as_ref();
        let decided = match &task.call {
            Call::Ack(command) => ack(before, &Ack { now_ms, ..*command }),
            _ => collected(before),
        };
        if let Ok(Outcome::Write(after)) = &decided {
            invariants::consumer_step(before, after)?;
            if let Call::Ack(command) = &task.call {
                let generation = command.generation;
                invariants::invariant_11_old_generations_are_fenced(before, generation, true)?;
            }
            self.changed = true;
            if let Err(current) = put(&mut self.table.consumer, read.version, *after) {
                self.conflicts += 1;
                task.step = Step::Consumer { read: current };
                return self.go_on(task);
            }
        }
        match (&task.call, decided) {
            (Call::Ack(ack), Err(refusal)) => self.ack_refused(ack.generation, &refusal),
            (Call::Ack(ack), Ok(_)) => self.ack_accepted(ack.generation),
            _ => {}
        }
        Ok(())
    }

    fn seal(&mut self, epoch: Epoch) -> Check {
        let bundles: Vec<_> = (0..self.ramp.bundles()).map(|b| self.bundle((epoch, b))).collect();
        let batch_size = self.batch_size;
        let command = Seal { bundles: &bundles, batch_size, drop_last: false, max_skipped: 1_000 };
        let slot = self.table.epochs[&epoch].clone();
        if let Ok(Outcome::Write(after)) = epoch::seal(slot.item.as_ref(), &command) {
            self.changed = true;
            let version = slot.version + 1;
            self.table.epochs.insert(epoch, Versioned { version, item: Some(after) });
        }
        Ok(())
    }

    fn close(&mut self, epoch: Epoch) -> Check {
        let durable: Vec<Cursor> = self.table.consumer.item.iter().map(|c| c.durable).collect();
        let slot = self.table.epochs[&epoch].clone();
        if let Ok(Outcome::Write(after)) = epoch::close(slot.item.as_ref(), epoch, &durable) {
            self.changed = true;
            let version = slot.version + 1;
            self.table.epochs.insert(epoch, Versioned { version, item: Some(after) });
        }
        Ok(())
    }

    fn answer(&mut self, task: &Task, answer: Answer) -> Check {
        let Some(w) = task.caller else { return Ok(()) };
        if !self.fault(4) {
            let latency_ms = self.latency_ms();
            self.schedule(latency_ms, Event::Hear { w, call: task.number, answer });
        }
        Ok(())
    }
}
