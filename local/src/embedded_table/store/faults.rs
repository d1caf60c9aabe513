//! Faults of a simulated disk at points chosen by seeds, over the real store.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use fastrand::Rng;

use super::*;

/// Ten thousand faults; a tenth of them without optimisation, where each takes some 8 ms.
const LIVES: u64 = if cfg!(debug_assertions) { 10 } else { 100 };
const FAULTS_A_LIFE: usize = 100;
const SECTOR: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Nothing works until the machine starts again.
    PowerCut,
    /// Calls fail; a write that fails may have been done in part.
    Error,
    /// Writes and growth are refused.
    Full,
    /// Syncs fail once each: what they did not write stays readable, and no later sync writes it.
    Sync,
}

#[derive(Debug, Clone, Copy)]
struct Fault {
    kind: Kind,
    from: u64,
    to: u64,
}

#[derive(Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Length(usize),
}

#[derive(Debug)]
struct DiskState {
    random: Rng,
    /// What calls read.
    shown: Vec<u8>,
    /// What a power cut leaves.
    kept: Vec<u8>,
    unsynced: Vec<Change>,
    calls: u64,
    fault: Option<Fault>,
    met: bool,
}

impl DiskState {
    fn fails(&mut self, kinds: &[Kind]) -> io::Result<()> {
        self.calls += 1;
        let Some(fault) = self.fault else { return Ok(()) };
        if !(fault.from..fault.to).contains(&self.calls) || !kinds.contains(&fault.kind) {
            return Ok(());
        }
        self.met = true;
        Err(match fault.kind {
            Kind::Full => io::ErrorKind::StorageFull.into(),
            _ => io::Error::other("a fault"),
        })
    }

    /// Moves some of the unsynced sectors, or all or none of them, to the disk. The others are lost.
    fn write_out(&mut self) {
        let (wanted, mut random) = (self.random.u8(0..=2), self.random.fork());
        let mut chosen = || wanted == 2 || (wanted == 1 && random.bool());
        for change in self.unsynced.drain(..) {
            match change {
                Change::Length(length) if chosen() => self.kept.resize(length, 0),
                Change::Length(_) => {}
                Change::Write(at, data) => {
                    for (index, sector) in data.chunks(SECTOR).enumerate() {
                        if chosen() {
                            put(&mut self.kept, at + index * SECTOR, sector);
                        }
                    }
                }
            }
        }
    }

    fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            match change {
                Change::Length(length) => self.kept.resize(length, 0),
                Change::Write(at, data) => put(&mut self.kept, at, &data),
            }
        }
    }
}

fn put(file: &mut Vec<u8>, at: usize, data: &[u8]) {
    file.resize(file.len().max(at + data.len()), 0);
    file[at..at + data.len()].copy_from_slice(data);
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
        state.fails(&[Kind::PowerCut, Kind::Error])?;
        Ok(state.shown.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.state();
        state.fails(&[Kind::PowerCut, Kind::Error])?;
        let at = offset as usize;
        let found = state.shown.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        let kinds = match len as usize > state.shown.len() {
            true => &[Kind::PowerCut, Kind::Error, Kind::Full][..],
            false => &[Kind::PowerCut, Kind::Error],
        };
        state.fails(kinds)?;
        state.shown.resize(len as usize, 0);
        state.unsynced.push(Change::Length(len as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        match state.fails(&[Kind::PowerCut, Kind::Error, Kind::Sync]) {
            Ok(()) => state.sync(),
            Err(error) => {
                if state.fault.is_some_and(|fault| fault.kind != Kind::PowerCut) {
                    state.write_out();
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let result = state.fails(&[Kind::PowerCut, Kind::Error, Kind::Full]);
        let done = match result {
            Ok(()) => data.len(),
            Err(_) => state.random.usize(0..=data.len()),
        };
        put(&mut state.shown, offset as usize, &data[..done]);
        state.unsynced.push(Change::Write(offset as usize, data[..done].to_vec()));
        result
    }
}

/// What an item may be.
#[derive(Debug, Default, Clone)]
struct Expected {
    /// What was last read, or acknowledged.
    promised: (u64, Bytes),
    /// What failed commits may have written.
    possible: Vec<(u64, Bytes)>,
}

struct Life {
    disk: Disk,
    store: Option<ItemStore>,
    items: Vec<Expected>,
    random: Rng,
}

fn key(index: usize) -> ItemKey {
    ItemKey { pk: format!("T#t#J#{}", index % 3), sk: format!("B#{index:08}") }
}

impl Life {
    fn new(seed: u64) -> Self {
        let state = DiskState {
            random: Rng::with_seed(seed),
            shown: Vec::new(),
            kept: Vec::new(),
            unsynced: Vec::new(),
            calls: 0,
            fault: None,
            met: false,
        };
        let disk = Disk(Arc::new(Mutex::new(state)));
        let random = Rng::with_seed(seed ^ 0xfa17);
        let items = vec![Expected::default(); 12];
        Self { store: Some(opened(&disk)), disk, items, random }
    }

    fn store(&self) -> &ItemStore {
        self.store.as_ref().unwrap()
    }

    fn arm(&mut self) -> Kind {
        let kinds = [Kind::PowerCut, Kind::Error, Kind::Full, Kind::Sync];
        let kind = kinds[self.random.usize(0..kinds.len())];
        let mut state = self.disk.state();
        let from = state.calls + self.random.u64(1..30);
        let length = if kind == Kind::PowerCut { u64::MAX / 2 } else { self.random.u64(1..20) };
        (state.fault, state.met) = (Some(Fault { kind, from, to: from + length }), false);
        kind
    }

    /// One commit of writes at the versions that the items should have.
    fn commit(&mut self) -> Result<(), StoreFailure> {
        let mut writes: Vec<ItemWrite> = Vec::new();
        let mut versions: Vec<u64> = self.items.iter().map(|item| item.promised.0).collect();
        let mut indices = Vec::new();
        for _ in 0..self.random.usize(1..=5) {
            let index = self.random.usize(0..self.items.len());
            let length = [40, 600, 600, 600, 600, 600, 600, 6_000][self.random.usize(0..8)];
            let body = Bytes::from(vec![self.random.u8(..); self.random.usize(1..length)]);
            writes.push(ItemWrite {
                key: key(index),
                expected: versions[index],
                body,
                expires_at_s: None,
            });
            versions[index] += 1;
            indices.push(index);
        }
        let result = self.store().commit(&writes);
        for (index, write) in indices.into_iter().zip(writes) {
            let written = (write.expected + 1, write.body);
            match &result {
                Ok(_) => self.items[index].promised = written,
                Err(_) => self.items[index].possible.push(written),
            }
        }
        let outcomes = result?;
        assert!(outcomes.iter().all(|outcome| *outcome == WriteOutcome::Written), "{outcomes:?}");
        Ok(())
    }

    /// Every item is what was promised, or what a failed commit wrote. What is read is promised.
    fn check(&mut self) -> Result<(), StoreFailure> {
        let keys: Vec<_> = (0..self.items.len()).map(key).collect();
        let found = self.store().read(&keys)?;
        for (found, item) in found.into_iter().zip(&mut self.items) {
            let found = found.map_or((0, Bytes::new()), |found| (found.version, found.body));
            let possible = found == item.promised || item.possible.contains(&found);
            assert!(possible, "{} {:?}", found.0, item.promised.0);
            *item = Expected { promised: found, possible: Vec::new() };
        }
        Ok(())
    }

    /// The machine starts again, after a power cut at this point.
    fn restart(&mut self) {
        self.disk.state().fault = Some(Fault { kind: Kind::PowerCut, from: 0, to: u64::MAX });
        self.store = None;
        let mut state = self.disk.state();
        state.write_out();
        state.shown = state.kept.clone();
        state.fault = None;
        drop(state);
        self.store = Some(opened(&self.disk));
        self.check().unwrap();
    }

    /// The same process goes on, with as many calls as the fault lasts.
    fn recover(&mut self, failure: StoreFailure) {
        let mut failure = failure;
        for _ in 0..100 {
            let again = self.store().reopen(&failure).and_then(|()| self.check());
            match again {
                Ok(()) => return,
                Err(again) => failure = again,
            }
        }
        panic!("the table stays closed: {failure}");
    }
}

fn opened(disk: &Disk) -> ItemStore {
    let disk = disk.clone();
    let open = move || open_database(disk.clone());
    ItemStore::open(PathBuf::from("/simulated/table"), Box::new(open)).unwrap()
}

#[test]
fn nothing_promised_is_lost_whatever_the_disk_refuses_tears_or_loses() {
    let mut met = std::collections::BTreeMap::new();
    for seed in 0..LIVES {
        let mut life = Life::new(seed);
        let mut faults = 0;
        while faults < FAULTS_A_LIFE {
            let kind = life.arm();
            let failure = (0..200).find_map(|_| life.commit().err());
            let hit = life.disk.state().met;
            faults += usize::from(hit);
            *met.entry(kind).or_insert(0) += usize::from(hit);
            match failure {
                Some(failure) if kind != Kind::PowerCut => life.recover(failure),
                Some(_) => life.restart(),
                None => assert!(!hit, "a commit hides a fault"),
            }
            // Also a power cut soon after another fault, and after none.
            if life.random.u8(0..4) == 0 {
                life.restart();
            }
        }
    }
    assert_eq!(met.values().sum::<usize>(), LIVES as usize * FAULTS_A_LIFE);
    assert!(met.len() == 4 && met.values().all(|count| *count > LIVES as usize * 15), "{met:?}");
}
