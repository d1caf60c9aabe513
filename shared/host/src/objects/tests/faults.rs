//! Writers of one key on a disk that fails at any point: no answer is wrong afterwards, and the key can still be put.

use super::simulated::SimDisk;
use crate::objects::{Source, store::BucketStore};
use bytes::Bytes;
use gristmill_model::stored::keys;
use gristmill_ports::{BufferPool, ObjectError, ObjectPath, PutOutcome};
use std::path::Path;

/// Every case has three points at which something fails, or nothing does.
const CASES: u64 = 3_400;
const BUCKET: &str = "own";
const INDEX: &str = "t/n/index/i";
const CHUNK: &str = "t/n/jobs/j/e/00.gmc";

fn open(disk: SimDisk) -> Result<BucketStore, ObjectError> {
    let (boot, first_draft) = disk.identity();
    let store = BucketStore::open(Box::new(disk), Path::new("/objects"), BUCKET, boot, first_draft);
    store.map_err(|error| ObjectError::Unavailable(error.to_string()))
}

fn put(store: &BucketStore, key: &str, content: u8, id: &str) -> Result<PutOutcome, ObjectError> {
    store.put(&ObjectPath::new(BUCKET, key), &[content; 40], id)
}

/// The content of an object, which must be whole.
fn get(store: &BucketStore, key: &str) -> Option<u8> {
    let path = ObjectPath::new(BUCKET, key);
    let found = store.read(Source { path: &path, range: None, etag: None }, &BufferPool::default());
    match found {
        Ok(body) => {
            assert_eq!(body, Bytes::from(vec![body[0]; 40]), "half an object is read");
            Some(body[0])
        }
        Err(ObjectError::NotFound(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// A key, and what is known of its object.
struct Case {
    disk: SimDisk,
    key: &'static str,
    /// Content that must be found.
    certain: Option<u8>,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let key = if rng.bool() { INDEX } else { CHUNK };
        let (is_broken, disk) = (rng.bool(), SimDisk::new(rng));
        if is_broken {
            put(&open(disk.clone()).unwrap(), key, 9, "old").unwrap();
            disk.spoil();
        }
        Self { disk, key, certain: None }
    }

    /// Actors 1 and 2 put the key, 3 deletes its neighbour, 4 sweeps.
    fn round(&mut self, round: usize) {
        let other = format!("{}-", self.key);
        put(&open(self.disk.clone()).unwrap(), &other, 8, "").unwrap();
        let (contents, mode) = {
            let mut state = self.disk.state();
            let (mode, at) = (state.rng.u8(..8), state.step + state.rng.u64(1..120));
            state.cut_at = if mode < 4 { at } else { 0 };
            state.refused = if (3..7).contains(&mode) { at..at + 1 + at % 5 } else { 0..0 };
            ([state.rng.u8(1..4), state.rng.u8(1..4)], mode)
        };
        let outcomes = self.disk.race(|actor, disk| {
            let store = open(disk)?;
            match actor {
                1 | 2 => {
                    let content = contents[actor - 1];
                    // Half of the ids name the content, as those of equal puts do.
                    let id = if mode % 2 == 0 { usize::from(content) } else { actor + 10 };
                    put(&store, self.key, content, &format!("{round}-{id}")).map(Some)
                }
                3 => store.delete(std::slice::from_ref(&other)).map(|()| None),
                _ => store.sweep().map(|()| None).map_err(|e| ObjectError::Rejected(e.to_string())),
            }
        });
        assert!(mode < 7 || outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        if mode == 5 || mode == 6 {
            // Only what was answered counts.
            self.disk.state().cut_power();
        }
        let was_cut = self.disk.restart();
        self.check(&contents, &outcomes[..2], was_cut);
        if mode == 7 {
            assert_eq!(get(&open(self.disk.clone()).unwrap(), &other), None, "it was deleted");
            assert!(!self.disk.has_drafts());
        }
    }

    fn check(
        &mut self,
        contents: &[u8],
        outcomes: &[Result<Option<PutOutcome>, ObjectError>],
        was_cut: bool,
    ) {
        let created = |outcome: &Result<_, _>| matches!(outcome, Ok(Some(PutOutcome::Created)));
        let mut owners: Vec<u8> =
            contents.iter().zip(outcomes).filter(|(_, o)| created(o)).map(|(c, _)| *c).collect();
        owners.extend(self.certain);
        owners.dedup();
        assert!(owners.len() < 2, "two writers created it: {owners:?}");
        let store = open(self.disk.clone()).unwrap();
        let found = get(&store, self.key);
        let may_be_lost = was_cut && keys::is_recomputed(self.key);
        let is_certain = !owners.is_empty() || outcomes.iter().any(Result::is_ok);
        if !may_be_lost && is_certain {
            assert!(found.is_some(), "an object is lost: {outcomes:?}");
        }
        if let (Some(found), Some(owner)) = (found, owners.first()) {
            assert_eq!(found, *owner, "another object has the key");
        }
        self.certain = found.filter(|_| !may_be_lost && is_certain);
        let listed = store.list("t/n/").unwrap();
        if found.is_some() || self.key == INDEX {
            let is_listed = listed.iter().any(|object| object.key == self.key);
            assert_eq!(is_listed, found.is_some(), "a list differs from a read");
        }
    }

    /// Puts the key after all that happened.
    fn end(self) {
        let store = open(self.disk.clone()).unwrap();
        let found = get(&store, self.key);
        let outcome = put(&store, self.key, 5, "last").unwrap();
        let expected = if found.is_some() { PutOutcome::Exists } else { PutOutcome::Created };
        assert_eq!(outcome, expected, "a put tells what a read tells");
        assert_eq!(get(&store, self.key), Some(found.unwrap_or(5)));
        store.sweep().unwrap();
        assert!(!self.disk.has_drafts());
    }
}

#[test]
fn no_fault_loses_an_object_or_splits_one_or_blocks_its_key() {
    for seed in 0..CASES {
        let ran = std::panic::catch_unwind(|| {
            let mut case = Case::new(seed);
            (0..3).for_each(|round| case.round(round));
            case.end();
        });
        assert!(ran.is_ok(), "seed {seed} fails");
    }
}
