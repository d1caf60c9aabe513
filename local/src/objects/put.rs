//! PutObject: receives, writes and hashes concurrently, then verifies and publishes.
//!
//! While one batch of the body is written on a blocking thread, the next is received, so a put holds two batches in
//! memory regardless of its size. A body that fits one batch costs a single change of thread.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, header};
use s3s::dto::{ETag, PutObjectInput, PutObjectOutput, StreamingBlob};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, StdError, s3_error};

use super::api::blocking;
use super::bucket::StoredBucket;
use super::checksums::Sums;
use super::conditions::PutCondition;
use super::failure::io_failure;
use super::output::with_checksums;
use super::record::Record;
use super::stats::Content;
use super::store::Store;
use super::upload::Upload;

/// Bytes received before they are written.
const BATCH_BYTES: usize = 1 << 20;
/// S3's limit for one put.
const MAX_OBJECT_BYTES: i64 = 5 << 30;
/// S3's limit for user metadata, names and values together.
const MAX_METADATA_BYTES: usize = 2 << 10;

/// Parameters of a put.
struct Plan {
    key: String,
    condition: PutCondition,
    record: Record,
    sums: Sums,
    declared_bytes: Option<u64>,
}

pub(super) async fn put(
    store: &Arc<Store>,
    mut request: S3Request<PutObjectInput>,
) -> S3Result<S3Response<PutObjectOutput>> {
    let content = Content::of(&request.input.key);
    let mut body = Incoming { body: request.input.body.take(), content, store };
    let result = receive(store, &request, &mut body).await;
    if result.is_err() && !request.headers.contains_key(header::EXPECT) {
        // A client that is still sending would see a broken connection instead of the reason.
        body.drain().await;
    }
    let record = result?;
    let mut output =
        PutObjectOutput { e_tag: Some(ETag::Strong(record.etag.clone())), ..Default::default() };
    with_checksums!(output, record);
    Ok(S3Response::new(output))
}

async fn receive(
    store: &Arc<Store>,
    request: &S3Request<PutObjectInput>,
    body: &mut Incoming<'_>,
) -> S3Result<Record> {
    let plan = plan(&request.input, &request.headers)?;
    let bucket_name = request.input.bucket.clone();
    if plan.declared_bytes.is_none_or(|bytes| bytes > BATCH_BYTES as u64) {
        // A put that must fail should do so before it fills the disk.
        let (store, name) = (Arc::clone(store), bucket_name.clone());
        let (key, condition) = (plan.key.clone(), plan.condition.clone());
        blocking(move || check_early(&store, &name, &key, &condition)).await?;
    }
    let Plan { key, condition, record, sums, declared_bytes } = plan;
    let mut upload = None;
    let mut sums = Some(sums);
    loop {
        // The last batch is written meanwhile.
        let writing: Option<Writing> = upload.take();
        let (batch, is_last) = body.batch().await?;
        let mut state = match writing {
            Some(writing) => writing.await.map_err(|_| S3ErrorCode::InternalError)??,
            None => State { upload: None, sums: sums.take() },
        };
        if is_last {
            let store = Arc::clone(store);
            let trailers = request.trailing_headers.as_ref().and_then(|trailers| trailers.take());
            return blocking(move || {
                let bucket = store.bucket(&bucket_name)?;
                let bucket = bucket.writable()?;
                let upload = state.write(&store, &key, &batch)?.upload;
                let upload = upload.ok_or(S3ErrorCode::InternalError)?;
                let durable = store.is_durable();
                let (file, record) =
                    upload.finish(record, declared_bytes, trailers.as_ref(), durable)?;
                store.publish(file, bucket, &key, &condition)?;
                Ok(record)
            })
            .await;
        }
        let (store, key) = (Arc::clone(store), key.clone());
        let write = move || {
            state = state.write(&store, &key, &batch)?;
            Ok(state)
        };
        upload = Some(tokio::task::spawn_blocking(write));
    }
}

type Writing = tokio::task::JoinHandle<S3Result<State>>;

/// An upload that creates its file with the first batch.
struct State {
    upload: Option<Upload>,
    sums: Option<Sums>,
}

impl State {
    fn write(mut self, store: &Store, key: &str, batch: &[Bytes]) -> S3Result<Self> {
        let failed = |error| io_failure("write", key, &error);
        if let Some(sums) = self.sums.take() {
            self.upload = Some(Upload::create(store.incoming_path(), sums).map_err(failed)?);
        }
        if let Some(upload) = &mut self.upload {
            upload.write(batch).map_err(failed)?;
        }
        Ok(self)
    }
}

fn check_early(store: &Store, name: &str, key: &str, condition: &PutCondition) -> S3Result<()> {
    let bucket = store.bucket(name)?;
    let bucket: &StoredBucket = bucket.writable()?;
    if *condition == PutCondition::Always {
        return Ok(());
    }
    let existing = bucket.info(key).map_err(|error| io_failure("look up", key, &error))?;
    condition.check(existing.as_ref())
}

fn plan(input: &PutObjectInput, headers: &HeaderMap) -> S3Result<Plan> {
    if input.sse_customer_algorithm.is_some() {
        return Err(s3_error!(NotImplemented, "encryption with a customer's key"));
    }
    if input.write_offset_bytes.is_some() {
        return Err(s3_error!(NotImplemented, "appending to an object"));
    }
    let length = input.content_length;
    if length.is_some_and(|bytes| bytes > MAX_OBJECT_BYTES) {
        return Err(s3_error!(EntityTooLarge, "an object has at most {MAX_OBJECT_BYTES} bytes"));
    }
    let metadata = input.metadata.clone().unwrap_or_default();
    let metadata_bytes: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    if metadata_bytes > MAX_METADATA_BYTES {
        return Err(s3_error!(
            MetadataTooLarge,
            "{metadata_bytes} bytes of metadata; at most {MAX_METADATA_BYTES} are kept"
        ));
    }
    let record = Record {
        cache_control: input.cache_control.clone(),
        content_disposition: input.content_disposition.clone(),
        content_encoding: input.content_encoding.as_deref().and_then(without_aws_chunked),
        content_language: input.content_language.clone(),
        content_type: input.content_type.clone(),
        metadata,
        ..Record::default()
    };
    Ok(Plan {
        key: input.key.clone(),
        condition: PutCondition::of(input)?,
        record,
        sums: Sums::promised(input, headers)?,
        declared_bytes: length.and_then(|bytes| u64::try_from(bytes).ok()),
    })
}

/// Removes `aws-chunked`, which describes the transfer and not the object.
fn without_aws_chunked(encoding: &str) -> Option<String> {
    let parts = encoding.split(',').map(str::trim);
    let kept: Vec<&str> = parts.filter(|p| !p.is_empty() && *p != "aws-chunked").collect();
    (!kept.is_empty()).then(|| kept.join(","))
}

/// A body that is not polled again after it ended or broke.
struct Incoming<'s> {
    body: Option<StreamingBlob>,
    content: Content,
    store: &'s Store,
}

impl Incoming<'_> {
    async fn next(&mut self) -> S3Result<Option<Bytes>> {
        let Some(body) = &mut self.body else { return Ok(None) };
        match body.next().await {
            Some(Ok(bytes)) => {
                self.store.counters.received(self.content, bytes.len());
                Ok(Some(bytes))
            }
            Some(Err(error)) => {
                self.body = None;
                Err(broken(error))
            }
            None => {
                self.body = None;
                Ok(None)
            }
        }
    }

    /// Receives [`BATCH_BYTES`] or slightly more, and returns whether that was all.
    async fn batch(&mut self) -> S3Result<(Vec<Bytes>, bool)> {
        let (mut batch, mut batch_bytes) = (Vec::new(), 0);
        while batch_bytes < BATCH_BYTES {
            let Some(bytes) = self.next().await? else { return Ok((batch, true)) };
            batch_bytes += bytes.len();
            batch.push(bytes);
        }
        Ok((batch, false))
    }

    async fn drain(&mut self) {
        while let Ok(Some(_)) = self.next().await {}
    }
}

/// The protocol crate does not export the types of these errors, so their text decides.
fn broken(error: StdError) -> S3Error {
    let text = error.to_string();
    let code = if text.contains("Sha256Mismatch") {
        S3ErrorCode::BadDigest
    } else if text.contains("SignatureMismatch") {
        S3ErrorCode::SignatureDoesNotMatch
    } else {
        S3ErrorCode::IncompleteBody
    };
    S3Error::with_message(code, format!("the body could not be received: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_of_the_transfer_is_not_the_objects() {
        assert_eq!(without_aws_chunked("aws-chunked"), None);
        assert_eq!(without_aws_chunked("gzip, aws-chunked"), Some("gzip".into()));
        assert_eq!(without_aws_chunked("gzip"), Some("gzip".into()));
    }
}
