//! A table that has lost its last writes, as one does whose machine loses power, and trainers that are ahead of it.

use super::{BATCH, RECORDS, Trainer, World, leased};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_coordinator::inspect;
use gristmill_model::splits::SplitPlace;
use gristmill_model::{Nonce, wire::JobState};
use gristmill_ports::{ItemKey, Table, TableError, TableItem, WriteOutcome, memory::MemoryTable};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// A table that can lose its last writes, as one does whose machine loses power.
#[derive(Default)]
struct Losing {
    table: MemoryTable,
    /// The items that writes replaced, the last one last.
    replaced: Mutex<Vec<(ItemKey, Option<TableItem>)>>,
}

impl Losing {
    fn lose(&self, writes: usize) {
        let mut replaced = self.replaced.lock().unwrap();
        for _ in 0..writes {
            let Some((key, before)) = replaced.pop() else { return };
            self.table.restore(&key, before);
        }
    }

    /// The number of writes that it can lose.
    fn writes(&self) -> usize {
        self.replaced.lock().unwrap().len()
    }
}

#[async_trait]
impl Table for Losing {
    async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Option<TableItem>>, TableError> {
        self.table.read(keys).await
    }

    async fn write(
        &self,
        key: &ItemKey,
        expected: u64,
        body: Bytes,
        expires_at_s: Option<u64>,
    ) -> Result<WriteOutcome, TableError> {
        let before = self.table.read(std::slice::from_ref(key)).await?.pop().flatten();
        let outcome = self.table.write(key, expected, body, expires_at_s).await?;
        if outcome == WriteOutcome::Written {
            self.replaced.lock().unwrap().push((key.clone(), before));
        }
        Ok(outcome)
    }

    async fn range(
        &self,
        pk: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(String, TableItem)>, TableError> {
        self.table.range(pk, from, to).await
    }

    async fn last(&self, pk: &str, limit: usize) -> Result<Vec<(String, TableItem)>, TableError> {
        self.table.last(pk, limit).await
    }
}

const SPLITS: u32 = RECORDS / BATCH;

#[tokio::test]
async fn a_trainer_ahead_of_a_table_that_lost_its_last_writes_is_served_to_the_end() {
    for (known, is_new) in [(3, true), (SPLITS - 1, false), (SPLITS - 1, true)] {
        for lost in (0..64).step_by(3) {
            lose(lost, known, is_new).await;
        }
    }
}

/// Loses `lost` writes while a trainer knows of `known` splits; it goes on, or starts again.
async fn lose(lost: usize, known: u32, is_new: bool) {
    let table = Arc::new(Losing::default());
    let world = World::running(Arc::clone(&table) as _).await;
    let mut trainer = Trainer::new(1, 0);
    let trained = world.train_on(&mut trainer, 0..known, SPLITS);
    tokio::select! {
        seen = trained => assert!(seen.len() as u32 >= known),
        () = world.be_a_worker(2) => panic!("the job has ended"),
    }
    table.lose(lost);
    let world = world.another_process();
    let registered = world.call(world.registration.clone()).await;
    assert!(registered.is_ok(), "{registered:?}");
    if is_new {
        trainer = Trainer::new(2, 1);
    }
    let trained = world.train_on(&mut trainer, known..SPLITS, SPLITS);
    let ended = async { tokio::join!(trained, world.be_a_worker(3)) };
    let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
    let (seen, ()) = ended.unwrap_or_else(|_| panic!("{lost} writes are lost: no end"));
    let expected: Vec<_> = (known..SPLITS).collect();
    assert_eq!(seen.into_keys().collect::<Vec<_>>(), expected, "{lost} writes are lost");
}

#[tokio::test]
async fn a_trainer_whose_run_is_lost_reports_nothing_until_it_has_joined_again() {
    // The table has no run then, or the one before.
    for earlier in [false, true] {
        let table = Arc::new(Losing::default());
        let world = World::running(Arc::clone(&table) as _).await;
        let lease = leased(world.claim(2).await);
        world.work(&lease, Nonce([2; 8])).await.unwrap();
        let (begin, made) = (SplitPlace::default(), SplitPlace::new(0, 1));
        if earlier {
            world.poll_as(&mut Trainer::new(1, 0), begin).await;
        }
        let key = inspect::progress_key(&world.ns, &world.job);
        let stored = async || table.read(std::slice::from_ref(&key)).await.unwrap().pop().unwrap();
        let (before, writes) = (stored().await, table.writes());
        let mut trainer = Trainer::new(2, 1);
        let begun = world.poll_as(&mut trainer, begin).await;
        let reported = world.poll_as(&mut trainer, made).await;
        assert_eq!((begun.delivered, reported.delivered), (begin, made));
        table.lose(table.writes() - writes);
        assert_eq!(stored().await, before);

        let world = world.another_process();
        let unheard = world.poll_as(&mut trainer, made).await;
        let is_joined = (unheard.generation, unheard.reader.run.is_some());
        assert_eq!(is_joined, (u64::from(earlier), earlier), "the answer says what the table has");
        assert_eq!(unheard.delivered, begin);
        assert_eq!(stored().await, before, "the report is not written");
        let joined = world.poll_as(&mut trainer, made).await;
        assert_eq!((joined.generation, joined.delivered), (2, made));
        assert_eq!(joined.reader.run, reported.reader.run, "the run is the same");
        assert_eq!(joined.job.state, JobState::Running);
        let next = world.poll_as(&mut trainer, SplitPlace::new(0, 2)).await;
        assert_eq!(
            (next.generation, next.delivered),
            (2, SplitPlace::new(0, 2)),
            "it reports again"
        );
    }
}

/// The process knows the trainer's run, and so does not look again for what the table lacks.
#[tokio::test]
async fn a_split_that_is_lost_behind_a_trainer_is_made_again_before_its_epoch_is_closed() {
    for lost in 0.. {
        let table = Arc::new(Losing::default());
        let world = World::running(Arc::clone(&table) as _).await;
        let mut trainer = Trainer::new(1, 0);
        let known = SPLITS - 1;
        tokio::select! {
            seen = world.train_on(&mut trainer, 0..known, SPLITS) => assert!(seen.len() as u32 >= known),
            () = world.be_a_worker(2) => panic!("the job has ended"),
        }
        // The last one may be leased.
        let behind = |key: &ItemKey| key.sk.starts_with("B#") && key.sk < format!("B#{known:08}");
        let is_bundle = |key: &ItemKey| key.pk.contains("#E#000000#") && behind(key);
        let mut bundles = table.table.expiries().into_iter().map(|(key, _)| key).filter(is_bundle);
        let Some(key) = bundles.nth(lost) else {
            assert!(lost > 2, "there were {lost} bundles");
            return;
        };
        table.table.restore(&key, None);
        let trained = world.train_on(&mut trainer, known..SPLITS, SPLITS);
        let ended = async { tokio::join!(trained, world.be_a_worker(3)) };
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        assert!(ended.is_ok(), "{key:?} is lost: no end");
        let stored = table.read(std::slice::from_ref(&key)).await.unwrap();
        assert!(stored[0].is_some(), "{key:?} is not made again");
    }
}
