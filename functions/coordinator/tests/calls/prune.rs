//! Bundles of passed epochs are deleted where the table's space counts.

use super::*;
use std::collections::BTreeSet;

/// Epochs whose bundles the table still has.
async fn epochs_with_bundles(table: &MemoryTable) -> BTreeSet<u32> {
    let mut epochs = BTreeSet::new();
    for (key, _) in table.expiries() {
        let Some((_, epoch)) = key.pk.split_once("#E#") else { continue };
        let item = table.read(std::slice::from_ref(&key)).await.unwrap().pop().flatten().unwrap();
        if key.sk.starts_with("B#") && item.body.len() > 1 {
            epochs.extend(epoch.split('#').next().unwrap().parse::<u32>());
        }
    }
    epochs
}

#[tokio::test]
async fn bundles_of_epochs_that_no_checkpoint_may_name_are_deleted() {
    const EPOCHS: u32 = 6;
    let table = Arc::new(MemoryTable::default());
    let world = World::indexing_for(table.clone(), 1, EPOCHS).await;
    let pruning = world.process_with(table.clone(), CoordinatorSettings::with_pruning);
    let index = leased(pruning.claim(1).await);
    pruning.work(&index, Nonce([1; 8])).await.unwrap();
    let (splits, mut place, mut nonce) =
        (RECORDS / BATCH, SplitPlace { epoch: 0, position: 0 }, 10_u64);
    let mut trainer = Trainer::new(1, 0);
    while place < (SplitPlace { epoch: 4, position: 5 }) {
        nonce += 1;
        let id = Nonce(nonce.to_be_bytes());
        if let ClaimReply::Leased(lease) =
            pruning.claim_with(id, invocation(2), "one").await.unwrap()
        {
            pruning.work(&lease, id).await.unwrap();
        }
        let polled = pruning.poll_as(&mut trainer, place).await;
        for entry in polled.ready.iter().filter(|entry| entry.place == place).collect::<Vec<_>>() {
            place = entry.place.next(splits);
        }
        if place.position % 5 == 0 {
            pruning.coordinator.upkeep().await.unwrap();
        }
    }
    let left = epochs_with_bundles(&table).await;
    assert!(
        left.iter().all(|epoch| *epoch >= 2) && left.contains(&3) && left.contains(&4),
        "{left:?}"
    );
    // A trainer that goes back behind them gets them again, from the process that made them.
    let mut back = Trainer::new(2, 1);
    let begin = SplitPlace { epoch: 0, position: 0 };
    assert!(pruning.poll_as(&mut back, begin).await.ready.is_empty());
    // A claim takes one of the first few.
    for id in 40..48 {
        let id = Nonce([id; 8]);
        let again = leased(pruning.claim_with(id, invocation(3), "one").await);
        pruning.work(&again, id).await.unwrap();
    }
    assert_eq!(pruning.poll_as(&mut back, begin).await.ready[0].place, begin);
    pruning.call(StopCall { job: pruning.job.clone() }).await.unwrap();
    pruning.pass(1);
    assert!(pruning.coordinator.upkeep().await.unwrap().bundles > 0);
    assert_eq!(epochs_with_bundles(&table).await, BTreeSet::new(), "an ended job keeps none");
}

#[tokio::test]
async fn a_done_job_goes_on_for_a_trainer_that_goes_back() {
    let table = Arc::new(MemoryTable::default());
    let world = World::indexing(table.clone(), 1).await;
    let pruning = world.process_with(table.clone(), CoordinatorSettings::with_pruning);
    let index = leased(pruning.claim(1).await);
    pruning.work(&index, Nonce([1; 8])).await.unwrap();
    let (splits, begin) = (RECORDS / BATCH, SplitPlace { epoch: 0, position: 0 });
    let (first, ()) = tokio::join!(pruning.be_the_trainer(splits), pruning.be_a_worker(2));
    // Twice: what is made again is deleted again.
    for generation in [2, 4] {
        pruning.pass(1);
        let upkeep = pruning.coordinator.upkeep().await.unwrap();
        assert_eq!((upkeep.tidied, upkeep.bundles > 0), (1, true), "{upkeep:?}");
        assert_eq!(epochs_with_bundles(&table).await, BTreeSet::new());
        let mut late = Trainer::new(generation, generation - 1);
        let polled = pruning.poll_as(&mut late, SplitPlace { epoch: 1, position: 0 }).await;
        assert_eq!(polled.job.state, JobState::Done, "it has all");
        let mut back = Trainer::new(generation + 1, generation);
        let polled = pruning.poll_as(&mut back, begin).await;
        assert_eq!(polled.job.state, JobState::Running);
        let worker = pruning.be_a_worker(generation as u8 + 1);
        let (again, ()) = tokio::join!(pruning.train_on(&mut back, 0..splits, splits), worker);
        assert_eq!(again.len(), first.len());
    }
}
