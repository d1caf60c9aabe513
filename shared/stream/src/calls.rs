//! Calls that are retried until a service answers, or patience runs out.

use crate::{FetchError, Fetcher, FetcherConfig, FetcherPorts};
use gristmill_model::splits::Cursor;
use gristmill_model::stored::keys;
use gristmill_model::wire::{
    CoordinatorCall, DescribeCall, JobState, JobView, RegisterCall, StatusCall,
};
use gristmill_model::{JobName, Namespace, Visitation};
use gristmill_ports::{CallError, Clock, MAX_GET_BYTES, ObjectError, ObjectPath, outlast};
use std::{pin::pin, time::Duration};

impl Fetcher {
    /// Registers `register`, or joins the job of that name, and returns the job. Retries a failing service for
    /// `patience`.
    ///
    /// # Errors
    /// [`FetchError::JobFailed`] if it failed at once, such as for a dataset without records.
    pub async fn register(
        ports: &FetcherPorts,
        ns: &Namespace,
        own_bucket: &str,
        register: RegisterCall,
        patience: Duration,
    ) -> Result<JobView, FetchError> {
        let mut register = tell(ports, ns, own_bucket, register, patience).await?;
        register.nonce.get_or_insert_with(|| ports.clock.nonce());
        let mut view = ask(ports, &register, patience).await?;
        if let JobState::Failed { error, .. } = &view.state {
            let had_failed = error.clone();
            (register.resumes, register.nonce) = (Some(view.resumed), Some(ports.clock.nonce()));
            view = ask(ports, &register, patience).await?;
            if !matches!(view.state, JobState::Failed { .. }) {
                tracing::warn!("job {} had failed, and goes on: {had_failed}", view.job);
            }
        }
        match view.state {
            JobState::Failed { error, .. } => Err(FetchError::JobFailed(error)),
            _ => Ok(view),
        }
    }

    /// The job of that name; otherwise as [`Fetcher::register`].
    pub async fn describe(
        ports: &FetcherPorts,
        job: &JobName,
        patience: Duration,
    ) -> Result<JobView, FetchError> {
        ask(ports, &DescribeCall::new(job.clone()), patience).await
    }
}

/// First and longest pause between attempts.
const FIRST_REST: Duration = Duration::from_millis(20);
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Sends `call` until it succeeds, or `patience` runs out: a service that denies it may be fixed meanwhile.
pub async fn ask<C: CoordinatorCall>(
    ports: &FetcherPorts,
    call: &C,
    patience: Duration,
) -> Result<C::Reply, FetchError> {
    let passes = |error: &CallError| error.is_passing() || matches!(error, CallError::Denied(_));
    let calling = async || ports.coordinator.call(call.clone()).await;
    insist(&*ports.clock, patience, calling, passes, FetchError::from).await
}

/// Attempts until one succeeds or fails for good, or this process has run for `patience`.
pub(crate) async fn insist<T, E: std::fmt::Display>(
    clock: &dyn Clock,
    patience: Duration,
    attempt: impl AsyncFn() -> Result<T, E>,
    passes: impl Fn(&E) -> bool,
    stays: impl Fn(E) -> FetchError,
) -> Result<T, FetchError> {
    let mut over = pin!(outlast(clock, patience));
    let mut rest = FIRST_REST;
    let mut last = "it takes the call and says nothing".to_owned();
    loop {
        tokio::select! {
            biased;
            outcome = attempt() => match outcome {
                Ok(value) => return Ok(value),
                Err(error) if passes(&error) => last = error.to_string(),
                Err(error) => return Err(stays(error)),
            },
            () = &mut over => break,
        }
        tokio::select! {
            biased;
            () = &mut over => break,
            () = clock.sleep(rest) => rest = (rest * 2).min(LONGEST_REST),
        }
    }
    Err(FetchError::Unreachable { waited_s: patience.as_secs(), error: last })
}

/// The batch to begin with.
pub(crate) async fn beginning(
    ports: &FetcherPorts,
    config: &FetcherConfig,
    visitation: Visitation,
) -> Result<Cursor, FetchError> {
    // A reader of a run that has a name begins where the others do.
    if visitation == Visitation::ExactlyOnce || config.own.is_some() {
        return Ok(config.resume);
    }
    let status = ask(ports, &StatusCall { job: config.job.clone() }, config.patience).await?;
    Ok(config.resume.max(status.durable))
}

// The list of a dataset's files: sent with the registration, or stored if a call cannot carry it.

/// Largest list in a registration, in bytes; longer lists are stored. A call can carry six times as much.
const MAX_SENT_BYTES: usize = 1 << 20;
/// Bytes per file in the list, besides its key and tag.
const FILE_OVERHEAD_BYTES: usize = 48;

/// The registration, with the list of files stored in `own_bucket` if it is long.
pub(crate) async fn tell(
    ports: &FetcherPorts,
    ns: &Namespace,
    own_bucket: &str,
    register: RegisterCall,
    patience: Duration,
) -> Result<RegisterCall, FetchError> {
    let Some(dataset) = &register.dataset else { return Ok(register) };
    let files = &dataset.files;
    let of_file = |key: &str, etag: &str| key.len() + etag.len() + FILE_OVERHEAD_BYTES;
    let bytes: usize = files.iter().map(|file| of_file(&file.key, &file.etag)).sum();
    if bytes <= MAX_SENT_BYTES {
        return Ok(register);
    }
    let refused = |error: &dyn std::fmt::Display| FetchError::Refused(error.to_string());
    let pipeline = gristmill_operators::from_canonical(&register.spec.pipeline)
        .map_err(|error| refused(&error))?;
    let version = dataset.version(&pipeline.source().stored_as());
    let list = serde_json::to_vec(dataset).map_err(|error| refused(&error))?;
    if list.len() as u64 > MAX_GET_BYTES {
        let count = files.len();
        return Err(FetchError::Refused(format!(
            "the dataset has {count} files, too many for the list that workers read: join them \
             into fewer, larger files, or name some of them"
        )));
    }
    let (path, list) =
        (ObjectPath::new(own_bucket, keys::listing(ns, version)), bytes::Bytes::from(list));
    // A concurrent writer stores the same bytes: the name is their hash.
    let put = async || ports.objects.put_if_absent(&path, list.clone(), "listing").await;
    let passes = |error: &ObjectError| {
        use ObjectError::{Denied, Full, Unavailable};
        matches!(error, Unavailable(_) | Full(_) | Denied(_))
    };
    insist(&*ports.clock, patience, put, passes, |error| refused(&error)).await?;
    Ok(register.with_listing(version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use gristmill_model::wire::{AnyCall, AnyReply, Dataset, JobSpec, SourceFile};
    use gristmill_ports::memory::MemoryObjects;
    use gristmill_ports::{CallError, Coordinator, ObjectStore as _};
    use gristmill_runner::ComputeMode;
    use std::sync::Arc;

    struct Silent;

    #[async_trait]
    impl Coordinator for Silent {
        async fn exchange(&self, _: &AnyCall) -> Result<AnyReply, CallError> {
            Err(CallError::Unavailable("silent".to_owned()))
        }

        fn speak(&self, _: u32) {}
    }

    async fn sent(files: u32) -> (RegisterCall, RegisterCall, Arc<MemoryObjects>) {
        let objects = Arc::new(MemoryObjects::default());
        let ports = FetcherPorts {
            coordinator: Arc::new(Silent),
            objects: Arc::clone(&objects) as _,
            clock: Arc::new(gristmill_ports::SystemClock),
            compute: ComputeMode::Inline,
            operators: Arc::new(gristmill_operators::registry().clone()),
        };
        let source =
            "source: { jsonl: x, features: { v: { dtype: i64 } } }\nops: [{ batch: { size: 1 } }]";
        let pipeline = gristmill_operators::parse(source).unwrap();
        let file = |i| SourceFile::new(format!("{i:08}"), 1, "e");
        let dataset = Dataset::one("data", (0..files).map(file).collect());
        let job = "j".parse().unwrap();
        let whole = RegisterCall::new(job, JobSpec::new(pipeline.canonical_json()), dataset);
        let ns: Namespace = "team".parse().unwrap();
        let sent = tell(&ports, &ns, "own", whole.clone(), Duration::ZERO).await.unwrap();
        (whole, sent, objects)
    }

    #[tokio::test]
    async fn a_long_list_is_stored_and_named() {
        let (whole, sent, objects) = sent(100_000).await;
        let version = sent.listing.unwrap().version;
        assert_eq!((sent.dataset.as_ref().unwrap().files.len(), sent.n_files()), (0, 100_000));
        let version_of = |register: &RegisterCall| register.dataset_version("jsonl");
        assert_eq!(version_of(&sent), version_of(&whole), "it is the same dataset");
        let path = ObjectPath::new("own", keys::listing(&"team".parse().unwrap(), version));
        let stored: Dataset = serde_json::from_slice(&objects.get(&path).await.unwrap()).unwrap();
        assert_eq!(Some(stored), whole.dataset);
        assert!(serde_json::to_vec(&sent).unwrap().len() < 2_000);
    }

    #[tokio::test]
    async fn a_short_list_goes_with_the_call() {
        let (whole, sent, _) = sent(10_000).await;
        assert_eq!((sent.listing, sent.dataset), (None, whole.dataset));
    }
}
