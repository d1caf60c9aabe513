//! S3 as [`ObjectStore`]: conditional single puts, and reads into one contiguous buffer.

use crate::sdk::{
    Aws, AwsCredentials, AwsEndpoints,
    aws::{DATA_OPERATION_TIMEOUT, timeouts},
    fault::RequestFault,
};
use async_trait::async_trait;
use aws_sdk_s3::{
    Client,
    config::{Config, Region},
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
    ReadTimeout, limits::PAGE_KEYS,
};
use parking_lot::Mutex;
use std::{collections::BTreeMap, error::Error, fmt, ops::Range, sync::Arc, time::Duration};
use tokio::sync::OnceCell;

mod read;

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
const DELETES_AT_ONCE: usize = 4;

/// All buckets that the credentials can access.
#[derive(Debug, Clone, Default)]
pub struct S3Objects {
    client: OnceCell<Client>,
    elsewhere: OtherRegionClients,
    buffers: BufferPool,
    read_timeout: Arc<ReadTimeout>,
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
                let is_ours = found.is_some_and(|found| found == put_id);
                Ok(Some(if is_ours { PutOutcome::Created } else { PutOutcome::Exists }))
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
        let batches = keys.chunks(PAGE_KEYS).map(|batch| self.delete_batch(bucket, batch));
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
            ObjectError::Denied(format!("{}: {}", fault.text, GRANT_LIST))
        }
        // Clocks and policies may be put right while a job runs; keys are those of this process.
        Some(401 | 403) if !fault.has_code("SignatureDoesNotMatch") && !refuses_keys(error) => {
            ObjectError::Denied(fault.text)
        }
        _ => ObjectError::Rejected(fault.text),
    }
}

const GRANT_LIST: &str =
    "grant s3:ListBucket on the bucket; requester-pays buckets are not supported";
const GRANT_KEY: &str = "grant kms:Decrypt on the key of the bucket: a policy names it by its key \
                         ARN, an alias ARN grants nothing";
const GRANT_READ: &str =
    "the object exists: grant s3:GetObject on it, and kms:Decrypt on the key that encrypts it";
const GRANT_BOTH: &str = "it does not exist, or may not be read: grant s3:ListBucket on the bucket \
                          to tell, and s3:GetObject on its objects; requester-pays buckets are \
                          not supported";

impl S3Objects {
    /// Explains a denied read. A listing of the key tells more than a second read: policies often grant `s3:ListBucket`
    /// for a prefix, which a read does not name.
    async fn explain_denial(&self, path: &ObjectPath, why: String) -> ObjectError {
        let remedy = if why.contains("kms:") {
            GRANT_KEY
        } else {
            match self.exists(path).await {
                Some(false) => return ObjectError::NotFound(path.clone()),
                Some(true) => GRANT_READ,
                None => GRANT_BOTH,
            }
        };
        ObjectError::Denied(format!("{why}: {remedy}"))
    }

    /// Whether a listing has the object; `None` if there is no listing.
    async fn exists(&self, path: &ObjectPath) -> Option<bool> {
        let ObjectPath { bucket, key } = path;
        let list =
            |client: Client| client.list_objects_v2().bucket(bucket).prefix(key).max_keys(1).send();
        // The key itself is the first with this prefix.
        let page = self.ask(bucket, list).await.ok()?;
        Some(page.contents().iter().any(|found| found.key() == Some(key)))
    }
}

const BUCKET_REGION: &str = "x-amz-bucket-region";

/// Clients of the buckets that are in another region than the process, by bucket. Clones share them.
#[derive(Debug, Clone, Default)]
struct OtherRegionClients(Arc<Mutex<BTreeMap<String, Client>>>);

impl S3Objects {
    /// Sends a request in the region of `bucket`, which the first refusal tells.
    async fn ask<T, E, F>(
        &self,
        bucket: &str,
        request: impl Fn(Client) -> F,
    ) -> Result<T, SdkError<E, HttpResponse>>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    {
        let known = self.elsewhere.0.lock().get(bucket).cloned();
        let client = match known {
            Some(client) => client,
            None => self.client().await.clone(),
        };
        match request(client.clone()).await {
            Err(error) if let Some(region) = other_region(&client, &error) => {
                let config = client.config().to_builder().region(region);
                let client = Client::from_conf(config.build());
                self.elsewhere.0.lock().insert(bucket.to_owned(), client.clone());
                request(client).await
            }
            outcome => outcome,
        }
    }
}

/// The region to which an answer refers: regions opened after March 2019 answer 400 instead of a redirect.
fn other_region<E>(client: &Client, error: &SdkError<E, HttpResponse>) -> Option<Region> {
    let answer = error.raw_response()?;
    let region = answer.headers().get(BUCKET_REGION)?;
    let refers = matches!(answer.status().as_u16(), 301 | 302 | 307 | 400);
    let is_other = client.config().region().is_none_or(|own| own.as_ref() != region);
    (refers && is_other).then(|| Region::new(region.to_owned()))
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod denial_tests {
    use super::*;
    use crate::sdk::testing::{Answer, Server};

    const DENIED: &str = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>";

    fn listing(keys: &[&str]) -> Answer {
        let object = |key: &&str| {
            format!("<Contents><Key>{key}</Key><Size>1</Size><ETag>e</ETag></Contents>")
        };
        let objects: String = keys.iter().map(object).collect();
        Answer::status(200, format!("<ListBucketResult>{objects}</ListBucketResult>"))
    }

    /// The error of a read that is denied with `refusal`, and the number of requests.
    async fn denied(refusal: &'static str, list: fn() -> Answer) -> (ObjectError, usize) {
        let server = Server::start(move |_, asked| {
            if asked.target.contains("list-type") { list() } else { Answer::status(403, refusal) }
        })
        .await;
        let path = ObjectPath::new("b", "dir/k.tar");
        let error = server.aws().objects().get_range(&path, 0..9, Some("e")).await.unwrap_err();
        let asked = server.asked();
        if let Some(list) = asked.get(1) {
            assert!(list.target.contains("prefix=dir%2Fk.tar"), "{}", list.target);
        }
        (error, asked.len())
    }

    #[tokio::test]
    async fn a_denied_object_that_no_listing_has_does_not_exist() {
        let others: [fn() -> Answer; 2] = [|| listing(&[]), || listing(&["dir/k.tar.gz"])];
        for list in others {
            let (error, asked) = denied(DENIED, list).await;
            assert!(matches!(error, ObjectError::NotFound(_)), "{error}");
            assert_eq!(asked, 2, "a listing, once");
        }
    }

    #[tokio::test]
    async fn a_denied_object_says_which_right_is_missing() {
        const KEY: &str = "<Error><Code>AccessDenied</Code><Message>User: u is not authorized to \
                           perform: kms:Decrypt on the resource</Message></Error>";
        let unlisted: fn() -> Answer = || Answer::status(403, DENIED);
        for (refusal, list, requests, remedy) in [
            (DENIED, (|| listing(&["dir/k.tar"])) as fn() -> Answer, 2, "grant s3:GetObject on it"),
            (DENIED, unlisted, 2, "grant s3:ListBucket on the bucket"),
            (DENIED, unlisted, 2, "requester-pays"),
            (KEY, unlisted, 1, "alias ARN grants nothing"),
        ] {
            let (error, asked) = denied(refusal, list).await;
            let ObjectError::Denied(text) = error else { panic!("{error}") };
            assert!(text.starts_with("GetObject on s3://b/dir/k.tar: AccessDenied: "), "{text}");
            assert!(text.contains(remedy) && !text.contains('\n'), "{text}");
            assert_eq!(asked, requests, "{remedy}");
        }
    }
}

#[cfg(test)]
mod regions_tests {
    use super::*;
    use crate::sdk::testing::{Answer, Asked, Server, signature::REGION};
    use bytes::Bytes;
    use gristmill_ports::{ObjectError, ObjectPath, PutOutcome};

    const ELSEWHERE: &str = "eu-central-2";

    fn signed_for(asked: &Asked) -> String {
        let scope = asked.header("authorization").split(['/', ',']).nth(2);
        scope.unwrap_or_default().to_owned()
    }

    fn refusal(status: u16, code: &str, region: &str) -> Answer {
        let body = format!("<Error><Code>{code}</Code><Message>no</Message></Error>");
        Answer::Full(status, vec![(BUCKET_REGION, region.to_owned())], body.into())
    }

    /// Answers as S3 does for a bucket in [`ELSEWHERE`].
    async fn elsewhere(status: u16, code: &'static str) -> Server {
        Server::start(move |n, asked| {
            if signed_for(asked) != ELSEWHERE {
                return refusal(status, code, ELSEWHERE);
            }
            match asked.method.as_str() {
                // As after a put whose response was lost.
                "PUT" if n == 1 => Answer::status(412, ""),
                "HEAD" => {
                    Answer::Full(200, vec![("x-amz-meta-put-id", "id".to_owned())], "".into())
                }
                "GET" if asked.target.contains("list-type") => {
                    Answer::status(200, "<ListBucketResult></ListBucketResult>")
                }
                "GET" => Answer::Full(206, vec![("etag", "e".to_owned())], "01234".into()),
                _ => Answer::status(200, "<DeleteResult></DeleteResult>"),
            }
        })
        .await
    }

    const REFUSALS: [(u16, &str); 4] = [
        (301, "PermanentRedirect"),
        (307, "TemporaryRedirect"),
        (400, "AuthorizationHeaderMalformed"),
        (400, "IllegalLocationConstraintException"),
    ];

    #[tokio::test]
    async fn a_bucket_elsewhere_is_asked_there_and_remembered() {
        let path = ObjectPath::new("b", "k");
        for (status, code) in REFUSALS {
            for operation in ["get", "list", "put", "delete"] {
                let server = elsewhere(status, code).await;
                let objects = server.aws().objects();
                let ask = async |objects: &S3Objects| match operation {
                    "get" => {
                        let read = objects.get_range(&path, 0..5, None).await;
                        assert_eq!(read.unwrap(), "01234", "{code}");
                    }
                    "list" => assert_eq!(objects.list("b", "").await.unwrap(), [], "{code}"),
                    "put" => {
                        let put =
                            objects.put_if_absent(&path, Bytes::from_static(b"x"), "id").await;
                        assert_eq!(put.unwrap(), PutOutcome::Created, "{code}");
                    }
                    _ => objects.delete("b", &["k".to_owned()]).await.unwrap(),
                };
                ask(&objects).await;
                ask(&objects.clone()).await;
                let regions: Vec<_> = server.asked().iter().map(signed_for).collect();
                assert_eq!(regions[0], REGION, "{code} {operation}");
                assert!(regions.len() > 2 && regions[1..].iter().all(|to| to == ELSEWHERE));
                if operation == "put" {
                    assert!(
                        server
                            .asked()
                            .iter()
                            .all(|asked| asked.method == "HEAD" || asked.body == "x")
                    );
                }
            }
        }
    }

    #[tokio::test]
    async fn another_bucket_stays_in_the_region_of_the_process() {
        let server = Server::start(|_, asked| match asked.target.starts_with("/there") {
            true if signed_for(asked) == REGION => refusal(301, "PermanentRedirect", ELSEWHERE),
            _ => Answer::status(200, "<ListBucketResult></ListBucketResult>"),
        })
        .await;
        let objects = server.aws().objects();
        for bucket in ["there", "here"] {
            objects.list(bucket, "").await.unwrap();
        }
        let regions: Vec<_> = server.asked().iter().map(signed_for).collect();
        assert_eq!(regions, [REGION, ELSEWHERE, REGION]);
    }

    #[tokio::test]
    async fn a_refusal_is_followed_once_and_only_to_another_region() {
        for (region, requests) in [(REGION, 1), (ELSEWHERE, 2)] {
            for (status, code) in REFUSALS {
                let server = Server::start(move |_, _| refusal(status, code, region)).await;
                let error = server.aws().objects().list("b", "").await.unwrap_err();
                assert!(
                    matches!(&error, ObjectError::Rejected(text) if text.contains(code)),
                    "{error}"
                );
                assert_eq!(server.asked().len(), requests, "{code} {region}");
            }
        }
    }
}
