//! The simulated world: virtual time, the table, what can be scheduled, and the checks on the way.

use crate::actors::{Trainer, Worker};
use crate::coordinator::{Answer, Call, Task};
use gristmill_splits::batches::{Batch, Source};
use gristmill_splits::collect::ChunkName;
use gristmill_splits::epoch::{EpochItem, EpochState, Totals};
use gristmill_splits::invariants::{self, Check, EpochView};
use gristmill_splits::order::Ramp;
use gristmill_splits::window::Window;
use gristmill_splits::{
    Bundle, BundleState, Consumer, DeathLog, DeathRecord, EntryKind, Limits, Place,
};
use gristmill_types::{Attempt, BundleIndex, Epoch, ErrorPolicy, InvocationId, Nonce, Position};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug, Write};
use std::slice;

/// Faults happen before this time, in ms.
const FAULTS_END_MS: u64 = 120_000;
/// Copies of calls and reports of death arrive at most this late: six hours.
pub const LATEST_MS: u64 = 6 * 3_600_000;
/// More events than any run that ends needs.
const MOST_EVENTS: u64 = 100_000;

pub type BundleKey = (Epoch, BundleIndex);

/// A small, fast generator with a stable sequence (splitmix64).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number in `0..n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// An item as the table holds it: version 0 is an absent one.
#[derive(Debug, Clone)]
pub struct Versioned<T> {
    pub version: u64,
    pub item: Option<T>,
}

impl<T> Default for Versioned<T> {
    fn default() -> Self {
        Self { version: 0, item: None }
    }
}

#[derive(Debug, Default)]
pub struct Table {
    pub bundles: BTreeMap<BundleKey, Versioned<Bundle>>,
    pub epochs: BTreeMap<Epoch, Versioned<EpochItem>>,
    pub consumer: Versioned<Consumer>,
    pub log: Versioned<DeathLog>,
}

#[derive(Debug, Clone)]
pub enum Event {
    /// A coordinator does its next step for a call.
    Coordinate(Box<Task>),
    /// An answer reaches worker `w`.
    Hear {
        w: usize,
        call: u64,
        answer: Answer,
    },
    /// Worker `w` has waited long enough for the answer to `call`.
    GiveUp {
        w: usize,
        call: u64,
    },
    Work {
        w: usize,
    },
    Spawn,
    Train {
        generation: u64,
    },
    Revive,
    Tidy,
    Delete {
        name: ChunkName,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Done,
    Failed(String),
}

/// What became of a run.
#[derive(Debug)]
pub struct Report {
    pub end: End,
    pub trace: blake3::Hash,
    pub has_poison: bool,
    pub poisoned: u64,
    /// Splits given up as poison that are none.
    pub wronged: u64,
    pub replays: u64,
    pub attempts: u64,
    pub conflicts: u64,
}

#[derive(Debug)]
pub struct Sim {
    pub random: Random,
    pub now_ms: u64,
    queue: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    pub table: Table,
    pub objects: BTreeMap<ChunkName, u32>,
    pub workers: Vec<Worker>,
    pub trainer: Trainer,
    // The job.
    pub ramp: Ramp,
    pub epochs: Epoch,
    pub window: Window,
    pub batch_size: u32,
    /// Records and, of those, bad ones of the split at each place.
    pub splits: BTreeMap<Place, (u32, u32)>,
    pub poison: Option<Place>,
    pub limits: Limits,
    pub fan_out: usize,
    // What somebody who sees everything remembers.
    pub failed: Option<String>,
    pub seen: BTreeMap<Place, (EntryKind, Attempt, Nonce)>,
    pub delivered: BTreeMap<(Epoch, u64), Batch>,
    pub dead: BTreeSet<InvocationId>,
    pub found: Vec<(DeathRecord, Option<u8>)>,
    pub applied: BTreeSet<u64>,
    pub replays: u64,
    pub conflicts: u64,
    /// Something was written or deleted since the last look at the whole world.
    pub changed: bool,
    /// Whether every event goes into the trace.
    pub traced: bool,
    trace: blake3::Hasher,
}

impl Sim {
    pub fn new(seed: u64, on_error: ErrorPolicy) -> Self {
        let mut random = Random(seed);
        let n_splits = 1 + random.below(14) as u32;
        let epochs = 1 + random.below(2) as Epoch;
        let ramp = Ramp::new(n_splits, 1 << random.below(4));
        let mut splits = BTreeMap::new();
        for epoch in 0..epochs {
            for position in 0..n_splits {
                let records = 1 + random.below(9) as u32;
                let bad = random.below(u64::from(records) + 1) * u64::from(random.below(4) == 0);
                splits.insert(Place { epoch, position }, (records, bad as u32));
            }
        }
        let poison = (random.below(4) == 0).then(|| Place {
            epoch: random.below(u64::from(epochs)) as Epoch,
            position: random.below(u64::from(n_splits)) as Position,
        });
        let mut sim = Self {
            now_ms: 0,
            queue: BTreeMap::new(),
            scheduled: 0,
            table: Table::default(),
            objects: BTreeMap::new(),
            workers: Vec::new(),
            trainer: Trainer::new(1 + random.below(4) as u32),
            ramp,
            epochs,
            window: Window::new(random.below(30) as u32, 1_000, ramp.r()),
            batch_size: 0,
            splits,
            poison,
            limits: Limits { max_attempts: 200, on_error, ..Limits::default() },
            fan_out: 1 + random.below(4) as usize,
            failed: None,
            seen: BTreeMap::new(),
            delivered: BTreeMap::new(),
            dead: BTreeSet::new(),
            found: Vec::new(),
            applied: BTreeSet::new(),
            replays: 0,
            conflicts: 0,
            changed: true,
            traced: false,
            trace: blake3::Hasher::new(),
            random,
        };
        sim.batch_size = sim.trainer.batch_size();
        for epoch in 0..epochs {
            let item = EpochItem { state: EpochState::Open, seed, totals: None };
            sim.table.epochs.insert(epoch, Versioned { version: 1, item: Some(item) });
        }
        for event in [Event::Spawn, Event::Train { generation: 1 }, Event::Tidy] {
            sim.schedule(0, event);
        }
        sim
    }

    pub fn run(mut self) -> Report {
        let mut events = 0;
        while let Some(((now_ms, order), event)) = self.queue.pop_first() {
            events += 1;
            assert!(events < MOST_EVENTS, "no end in sight (invariant 16) at {now_ms} ms");
            self.now_ms = now_ms;
            if self.traced {
                self.note(&(now_ms, order, &event));
            }
            let mut checked = self.handle(event);
            if std::mem::take(&mut self.changed) {
                checked = checked.and_then(|()| self.check());
            }
            if let Err(violation) = checked {
                panic!("{violation} at {now_ms} ms, event {order}");
            }
        }
        let end = match self.failed.clone() {
            Some(error) => End::Failed(error),
            None => {
                self.check_end();
                End::Done
            }
        };
        let at_poison = |place: &Place, kind: EntryKind| {
            kind == EntryKind::Poison && self.poison != Some(*place)
        };
        let wronged = self.seen.iter().filter(|(place, (kind, ..))| at_poison(place, *kind));
        let bundles = || self.table.bundles.values().filter_map(|bundle| bundle.item.as_ref());
        let poisoned = |bundle: &Bundle| {
            bundle.entries.iter().flatten().filter(|e| e.kind == EntryKind::Poison).count() as u64
        };
        Report {
            end,
            trace: self.trace.finalize(),
            has_poison: self.poison.is_some(),
            wronged: wronged.count() as u64,
            poisoned: bundles().map(poisoned).sum(),
            replays: self.replays,
            attempts: bundles().map(|bundle| u64::from(bundle.attempt)).sum(),
            conflicts: self.conflicts,
        }
    }

    fn handle(&mut self, event: Event) -> Check {
        match event {
            Event::Coordinate(task) => self.coordinate(*task),
            Event::Hear { w, call, answer } => self.hear(w, call, answer),
            Event::GiveUp { w, call } => self.give_up(w, call),
            Event::Work { w } => self.work(w),
            Event::Spawn => self.spawn(),
            Event::Train { generation } => self.train(generation),
            Event::Revive => self.revive(),
            Event::Tidy => self.tidy(),
            Event::Delete { name } => self.delete(name),
        }
    }

    pub fn schedule(&mut self, delay_ms: u64, event: Event) {
        self.scheduled += 1;
        self.queue.insert((self.now_ms + delay_ms, self.scheduled), event);
    }

    /// A number that names a call.
    pub fn number(&mut self) -> u64 {
        self.scheduled += 1;
        self.scheduled
    }

    /// Whether a fault with this chance, in percent, happens now.
    pub fn fault(&mut self, percent: u64) -> bool {
        let drawn = self.random.below(100) < percent;
        drawn && self.now_ms < FAULTS_END_MS
    }

    /// How long an ordinary step takes; now and then, very long.
    pub fn latency_ms(&mut self) -> u64 {
        match self.fault(2) {
            true => self.random.below(100_000),
            false => 1 + self.random.below(40),
        }
    }

    fn note(&mut self, what: &impl Debug) {
        struct Sink<'a>(&'a mut blake3::Hasher);
        impl Write for Sink<'_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0.update(text.as_bytes());
                Ok(())
            }
        }
        writeln!(Sink(&mut self.trace), "{what:?}").unwrap();
    }

    /// Whether there is nothing left to do.
    pub fn is_over(&self) -> bool {
        let closed = |epoch: &Versioned<EpochItem>| {
            epoch.item.is_some_and(|item| item.state == EpochState::Closed)
        };
        self.failed.is_some() || self.table.epochs.values().all(closed)
    }

    pub fn bundles(&self) -> impl Iterator<Item = BundleKey> + use<> {
        let (epochs, bundles) = (self.epochs, self.ramp.bundles());
        (0..epochs).flat_map(move |epoch| (0..bundles).map(move |bundle| (epoch, bundle)))
    }

    pub fn bundle(&self, key: BundleKey) -> Option<&Bundle> {
        self.table.bundles.get(&key)?.item.as_ref()
    }

    pub fn records(&self, (epoch, bundle): BundleKey) -> Vec<u32> {
        let of = |position| self.splits[&Place { epoch, position }].0;
        self.ramp.positions(bundle).map(of).collect()
    }

    // ---- checks

    fn check(&self) -> Check {
        let view = |epoch| EpochView {
            epoch,
            item: self.table.epochs[&epoch].item.as_ref(),
            bundles: (0..self.ramp.bundles())
                .map(|bundle| (self.ramp.positions(bundle).start, self.bundle((epoch, bundle))))
                .collect(),
        };
        let consumers = self.table.consumer.item.as_ref();
        invariants::world(&invariants::World {
            epochs: (0..self.epochs).map(view).collect(),
            consumers: consumers.map(slice::from_ref).unwrap_or_default(),
            objects: &self.objects,
        })
    }

    /// The checks of one write to a bundle.
    pub fn check_write(&mut self, key: BundleKey, after: &Bundle) -> Check {
        let before = self.table.bundles.get(&key).and_then(|bundle| bundle.item.as_ref());
        invariants::bundle_step(before, after)?;
        let poisoned = |bundle: &Bundle| {
            bundle.entries.iter().flatten().filter(|e| e.kind == EntryKind::Poison).count()
        };
        if before.map_or(0, poisoned) < poisoned(after) {
            invariants::invariant_14_deaths_were_isolated(key.0, key.1, after, &self.found)?;
        }
        let first = self.ramp.positions(key.1).start;
        invariants::invariant_02_one_commit_per_split(&mut self.seen, key.0, first, after)?;
        invariants::invariant_14_released_was_reported(after, |id| self.dead.contains(id))?;
        invariants::invariant_16_attempts_are_bounded(after, self.limits.max_attempts)
    }

    /// Exactly once, over the whole run.
    fn check_end(&self) {
        for epoch in 0..self.epochs {
            let item = self.table.epochs[&epoch].item.as_ref();
            let Some(Totals { rows, batches, skipped, .. }) = item.and_then(|item| item.totals)
            else {
                panic!("the run ended with epoch {epoch} not sealed");
            };
            let mut rows_seen = BTreeMap::new();
            let made: Vec<_> = self.delivered.range((epoch, 0)..(epoch + 1, 0)).collect();
            assert_eq!(made.len() as u64, batches, "batches of epoch {epoch}");
            for (_, batch) in &made {
                let last = batch.g + 1 == batches;
                assert!(batch.rows == self.batch_size || last, "a batch is not full");
                for row in self.rows_of(epoch, batch) {
                    *rows_seen.entry(row).or_insert(0u32) += 1;
                }
            }
            let mut times = Vec::new();
            let mut lost = 0;
            for bundle in 0..self.ramp.bundles() {
                let positions = self.ramp.positions(bundle);
                let entries = &self.bundle((epoch, bundle)).unwrap().entries;
                for (position, entry) in positions.zip(entries) {
                    let entry = entry.unwrap();
                    let (records, _) = self.splits[&Place { epoch, position }];
                    assert_eq!(entry.rows + entry.skipped, records);
                    lost += u64::from(entry.skipped);
                    times.extend(
                        (0..entry.rows).map(|row| rows_seen.remove(&(position, row)).unwrap_or(0)),
                    );
                }
            }
            assert!(rows_seen.is_empty(), "rows were delivered that no split has");
            assert_eq!((times.len() as u64, lost), (rows, skipped));
            invariants::invariant_08_exactly_once(times).unwrap();
        }
    }

    fn rows_of(&self, epoch: Epoch, batch: &Batch) -> Vec<(Position, u32)> {
        match &batch.source {
            Source::Whole { position, frame } => {
                let first = frame * self.batch_size;
                (first..first + self.batch_size).map(|row| (*position, row)).collect()
            }
            Source::Joined(pieces) => {
                let rows = pieces.iter().flat_map(|piece| {
                    let place = Place { epoch, position: piece.position };
                    let (records, bad) = self.splits[&place];
                    let whole = (records - bad) / self.batch_size * self.batch_size;
                    piece.rows.clone().map(move |row| (piece.position, whole + row))
                });
                rows.collect()
            }
        }
    }

    /// A bundle that has died fails the job.
    pub fn notice_death_of_job(&mut self, after: &Bundle) {
        if after.state == BundleState::Dead && self.failed.is_none() {
            self.failed = Some(after.error.clone().unwrap_or_default());
        }
    }

    /// Sends a call, and perhaps a copy of it that arrives much later.
    pub fn send(&mut self, number: u64, caller: Option<usize>, call: Call) {
        let skew_ms = match self.fault(10) {
            true => self.random.below(1_200_000),
            false => 600_000,
        };
        let task = Task::new(number, caller, call, skew_ms);
        if self.fault(2) {
            let late_ms = self.random.below(LATEST_MS);
            let mut copy = task.clone();
            copy.caller = None;
            self.schedule(late_ms, Event::Coordinate(Box::new(copy)));
        }
        let latency_ms = self.latency_ms();
        self.schedule(latency_ms, Event::Coordinate(Box::new(task)));
    }
}
