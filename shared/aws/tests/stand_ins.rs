//! The adapters on the embedded services, with signature checks; and on other implementations, in ignored tests that
//! `scripts/test-peers` runs.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use bytes::Bytes;
use gristmill_aws::{Aws, Credentials, Endpoints};
use gristmill_local::{ObjectServer, Serving, TableConfig, TableServer};
use gristmill_ports::{
    ItemKey, ObjectError, ObjectPath, Objects, PutOutcome, Table as _, TableError, conformance,
};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const KEY: &str = "AKIAEXAMPLE";
const SECRET: &str = "a-secret";
const REGION: &str = "us-east-1";

fn aws(s3: &str, dynamodb: &str, secret: &str) -> Aws {
    let endpoints = Endpoints {
        s3: s3.to_owned(),
        dynamodb: dynamodb.to_owned(),
        lambda: String::new(),
        region: REGION.to_owned(),
    };
    let credentials = Credentials {
        access_key_id: KEY.to_owned(),
        secret_access_key: secret.to_owned(),
        session_token: None,
    };
    Aws::with(endpoints, credentials)
}

/// A store with a bucket named `bucket`; the directory lives as long as it is held.
async fn objects() -> (String, Serving, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let server = ObjectServer::builder(directory.path()).bucket("bucket").credentials(KEY, SECRET);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let serving = server.open().unwrap().serve(listener, CancellationToken::new()).unwrap();
    (format!("http://{}", serving.address()), serving, directory)
}

fn table() -> TableServer {
    let config = TableConfig {
        file: None,
        tables: vec!["gristmill".to_owned()],
        region: REGION.to_owned(),
        credentials: gristmill_local::Credentials {
            access_key_id: KEY.to_owned(),
            secret_access_key: SECRET.to_owned(),
        },
        listener: None,
    };
    TableServer::start(config).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_conform() {
    let (url, _serving, _directory) = objects().await;
    let objects = aws(&url, "http://127.0.0.1:1", SECRET).objects();
    conformance::objects(&objects, "bucket", "t").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_object_comes_back_whole_and_in_part() {
    let (url, _serving, _directory) = objects().await;
    let objects = aws(&url, "http://127.0.0.1:1", SECRET).objects();
    whole_and_in_part(&objects, "bucket", "t").await;
}

async fn whole_and_in_part(objects: &dyn Objects, bucket: &str, prefix: &str) {
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
    let (url, _serving, _directory) = objects().await;
    beyond_one_request(&aws(&url, "http://127.0.0.1:1", SECRET), "bucket", "many").await;
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
    let (url, _serving, _directory) = objects().await;
    let stranger = aws(&url, "http://127.0.0.1:1", "another-secret").objects();
    let path = ObjectPath::new("bucket", "k");
    let error = stranger.put_if_absent(&path, Bytes::new(), "id").await.unwrap_err();
    assert!(matches!(&error, ObjectError::Rejected(text) if text.contains("Signature")), "{error}");
    let objects = aws(&url, "http://127.0.0.1:1", SECRET).objects();
    let absent = ObjectPath::new("absent", "k");
    let error = objects.get(&absent).await.unwrap_err();
    assert!(
        matches!(&error, ObjectError::Rejected(text) if text.contains("NoSuchBucket")),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_conforms_and_checks_signatures() {
    let server = table();
    let endpoint = server.endpoint();
    let mine = aws("http://127.0.0.1:1", &endpoint, SECRET).table("gristmill");
    conformance::table(&mine, "T#t").await;
    let stranger = aws("http://127.0.0.1:1", &endpoint, "another-secret").table("gristmill");
    let key = ItemKey { pk: "p".to_owned(), sk: "s".to_owned() };
    let error = stranger.read(&[key]).await.unwrap_err();
    assert!(matches!(error, TableError::Rejected(_)), "{error}");
}

/// Other implementations, with a bucket and a table `gristmill`, started and named by `scripts/test-peers`.
mod peer {
    use super::*;

    fn variable(name: &str) -> String {
        std::env::var(name).unwrap_or_else(|_| panic!("set {name}: scripts/test-peers does"))
    }

    fn peer(s3: &str, dynamodb: &str) -> Aws {
        let endpoints = Endpoints {
            s3: s3.to_owned(),
            dynamodb: dynamodb.to_owned(),
            lambda: String::new(),
            region: REGION.to_owned(),
        };
        let credentials = Credentials {
            access_key_id: variable("AWS_ACCESS_KEY_ID"),
            secret_access_key: variable("AWS_SECRET_ACCESS_KEY"),
            session_token: None,
        };
        Aws::with(endpoints, credentials)
    }

    /// A prefix unique to this run: a peer may be reused.
    fn fresh(name: &str) -> String {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        format!("{name}-{}", now.as_nanos())
    }

    fn s3() -> Aws {
        peer(&variable("GRISTMILL_PEER_S3"), "http://127.0.0.1:1")
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
        let aws = peer("http://127.0.0.1:1", &variable("GRISTMILL_PEER_DYNAMODB"));
        conformance::table(&aws.table("gristmill"), &fresh("T#t")).await;
    }
}
