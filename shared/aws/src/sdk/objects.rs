//! S3 as [`ObjectStore`]: conditional single puts, and reads into one contiguous buffer.

mod denial;
mod read;
mod regions;

use crate::sdk::{
    Aws, AwsCredentials, AwsEndpoints,
    aws::{DATA_OPERATION_TIMEOUT, timeouts},
    fault::RequestFault,
};
use async_trait::async_trait;
use aws_sdk_s3::{
    Client,
    config::Config,
    error::{ProvideErrorMetadata, SdkError},
    operation::list_objects_v2::{ListObjectsV2Output, builders::ListObjectsV2FluentBuilder},
    primitives::ByteStream,
    types::{Delete, Object, ObjectIdentifier},
};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use gristmill_ports::{
    BufferPool, ObjectError, ObjectInfo, ObjectPath, ObjectStore, PrefixReadLimits, PutOutcome,
    ReadTimeout,
};
use regions::OtherRegionClients;
use std::{error::Error, fmt, ops::Range, sync::Arc, time::Duration};
use tokio::sync::OnceCell;

/// Metadata that identifies the put that made an object.
const PUT_ID: &str = "put-id";
/// Tries of a put that conflicts with a concurrent one.
const PUT_TRIES: u32 = 5;
/// Timeout of one try of a put, beside the time that its bytes take on a slow network.
const PUT_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
const PUT_BYTES_PER_S: u64 = 2 << 20;
const KEYS_REFUSED: [&str; 3] = ["ExpiredToken", "InvalidAccessKeyId", "InvalidToken"];
const PUT_BACKOFF: Duration = Duration::from_millis(50);
const ACCESS_DENIED: &str = "AccessDenied";
const LIST: &str = "ListObjectsV2";
/// Most keys of one `DeleteObjects`, and concurrent ones.
const DELETE_KEYS: usize = 1000;
const DELETES_AT_ONCE: usize = 4;

/// All buckets that the credentials can access.
#[derive(Debug, Clone, Default)]
pub struct S3Objects {
    client: OnceCell<Client>,
    elsewhere: OtherRegionClients,
    buffers: BufferPool,
    patience: Arc<ReadTimeout>,
    paces: Arc<PrefixReadLimits>,
}

impl S3Objects {
    pub(crate) fn new(client: Client) -> Self {
        Self { client: OnceCell::new_with(Some(client)), ..Self::default() }
    }

    /// With the credentials, region and endpoint of the environment, which are loaded on first use: that takes time.
    pub fn ambient() -> Self {
        Self::default()
    }

    /// Those of the service at `endpoint`, with known credentials; reads no environment.
    pub fn at(endpoint: String, region: String, credentials: AwsCredentials) -> Self {
        let endpoints = AwsEndpoints { s3: Some(endpoint), ..AwsEndpoints::default() };
        Aws::known(region, credentials, endpoints, true).objects()
    }

    async fn client(&self) -> &Client {
        self.client.get_or_init(async || Aws::ambient().await.s3().clone()).await
    }

    /// Whether an existing object was made by this very put.
    async fn existing(
        &self,
        path: &ObjectPath,
        put_id: &str,
    ) -> Result<Option<PutOutcome>, ObjectError> {
        let ObjectPath { bucket, key } = path;
        let head = |client: Client| client.head_object().bucket(bucket).key(key).send();
        match self.ask(bucket, head).await {
            Ok(head) => {
                let found = head.metadata.as_ref().and_then(|metadata| metadata.get(PUT_ID));
                if found.is_some_and(|found| found == put_id) {
                    Ok(Some(PutOutcome::Created))
                } else {
                    Ok(Some(PutOutcome::Exists))
                }
            }
            Err(error) => match failed("HeadObject", path, &error) {
                ObjectError::NotFound(_) => Ok(None),
                error => Err(error),
            },
        }
    }
}

#[async_trait]
impl ObjectStore for S3Objects {
    async fn put_if_absent(
        &self,
        path: &ObjectPath,
        body: Bytes,
        put_id: &str,
    ) -> Result<PutOutcome, ObjectError> {
        for attempt in 0..PUT_TRIES {
            if attempt > 0 {
                tokio::time::sleep(PUT_BACKOFF * 2_u32.pow(attempt - 1)).await;
            }
            let put = |client: Client| {
                let request = client
                    .put_object()
                    .bucket(&path.bucket)
                    .key(&path.key)
                    .body(ByteStream::from(body.clone()))
                    .if_none_match("*")
                    .metadata(PUT_ID, put_id);
                let timeout =
                    PUT_ATTEMPT_TIMEOUT + Duration::from_secs(body.len() as u64 / PUT_BYTES_PER_S);
                let timeouts = timeouts(timeout, DATA_OPERATION_TIMEOUT);
                let slowly = Config::builder().timeout_config(timeouts);
                // The body is not hashed for the signature: it carries checksums of its own.
                request.customize().config_override(slowly).disable_payload_signing().send()
            };
            let Err(error) = self.ask(&path.bucket, put).await else {
                return Ok(PutOutcome::Created);
            };
            match error.raw_response().map(|response| response.status().as_u16()) {
                Some(412) => match self.existing(path, put_id).await? {
                    Some(outcome) => return Ok(outcome),
                    // Deleted in the meantime: try again.
                    None => continue,
                },
                // A concurrent conditional put of this key.
                Some(409) => continue,
                _ if refuses_keys(&error) && attempt + 1 < PUT_TRIES => continue,
                _ => return Err(failed("PutObject", path, &error)),
            }
        }
        let text = format!("PutObject on {path}: other puts of this key are in progress");
        Err(ObjectError::Unavailable(text))
    }

    async fn get(&self, path: &ObjectPath) -> Result<Bytes, ObjectError> {
        self.read_whole(path).await
    }

    async fn get_range(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Bytes, ObjectError> {
        self.read_range(path, range, etag).await
    }

    async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        let (mut found, mut next) = (Vec::new(), None);
        loop {
            let page = self.page(bucket, prefix, |list| list.set_continuation_token(next.clone()));
            let page = page.await?;
            let after = page.next_continuation_token.filter(|token| !token.is_empty());
            found.extend(listed(page.contents));
            if after.is_none() || after == next {
                break;
            }
            next = after;
        }
        // Directory buckets do not list in key order.
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    async fn list_after(
        &self,
        bucket: &str,
        prefix: &str,
        after: &str,
    ) -> Result<Vec<ObjectInfo>, ObjectError> {
        let page = self.page(bucket, prefix, |list| list.start_after(after)).await?;
        Ok(listed(page.contents).collect())
    }

    async fn delete(&self, bucket: &str, keys: &[String]) -> Result<(), ObjectError> {
        let batches = keys.chunks(DELETE_KEYS).map(|batch| self.delete_batch(bucket, batch));
        let batches: Vec<_> = batches.collect();
        stream::iter(batches).buffer_unordered(DELETES_AT_ONCE).try_collect().await
    }
}

impl S3Objects {
    /// One page of a listing, whose request `set` completes.
    async fn page(
        &self,
        bucket: &str,
        prefix: &str,
        set: impl Fn(ListObjectsV2FluentBuilder) -> ListObjectsV2FluentBuilder,
    ) -> Result<ListObjectsV2Output, ObjectError> {
        let list =
            |client: Client| set(client.list_objects_v2().bucket(bucket).prefix(prefix)).send();
        let page = self.ask(bucket, list).await;
        page.map_err(|error| failed(LIST, &ObjectPath::new(bucket, prefix), &error))
    }

    async fn delete_batch(&self, bucket: &str, batch: &[String]) -> Result<(), ObjectError> {
        let ids = batch.iter().map(|key| ObjectIdentifier::builder().key(key).build());
        let ids = ids.collect::<Result<Vec<_>, _>>();
        let delete =
            ids.and_then(|ids| Delete::builder().set_objects(Some(ids)).quiet(true).build());
        let delete = delete.map_err(|error| ObjectError::Rejected(error.to_string()))?;
        let send =
            |client: Client| client.delete_objects().bucket(bucket).delete(delete.clone()).send();
        let sent = self.ask(bucket, send).await;
        let path = ObjectPath::new(bucket, batch[0].as_str());
        let answer = sent.map_err(|error| failed("DeleteObjects", &path, &error))?;
        let mut errors = answer.errors.into_iter().flatten();
        match errors.next() {
            Some(first) => Err(undeleted(bucket, first, errors.count())),
            None => Ok(()),
        }
    }
}

fn listed(contents: Option<Vec<Object>>) -> impl Iterator<Item = ObjectInfo> {
    contents.into_iter().flatten().filter_map(|object| {
        Some(ObjectInfo {
            key: object.key?,
            size: u64::try_from(object.size?).ok()?,
            etag: object.e_tag?,
        })
    })
}

fn undeleted(bucket: &str, first: aws_sdk_s3::types::Error, others: usize) -> ObjectError {
    let code = first.code.unwrap_or_default();
    let text = format!(
        "DeleteObjects on s3://{bucket}/{}: {code}: {} (and {others} more keys)",
        first.key.unwrap_or_default(),
        crate::sdk::fault::one_line(&first.message.unwrap_or_default()),
    );
    match code.as_str() {
        "InternalError" | "ServiceUnavailable" | "SlowDown" => ObjectError::Unavailable(text),
        ACCESS_DENIED => ObjectError::Denied(text),
        _ => ObjectError::Rejected(text),
    }
}

/// Whether the store does not know the keys: now and then for a moment, or for good.
fn refuses_keys(error: &impl ProvideErrorMetadata) -> bool {
    error.code().is_some_and(|code| KEYS_REFUSED.contains(&code))
}

fn failed<E>(operation: &str, path: &ObjectPath, error: &SdkError<E, HttpResponse>) -> ObjectError
where
    E: Error + ProvideErrorMetadata + 'static,
{
    let fault = RequestFault::new(operation, path as &dyn fmt::Display, error);
    match fault.status {
        Some(404) if !fault.has_code("NoSuchBucket") => ObjectError::NotFound(path.clone()),
        Some(412) => ObjectError::Changed(path.clone()),
        _ if fault.is_passing => ObjectError::Unavailable(fault.text),
        Some(403) if fault.has_code("InvalidObjectState") => ObjectError::Rejected(format!(
            "{}: it is archived: restore it with aws s3api restore-object, or leave it out",
            fault.text
        )),
        Some(403) if operation == LIST && fault.has_code(ACCESS_DENIED) => {
            ObjectError::Denied(format!("{}: {}", fault.text, denial::GRANT_LIST))
        }
        // Clocks and policies may be put right while a job runs; keys are those of this process.
        Some(401 | 403) if !fault.has_code("SignatureDoesNotMatch") && !refuses_keys(error) => {
            ObjectError::Denied(fault.text)
        }
        _ => ObjectError::Rejected(fault.text),
    }
}

#[cfg(test)]
mod tests;
