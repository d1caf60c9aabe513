//! Those who call: workers, the trainer, and the tidying that follows it.

use crate::coordinator::{Answer, Call};
use crate::sim::{BundleKey, Event, LATEST_MS, Sim};
use gristmill_splits::batches::{Batch, Counts, Joiner};
use gristmill_splits::collect::{self, ChunkName, Verdict};
use gristmill_splits::invariants::{self, Check, Violation};
use gristmill_splits::{Ack, Commit, Cursor, Entry, EntryKind, Place, Refusal};
use gristmill_types::{Attempt, Epoch, InvocationId, Nonce};
use std::collections::VecDeque;

/// Content differs between attempts here, so that a commit that points at the wrong one shows.
fn checksum(attempt: Attempt, nonce: Nonce) -> u32 {
    attempt * 65_536 + u32::from(nonce.0[0]) * 256 + u32::from(nonce.0[1])
}

#[derive(Debug)]
pub struct Worker {
    alive: bool,
    nonce: Nonce,
    invocation: InvocationId,
    /// Runs in the trainer's host: commits without objects.
    local: bool,
    held: Option<Held>,
    /// The call it waits for, to be sent again if no answer comes.
    waiting: Option<(u64, Call)>,
}

#[derive(Debug)]
struct Held {
    key: BundleKey,
    attempt: Attempt,
    todo: VecDeque<u8>,
    marks: bool,
    marked: Option<u8>,
    put: Vec<Commit>,
}

impl Sim {
    /// Keeps as many workers as there should be; one event may start two.
    pub fn spawn(&mut self) -> Check {
        if self.is_over() {
            return Ok(());
        }
        while self.workers.iter().filter(|worker| worker.alive).count() < self.fan_out {
            let invocation = InvocationId(format!("i{}", self.workers.len()));
            let twins = 1 + usize::from(self.fault(5));
            for _ in 0..twins {
                let w = self.workers.len();
                let id = (w as u16).to_be_bytes();
                self.workers.push(Worker {
                    alive: true,
                    nonce: Nonce([id[0], id[1], 0, 0, 0, 0, 0, 0]),
                    invocation: invocation.clone(),
                    local: w % 5 == 4,
                    held: None,
                    waiting: None,
                });
                self.schedule(0, Event::Work { w });
            }
        }
        self.schedule(1_000, Event::Spawn);
        Ok(())
    }

    /// What a worker does next, unless it waits for an answer.
    pub fn work(&mut self, w: usize) -> Check {
        if !self.workers[w].alive || self.workers[w].waiting.is_some() {
            return Ok(());
        }
        if self.fault(2) {
            self.kill(w);
            return Ok(());
        }
        let worker = &self.workers[w];
        let (nonce, invocation) = (worker.nonce, worker.invocation.clone());
        let Some(held) = &worker.held else {
            return self.ask(w, Call::Claim { nonce, invocation });
        };
        let (key, attempt) = (held.key, held.attempt);
        let next = held.todo.front().copied();
        let unmarked = next.filter(|next| held.marks && held.marked != Some(*next));
        let (n_put, marks, n_todo) = (held.put.len(), held.marks, held.todo.len());
        if self.fault(1) {
            return self.ask(w, Call::Fail { key, attempt, nonce });
        }
        let flush = n_put > 0 && (n_todo == 0 || marks || self.random.below(4) == 0);
        if flush {
            let commits = self.workers[w].held.as_ref().map(|held| held.put.clone());
            let next = next.filter(|_| marks && self.random.below(2) == 0);
            let commits = commits.unwrap_or_default();
            return self.ask(w, Call::Flush { key, attempt, nonce, commits, next });
        }
        match (unmarked, next) {
            (Some(cur), _) => self.ask(w, Call::Mark { key, attempt, nonce, cur }),
            (None, Some(at)) => self.run_split(w, at),
            (None, None) => self.ask(w, Call::Claim { nonce, invocation }),
        }
    }

    /// Runs one split and puts its object, if the split lets it live.
    fn run_split(&mut self, w: usize, at: u8) -> Check {
        let worker = &self.workers[w];
        let Some(held) = &worker.held else { return Ok(()) };
        let (nonce, attempt, local) = (worker.nonce, held.attempt, worker.local);
        let (epoch, position) = (held.key.0, self.ramp.positions(held.key.1).start + u32::from(at));
        if self.poison == Some(Place { epoch, position }) {
            self.kill(w);
            return Ok(());
        }
        let crc32c = checksum(attempt, nonce);
        if !local {
            let name = ChunkName { epoch, position, attempt, nonce };
            self.objects.entry(name).or_insert(crc32c);
        }
        let (records, bad) = self.splits[&Place { epoch, position }];
        let rows = records - bad;
        let commit = Commit {
            at,
            local,
            bytes: u64::from(rows) * 40,
            crc32c,
            rows,
            batches: rows / self.batch_size,
            remainder: rows % self.batch_size,
            skipped: bad,
        };
        if let Some(held) = &mut self.workers[w].held {
            held.put.push(commit);
            held.todo.pop_front();
        }
        let latency_ms = self.latency_ms() * 10;
        self.schedule(latency_ms, Event::Work { w });
        Ok(())
    }

    fn kill(&mut self, w: usize) {
        let worker = &mut self.workers[w];
        worker.alive = false;
        (worker.held, worker.waiting) = (None, None);
        let invocation = worker.invocation.clone();
        self.dead.insert(invocation.clone());
        // The report of its death: lost, late, or doubled.
        let reports = if self.fault(50) { 0 } else { 1 + u64::from(self.fault(10)) };
        for _ in 0..reports {
            let late_ms = if self.fault(5) { self.random.below(LATEST_MS) } else { 50 };
            for key in self.bundles() {
                let call = Call::Release { invocation: invocation.clone(), key };
                let number = self.number();
                let task = crate::coordinator::Task::new(number, None, call, 600_000);
                self.schedule(late_ms, Event::Coordinate(Box::new(task)));
            }
        }
    }

    fn ask(&mut self, w: usize, call: Call) -> Check {
        let number = self.number();
        self.workers[w].waiting = Some((number, call.clone()));
        self.send(number, Some(w), call);
        self.schedule(3_000, Event::GiveUp { w, call: number });
        Ok(())
    }

    /// No answer came: the same call again.
    pub fn give_up(&mut self, w: usize, call: u64) -> Check {
        let worker = &self.workers[w];
        let again = worker.waiting.clone().filter(|(number, _)| worker.alive && *number == call);
        if let Some((number, call)) = again {
            self.send(number, Some(w), call);
            self.schedule(3_000, Event::GiveUp { w, call: number });
        }
        Ok(())
    }

    /// An answer arrives; those to calls given up long ago are ignored.
    pub fn hear(&mut self, w: usize, call: u64, answer: Answer) -> Check {
        let worker = &mut self.workers[w];
        let waited = worker.waiting.take_if(|(number, _)| *number == call);
        let Some((_, call)) = waited.filter(|_| worker.alive) else { return Ok(()) };
        match (call, answer) {
            (Call::Claim { .. }, Answer::Leased(key, lease)) => {
                worker.held = Some(Held {
                    key,
                    attempt: lease.attempt,
                    todo: lease.todo.into(),
                    marks: lease.marks,
                    marked: None,
                    put: Vec::new(),
                });
            }
            // Nothing to do: a worker never waits idle.
            (Call::Claim { .. }, _) => worker.alive = false,
            (_, Answer::Refused(Refusal::Lost)) | (Call::Fail { .. }, _) => worker.held = None,
            (_, Answer::Refused(_)) => {
                let what = "a worker's call was refused as malformed";
                return Err(Violation { number: 0, what });
            }
            (Call::Mark { cur, .. }, _) => {
                if let Some(held) = &mut worker.held {
                    held.marked = Some(cur);
                }
            }
            (Call::Flush { next, .. }, _) => {
                if let Some(held) = &mut worker.held {
                    held.put.clear();
                    held.marked = next;
                }
                worker.held.take_if(|held| held.todo.is_empty());
            }
            _ => {}
        }
        let latency_ms = self.latency_ms();
        self.schedule(latency_ms, Event::Work { w });
        Ok(())
    }
}

/// Where a trainer would restart: the next batch, and the first split it needs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Checkpoint {
    cursor: Cursor,
    place: Place,
}

#[derive(Debug)]
pub struct Trainer {
    generation: u64,
    alive: bool,
    /// Its first ack of this run was heard: it is registered.
    admitted: bool,
    batch_size: u32,
    epoch: Epoch,
    joiner: Joiner,
    next: Cursor,
    queue: VecDeque<Batch>,
    /// The latest checkpoints, newest first.
    saved: VecDeque<Checkpoint>,
}

impl Trainer {
    pub fn new(batch_size: u32) -> Self {
        Self {
            generation: 1,
            alive: true,
            admitted: false,
            batch_size,
            epoch: 0,
            joiner: Joiner::new(batch_size, false),
            next: Cursor::default(),
            queue: VecDeque::new(),
            saved: VecDeque::from([Checkpoint::default()]),
        }
    }

    pub fn batch_size(&self) -> u32 {
        self.batch_size
    }

    fn checkpoint(&self) -> Checkpoint {
        let kept = self.joiner.first_needed();
        let position = self.queue.iter().flat_map(Batch::positions).chain([kept]).min();
        let place = Place { epoch: self.epoch, position: position.unwrap_or(kept) };
        Checkpoint { cursor: self.next, place }
    }

    fn ack(&self) -> Ack {
        let saved = self.saved.front().copied().unwrap_or_default();
        Ack {
            generation: self.generation,
            delivered: Place { epoch: self.epoch, position: self.joiner.position() },
            durable: saved.cursor,
            durable_place: saved.place,
            now_ms: 0,
        }
    }
}

impl Sim {
    /// One step of the trainer: a batch, a split, a checkpoint or a report.
    pub fn train(&mut self, generation: u64) -> Check {
        if !self.trainer.alive || generation != self.trainer.generation || self.is_over() {
            return Ok(());
        }
        if self.fault(1) {
            self.trainer.alive = false;
            self.schedule(2_000, Event::Revive);
            return Ok(());
        }
        if self.trainer.admitted {
            self.advance()?;
            if self.random.below(6) == 0 {
                let checkpoint = self.trainer.checkpoint();
                self.trainer.saved.push_front(checkpoint);
                self.trainer.saved.truncate(3);
            }
        }
        if self.random.below(3) == 0 {
            let (number, ack) = (self.number(), self.trainer.ack());
            self.send(number, None, Call::Ack(ack));
        }
        let latency_ms = self.latency_ms();
        self.schedule(latency_ms, Event::Train { generation });
        Ok(())
    }

    fn advance(&mut self) -> Check {
        if let Some(batch) = self.trainer.queue.pop_front() {
            let epoch = self.trainer.epoch;
            self.trainer.next = Cursor { epoch, g: batch.g + 1 };
            if let Some(first) = self.delivered.insert((epoch, batch.g), batch.clone()) {
                self.replays += 1;
                invariants::invariant_07_replay_is_identical(&first, &batch)?;
            }
            return Ok(());
        }
        let trainer = &mut self.trainer;
        if trainer.epoch == self.epochs {
            return Ok(());
        }
        if trainer.joiner.position() < self.ramp.n_splits() {
            return self.take();
        }
        let last = trainer.joiner.clone().finish().filter(|batch| batch.g >= trainer.next.g);
        if let Some(batch) = last {
            trainer.queue.push_back(batch);
            return Ok(());
        }
        trainer.epoch += 1;
        trainer.next = Cursor { epoch: trainer.epoch, g: 0 };
        trainer.joiner = Joiner::new(trainer.batch_size, false);
        Ok(())
    }

    fn entry(&self, place: Place) -> Option<Entry> {
        let bundle = self.ramp.bundle_of(place.position)?;
        let at = place.position - self.ramp.positions(bundle).start;
        self.bundle((place.epoch, bundle))?.entry(u8::try_from(at).ok()?).copied()
    }

    /// Takes in the next split, if it is committed.
    fn take(&mut self) -> Check {
        let position = self.trainer.joiner.position();
        let place = Place { epoch: self.trainer.epoch, position };
        let Some(entry) = self.entry(place) else { return Ok(()) };
        self.fetch(place)?;
        let trainer = &mut self.trainer;
        let mut made = Vec::new();
        trainer.joiner.push(Counts::from(&entry), |batch| made.push(batch));
        trainer.queue.extend(made.into_iter().filter(|batch| batch.g >= trainer.next.g));
        Ok(())
    }

    /// A trainer that is not fenced finds every object it asks for.
    fn fetch(&self, place: Place) -> Check {
        let fenced =
            self.table.consumer.item.map(|c| c.generation) != Some(self.trainer.generation);
        let Some(entry) = self.entry(place).filter(|entry| entry.kind == EntryKind::Object) else {
            return Ok(());
        };
        let (attempt, nonce) = (entry.attempt, entry.nonce);
        let name = ChunkName { epoch: place.epoch, position: place.position, attempt, nonce };
        let found = self.objects.get(&name) == Some(&entry.crc32c);
        let missed = Violation { number: 5, what: "the trainer misses an object" };
        (found || fenced).then_some(()).ok_or(missed)
    }

    /// A new run of the trainer, from its latest checkpoint or from an older one.
    pub fn revive(&mut self) -> Check {
        if self.is_over() {
            return Ok(());
        }
        let older = self.fault(50);
        let generation = self.trainer.generation + 1;
        if older && self.trainer.saved.len() > 1 {
            self.trainer.saved.pop_front();
        }
        let saved = self.trainer.saved.front().copied().unwrap_or_default();
        let Checkpoint { cursor, .. } = saved;
        let n_splits = self.ramp.n_splits();
        let counts = (0..n_splits).map_while(|position| {
            let entry = self.entry(Place { epoch: cursor.epoch, position })?;
            Some(Counts::from(&entry))
        });
        let counts: Vec<_> = counts.collect();
        let trainer = &mut self.trainer;
        trainer.joiner = Joiner::seek(trainer.batch_size, false, cursor.g, counts);
        trainer.generation = generation;
        trainer.alive = true;
        trainer.admitted = false;
        trainer.epoch = cursor.epoch;
        trainer.next = cursor;
        trainer.queue.clear();
        self.schedule(0, Event::Train { generation });
        Ok(())
    }

    /// The coordinator took an ack: the run that sent it goes on, with the objects it carries over.
    pub fn ack_accepted(&mut self, generation: u64) {
        if generation == self.trainer.generation {
            self.trainer.admitted = true;
        }
    }

    /// An old checkpoint was refused: the trainer comes back with a newer one.
    pub fn ack_refused(&mut self, generation: u64, refusal: &Refusal) {
        let waits = self.trainer.alive && !self.trainer.admitted;
        if generation != self.trainer.generation || !waits {
            return;
        }
        if let Refusal::Collected { horizon } = refusal {
            let saved = self.trainer.saved.front().map(|saved| saved.cursor).unwrap_or_default();
            assert!(saved < *horizon, "a checkpoint at or after the horizon was refused");
            // What was acknowledged last is at the user's disposal too.
            let consumer = self.table.consumer.item.unwrap_or_default();
            let (cursor, place) = (consumer.durable, consumer.durable_place);
            self.trainer.saved.push_front(Checkpoint { cursor, place });
            self.trainer.alive = false;
            self.schedule(100, Event::Revive);
        }
    }

    /// Seals, closes and collects what the trainer has passed.
    pub fn tidy(&mut self) -> Check {
        for epoch in 0..self.epochs {
            for call in [Call::Seal(epoch), Call::Close(epoch)] {
                let number = self.number();
                self.send(number, None, call);
            }
        }
        let number = self.number();
        self.send(number, None, Call::Collect);
        let horizon = collect::horizon(self.table.consumer.item.as_ref());
        let names: Vec<_> = self.objects.keys().copied().collect();
        for name in names {
            if self.verdict(name, horizon) != Verdict::Keep {
                // Decided now, done later: a decision never goes stale.
                let late_ms = self.latency_ms() * 20;
                self.schedule(late_ms, Event::Delete { name });
            }
        }
        if !self.is_over() {
            self.schedule(1_500, Event::Tidy);
        }
        Ok(())
    }

    fn verdict(&self, name: ChunkName, horizon: Place) -> Verdict {
        let Some(bundle) = self.ramp.bundle_of(name.position) else { return Verdict::Keep };
        let first = self.ramp.positions(bundle).start;
        collect::verdict(&name, self.bundle((name.epoch, bundle)), first, horizon, false)
    }

    pub fn delete(&mut self, name: ChunkName) -> Check {
        let Some(bundle) = self.ramp.bundle_of(name.position) else { return Ok(()) };
        let horizon = collect::horizon(self.table.consumer.item.as_ref());
        let verdict = self.verdict(name, horizon);
        let consumers = self.table.consumer.item.as_slice();
        invariants::invariant_06_only_useless_objects_go(
            &name,
            if verdict == Verdict::Keep { Verdict::DeleteOrphan } else { verdict },
            self.bundle((name.epoch, bundle)),
            self.ramp.positions(bundle).start,
            consumers,
        )?;
        self.objects.remove(&name);
        self.changed = true;
        Ok(())
    }
}
