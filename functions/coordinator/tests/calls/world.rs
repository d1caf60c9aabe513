//! A coordinator with one job, and the calls of its workers and its trainer.

use super::*;

/// Records of the file, in batches of [`BATCH`] and splits of one batch.
pub const RECORDS: u32 = 40;
pub const BATCH: u32 = 4;

/// Ready splits by position.
pub type Seen = BTreeMap<u32, ReadySplit>;

/// One process of the coordinator, and a job.
pub struct World {
    pub coordinator: CoordinatorFunction,
    pub table: Arc<dyn Table>,
    pub clock: Arc<ManualClock>,
    pub objects: Arc<MemoryObjects>,
    pub ns: Namespace,
    pub job: JobName,
    pub registration: RegisterCall,
}

impl World {
    /// A job about to index `files` files.
    pub async fn indexing(table: Arc<dyn Table>, files: usize) -> Self {
        Self::indexing_for(table, files, 1).await
    }

    pub async fn indexing_for(table: Arc<dyn Table>, files: usize, epochs: u32) -> Self {
        // Each world has its own namespace, because a peer's table is shared.
        static WORLDS: AtomicU32 = AtomicU32::new(0);
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros();
        let ns = format!("t{now}-{}", WORLDS.fetch_add(1, Ordering::Relaxed));
        let ns: Namespace = ns.parse().unwrap();
        let clock = Arc::new(ManualClock(AtomicU64::new(1_000_000)));
        let objects = Arc::new(MemoryObjects::default());
        let coordinator = CoordinatorFunction::new(
            Arc::clone(&table),
            Arc::clone(&objects) as _,
            Arc::new(NoWorkers),
            Arc::clone(&clock) as _,
            CoordinatorSettings::new(ns.clone(), "bucket".into(), "scaler".into()),
        );
        let pipeline = "source: { tfrecord: x, features: { v: { key: v, dtype: i64 } } }\n\
                        ops: [batch: { size: 4 }]\n";
        let spec = JobSpec {
            settings: JobSettings { split_batches: Some(1), ..JobSettings::default() },
            workers: 2,
            epochs,
            ..JobSpec::new(gristmill_operators::parse(pipeline).unwrap().canonical_json())
        };
        let file = |i| SourceFile::new(format!("f{i}"), 100, "e");
        let dataset = Dataset::one("data", (0..files).map(file).collect());
        let job: JobName = "j".parse().unwrap();
        let registration = RegisterCall::new(job.clone(), spec, dataset);
        let world = Self { coordinator, table, clock, objects, ns, job, registration };
        let reply = world.call(world.registration.clone()).await;
        assert!(reply.is_ok(), "{reply:?}");
        world
    }

    /// The same world, served by a process without memory.
    pub fn another_process(&self) -> Self {
        self.process_over(Arc::clone(&self.table))
    }

    pub fn process_over(&self, table: Arc<dyn Table>) -> Self {
        self.process_with(table, |settings| settings)
    }

    pub fn process_with(
        &self,
        table: Arc<dyn Table>,
        tune: fn(CoordinatorSettings) -> CoordinatorSettings,
    ) -> Self {
        let clock = Arc::clone(&self.clock);
        let objects = Arc::clone(&self.objects);
        let coordinator = CoordinatorFunction::new(
            Arc::clone(&table),
            Arc::clone(&objects) as _,
            Arc::new(NoWorkers),
            Arc::clone(&clock) as _,
            tune(CoordinatorSettings::new(self.ns.clone(), "bucket".into(), "scaler".into())),
        );
        let (ns, job) = (self.ns.clone(), self.job.clone());
        let registration = self.registration.clone();
        Self { coordinator, table, clock, objects, ns, job, registration }
    }

    /// Sends a call, and repeats it after temporary faults, as clients do.
    pub async fn call<C: CoordinatorCall>(&self, call: C) -> Result<C::Reply, CallRefusal> {
        let request = CallEnvelope { v: VERSION, ns: self.ns.clone(), call: call.into() };
        for _ in 0..20 {
            match self.coordinator.answer(&request).await {
                AnyReply::Refused(refusal) if refusal.kind.is_passing() => {}
                AnyReply::Refused(refusal) => return Err(refusal),
                reply => return Ok(C::reply_from(reply).unwrap()),
            }
        }
        panic!("busy for ever: {:?}", request.call)
    }

    pub async fn claim(&self, id: u8) -> Result<ClaimReply, CallRefusal> {
        self.claim_as(id, "one").await
    }

    pub async fn claim_as(&self, id: u8, numerics: &str) -> Result<ClaimReply, CallRefusal> {
        self.claim_with(Nonce([id; 8]), invocation(id), numerics).await
    }

    pub async fn claim_with(
        &self,
        nonce: Nonce,
        invocation: InvocationId,
        numerics: &str,
    ) -> Result<ClaimReply, CallRefusal> {
        self.call(self.claim_of(nonce, invocation, numerics)).await
    }

    pub fn claim_of(&self, nonce: Nonce, invocation: InvocationId, numerics: &str) -> ClaimCall {
        ClaimCall {
            registered_ms: 0,
            job: self.job.clone(),
            nonce,
            invocation,
            numerics: numerics.to_owned(),
            remaining_ms: 900_000,
            split_ms: 0,
            local: false,
            resent: false,
            needed: None,
            said: None,
        }
    }

    /// A job whose only file is indexed.
    pub async fn running(table: Arc<dyn Table>) -> Self {
        let world = Self::indexing(table, 1).await;
        let lease = leased(world.claim(1).await);
        let reply = world.work(&lease, Nonce([1; 8])).await;
        assert!(matches!(reply, Ok(FlushReply { .. })), "{reply:?}");
        assert_eq!(world.poll().await.job.state, JobState::Running);
        world
    }

    pub fn pass(&self, days: u64) {
        self.clock.0.fetch_add(days * 86_400_000, Ordering::Relaxed);
    }

    pub async fn put(&self, key: &str) {
        let path = ObjectPath::new("bucket", key);
        self.objects.put_if_absent(&path, Bytes::from_static(b"x"), "id").await.unwrap();
    }

    /// Marks and commits every split of a lease, one split per call.
    pub async fn work(&self, lease: &Lease, nonce: Nonce) -> Result<FlushReply, CallRefusal> {
        let reference = lease.reference(&self.job, nonce);
        let mut reply = Ok(FlushReply::default());
        for position in &lease.todo {
            let index = u8::try_from(position - lease.first).unwrap();
            if lease.marks() {
                let mark = MarkCall { lease: reference.clone(), split_index: index };
                // If the mark is refused, the flush is refused too.
                let _ = self.call(mark).await;
            }
            let (rows, batches) = match lease.work {
                LeaseWork::Index => (RECORDS, 0),
                LeaseWork::Splits => (BATCH, 1),
            };
            let commit = SplitCommit {
                split_index: index,
                outcome: SplitOutcome {
                    kind: SplitKind::Object,
                    object_bytes: 100,
                    crc32c: *position,
                    rows,
                    batches,
                    remainder_rows: 0,
                    skipped_records: 0,
                },
            };
            let flush = FlushCall {
                lease: reference.clone(),
                commits: vec![commit],
                next: None,
                remaining_ms: 900_000,
                split_ms: 0,
                times: WorkerTimes::default(),
                profile: None,
            };
            reply = self.call(flush).await;
        }
        reply
    }

    pub async fn died(&self, id: u8) {
        let release = ReleaseCall {
            job: self.job.clone(),
            invocation: invocation(id),
            worker: Some(u32::from(id)),
            blameless: false,
            expired: false,
            error: String::new(),
        };
        let reply = self.call(release).await;
        assert!(reply.is_ok(), "{reply:?}");
    }

    pub async fn poll(&self) -> PollReply {
        self.polled(trainer::asks(&self.job, SplitPlace::default())).await
    }

    /// Polls as a trainer that has the splits before `place`, durably.
    pub async fn poll_as(&self, trainer: &mut Trainer, place: SplitPlace) -> PollReply {
        let polled = self.polled(trainer.poll(&self.job, place, place, place)).await;
        trainer.answered(&polled);
        polled
    }

    async fn polled(&self, poll: PollCall) -> PollReply {
        self.clock.sleep(BETWEEN_POLLS).await;
        match self.call(poll).await {
            Ok(polled) => polled,
            other => panic!("{other:?}"),
        }
    }

    /// Claims and works until the job has ended; worker `id` loses its first lease.
    pub async fn be_a_worker(&self, id: u8) {
        let mut fallen = false;
        for round in 0_u32.. {
            let mut nonce = [id; 8];
            nonce[..4].copy_from_slice(&round.to_be_bytes());
            match self.claim_with(Nonce(nonce), invocation(id), "one").await {
                Ok(ClaimReply::Leased(lease)) if lease.work == LeaseWork::Splits && !fallen => {
                    fallen = true;
                    self.died(id).await;
                    assert!(lease.attempt >= 1);
                }
                Ok(ClaimReply::Leased(lease)) => {
                    // Another worker may have claimed the bundle meanwhile.
                    let _ = self.work(&lease, Nonce(nonce)).await;
                }
                Ok(ClaimReply::Idle(IdleReply { reason: IdleReason::JobEnded })) => return,
                Ok(ClaimReply::Idle(_)) => tokio::time::sleep(Duration::from_millis(2)).await,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Receives ready splits in order and checkpoints after each batch, until the job is done.
    pub async fn be_the_trainer(&self, splits: u32) -> Seen {
        self.train_on(&mut Trainer::new(1, 0), 0..splits, splits).await
    }

    /// As [`World::be_the_trainer`], for the splits `range` of all; it leaves once it has them, or the job is done.
    pub async fn train_on(&self, trainer: &mut Trainer, range: Range<u32>, splits: u32) -> Seen {
        let (mut delivered, mut seen) = (range.start, Seen::new());
        loop {
            // The last batch ends the epoch.
            let place = if delivered == splits {
                SplitPlace { epoch: 1, position: 0 }
            } else {
                SplitPlace { epoch: 0, position: delivered }
            };
            let polled = self.poll_as(trainer, place).await;
            if delivered >= range.end && delivered < splits {
                return seen;
            }
            match polled.job.state {
                JobState::Done => return seen,
                JobState::Indexing | JobState::Running => {}
                other => panic!("{other:?}"),
            }
            for entry in polled.ready.into_iter().filter(|entry| entry.place.epoch == 0) {
                let known = seen.entry(entry.place.position).or_insert_with(|| entry.clone());
                assert_eq!(*known, entry, "a committed entry never changes");
            }
            while delivered < range.end && seen.contains_key(&delivered) {
                delivered += 1;
            }
            // A suspect split is not handed out again for a while.
            self.clock.sleep(Duration::from_millis(100)).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
