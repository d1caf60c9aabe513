//! The adapters on stand-ins in memory, which check signatures; and on other implementations, in ignored tests that
//! `scripts/test-peers` runs.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod dynamodb;
mod loopback;
mod s3;
mod signature;

use bytes::Bytes;
use gristmill_aws::{Aws, AwsCredentials, AwsEndpoints};
use gristmill_ports::{
    ItemKey, ObjectError, ObjectPath, ObjectStore, PutOutcome, TableError, conformance,
};
use signature::{ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY};

const NOBODY: &str = "http://127.0.0.1:1";

fn aws(s3: &str, dynamodb: &str, secret: &str) -> Aws {
    let endpoints =
        AwsEndpoints { s3: Some(s3.to_owned()), dynamodb: Some(dynamodb.to_owned()), lambda: None };
    let credentials = AwsCredentials {
        access_key_id: ACCESS_KEY_ID.to_owned(),
        secret_access_key: secret.to_owned(),
        session_token: None,
    };
    Aws::with(endpoints, REGION.to_owned(), credentials).unwrap()
}

/// Clients of an S3 with a bucket named `bucket`, and its URL.
async fn s3() -> (Aws, String) {
    let url = s3::start().await;
    let aws = aws(&url, NOBODY, SECRET_ACCESS_KEY);
    aws.make_bucket("bucket").await.unwrap();
    (aws, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_conform() {
    let objects = s3().await.0.objects();
    conformance::objects(&objects, "bucket", "t").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_object_comes_back_whole_and_in_part() {
    let objects = s3().await.0.objects();
    whole_and_in_part(&objects, "bucket", "t").await;
}

async fn whole_and_in_part(objects: &dyn ObjectStore, bucket: &str, prefix: &str) {
    let path = ObjectPath::new(bucket, format!("{prefix}/a large one +%é.gmc"));
    let body: Bytes =
        (0..40_u32 << 20).map(|i| (i.wrapping_mul(0x9E37_79B1) >> 24) as u8).collect();
    let put = objects.put_if_absent(&path, body.clone(), "id").await;
    assert_eq!(put.unwrap(), PutOutcome::Created);
    assert!(objects.get(&path).await.unwrap() == body, "the whole differs");
    let part = objects.get_range(&path, 1..(40 << 20) - 1, None).await.unwrap();
    assert!(part == body[1..body.len() - 1], "the part differs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_and_deletes_go_beyond_one_request() {
    beyond_one_request(&s3().await.0, "bucket", "many").await;
}

async fn beyond_one_request(aws: &Aws, bucket: &str, prefix: &str) {
    let objects = aws.objects();
    let keys: Vec<_> = (0..1_010).map(|i| format!("{prefix}/{i:05}")).collect();
    for key in &keys {
        let path = ObjectPath::new(bucket, key.as_str());
        objects.put_if_absent(&path, Bytes::new(), "id").await.unwrap();
    }
    let prefix = format!("{prefix}/");
    let listed = objects.list(bucket, &prefix).await.unwrap();
    assert!(listed.iter().map(|object| &object.key).eq(&keys), "{} keys", listed.len());
    objects.delete(bucket, &keys).await.unwrap();
    assert_eq!(objects.list(bucket, &prefix).await.unwrap(), []);
    assert_eq!(aws.counts()["s3.DeleteObjects"], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_secret_or_bucket_is_rejected() {
    let (mine, url) = s3().await;
    let stranger = aws(&url, NOBODY, "another-secret").objects();
    let path = ObjectPath::new("bucket", "k");
    let error = stranger.put_if_absent(&path, Bytes::new(), "id").await.unwrap_err();
    assert!(matches!(&error, ObjectError::Rejected(text) if text.contains("Signature")), "{error}");
    let absent = ObjectPath::new("absent", "k");
    let error = mine.objects().get(&absent).await.unwrap_err();
    assert!(
        matches!(&error, ObjectError::Rejected(text) if text.contains("NoSuchBucket")),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_and_a_table_that_exist_are_kept() {
    let (aws, _) = s3().await;
    let path = ObjectPath::new("bucket", "k");
    aws.objects().put_if_absent(&path, Bytes::from_static(b"x"), "id").await.unwrap();
    aws.make_bucket("bucket").await.unwrap();
    assert_eq!(aws.objects().get(&path).await.unwrap(), "x");
    let aws = self::aws(NOBODY, &dynamodb::start().await, SECRET_ACCESS_KEY);
    aws.make_table("gristmill").await.unwrap();
    let (table, key) = (aws.table("gristmill"), ItemKey { pk: "p".to_owned(), sk: "s".to_owned() });
    table.write(&key, 0, Bytes::from_static(b"x"), None).await.unwrap();
    aws.make_table("gristmill").await.unwrap();
    assert_eq!(table.read(&[key]).await.unwrap()[0].as_ref().unwrap().body, "x");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_conforms_and_checks_signatures() {
    let endpoint = dynamodb::start().await;
    let mine = aws(NOBODY, &endpoint, SECRET_ACCESS_KEY);
    mine.make_table("gristmill").await.unwrap();
    conformance::table(&*mine.table("gristmill"), "T#t").await;
    let stranger = aws(NOBODY, &endpoint, "another-secret").table("gristmill");
    let key = ItemKey { pk: "p".to_owned(), sk: "s".to_owned() };
    let error = stranger.read(&[key]).await.unwrap_err();
    assert!(
        matches!(&error, TableError::Rejected(text) if text.contains("InvalidSignature")),
        "{error}"
    );
}

/// Other implementations, with a bucket and a table `gristmill`, started and named by `scripts/test-peers`.
mod peer {
    use super::*;

    fn variable(name: &str) -> String {
        std::env::var(name).unwrap_or_else(|_| panic!("set {name}: scripts/test-peers does"))
    }

    fn peer(s3: &str, dynamodb: &str) -> Aws {
        let endpoints = AwsEndpoints {
            s3: Some(s3.to_owned()),
            dynamodb: Some(dynamodb.to_owned()),
            lambda: None,
        };
        let credentials = AwsCredentials {
            access_key_id: variable("AWS_ACCESS_KEY_ID"),
            secret_access_key: variable("AWS_SECRET_ACCESS_KEY"),
            session_token: None,
        };
        Aws::with(endpoints, REGION.to_owned(), credentials).unwrap()
    }

    /// A prefix unique to this run: a peer may be reused.
    fn fresh(name: &str) -> String {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        format!("{name}-{}", now.as_nanos())
    }

    fn s3() -> Aws {
        peer(&variable("GRISTMILL_PEER_S3"), NOBODY)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs another S3: scripts/test-peers"]
    async fn objects_conform() {
        conformance::objects(&s3().objects(), "gristmill", &fresh("conform")).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs another S3: scripts/test-peers"]
    async fn objects_come_back_whole_and_in_part() {
        whole_and_in_part(&s3().objects(), "gristmill", &fresh("large")).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs another S3: scripts/test-peers"]
    async fn objects_are_listed_and_deleted_beyond_one_request() {
        beyond_one_request(&s3(), "gristmill", &fresh("many")).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "needs another DynamoDB: scripts/test-peers"]
    async fn table_conforms() {
        let aws = peer(NOBODY, &variable("GRISTMILL_PEER_DYNAMODB"));
        conformance::table(&*aws.table("gristmill"), &fresh("T#t")).await;
    }
}
