//! Plain trainers that begin behind what was collected.

use super::*;
use gristmill_coordinator::inspect::{self, DecodedItem};
use gristmill_model::Visitation;
use gristmill_model::splits::{Cursor, JobProgress};

async fn progress(world: &World) -> JobProgress {
    let key = inspect::progress_key(&world.ns, &world.job);
    let item = world.table.read(std::slice::from_ref(&key)).await.unwrap().pop().flatten().unwrap();
    match inspect::decode(&key, &item.body) {
        Ok(DecodedItem::Progress(progress)) => *progress,
        Ok(_) => panic!("the key is of another item"),
        Err(error) => panic!("{error}"),
    }
}

/// A job whose trainer, of generation 2, has a checkpoint at split 30; what is before it is collected.
async fn collected(visitation: Visitation) -> World {
    let world = World::with(JobSettings { visitation, ..settings(ErrorPolicy::Fail) }, BATCH).await;
    world.make(RECORDS / BATCH).await;
    let mut trainer = Trainer::new(2, 1);
    for place in [SplitPlace::default(), SplitPlace::new(0, 30)] {
        world.poll_as(&mut trainer, place).await.unwrap();
    }
    let JobProgress { generation, durable, collected, .. } = progress(&world).await;
    assert_eq!((generation, durable, collected), (2, Cursor::new(0, 30), Cursor::new(0, 30)));
    world
}

#[tokio::test]
async fn a_trainer_may_begin_behind_what_was_collected() {
    for visitation in [Visitation::ExactlyOnce, Visitation::ZeroOnceOrMore] {
        let world = collected(visitation).await;
        let (mut trainer, behind) = (Trainer::new(3, 2), SplitPlace::new(0, 5));
        let polled = world.poll_as(&mut trainer, behind).await.unwrap();
        assert_eq!((polled.generation, polled.delivered), (3, behind), "{visitation}");
        assert_eq!(polled.ready[0].place, behind, "committed splits outlive their objects");
        let JobProgress { durable, collected, .. } = progress(&world).await;
        assert_eq!((durable, collected), (Cursor::new(0, 5), Cursor::new(0, 30)));
        world.poll_as(&mut trainer, SplitPlace::new(0, 6)).await.unwrap();
        assert_eq!(progress(&world).await.durable, Cursor::new(0, 6));
    }
}

#[tokio::test]
async fn at_most_once_trainer_before_the_last_checkpoint_is_refused() {
    let world = collected(Visitation::AtMostOnce).await;
    let before = progress(&world).await;
    for behind in [5, 29] {
        let refused = world.poll_as(&mut Trainer::new(3, 2), SplitPlace::new(0, behind)).await;
        assert_eq!(refused.unwrap_err().kind, RefusalKind::Collected);
        assert_eq!(progress(&world).await, before, "a refused trainer changes nothing");
    }
    let polled = world.poll_as(&mut Trainer::new(3, 2), SplitPlace::new(0, 30)).await.unwrap();
    assert_eq!(polled.generation, 3);
}

#[tokio::test]
async fn a_trainer_that_is_refused_leaves_nothing_to_be_made() {
    let world = World::with(settings(ErrorPolicy::Fail), BATCH).await;
    let mut trainer = Trainer::new(5, 0);
    world.poll_as(&mut trainer, SplitPlace::default()).await.unwrap();
    let before = progress(&world).await;
    // Beyond the job, and of an older generation.
    for (generation, over, place) in
        [(6, 5, SplitPlace::new(7, 5)), (3, 0, SplitPlace::new(0, RECORDS / BATCH / 2))]
    {
        world.poll_as(&mut Trainer::new(generation, over), place).await.unwrap_err();
        assert_eq!(progress(&world).await, before);
    }
}
