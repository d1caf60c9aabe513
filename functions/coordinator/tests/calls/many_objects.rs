//! More objects than one call or one round of upkeep has time to delete.

use super::*;
use gristmill_model::wire::ForgetCall;
use gristmill_ports::{ObjectError, ObjectInfo, PutOutcome};

/// Keys of a page, and the time that one takes.
const PAGE: usize = 10;
const PAGE_MS: u64 = 1_500;

/// Lists pages of [`PAGE`] keys, each of which takes [`PAGE_MS`].
struct Slow(Arc<MemoryObjects>, Arc<ManualClock>);

#[async_trait]
impl gristmill_ports::ObjectStore for Slow {
    async fn put_if_absent(
        &self,
        path: &ObjectPath,
        body: Bytes,
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        self.0.put_if_absent(path, body, put_id).await
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        self.0.get(path).await
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        self.0.get_range(path, range, etag).await
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        self.0.list(bucket, prefix).await
    }

    async fn list_after(
        &self,
        bucket: &str,
        prefix: &str,
        after: &str,
    ) -> Result<Vec<ObjectInfo>, ObjectError> {
        self.1.0.fetch_add(PAGE_MS, Ordering::Relaxed);
        let mut page = self.0.list_after(bucket, prefix, after).await?;
        page.truncate(PAGE);
        Ok(page)
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        assert!(keys.len() <= PAGE, "a page at a time");
        self.0.delete(bucket, keys).await
    }
}

/// A stopped job with `chunks` chunks and as many quarantined records.
async fn stopped(chunks: usize) -> (World, CoordinatorFunction) {
    let world = World::running(Arc::new(MemoryTable::default())).await;
    let coordinator = CoordinatorFunction::new(
        Arc::clone(&world.table),
        Arc::new(Slow(world.objects.clone(), world.clock.clone())),
        Arc::new(NoWorkers),
        Arc::clone(&world.clock) as _,
        CoordinatorSettings::new(world.ns.clone(), "bucket".into(), "scaler".into()),
    );
    for i in 0..chunks {
        let prefix = format!("t/{}/jobs/j/e000000/b00000000/", world.ns);
        world.put(&format!("{prefix}{i:08}.1.0101010101010101.gmc")).await;
        world.put(&format!("t/{}/quarantine/j/e000000-{i:08}.records", world.ns)).await;
    }
    world.call(StopCall { job: world.job.clone() }).await.unwrap();
    world.pass(1);
    (world, coordinator)
}

#[tokio::test]
async fn upkeep_deletes_over_several_rounds_what_one_has_no_time_for() {
    const CHUNKS: usize = 500;
    let (world, coordinator) = stopped(CHUNKS).await;
    let (mut rounds, mut chunks) = (0, 0);
    loop {
        let began_ms = world.clock.now_ms();
        let upkeep = coordinator.upkeep().await.unwrap();
        rounds += 1;
        chunks += upkeep.chunks;
        assert!(world.clock.now_ms() - began_ms < 25_000, "the function is ended after 30 s");
        if upkeep.tidied == 1 {
            break;
        }
        assert!(upkeep.chunks > 100, "{upkeep:?}");
    }
    assert_eq!((rounds, chunks), (4, CHUNKS as u64));
    assert_eq!(coordinator.upkeep().await.unwrap(), UpkeepReport::default());
}

#[tokio::test]
async fn a_job_with_many_objects_is_forgotten_in_calls_that_are_answered_in_time() {
    let (world, coordinator) = stopped(100).await;
    let call = ForgetCall { job: world.job.clone() };
    let request = CallEnvelope { v: VERSION, ns: world.ns.clone(), call: call.into() };
    let mut objects = 0;
    for calls in 1.. {
        let began_ms = world.clock.now_ms();
        let AnyReply::Forget(forgotten) = coordinator.answer(&request).await else { panic!() };
        objects += forgotten.objects;
        assert!(world.clock.now_ms() - began_ms < 10_000, "its sender waits for 10 s");
        if forgotten.all {
            assert!(calls > 3);
            break;
        }
    }
    assert_eq!(objects, 200);
    let left = world.objects.list("bucket", &format!("t/{}/", world.ns)).await.unwrap();
    assert!(left.iter().all(|object| object.key.contains("/datasets/")), "{left:?}");
}
