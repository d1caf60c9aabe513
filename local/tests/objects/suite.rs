//! The S3 behaviour that the data plane needs, as cases for any endpoint.
//!
//! Every case works under a prefix of its own, so a target may hold other objects and be used again.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::{BehaviorVersion, Region};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::{ByteStream, DateTime};
use aws_sdk_s3::types::{ChecksumAlgorithm, Delete, ObjectIdentifier};
use bytes::Bytes;
use futures::future::join_all;

/// An endpoint to test, and a bucket there that may be written to.
#[derive(Clone, Debug)]
pub struct Target {
    pub endpoint: String,
    pub access_key: String,
    pub secret_key: String,
    pub bucket: String,
    pub client: Client,
    prefix: String,
}

impl Target {
    pub fn new(endpoint: &str, access_key: &str, secret_key: &str, bucket: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            endpoint: endpoint.into(),
            access_key: access_key.into(),
            secret_key: secret_key.into(),
            bucket: bucket.into(),
            client: client(endpoint, access_key, secret_key),
            prefix: format!("t{}-{}-{next}/", now.as_nanos(), std::process::id()),
        }
    }

    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub async fn put(&self, name: &str, body: impl Into<ByteStream>) -> String {
        let request = self.client.put_object().bucket(&self.bucket).key(self.key(name));
        request.body(body.into()).send().await.unwrap().e_tag.unwrap()
    }

    pub async fn get(&self, name: &str) -> Bytes {
        let request = self.client.get_object().bucket(&self.bucket).key(self.key(name));
        request.send().await.unwrap().body.collect().await.unwrap().into_bytes()
    }

    pub async fn list(&self, name: &str) -> Vec<String> {
        let request = self.client.list_objects_v2().bucket(&self.bucket).prefix(self.key(name));
        let mut pages = request.into_paginator().send();
        let mut keys = Vec::new();
        while let Some(page) = pages.next().await {
            let found = page.unwrap().contents.unwrap_or_default();
            keys.extend(found.into_iter().map(|object| object.key.unwrap()));
        }
        keys.iter().map(|key| key.strip_prefix(&self.prefix).unwrap().to_owned()).collect()
    }
}

pub fn client(endpoint: &str, access_key: &str, secret_key: &str) -> Client {
    Client::from_conf(
        aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::v2026_01_12())
            .region(Region::new("us-east-1"))
            .endpoint_url(endpoint)
            .force_path_style(true)
            .retry_config(RetryConfig::disabled())
            .credentials_provider(Credentials::new(access_key, secret_key, None, None, "test"))
            .build(),
    )
}

/// The HTTP status of a request that must fail.
#[track_caller]
pub fn status<T: std::fmt::Debug, E: std::fmt::Debug>(
    result: Result<T, SdkError<E, aws_smithy_runtime_api::http::Response>>,
) -> u16 {
    let error = result.unwrap_err();
    let Some(response) = error.raw_response() else { panic!("no answer: {error:?}") };
    response.status().as_u16()
}

/// Pseudo-random bytes by seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Lists the cases, for a test of each on a target.
macro_rules! cases {
    ($($name:ident,)*) => {
        macro_rules! each_case { ($callback:ident) => { $($callback!($name);)* } }
    };
}

cases! {
    one_winner_among_conditional_puts,
    a_bad_checksum_leaves_the_old_object,
    checksums_of_every_kind_are_verified_and_returned,
    an_object_and_a_directory_of_one_name,
    readers_see_one_version_during_writes,
    ranges,
    conditional_reads,
    conditional_writes,
    listing,
    listing_in_pages,
    listing_deep_and_long_keys,
    big_objects,
    bodies_that_are_streamed,
    metadata_round_trip,
    odd_keys,
    deleting,
    empty_objects,
    what_is_not_there,
    signatures,
}

pub async fn one_winner_among_conditional_puts(target: Target) {
    for round in 0..20 {
        let key = format!("race/{round}");
        let puts = (0..16_u64).map(|writer| {
            let (target, key) = (target.clone(), target.key(&key));
            let length = if round % 2 == 0 { 1000 } else { 300_000 };
            let body = ByteStream::from(noise(writer, length));
            tokio::spawn(async move {
                let put = target.client.put_object().bucket(&target.bucket).key(key);
                put.if_none_match("*").body(body).send().await
            })
        });
        let results = join_all(puts).await.into_iter().map(Result::unwrap);
        let mut winners = Vec::new();
        for (writer, result) in results.enumerate() {
            match result {
                Ok(put) => winners.push((writer as u64, put.e_tag.unwrap())),
                error => assert!(matches!(status(error), 409 | 412)),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        let (winner, etag) = &winners[0];
        let request = target.client.get_object().bucket(&target.bucket).key(target.key(&key));
        let found = request.send().await.unwrap();
        assert_eq!(found.e_tag.as_ref(), Some(etag));
        let body = found.body.collect().await.unwrap().into_bytes();
        assert_eq!(body, noise(*winner, body.len()), "round {round}");
    }
}

pub async fn a_bad_checksum_leaves_the_old_object(target: Target) {
    let etag = target.put("sum", Bytes::from_static(b"old")).await;
    let put = || {
        let put = target.client.put_object().bucket(&target.bucket).key(target.key("sum"));
        put.body(ByteStream::from_static(b"new"))
    };
    assert_eq!(status(put().checksum_crc32("AAAAAA==").send().await), 400);
    assert_eq!(status(put().checksum_crc32_c("AAAAAA==").send().await), 400);
    assert_eq!(status(put().checksum_crc64_nvme("AAAAAAAAAAA=").send().await), 400);
    assert_eq!(status(put().checksum_sha1("AAAAAAAAAAAAAAAAAAAAAAAAAAA=").send().await), 400);
    let sha256 = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    assert_eq!(status(put().checksum_sha256(sha256).send().await), 400);
    assert_eq!(status(put().content_md5("AAAAAAAAAAAAAAAAAAAAAA==").send().await), 400);
    assert_eq!(status(put().content_md5("not a sum").send().await), 400);
    // Large enough that part of it is on disk before the checksum is known.
    let large = target.client.put_object().bucket(&target.bucket).key(target.key("sum"));
    let large = large.body(noise(1, 5 << 20).into()).checksum_crc32("AAAAAA==").send().await;
    assert_eq!(status(large), 400);

    assert_eq!(target.get("sum").await, "old");
    let head = target.client.head_object().bucket(&target.bucket).key(target.key("sum"));
    assert_eq!(head.send().await.unwrap().e_tag, Some(etag));
    assert_eq!(target.list("").await, ["sum"]);
}

pub async fn checksums_of_every_kind_are_verified_and_returned(target: Target) {
    use ChecksumAlgorithm::{Crc32, Crc32C, Crc64Nvme, Sha1, Sha256};
    for algorithm in [Crc32, Crc32C, Crc64Nvme, Sha1, Sha256] {
        let key = target.key(algorithm.as_str());
        let put = target.client.put_object().bucket(&target.bucket).key(&key);
        let put = put.body(noise(7, 100_000).into()).checksum_algorithm(algorithm.clone());
        put.send().await.unwrap();
        let get = target.client.get_object().bucket(&target.bucket).key(&key);
        let found = get.send().await.unwrap();
        let header = match algorithm {
            Crc32 => found.checksum_crc32(),
            Crc32C => found.checksum_crc32_c(),
            Crc64Nvme => found.checksum_crc64_nvme(),
            Sha1 => found.checksum_sha1(),
            _ => found.checksum_sha256(),
        };
        assert!(header.is_some(), "{algorithm}");
        // The client verifies the body against it.
        assert_eq!(found.body.collect().await.unwrap().into_bytes(), noise(7, 100_000));
    }
    // MD5 of "abc", which S3 then uses as the tag.
    let put = target.client.put_object().bucket(&target.bucket).key(target.key("md5"));
    let put = put.body(ByteStream::from_static(b"abc")).content_md5("kAFQmDzST7DWlj99KOF/cg==");
    let etag = put.send().await.unwrap().e_tag.unwrap();
    assert_eq!(etag, "\"900150983cd24fb0d6963f7d28e17f72\"");
}

pub async fn an_object_and_a_directory_of_one_name(target: Target) {
    for (key, body) in [("o/x", "1"), ("o/x/y", "2"), ("o/x/", "3"), ("o", "4"), ("o//x", "5")] {
        target.put(key, Bytes::from_static(body.as_bytes())).await;
    }
    for (key, body) in [("o/x", "1"), ("o/x/y", "2"), ("o/x/", "3"), ("o", "4"), ("o//x", "5")] {
        assert_eq!(target.get(key).await, body, "{key}");
    }
    assert_eq!(target.list("").await, ["o", "o//x", "o/x", "o/x/", "o/x/y"]);
    let delete = target.client.delete_object().bucket(&target.bucket).key(target.key("o/x"));
    delete.send().await.unwrap();
    assert_eq!(target.list("").await, ["o", "o//x", "o/x/", "o/x/y"]);
    assert_eq!(target.get("o/x/y").await, "2");
}

pub async fn readers_see_one_version_during_writes(target: Target) {
    const LENGTH: usize = 6 << 20;
    let version = |fill: u8| Bytes::from(vec![fill; LENGTH]);
    let mut etag = target.put("v", version(0)).await;
    // A reader keeps the version it started with.
    let slow = target.client.get_object().bucket(&target.bucket).key(target.key("v"));
    let mut slow = slow.send().await.unwrap();
    let first = slow.body.next().await.unwrap().unwrap();
    let new = target.put("v", version(1)).await;
    assert_ne!(etag, new);
    etag = new;
    let rest = slow.body.collect().await.unwrap().into_bytes();
    assert_eq!(first.len() + rest.len(), LENGTH);
    assert!(first.iter().chain(&rest).all(|&byte| byte == 0));
    assert!(target.get("v").await.iter().all(|&byte| byte == 1));

    // The same for readers of a key that is written continuously.
    let writer = tokio::spawn({
        let (target, mut tags) = (target.clone(), BTreeSet::from([(etag, 1)]));
        async move {
            for fill in 2..12 {
                tags.insert((target.put("v", version(fill)).await, fill));
            }
            tags
        }
    });
    let readers = (0..3).map(|_| {
        let target = target.clone();
        tokio::spawn(async move {
            let mut seen = BTreeSet::new();
            for _ in 0..12 {
                let get = target.client.get_object().bucket(&target.bucket).key(target.key("v"));
                let found = get.send().await.unwrap();
                let etag = found.e_tag.clone().unwrap();
                let body = found.body.collect().await.unwrap().into_bytes();
                assert_eq!(body.len(), LENGTH, "versions are mixed: of another length");
                assert!(
                    body.iter().all(|&byte| byte == body[0]),
                    "versions are mixed: in one body"
                );
                seen.insert((etag, body[0]));
            }
            seen
        })
    });
    let seen = join_all(readers).await;
    let written = writer.await.unwrap();
    for seen in seen {
        assert!(seen.unwrap().is_subset(&written), "versions are mixed: body and tag");
    }
}

pub async fn ranges(target: Target) {
    const LENGTH: usize = 3 << 20;
    let data = noise(3, LENGTH);
    target.put("r", Bytes::from(data.clone())).await;
    let get = |range: String| {
        target.client.get_object().bucket(&target.bucket).key(target.key("r")).range(range)
    };
    let last = LENGTH - 1;
    for (range, expected) in [
        ("bytes=0-0".into(), 0..1),
        ("bytes=5-9".into(), 5..10),
        (format!("bytes=524287-{}", 2 * 524_288), 524_287..2 * 524_288 + 1),
        ("bytes=1000000-".into(), 1_000_000..LENGTH),
        (format!("bytes={last}-"), last..LENGTH),
        (format!("bytes={last}-{}", LENGTH + 10), last..LENGTH),
        (format!("bytes=0-{last}"), 0..LENGTH),
        ("bytes=-1".into(), last..LENGTH),
        ("bytes=-700000".into(), LENGTH - 700_000..LENGTH),
        (format!("bytes=-{}", LENGTH + 1), 0..LENGTH),
    ] {
        let found = get(range.clone()).send().await.unwrap();
        let header = format!("bytes {}-{}/{LENGTH}", expected.start, expected.end - 1);
        assert_eq!(found.content_range.as_deref(), Some(header.as_str()), "{range}");
        assert_eq!(found.content_length, Some(expected.len() as i64), "{range}");
        let body = found.body.collect().await.unwrap().into_bytes();
        assert_eq!(body, data[expected], "{range}");
    }
    for range in [format!("bytes={LENGTH}-"), "bytes=-0".into()] {
        assert_eq!(status(get(range).send().await), 416);
    }
}

pub async fn conditional_reads(target: Target) {
    let etag = target.put("c", Bytes::from_static(b"one")).await;
    let get = || target.client.get_object().bucket(&target.bucket).key(target.key("c"));
    let head = || target.client.head_object().bucket(&target.bucket).key(target.key("c"));
    get().if_match(&etag).send().await.unwrap();
    get().if_match(&etag).range("bytes=1-1").send().await.unwrap();
    get().if_none_match("\"other\"").send().await.unwrap();
    assert_eq!(status(get().if_match("\"other\"").send().await), 412);
    assert_eq!(status(head().if_match("\"other\"").send().await), 412);
    assert_eq!(status(get().if_none_match(&etag).send().await), 304);
    assert_eq!(status(head().if_none_match(&etag).send().await), 304);
    let modified = head().send().await.unwrap().last_modified.unwrap();
    let before = DateTime::from_secs(modified.secs() - 100);
    assert_eq!(status(get().if_modified_since(modified).send().await), 304);
    get().if_modified_since(before).send().await.unwrap();
    get().if_unmodified_since(modified).send().await.unwrap();
    assert_eq!(status(get().if_unmodified_since(before).send().await), 412);
    target.put("c", Bytes::from_static(b"two")).await;
    assert_eq!(status(get().if_match(&etag).send().await), 412);
    get().if_none_match(&etag).send().await.unwrap();
}

pub async fn conditional_writes(target: Target) {
    let put = |body: &'static [u8]| {
        let put = target.client.put_object().bucket(&target.bucket).key(target.key("w"));
        put.body(ByteStream::from_static(body))
    };
    assert_eq!(status(put(b"0").if_match("\"none\"").send().await), 404);
    let first = put(b"1").if_none_match("*").send().await.unwrap().e_tag.unwrap();
    let second = put(b"2").if_match(&first).send().await.unwrap().e_tag.unwrap();
    assert_eq!(status(put(b"3").if_match(&first).send().await), 412);
    assert_eq!(status(put(b"4").if_none_match("*").send().await), 412);
    // Large, so that a server may refuse before reading it all: the client must still receive the reason.
    let large = target.client.put_object().bucket(&target.bucket).key(target.key("w"));
    let large = large.if_none_match("*").body(noise(9, 24 << 20).into()).send().await;
    assert_eq!(status(large), 412);
    assert_eq!(target.get("w").await, "2");

    // One of several writers that replace the same version wins.
    let puts = (0..12).map(|_| tokio::spawn(put(b"next").if_match(&second).send()));
    let results: Vec<_> = join_all(puts).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    let delete = target.client.delete_object().bucket(&target.bucket).key(target.key("w"));
    delete.send().await.unwrap();
    put(b"5").if_none_match("*").send().await.unwrap();
}

pub async fn listing(target: Target) {
    let keys = ["a", "a!", "a/1", "a/2/x", "a/2/y", "a0", "b/", "b/1", "é/1", "z"];
    for key in keys {
        target.put(key, Bytes::copy_from_slice(key.as_bytes())).await;
    }
    assert_eq!(
        target.list("").await,
        ["a", "a!", "a/1", "a/2/x", "a/2/y", "a0", "b/", "b/1", "z", "é/1"]
    );
    assert_eq!(target.list("a").await, ["a", "a!", "a/1", "a/2/x", "a/2/y", "a0"]);
    assert_eq!(target.list("a/").await, ["a/1", "a/2/x", "a/2/y"]);
    assert_eq!(target.list("a/2").await, ["a/2/x", "a/2/y"]);
    assert_eq!(target.list("a/2/x").await, ["a/2/x"]);
    assert!(target.list("a/3").await.is_empty());
    assert!(target.list("a/2/x/").await.is_empty());

    let list = || target.client.list_objects_v2().bucket(&target.bucket);
    let page = list().prefix(target.key("a")).send().await.unwrap();
    let first = &page.contents()[0];
    assert_eq!((first.size, page.key_count), (Some(1), Some(6)));
    let head = target.client.head_object().bucket(&target.bucket).key(target.key("a"));
    assert_eq!(first.e_tag, head.send().await.unwrap().e_tag);

    let folded = |page: aws_sdk_s3::operation::list_objects_v2::ListObjectsV2Output| {
        let strip =
            |key: Option<&str>| key.unwrap().strip_prefix(&target.key("")).unwrap().to_owned();
        let keys: Vec<_> = page.contents().iter().map(|object| strip(object.key())).collect();
        let prefixes = page.common_prefixes().iter().map(|prefix| strip(prefix.prefix()));
        (keys, prefixes.collect::<Vec<_>>())
    };
    let page = list().prefix(target.key("")).delimiter("/").send().await.unwrap();
    let (keys, prefixes) = folded(page);
    assert_eq!(keys, ["a", "a!", "a0", "z"]);
    assert_eq!(prefixes, ["a/", "b/", "é/"]);
    let page = list().prefix(target.key("a/")).delimiter("/").send().await.unwrap();
    assert_eq!(folded(page), (vec!["a/1".to_owned()], vec!["a/2/".to_owned()]));
    let after =
        list().prefix(target.key("")).start_after(target.key("a/2/x")).send().await.unwrap();
    assert_eq!(folded(after).0, ["a/2/y", "a0", "b/", "b/1", "z", "é/1"]);
    let none = list().prefix(target.key("")).max_keys(0).send().await.unwrap();
    assert_eq!((none.contents().len(), none.is_truncated), (0, Some(false)));
}

pub async fn listing_in_pages(target: Target) {
    let mut keys: Vec<String> = (0..23).map(|i| format!("k{i:02}")).collect();
    keys.extend((0..4).flat_map(|d| (0..5).map(move |i| format!("k0{d}/{i}"))));
    keys.sort_unstable();
    for key in &keys {
        target.put(key, Bytes::new()).await;
    }
    for page_size in [1, 2, 7, 43, 44] {
        let list = target.client.list_objects_v2().bucket(&target.bucket).prefix(target.key(""));
        let mut pages = list.into_paginator().page_size(page_size).send();
        let mut found = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.unwrap();
            assert!(page.contents().len() <= page_size as usize);
            found.extend(page.contents().iter().map(|object| object.key().unwrap().to_owned()));
        }
        let expected: Vec<_> = keys.iter().map(|key| target.key(key)).collect();
        assert_eq!(found, expected, "pages of {page_size}");
    }
    for page_size in [1, 3, 27] {
        let list = target.client.list_objects_v2().bucket(&target.bucket).prefix(target.key(""));
        let mut pages = list.delimiter("/").into_paginator().page_size(page_size).send();
        let (mut objects, mut prefixes) = (0, Vec::new());
        while let Some(page) = pages.next().await {
            let page = page.unwrap();
            objects += page.contents().len();
            prefixes.extend(page.common_prefixes().iter().map(|p| p.prefix().unwrap().to_owned()));
        }
        assert_eq!(objects, 23, "pages of {page_size}");
        let expected: Vec<_> = (0..4).map(|d| target.key(&format!("k0{d}/"))).collect();
        assert_eq!(prefixes, expected, "pages of {page_size}");
    }
}

pub async fn listing_deep_and_long_keys(target: Target) {
    let room = 1024 - target.key("").len();
    let deep = "d/".repeat(room / 2 - 1) + "d";
    let long = "l".repeat(room);
    let wide = "ß".repeat(room / 2);
    let step = "s".repeat(80);
    let mut keys = vec![deep, long, wide, step.clone(), format!("{step}/x"), format!("{step}!")];
    keys.push(format!("{step}t"));
    keys.sort_unstable();
    for key in &keys {
        target.put(key, Bytes::copy_from_slice(key.as_bytes())).await;
    }
    assert_eq!(target.list("").await, keys);
    for key in &keys {
        assert_eq!(target.get(key).await, *key);
        assert!(target.list(key).await.contains(key), "{key}");
    }
    let too_long = target.client.put_object().bucket(&target.bucket);
    let too_long = too_long.key(target.key(&"k".repeat(room + 1))).body(Bytes::new().into());
    assert_eq!(status(too_long.send().await), 400);
}

pub async fn big_objects(target: Target) {
    let data = Bytes::from(noise(64, 64 << 20));
    let put = target.client.put_object().bucket(&target.bucket).key(target.key("big"));
    let put = put.body(data.clone().into()).if_none_match("*");
    // As the data plane does: no hash in the signature, a checksum instead.
    put.customize().disable_payload_signing().send().await.unwrap();
    assert!(target.get("big").await == data);
    let signed = target.client.put_object().bucket(&target.bucket).key(target.key("signed"));
    signed.body(data.slice(..9 << 20).into()).send().await.unwrap();
    assert!(target.get("signed").await == data.slice(..9 << 20));
}

pub async fn bodies_that_are_streamed(target: Target) {
    // A body that is not in memory is sent in chunks, with its checksum at the end.
    let file = tempfile::NamedTempFile::new().unwrap();
    for length in [0, 1, 65_536, 3_000_001] {
        let data = noise(length as u64, length);
        std::fs::write(file.path(), &data).unwrap();
        let body = ByteStream::from_path(file.path()).await.unwrap();
        target.put("stream", body).await;
        assert_eq!(target.get("stream").await, data, "{length} bytes");
        let head = target.client.head_object().bucket(&target.bucket).key(target.key("stream"));
        let head = head.send().await.unwrap();
        assert_eq!(head.content_encoding, None, "how it travelled is not what it is");
    }
}

pub async fn metadata_round_trip(target: Target) {
    let put = target.client.put_object().bucket(&target.bucket).key(target.key("m"));
    let put = put
        .body(ByteStream::from_static(b"x"))
        .content_type("application/x-chunk")
        .content_encoding("zstd")
        .content_language("de")
        .content_disposition("attachment")
        .cache_control("no-cache")
        .metadata("put-id", "0f3c")
        .metadata("note", "with spaces; and = signs");
    put.send().await.unwrap();
    let head = target.client.head_object().bucket(&target.bucket).key(target.key("m"));
    let head = head.send().await.unwrap();
    assert_eq!(head.content_type(), Some("application/x-chunk"));
    assert_eq!(head.content_encoding(), Some("zstd"));
    assert_eq!(head.content_language(), Some("de"));
    assert_eq!(head.content_disposition(), Some("attachment"));
    assert_eq!(head.cache_control(), Some("no-cache"));
    assert_eq!(head.content_length(), Some(1));
    let metadata = head.metadata().unwrap();
    assert_eq!(metadata.len(), 2);
    assert_eq!(metadata["put-id"], "0f3c");
    assert_eq!(metadata["note"], "with spaces; and = signs");
    let get = target.client.get_object().bucket(&target.bucket).key(target.key("m"));
    assert_eq!(get.send().await.unwrap().metadata().unwrap(), metadata);
    // Replaced with the object.
    target.put("m", Bytes::new()).await;
    let head = target.client.head_object().bucket(&target.bucket).key(target.key("m"));
    let head = head.send().await.unwrap();
    assert!(head.metadata().is_none_or(|metadata| metadata.is_empty()));
    assert_ne!(head.content_encoding(), Some("zstd"));

    let much = target.client.put_object().bucket(&target.bucket).key(target.key("much"));
    let much = much.body(Bytes::new().into()).metadata("a", "x".repeat(2100));
    assert_eq!(status(much.send().await), 400);
}

pub async fn odd_keys(target: Target) {
    let keys = [
        "with space",
        "with+plus",
        "%2F",
        "a%2Fb",
        "a%252Fb",
        "ünïcödé/キー",
        "..",
        "../x",
        "x/../y",
        "./x",
        ".",
        "tail/",
        "double//slash",
        "~tilde",
        "a=b&c=d?e#f",
        "quote'\"",
        "back\\slash",
        "*?[]{}|<>",
        ":;,@!$()",
        "UPPER",
        "upper",
        "emoji-🌾",
        "a\tb",
    ];
    for key in keys {
        target.put(key, Bytes::copy_from_slice(key.as_bytes())).await;
    }
    for key in keys {
        assert_eq!(target.get(key).await, key, "{key:?}");
    }
    let mut expected: Vec<_> = keys.iter().map(ToString::to_string).collect();
    expected.sort_unstable();
    assert_eq!(target.list("").await, expected);
    for key in keys {
        let delete = target.client.delete_object().bucket(&target.bucket).key(target.key(key));
        delete.send().await.unwrap();
    }
    assert!(target.list("").await.is_empty());
}

pub async fn deleting(target: Target) {
    let delete =
        |name: &str| target.client.delete_object().bucket(&target.bucket).key(target.key(name));
    delete("never").send().await.unwrap();
    target.put("once", Bytes::new()).await;
    delete("once").send().await.unwrap();
    delete("once").send().await.unwrap();
    assert!(target.list("").await.is_empty());

    for i in 0..20 {
        target.put(&format!("d/{i}"), Bytes::new()).await;
    }
    target.put("d/é & <b>", Bytes::new()).await;
    let mut names: Vec<_> = (0..20).map(|i| format!("d/{i}")).collect();
    names.extend(["d/é & <b>".to_owned(), "d/missing".to_owned()]);
    let ids = names.iter().map(|name| ObjectIdentifier::builder().key(target.key(name)).build());
    let ids: Vec<_> = ids.map(Result::unwrap).collect();
    let many = Delete::builder().set_objects(Some(ids)).build().unwrap();
    let request = target.client.delete_objects().bucket(&target.bucket).delete(many);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.deleted().len(), 22);
    assert!(answer.errors().is_empty());
    assert!(target.list("").await.is_empty());
}

pub async fn empty_objects(target: Target) {
    target.put("empty", Bytes::new()).await;
    let get = || target.client.get_object().bucket(&target.bucket).key(target.key("empty"));
    let found = get().send().await.unwrap();
    assert_eq!(found.content_length, Some(0));
    assert!(found.body.collect().await.unwrap().into_bytes().is_empty());
    assert_eq!(status(get().range("bytes=0-").send().await), 416);
}

pub async fn what_is_not_there(target: Target) {
    let client = &target.client;
    let get = client.get_object().bucket(&target.bucket).key(target.key("no"));
    let error = get.send().await.unwrap_err();
    assert_eq!(error.code(), Some("NoSuchKey"));
    let head = client.head_object().bucket(&target.bucket).key(target.key("no"));
    assert!(head.send().await.unwrap_err().into_service_error().is_not_found());

    let bucket = "gristmill-no-such-bucket";
    let error = client.get_object().bucket(bucket).key("k").send().await.unwrap_err();
    assert_eq!(error.code(), Some("NoSuchBucket"));
    for length in [1, 3 << 20] {
        let put = client.put_object().bucket(bucket).key("k").body(noise(1, length).into());
        assert_eq!(put.send().await.unwrap_err().code(), Some("NoSuchBucket"));
    }
    let list = client.list_objects_v2().bucket(bucket).send().await.unwrap_err();
    assert_eq!(list.code(), Some("NoSuchBucket"));
    assert_eq!(status(client.head_bucket().bucket(bucket).send().await), 404);
    client.head_bucket().bucket(&target.bucket).send().await.unwrap();
    client.get_bucket_location().bucket(&target.bucket).send().await.unwrap();
    let buckets = client.list_buckets().send().await.unwrap();
    assert!(buckets.buckets().iter().any(|b| b.name() == Some(target.bucket.as_str())));
}

pub async fn signatures(target: Target) {
    target.put("s", Bytes::from_static(b"x")).await;
    for (access_key, secret_key) in
        [(target.access_key.as_str(), "not the secret"), ("AKIANOBODY", target.secret_key.as_str())]
    {
        let stranger = client(&target.endpoint, access_key, secret_key);
        let get = stranger.get_object().bucket(&target.bucket).key(target.key("s"));
        assert_eq!(status(get.send().await), 403);
        let put = stranger.put_object().bucket(&target.bucket).key(target.key("s"));
        assert_eq!(status(put.body(Bytes::new().into()).send().await), 403);
        let delete = stranger.delete_object().bucket(&target.bucket).key(target.key("s"));
        assert_eq!(status(delete.send().await), 403);
        let list = stranger.list_objects_v2().bucket(&target.bucket);
        assert_eq!(status(list.send().await), 403);
    }
    let presigned = aws_sdk_s3::presigning::PresigningConfig::expires_in(Duration::from_secs(60));
    let get = target.client.get_object().bucket(&target.bucket).key(target.key("s"));
    let presigned = get.presigned(presigned.unwrap()).await.unwrap();
    assert_eq!(super::plain_get(&target.endpoint, presigned.uri()).await, 200);
    let (unsigned, _) = presigned.uri().split_once('?').unwrap();
    assert_eq!(super::plain_get(&target.endpoint, unsigned).await, 403);
    assert_eq!(target.get("s").await, "x");
}
