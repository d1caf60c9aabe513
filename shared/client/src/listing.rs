//! The list of a dataset's files: told with the registration, or stored where a call cannot carry it.

use crate::{FetchError, FetcherPorts, fetcher::insist};
use gristmill_model::Namespace;
use gristmill_model::stored::keys;
use gristmill_model::wire::Register;
use gristmill_pipeline::Pipeline;
use gristmill_ports::{MAX_GET_BYTES, ObjectError, ObjectPath};
use std::time::Duration;

/// Bytes of a list that a registration carries. Longer ones are stored: a call takes six times as many.
const MAX_TOLD_BYTES: usize = 1 << 20;
/// Bytes of a file in that list beside its key and tag.
const FILE_OVERHEAD_BYTES: usize = 48;

/// The registration, with the list of files stored in `own_bucket` if it is long.
///
/// # Errors
/// [`FetchError::Refused`] if there are more files than workers can read the list of, or the bucket refuses it;
/// [`FetchError::Unreachable`].
pub(crate) async fn tell(
    ports: &FetcherPorts,
    (ns, own_bucket): (&Namespace, &str),
    register: Register,
    patience: Duration,
) -> Result<Register, FetchError> {
    let files = &register.dataset.files;
    let of_file = |key: &str, etag: &str| key.len() + etag.len() + FILE_OVERHEAD_BYTES;
    let bytes: usize = files.iter().map(|file| of_file(&file.key, &file.etag)).sum();
    if bytes <= MAX_TOLD_BYTES {
        return Ok(register);
    }
    let refused = |error: &dyn std::fmt::Display| FetchError::Refused(error.to_string());
    let pipeline =
        Pipeline::from_canonical(&register.spec.pipeline).map_err(|error| refused(&error))?;
    let version = register.dataset.version(&pipeline.source().stored_as());
    let list = serde_json::to_vec(&register.dataset).map_err(|error| refused(&error))?;
    if list.len() as u64 > MAX_GET_BYTES {
        let count = files.len();
        return Err(FetchError::Refused(format!(
            "the dataset has {count} files, more than workers can read a list of: join them into fewer, larger \
             ones, or name some of them"
        )));
    }
    let (path, list) =
        (ObjectPath::new(own_bucket, keys::listing(ns, version)), bytes::Bytes::from(list));
    // Whoever wins the race stored the same bytes: the name is made of them.
    let put = async || ports.objects.put_if_absent(&path, list.clone(), "listing").await;
    let passes =
        |error: &ObjectError| matches!(error, ObjectError::Unavailable(_) | ObjectError::Denied(_));
    insist(&*ports.clock, patience, put, passes, |error| refused(&error)).await?;
    Ok(register.with_listing(version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use gristmill_model::wire::{Call, Dataset, JobSpec, Reply, SourceFile};
    use gristmill_ports::{CallError, Coordinator, Objects as _, memory::MemoryObjects};
    use gristmill_runner::Compute;
    use std::sync::Arc;

    struct Silent;

    #[async_trait]
    impl Coordinator for Silent {
        async fn call(&self, _: &Call) -> Result<Reply, CallError> {
            Err(CallError::Unavailable("silent".to_owned()))
        }
    }

    async fn told(files: u32) -> (Register, Register, Arc<MemoryObjects>) {
        let objects = Arc::new(MemoryObjects::default());
        let ports = FetcherPorts {
            coordinator: Arc::new(Silent),
            objects: Arc::clone(&objects) as _,
            clock: Arc::new(gristmill_ports::SystemClock),
            compute: Compute::Inline,
            operators: Arc::default(),
        };
        let source =
            "source: { jsonl: x, features: { v: { dtype: i64 } } }\nops: [{ batch: { size: 1 } }]";
        let pipeline = Pipeline::parse(source).unwrap();
        let file = |i| SourceFile { key: format!("{i:08}"), size: 1, etag: "e".to_owned() };
        let dataset = Dataset::one("data", (0..files).map(file).collect());
        let job = "j".parse().unwrap();
        let whole = Register::new(job, JobSpec::new(pipeline.canonical_json()), dataset);
        let ns: Namespace = "team".parse().unwrap();
        let told = tell(&ports, (&ns, "own"), whole.clone(), Duration::ZERO).await.unwrap();
        (whole, told, objects)
    }

    #[tokio::test]
    async fn a_long_list_is_stored_and_named() {
        let (whole, told, objects) = told(100_000).await;
        let version = told.listing.unwrap().version;
        assert_eq!((told.dataset.files.len(), told.n_files()), (0, 100_000));
        let version_of = |register: &Register| register.dataset_version("jsonl");
        assert_eq!(version_of(&told), version_of(&whole), "it is the same dataset");
        let path = ObjectPath::new("own", keys::listing(&"team".parse().unwrap(), version));
        let stored: Dataset = serde_json::from_slice(&objects.get(&path).await.unwrap()).unwrap();
        assert_eq!(stored, whole.dataset);
        assert!(serde_json::to_vec(&told).unwrap().len() < 2_000);
    }

    #[tokio::test]
    async fn a_short_list_goes_with_the_call() {
        let (whole, told, _) = told(10_000).await;
        assert_eq!((told.listing, told.dataset), (None, whole.dataset));
    }
}
