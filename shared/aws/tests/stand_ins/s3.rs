//! An S3 in memory, without versions. The protocol crate `s3s` parses, and checks signatures.

use super::{
    loopback::serve,
    signature::{ACCESS_KEY_ID, SECRET_ACCESS_KEY},
};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use s3s::{
    Body, S3, S3Request, S3Response, S3Result,
    auth::SimpleAuth,
    dto::{
        CreateBucketInput, CreateBucketOutput, DeleteObjectsInput, DeleteObjectsOutput, ETag,
        ETagCondition, GetObjectInput, GetObjectOutput, HeadBucketInput, HeadBucketOutput,
        HeadObjectInput, HeadObjectOutput, ListObjectsV2Input, ListObjectsV2Output, Metadata,
        Object, PutObjectInput, PutObjectOutput, StreamingBlob,
    },
    s3_error,
    service::S3ServiceBuilder,
};
use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

/// Most keys of a page, and of a deletion.
const MAX_KEYS: usize = 1000;

/// Starts one without buckets; returns its URL.
pub async fn start() -> String {
    let mut service = S3ServiceBuilder::new(Store::default());
    service.set_auth(SimpleAuth::from_single(ACCESS_KEY_ID, SECRET_ACCESS_KEY));
    let service = service.build();
    serve(move || service.clone()).await
}

#[derive(Debug, Clone)]
struct Stored {
    body: Bytes,
    e_tag: ETag,
    metadata: Option<Metadata>,
}

type Bucket = BTreeMap<String, Stored>;

#[derive(Debug, Default)]
struct Store {
    buckets: Mutex<BTreeMap<String, Bucket>>,
    puts: AtomicU64,
}

impl Store {
    fn within<T>(&self, bucket: &str, act: impl FnOnce(&mut Bucket) -> S3Result<T>) -> S3Result<T> {
        let mut buckets = self.buckets.lock().unwrap();
        act(buckets.get_mut(bucket).ok_or_else(|| s3_error!(NoSuchBucket))?)
    }

    fn stored(&self, bucket: &str, key: &str) -> S3Result<Stored> {
        self.within(bucket, |objects| objects.get(key).cloned().ok_or_else(|| s3_error!(NoSuchKey)))
    }
}

fn length(bytes: &[u8]) -> Option<i64> {
    Some(bytes.len().try_into().unwrap())
}

#[async_trait]
impl S3 for Store {
    async fn put_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let PutObjectInput { bucket, key, body, if_none_match, metadata, .. } = request.input;
        let mut received = BytesMut::new();
        let mut parts = body.ok_or_else(|| s3_error!(IncompleteBody))?;
        while let Some(part) = parts.next().await {
            received.extend_from_slice(&part.map_err(|_| s3_error!(IncompleteBody))?);
        }
        let e_tag = ETag::Strong(self.puts.fetch_add(1, Ordering::Relaxed).to_string());
        let stored = Stored { body: received.freeze(), e_tag: e_tag.clone(), metadata };
        self.within(&bucket, |objects| {
            if if_none_match == Some(ETagCondition::Any) && objects.contains_key(&key) {
                return Err(s3_error!(PreconditionFailed));
            }
            objects.insert(key, stored);
            Ok(())
        })?;
        Ok(S3Response::new(PutObjectOutput { e_tag: Some(e_tag), ..Default::default() }))
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let GetObjectInput { bucket, key, if_match, range, .. } = request.input;
        let Stored { body: whole, e_tag, .. } = self.stored(&bucket, &key)?;
        if if_match.is_some_and(|wanted| wanted != ETagCondition::ETag(e_tag.clone())) {
            return Err(s3_error!(PreconditionFailed));
        }
        let mut output = GetObjectOutput { e_tag: Some(e_tag), ..Default::default() };
        let mut body = whole.clone();
        if let Some(range) = range {
            let part = range.check(whole.len() as u64).map_err(|_| s3_error!(InvalidRange))?;
            let said = format!("bytes {}-{}/{}", part.start, part.end - 1, whole.len());
            output.content_range = Some(said);
            body = whole.slice(part.start as usize..part.end as usize);
        }
        output.content_length = length(&body);
        output.body = Some(StreamingBlob::from(Body::from(body)));
        Ok(S3Response::new(output))
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let stored = self.stored(&request.input.bucket, &request.input.key)?;
        Ok(S3Response::new(HeadObjectOutput {
            content_length: length(&stored.body),
            e_tag: Some(stored.e_tag),
            metadata: stored.metadata,
            ..Default::default()
        }))
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let ListObjectsV2Input { bucket, prefix, continuation_token, .. } = request.input;
        let (prefix, after) = (prefix.unwrap_or_default(), continuation_token.unwrap_or_default());
        self.within(&bucket, |objects| {
            let rest = objects.range((Bound::Excluded(after), Bound::Unbounded));
            let mut found = rest.filter(|(key, _)| key.starts_with(&prefix));
            let page = found.by_ref().take(MAX_KEYS).map(|(key, stored)| Object {
                key: Some(key.clone()),
                size: length(&stored.body),
                e_tag: Some(stored.e_tag.clone()),
                ..Default::default()
            });
            let page: Vec<_> = page.collect();
            let last = found.next().and(page.last()).and_then(|last| last.key.clone());
            Ok(S3Response::new(ListObjectsV2Output {
                is_truncated: Some(last.is_some()),
                next_continuation_token: last,
                contents: Some(page),
                ..Default::default()
            }))
        })
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let DeleteObjectsInput { bucket, delete, .. } = request.input;
        if delete.objects.len() > MAX_KEYS {
            return Err(s3_error!(MalformedXML));
        }
        self.within(&bucket, |objects| {
            for object in &delete.objects {
                objects.remove(&object.key);
            }
            Ok(S3Response::new(DeleteObjectsOutput::default()))
        })
    }

    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        self.within(&request.input.bucket, |_| Ok(S3Response::new(HeadBucketOutput::default())))
    }

    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        let mut buckets = self.buckets.lock().unwrap();
        if buckets.contains_key(&request.input.bucket) {
            return Err(s3_error!(BucketAlreadyOwnedByYou));
        }
        buckets.insert(request.input.bucket, Bucket::new());
        Ok(S3Response::new(CreateBucketOutput::default()))
    }
}
