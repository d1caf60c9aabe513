//! Claims that name the split which a trainer waits for, and bundles that are given back without a failure.

use super::*;
use gristmill_model::wire::FailCall;

impl World {
    fn claim_of(&self, needed: Option<SplitPlace>) -> ClaimCall {
        ClaimCall {
            job: self.job.clone(),
            registered_ms: 0,
            nonce: self.clock.nonce(),
            invocation: InvocationId("local".into()),
            numerics: "one".into(),
            remaining_ms: 900_000,
            split_ms: 0,
            local: true,
            resent: false,
            needed,
            said: None,
        }
    }

    async fn need(&self, epoch: u32, position: u32) -> ClaimReply {
        self.call(self.claim_of(Some(SplitPlace { epoch, position }))).await.unwrap()
    }

    async fn give_back(&self, lease: &Lease, nonce: Nonce) -> Result<AppliedReply, CallRefusal> {
        let call = FailCall {
            lease: lease.reference(&self.job, nonce),
            error: "no room for more results".into(),
            fatal: false,
            record: None,
            blameless: true,
        };
        self.call(call).await
    }
}

fn idle(reason: IdleReason) -> ClaimReply {
    ClaimReply::Idle(IdleReply { reason })
}

#[tokio::test]
async fn the_split_that_a_trainer_waits_for_is_leased_wherever_the_window_is() {
    let world = World::running(ErrorPolicy::Fail).await;
    while let ClaimReply::Leased(lease) = world.claim(1, 0).await.unwrap() {
        assert!(lease.first < RECORDS / BATCH, "the window ends before the job");
        if world.poll(0, None).await.window_full {
            break;
        }
    }
    assert_eq!(world.claim(1, 0).await.unwrap(), idle(IdleReason::WindowFull));
    let last = RECORDS / BATCH - 1;
    let ClaimReply::Leased(lease) = world.need(0, last).await else { panic!("it is free") };
    assert!(lease.todo.contains(&last) && lease.attempt == 1);
    assert_eq!(world.need(0, last).await, idle(IdleReason::AllClaimed), "somebody works on it");
    for beyond in [(0, last + 1), (7, 0)] {
        assert_eq!(world.need(beyond.0, beyond.1).await, idle(IdleReason::AllClaimed));
    }
}

#[tokio::test]
async fn a_claim_of_a_needed_split_that_is_sent_again_has_one_lease() {
    let world = World::running(ErrorPolicy::Fail).await;
    let claim = world.claim_of(Some(SplitPlace::default()));
    let first = world.call(claim.clone()).await.unwrap();
    assert!(matches!(first, ClaimReply::Leased(_)));
    let again = world.call(ClaimCall { resent: true, ..claim.clone() }).await.unwrap();
    assert_eq!(first, again);
    assert_eq!(world.call(claim).await.unwrap(), first, "the mark of a repeated call may be lost");
}

#[tokio::test]
async fn a_bundle_given_back_is_found_again_at_once_as_the_same_attempt() {
    // So many splits that bundles have several.
    let world = World::with(settings(ErrorPolicy::Fail), 1).await;
    let (lease, nonce) = loop {
        let lease = world.leased(1).await;
        if lease.todo.len() > 1 {
            break (lease, world.last_nonce());
        }
    };
    let some = Lease { todo: lease.todo[..1].to_vec(), ..lease.clone() };
    world.flush(&some, BATCH, 0).await;
    for _ in 0..2 {
        world.give_back(&lease, nonce).await.unwrap();
    }
    let mut found = None;
    for _ in 0..4 {
        let next = world.leased(2).await;
        if next.bundle == lease.bundle {
            found = Some(next);
            break;
        }
    }
    let found = found.unwrap_or_else(|| panic!("it is not found among the first returned ones"));
    assert_eq!((found.attempt, found.control), (1, None));
    assert!(!found.marks(), "nothing has failed");
    assert_eq!(found.todo, lease.todo[1..], "what is committed stays so");
    let late = world.give_back(&lease, nonce).await.unwrap_err();
    assert_eq!(late.kind, RefusalKind::LeaseLost);
    let status = world.call(StatusCall { job: world.job.clone() }).await.unwrap();
    assert_eq!(status.trouble, None);
}
