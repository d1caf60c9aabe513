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
    let pruning = world.process_with(table.clone(), Settings::with_pruning);
    let index = leased(pruning.claim(1).await);
    pruning.work(&index, Nonce([1; 8])).await.unwrap();
    let (splits, mut place, mut nonce) = (RECORDS / BATCH, Place { epoch: 0, position: 0 }, 10_u64);
    let mut trainer = Trainer::new(1, 0);
    while place < (Place { epoch: 4, position: 5 }) {
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
    pruning.call(Stop { job: pruning.job.clone() }).await.unwrap();
    pruning.pass(1);
    assert!(pruning.coordinator.upkeep().await.unwrap().bundles > 0);
    assert_eq!(epochs_with_bundles(&table).await, BTreeSet::new(), "an ended job keeps none");
}
