//! A disk in memory for actors that take turns by chance. At a step chosen before, it refuses an operation, or the
//! power is cut: of all that was not synced, each entry of a folder and each part of a file is then old or new.

use crate::objects::disk::{Disk, DiskFile};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// With the one that is alone before and after a race.
const ACTORS: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Node {
    Folder(u64),
    File(usize),
}

#[derive(Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    is_synced: bool,
    /// A sync failed: later ones succeed, and keep nothing.
    is_lost: bool,
    is_locked: bool,
}

#[derive(Debug, Default)]
pub struct State {
    pub rng: fastrand::Rng,
    /// Entries as the kernel knows them.
    now: BTreeMap<PathBuf, Node>,
    /// Entries that are on the disk.
    kept: BTreeMap<PathBuf, Node>,
    files: Vec<Content>,
    is_locked: bool,
    actors: Vec<usize>,
    turn: usize,
    pub step: u64,
    /// Steps at which the power is cut, and at which operations are refused.
    pub cut_at: u64,
    pub refused: Range<u64>,
    is_cut: bool,
    boot: u64,
}

impl State {
    /// Any actor's turn is next, and none's if all have ended.
    fn pass_turn(&mut self, turns: &[Condvar]) {
        self.turn = self.rng.choice(&self.actors).copied().unwrap_or(0);
        turns[self.turn].notify_one();
    }

    fn node(&self, path: &Path) -> io::Result<Node> {
        if path == Path::new("/") {
            Ok(Node::Folder(0))
        } else {
            self.now.get(path).copied().ok_or_else(|| ErrorKind::NotFound.into())
        }
    }

    fn insert(&mut self, path: &Path, node: Node) -> io::Result<()> {
        self.node(path.parent().unwrap())?;
        if self.now.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.now.insert(path.to_owned(), node);
        Ok(())
    }

    pub fn cut_power(&mut self) {
        self.is_cut = true;
        let mut after = BTreeMap::new();
        let paths: BTreeSet<_> = self.now.keys().chain(self.kept.keys()).cloned().collect();
        for path in paths {
            let node = if self.rng.bool() { &self.now } else { &self.kept }.get(&path);
            let parent = path.parent().unwrap();
            if let Some(node) = node
                && (parent == Path::new("/") || after.contains_key(parent))
            {
                after.insert(path, *node);
            }
        }
        self.kept.clone_from(&after);
        self.now = after;
        for file in self.files.iter_mut().filter(|file| !file.is_synced) {
            let length = self.rng.usize(..=file.bytes.len());
            match self.rng.u8(..4) {
                0 => file.bytes.clear(),
                1 => file.bytes.truncate(length),
                2 => {}
                _ => file.bytes[length..].iter_mut().take(8).for_each(|byte| *byte = 0),
            }
            file.is_synced = true;
        }
    }
}

/// The disk as one actor, a process of its own, uses it.
#[derive(Debug, Clone)]
pub struct SimDisk {
    shared: Arc<(Mutex<State>, [Condvar; ACTORS])>,
    actor: usize,
    /// Step at which this actor began.
    born: u64,
}

impl SimDisk {
    pub fn new(rng: fastrand::Rng) -> Self {
        let state = State { rng, actors: vec![0], ..State::default() };
        Self { shared: Arc::new((Mutex::new(state), Default::default())), actor: 0, born: 0 }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap()
    }

    /// Runs `act` for the actors 1 to 4 at once. Actor 0 is the only one otherwise.
    pub fn race<T: Send>(&self, act: impl Fn(usize, SimDisk) -> T + Sync) -> Vec<T> {
        let born = {
            let mut state = self.state();
            state.actors = (1..ACTORS).collect();
            state.pass_turn(&self.shared.1);
            state.step
        };
        let outcomes = std::thread::scope(|scope| {
            let start = |actor| {
                let (disk, act) = (Self { actor, born, ..self.clone() }, &act);
                scope.spawn(move || {
                    let _end = End(disk.clone());
                    act(actor, disk)
                })
            };
            let running: Vec<_> = (1..ACTORS).map(start).collect();
            running.into_iter().map(|actor| actor.join().unwrap()).collect()
        });
        self.state().actors = vec![0];
        outcomes
    }

    /// The start of the machine, and a number that no earlier store had.
    pub fn identity(&self) -> (u64, u64) {
        let state = self.state();
        let born = if self.actor == 0 { state.step } else { self.born };
        (state.boot + 1, born << 16 | (self.actor as u64) << 8)
    }

    pub fn has_drafts(&self) -> bool {
        self.state().now.keys().any(|path| path.extension().is_some_and(|it| it == "draft"))
    }

    /// Cuts the last file short, as a kernel that lost its end.
    pub fn spoil(&self) {
        let state = &mut *self.state();
        let length = state.rng.usize(..40);
        state.files.last_mut().unwrap().bytes.truncate(length);
    }

    /// Ends all faults, and starts the machine again if the power was cut. Returns whether it was.
    pub fn restart(&self) -> bool {
        let mut state = self.state();
        (state.cut_at, state.refused) = (0, 0..0);
        state.boot += u64::from(state.is_cut);
        std::mem::take(&mut state.is_cut)
    }

    /// Waits for this actor's turn, which it then has until its next step.
    fn step(&self) -> io::Result<MutexGuard<'_, State>> {
        let turns = &self.shared.1;
        let wait =
            |state| turns[self.actor].wait_while(state, |s: &mut State| s.turn != self.actor);
        let mut state = wait(self.state()).unwrap();
        // Steps of one actor come in runs: a thread that must wake takes time.
        if state.rng.u8(..4) == 0 {
            state.pass_turn(turns);
            state = wait(state).unwrap();
        }
        state.step += 1;
        if state.step == state.cut_at {
            state.cut_power();
        }
        match state.is_cut {
            true => Err(io::Error::other("the power is cut")),
            false if state.refused.contains(&state.step) => match state.refused.start % 2 {
                0 => Err(ErrorKind::StorageFull.into()),
                _ => Err(io::Error::other("input/output error")),
            },
            false => Ok(state),
        }
    }
}

struct End(SimDisk);

impl Drop for End {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.actors.retain(|actor| *actor != self.0.actor);
        state.pass_turn(&self.0.shared.1);
    }
}

struct FolderLock(SimDisk);

impl Drop for FolderLock {
    fn drop(&mut self) {
        self.0.state().is_locked = false;
    }
}

impl Disk for SimDisk {
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        let mut state = self.step()?;
        let node = Node::Folder(state.step);
        state.insert(path, node)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        let mut state = self.step()?;
        state.node(path)?;
        if state.now.keys().any(|entry| entry.parent() == Some(path)) {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        state.now.remove(path);
        Ok(())
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        let state = &mut *self.step()?;
        state.node(path)?;
        let is_in = |entry: &PathBuf| entry.parent() == Some(path);
        state.kept.retain(|entry, _| !is_in(entry));
        let entries = state.now.iter().filter(|(entry, _)| is_in(entry));
        state.kept.extend(entries.map(|(entry, node)| (entry.clone(), *node)));
        Ok(())
    }

    fn lock_folder(&self, _: &Path) -> io::Result<Box<dyn Send>> {
        loop {
            let mut state = self.step()?;
            if !std::mem::replace(&mut state.is_locked, true) {
                return Ok(Box::new(FolderLock(self.clone())));
            }
        }
    }

    fn entries(&self, path: &Path) -> io::Result<Vec<(String, bool)>> {
        let state = self.step()?;
        state.node(path)?;
        let entries = state.now.iter().filter(|(entry, _)| entry.parent() == Some(path));
        let name = |entry: &PathBuf| entry.file_name().unwrap().to_str().unwrap().to_owned();
        Ok(entries.map(|(entry, node)| (name(entry), matches!(node, Node::Folder(_)))).collect())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.step()?;
        let index = state.files.len();
        state.insert(path, Node::File(index))?;
        state.files.push(Content { is_locked: true, ..Content::default() });
        Ok(Box::new(SimFile { disk: self.clone(), index, is_writer: true }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        match self.step()?.node(path)? {
            Node::File(index) => {
                Ok(Box::new(SimFile { disk: self.clone(), index, is_writer: false }))
            }
            Node::Folder(_) => Err(ErrorKind::IsADirectory.into()),
        }
    }

    fn publish(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.step()?;
        let node = state.node(from)?;
        state.insert(to, node)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.step()?;
        state.now.remove(path).map(drop).ok_or_else(|| ErrorKind::NotFound.into())
    }
}

struct SimFile {
    disk: SimDisk,
    index: usize,
    is_writer: bool,
}

impl Drop for SimFile {
    fn drop(&mut self) {
        if self.is_writer {
            self.disk.state().files[self.index].is_locked = false;
        }
    }
}

impl DiskFile for SimFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let stepped = self.disk.step().map(drop);
        let written = if stepped.is_ok() { bytes.len() } else { bytes.len() / 2 };
        self.disk.state().files[self.index].bytes.extend(&bytes[..written]);
        stepped
    }

    fn sync(&self) -> io::Result<()> {
        let stepped = self.disk.step().map(drop);
        let file = &mut self.disk.state().files[self.index];
        file.is_lost |= stepped.is_err();
        file.is_synced |= !file.is_lost;
        stepped
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.disk.step()?.files[self.index].bytes.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let state = self.disk.step()?;
        let at = at as usize;
        buffer.copy_from_slice(&state.files[self.index].bytes[at..at + buffer.len()]);
        Ok(())
    }

    fn lock_if_free(&self) -> io::Result<bool> {
        Ok(!self.disk.step()?.files[self.index].is_locked)
    }
}
