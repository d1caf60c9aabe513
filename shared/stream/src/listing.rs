//! The list of a dataset's files: sent with the registration, or stored if a call cannot carry it.

use crate::{FetchError, FetcherPorts, asking::insist};
use gristmill_model::Namespace;
use gristmill_model::stored::keys;
use gristmill_model::wire::RegisterCall;
use gristmill_ports::{MAX_GET_BYTES, ObjectError, ObjectPath};
use std::time::Duration;

/// Largest list in a registration, in bytes; longer lists are stored. A call can carry six times as much.
const MAX_SENT_BYTES: usize = 1 << 20;
/// Bytes per file in the list, besides its key and tag.
const FILE_OVERHEAD_BYTES: usize = 48;

/// The registration, with the list of files stored in `own_bucket` if it is long.
///
/// # Errors
/// [`FetchError::Refused`] if the list has more files than workers can read, or the bucket refuses it;
/// [`FetchError::Unreachable`].
pub(crate) async fn tell(
    ports: &FetcherPorts,
    (ns, own_bucket): (&Namespace, &str),
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
    use gristmill_ports::{CallError, Coordinator, ObjectStore as _, memory::MemoryObjects};
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
        let sent = tell(&ports, (&ns, "own"), whole.clone(), Duration::ZERO).await.unwrap();
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
