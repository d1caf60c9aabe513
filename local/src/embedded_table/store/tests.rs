//! Faults of a simulated disk at points that seeds choose, over the real store.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use fastrand::Rng;

use super::*;

/// Ten thousand faults; a tenth of them without optimisation, where each takes some 8 ms.
const LIVES: u64 = if cfg!(debug_assertions) { 10 } else { 100 };
const FAULTS_A_LIFE: usize = 100;
const ITEMS_A_LIFE: usize = 12;
const SECTOR: usize = 512;

/// Some calls in a row fail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Fault {
    /// Everything, until the machine starts again.
    #[default]
    PowerCut,
    /// Everything; a write may be done in part.
    Errors,
    /// Writes and growth.
    FullDisk,
    /// Syncs: what they did not write stays readable, and no later sync writes it.
    Syncs,
}

const FAULTS: [Fault; 4] = [Fault::PowerCut, Fault::Errors, Fault::FullDisk, Fault::Syncs];

#[derive(Debug, Default)]
struct DiskState {
    random: Rng,
    /// The bytes that calls read.
    shown: Vec<u8>,
    /// The bytes that a power cut leaves.
    kept: Vec<u8>,
    /// Sectors that were written since the last sync.
    unsynced: BTreeSet<usize>,
    calls: u64,
    fault: Fault,
    failing: Range<u64>,
    met: bool,
}

impl DiskState {
    /// Counts a call that fails under `faults`.
    fn call(&mut self, faults: &[Fault]) -> io::Result<()> {
        self.calls += 1;
        let fails = self.failing.contains(&self.calls) && faults.contains(&self.fault);
        self.met |= fails;
        match fails {
            true if self.fault == Fault::FullDisk => Err(io::ErrorKind::StorageFull.into()),
            true => Err(io::Error::other("a fault")),
            false => Ok(()),
        }
    }

    fn write(&mut self, at: usize, data: &[u8]) {
        let end = at + data.len();
        self.shown.resize(self.shown.len().max(end), 0);
        self.shown[at..end].copy_from_slice(data);
        self.unsynced.extend(at / SECTOR..end.div_ceil(SECTOR));
    }

    /// Moves all (2), or else none, some or all of what is unsynced to the disk. The rest is lost.
    fn write_out(&mut self, least: u8) {
        let share = self.random.u8(0..=2).max(least);
        let mut chosen = || share == 2 || (share == 1 && self.random.bool());
        if chosen() {
            self.kept.resize(self.shown.len(), 0);
        }
        for at in std::mem::take(&mut self.unsynced).into_iter().map(|sector| sector * SECTOR) {
            let end = self.shown.len().min(at + SECTOR);
            if at < end && chosen() {
                self.kept.resize(self.kept.len().max(end), 0);
                self.kept[at..end].copy_from_slice(&self.shown[at..end]);
            }
        }
    }
}

#[derive(Debug, Clone)]
struct Disk(Arc<Mutex<DiskState>>);

impl Disk {
    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap()
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        let mut state = self.state();
        state.call(&FAULTS[..2])?;
        Ok(state.shown.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.state();
        state.call(&FAULTS[..2])?;
        let at = offset as usize;
        let found = state.shown.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let (mut state, length) = (self.state(), length as usize);
        let grows = length > state.shown.len();
        state.call(&FAULTS[..if grows { 3 } else { 2 }])?;
        state.shown.resize(length, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        let result = state.call(&[Fault::PowerCut, Fault::Errors, Fault::Syncs]);
        if result.is_ok() || state.fault != Fault::PowerCut {
            state.write_out(if result.is_ok() { 2 } else { 0 });
        }
        result
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let result = state.call(&FAULTS[..3]);
        let done = if result.is_ok() { data.len() } else { state.random.usize(0..=data.len()) };
        state.write(offset as usize, &data[..done]);
        result
    }
}

/// A table on a disk, with what its items may be: first what was last read or acknowledged, then what failed commits
/// may have written.
struct Life {
    disk: Disk,
    store: Option<ItemStore>,
    items: Vec<Vec<(u64, Bytes)>>,
    random: Rng,
}

fn key(index: usize) -> ItemKey {
    ItemKey { pk: format!("T#t#J#{}", index % 3), sk: format!("B#{index:08}") }
}

impl Life {
    fn new(seed: u64) -> Self {
        let state = DiskState { random: Rng::with_seed(seed), ..DiskState::default() };
        let disk = Disk(Arc::new(Mutex::new(state)));
        let items = vec![vec![(0, Bytes::new())]; ITEMS_A_LIFE];
        Self { store: Some(opened(&disk)), disk, items, random: Rng::with_seed(!seed) }
    }

    fn store(&self) -> &ItemStore {
        self.store.as_ref().unwrap()
    }

    /// Lets `fault` happen at one of the next calls of the disk.
    fn arm(&mut self, fault: Fault, within: u64) {
        let mut state = self.disk.state();
        let from = state.calls + self.random.u64(1..within);
        let to = if fault == Fault::PowerCut { u64::MAX } else { from + self.random.u64(1..20) };
        (state.fault, state.failing, state.met) = (fault, from..to, false);
    }

    /// One commit of writes that expect the versions that the items have.
    fn commit(&mut self) -> Result<(), redb::Error> {
        let mut versions: Vec<u64> = self.items.iter().map(|item| item[0].0).collect();
        let (mut writes, mut indices) = (Vec::new(), Vec::new());
        for _ in 0..self.random.usize(1..=5) {
            let index = self.random.usize(0..ITEMS_A_LIFE);
            let length = [40, 600, 600, 600, 600, 600, 600, 6_000][self.random.usize(0..8)];
            let body = Bytes::from(vec![self.random.u8(..); self.random.usize(1..length)]);
            let expected = versions[index];
            writes.push(ItemWrite { key: key(index), expected, body, expires_at_s: None });
            versions[index] += 1;
            indices.push(index);
        }
        let result = self.store().commit(&writes);
        for (index, write) in indices.into_iter().zip(writes) {
            let written = (write.expected + 1, write.body);
            match &result {
                Ok(_) => self.items[index] = vec![written],
                Err(_) => self.items[index].push(written),
            }
        }
        let outcomes = result?;
        assert!(outcomes.iter().all(|outcome| *outcome == WriteOutcome::Written), "{outcomes:?}");
        Ok(())
    }

    /// Every item is what it may be. What is read is promised from then on.
    fn check(&mut self) -> Result<(), redb::Error> {
        self.store().ready()?;
        let keys: Vec<_> = (0..ITEMS_A_LIFE).map(key).collect();
        for (found, item) in self.store().read(&keys)?.into_iter().zip(&mut self.items) {
            let found = found.map_or((0, Bytes::new()), |found| (found.version, found.body));
            assert!(item.contains(&found), "version {} after {}", found.0, item[0].0);
            *item = vec![found];
        }
        Ok(())
    }

    /// A power cut, and the machine starts again.
    fn restart(&mut self) {
        let mut state = self.disk.state();
        (state.fault, state.failing) = (Fault::PowerCut, 0..u64::MAX);
        drop(state);
        self.store = None;
        let mut state = self.disk.state();
        state.write_out(0);
        state.shown = state.kept.clone();
        state.failing = 0..0;
        drop(state);
        self.store = Some(opened(&self.disk));
        self.check().unwrap();
    }
}

fn opened(disk: &Disk) -> ItemStore {
    let disk = disk.clone();
    let open = move || open_database(disk.clone());
    ItemStore::open(PathBuf::from("/simulated/table"), Box::new(open)).unwrap()
}

#[test]
fn nothing_promised_is_lost_when_a_disk_refuses_tears_or_loses_writes() {
    let mut met = [0; FAULTS.len()];
    for seed in 0..LIVES {
        let mut life = Life::new(seed);
        let mut faults = 0;
        while faults < FAULTS_A_LIFE {
            let kind = life.random.usize(0..FAULTS.len());
            life.arm(FAULTS[kind], 30);
            let result = (0..100).try_for_each(|_| life.commit());
            let hit = life.disk.state().met;
            assert_eq!(result.is_err(), hit, "a commit fails with its disk");
            faults += usize::from(hit);
            met[kind] += usize::from(hit);
            // After a power cut the machine starts again, after others the same process goes on, or the power is cut
            // while the file is opened again, or soon after.
            match (FAULTS[kind], life.random.u8(0..4)) {
                (Fault::PowerCut, _) => life.restart(),
                (_, 0) => {
                    life.arm(Fault::PowerCut, 40);
                    let _ = life.check();
                    life.restart();
                }
                (_, after) => {
                    assert!((0..30).any(|_| life.check().is_ok()), "the table stays closed");
                    if after == 1 {
                        life.restart();
                    }
                }
            }
        }
    }
    assert!(met.iter().all(|met| *met > LIVES as usize * 15), "{met:?}");
}
