//! The supported operations of S3, in the types of the protocol crate; others return "not implemented".

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, header};
use s3s::dto::{
    Bucket as BucketEntry, BucketLocationConstraint, CommonPrefix, CreateBucketInput,
    CreateBucketOutput, DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput,
    DeleteObjectsOutput, DeletedObject, ETag, EncodingType, Error as DeleteFailure,
    GetBucketLocationInput, GetBucketLocationOutput, GetObjectInput, GetObjectOutput,
    HeadBucketInput, HeadBucketOutput, HeadObjectInput, HeadObjectOutput, ListBucketsInput,
    ListBucketsOutput, ListObjectsV2Input, ListObjectsV2Output, Object, ObjectStorageClass,
    PutObjectInput, PutObjectOutput, StreamingBlob,
};
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use super::bucket::{Bucket, Opened};
use super::conditions::{ReadConditions, Verdict, resolve_range, timestamp};
use super::download::Download;
use super::failure::io_failure;
use super::listing::{self, Entry, Page, Position, Query};
use super::names::url_encode;
use super::output::{Portion, get_output, head_output};
use super::put;
use super::record::Info;
use super::stats::{Content, Operation};
use super::store::Store;

/// S3's limit of keys per DeleteObjects request.
const MAX_DELETES: usize = 1000;

/// The store behind the S3 trait.
pub(super) struct Api {
    pub store: Arc<Store>,
    pub region: String,
}

/// Runs blocking work on a blocking thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> S3Result<T> + Send + 'static,
) -> S3Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(S3Error::internal_error)?
}

#[async_trait]
impl S3 for Api {
    async fn put_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        self.store.counters.operation(Operation::Put);
        put::put(&self.store, request).await
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        self.store.counters.operation(Operation::Get);
        let store = Arc::clone(&self.store);
        let input = request.input;
        blocking(move || {
            no_version(input.version_id.as_deref())?;
            no_part(input.part_number)?;
            let key = &input.key;
            let failed = |error| io_failure("read", key, &error);
            let opened = store.bucket(&input.bucket)?.open(key).map_err(failed)?;
            let Opened { file, info, stamp } = opened.ok_or_else(|| no_such_key(key))?;
            let conditions = ReadConditions {
                if_match: input.if_match.clone(),
                if_none_match: input.if_none_match.clone(),
                if_modified_since: input.if_modified_since.clone(),
                if_unmodified_since: input.if_unmodified_since.clone(),
            };
            judge(&conditions, &info)?;
            let portion = portion(input.range.as_ref(), &info)?;
            let mut output = get_output(&info, &portion, input.checksum_mode.as_ref());
            let (pool, counters) = (Arc::clone(&store.pool), Arc::clone(&store.counters));
            let content = Content::of(key);
            let download = Download::start(file, portion.range, stamp, content, pool, counters);
            let download = download.map_err(failed)?;
            output.body = Some(StreamingBlob::new(download));
            Ok(S3Response::new(output))
        })
        .await
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        self.store.counters.operation(Operation::Head);
        let store = Arc::clone(&self.store);
        let input = request.input;
        blocking(move || {
            no_version(input.version_id.as_deref())?;
            no_part(input.part_number)?;
            let key = &input.key;
            let found = store.bucket(&input.bucket)?.info(key);
            let found = found.map_err(|error| io_failure("read", key, &error))?;
            let info = found.ok_or_else(|| no_such_key(key))?;
            let conditions = ReadConditions {
                if_match: input.if_match.clone(),
                if_none_match: input.if_none_match.clone(),
                if_modified_since: input.if_modified_since.clone(),
                if_unmodified_since: input.if_unmodified_since.clone(),
            };
            judge(&conditions, &info)?;
            let portion = portion(input.range.as_ref(), &info)?;
            let output = head_output(&info, &portion, input.checksum_mode.as_ref());
            Ok(S3Response::new(output))
        })
        .await
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.store.counters.operation(Operation::Delete);
        let store = Arc::clone(&self.store);
        let input = request.input;
        blocking(move || {
            no_version(input.version_id.as_deref())?;
            if input.if_match_size.is_some() || input.if_match_last_modified_time.is_some() {
                return Err(s3_error!(NotImplemented, "a delete takes If-Match only"));
            }
            let bucket = store.bucket(&input.bucket)?;
            store.delete(bucket.writable()?, &input.key, input.if_match.as_ref())?;
            Ok(S3Response::new(DeleteObjectOutput::default()))
        })
        .await
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.store.counters.operation(Operation::DeleteMany);
        let store = Arc::clone(&self.store);
        let input = request.input;
        blocking(move || delete_many(&store, &input)).await.map(S3Response::new)
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.store.counters.operation(Operation::List);
        let store = Arc::clone(&self.store);
        let input = request.input;
        blocking(move || {
            let bucket = store.bucket(&input.bucket)?;
            list(&bucket, input)
        })
        .await
        .map(S3Response::new)
    }

    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        self.store.counters.operation(Operation::Bucket);
        let store = Arc::clone(&self.store);
        let name = request.input.bucket;
        blocking(move || {
            let made = store.make_bucket(&name);
            if !made.map_err(|error| io_failure("create", &name, &error))? {
                return Err(s3_error!(BucketAlreadyOwnedByYou, "there is a bucket {name}"));
            }
            let location = Some(format!("/{name}"));
            Ok(S3Response::new(CreateBucketOutput { location }))
        })
        .await
    }

    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        self.store.counters.operation(Operation::Bucket);
        let store = Arc::clone(&self.store);
        blocking(move || store.bucket(&request.input.bucket)).await?;
        let bucket_region = Some(self.region.clone());
        Ok(S3Response::new(HeadBucketOutput { bucket_region, ..Default::default() }))
    }

    async fn list_buckets(
        &self,
        _: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        self.store.counters.operation(Operation::Bucket);
        let store = Arc::clone(&self.store);
        let names = blocking(move || {
            store.bucket_names().map_err(|error| io_failure("list", "the buckets", &error))
        });
        let buckets = names.await?.into_iter().map(|(name, modified)| BucketEntry {
            name: Some(name),
            creation_date: Some(timestamp(modified)),
            ..Default::default()
        });
        let buckets = Some(buckets.collect());
        Ok(S3Response::new(ListBucketsOutput { buckets, ..Default::default() }))
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.store.counters.operation(Operation::Bucket);
        let store = Arc::clone(&self.store);
        blocking(move || store.bucket(&request.input.bucket)).await?;
        // S3 omits the location of us-east-1.
        let region = Some(self.region.clone()).filter(|region| region != "us-east-1");
        let location_constraint = region.map(BucketLocationConstraint::from);
        Ok(S3Response::new(GetBucketLocationOutput { location_constraint }))
    }
}

fn no_such_key(key: &str) -> S3Error {
    s3_error!(NoSuchKey, "there is no object {key}")
}

/// Refuses requests for a version: returning another version would be worse than an error.
fn no_version(version: Option<&str>) -> S3Result<()> {
    match version {
        None | Some("null") => Ok(()),
        Some(_) => Err(s3_error!(NotImplemented, "versions of an object")),
    }
}

/// Refuses parts other than the first: every object has one part.
fn no_part(part: Option<i32>) -> S3Result<()> {
    match part {
        None | Some(1) => Ok(()),
        Some(_) => Err(s3_error!(InvalidPart, "the object has one part")),
    }
}

fn portion(range: Option<&s3s::dto::Range>, info: &Info) -> S3Result<Portion> {
    let (range, is_partial) = resolve_range(range, info.record.object_bytes)?;
    Ok(Portion { range, is_partial })
}

fn judge(conditions: &ReadConditions, info: &Info) -> S3Result<()> {
    match conditions.judge(info) {
        Verdict::Proceed => Ok(()),
        Verdict::Failed => Err(s3_error!(PreconditionFailed, "the object is another one now")),
        Verdict::NotModified => {
            let mut error = S3Error::new(S3ErrorCode::NotModified);
            let mut headers = HeaderMap::new();
            if let Ok(etag) = HeaderValue::from_str(&format!("\"{}\"", info.record.etag)) {
                headers.insert(header::ETAG, etag);
            }
            error.set_headers(headers);
            Err(error)
        }
    }
}

fn delete_many(store: &Store, input: &DeleteObjectsInput) -> S3Result<DeleteObjectsOutput> {
    let bucket = store.bucket(&input.bucket)?;
    let bucket = bucket.writable()?;
    let objects = &input.delete.objects;
    if objects.len() > MAX_DELETES {
        return Err(s3_error!(MalformedXML, "at most {MAX_DELETES} keys in one request"));
    }
    let (mut deleted, mut errors) = (Vec::new(), Vec::new());
    for object in objects {
        let condition = object.e_tag.clone().map(s3s::dto::ETagCondition::ETag);
        let result = no_version(object.version_id.as_deref())
            .and_then(|()| store.delete(bucket, &object.key, condition.as_ref()));
        let key = Some(object.key.clone());
        match result {
            Ok(()) => deleted.push(DeletedObject { key, ..Default::default() }),
            Err(error) => errors.push(DeleteFailure {
                key,
                code: Some(error.code().as_str().to_owned()),
                message: error.message().map(ToOwned::to_owned),
                ..Default::default()
            }),
        }
    }
    let is_quiet = input.delete.quiet == Some(true);
    Ok(DeleteObjectsOutput {
        deleted: (!is_quiet).then_some(deleted),
        errors: (!errors.is_empty()).then_some(errors),
        ..Default::default()
    })
}

fn list(bucket: &Bucket, input: ListObjectsV2Input) -> S3Result<ListObjectsV2Output> {
    let position = match (&input.continuation_token, &input.start_after) {
        (Some(token), _) => Position::parse(token)?,
        (None, Some(key)) => Position::After(key.clone()),
        (None, None) => Position::Start,
    };
    let max_keys = input.max_keys.unwrap_or(listing::MAX_KEYS as i32);
    let max_keys = usize::try_from(max_keys)
        .map_err(|_| s3_error!(InvalidArgument, "max-keys must not be negative"))?
        .min(listing::MAX_KEYS);
    let query = Query {
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: input.delimiter.clone(),
        position,
        max_keys,
    };
    let listed = listing::list(bucket, &query);
    let Page { entries, next } =
        listed.map_err(|error| io_failure("list", &input.bucket, &error))?;

    let is_encoded = input.encoding_type.as_ref().is_some_and(|t| t.as_str() == EncodingType::URL);
    let spell = |text: String| if is_encoded { url_encode(&text) } else { text };
    let key_count = i32::try_from(entries.len()).ok();
    let (mut contents, mut prefixes) = (Vec::new(), Vec::new());
    for entry in entries {
        match entry {
            Entry::Prefix(prefix) => prefixes.push(CommonPrefix { prefix: Some(spell(prefix)) }),
            Entry::Object(key, info) => contents.push(Object {
                key: Some(spell(key)),
                size: i64::try_from(info.record.object_bytes).ok(),
                last_modified: Some(timestamp(info.modified)),
                e_tag: Some(ETag::Strong(info.record.etag)),
                storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
                ..Default::default()
            }),
        }
    }
    Ok(ListObjectsV2Output {
        name: Some(input.bucket),
        prefix: input.prefix.map(spell),
        delimiter: input.delimiter.map(spell),
        start_after: input.start_after.map(spell),
        encoding_type: input.encoding_type,
        continuation_token: input.continuation_token,
        is_truncated: Some(next.is_some()),
        next_continuation_token: next.map(|position| position.token()),
        key_count,
        max_keys: i32::try_from(max_keys).ok(),
        contents: Some(contents),
        common_prefixes: Some(prefixes),
        ..Default::default()
    })
}
