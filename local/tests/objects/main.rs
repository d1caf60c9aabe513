//! Tests of the object server: the conformance suite, and guarantees of the embedded server only.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]
#![allow(clippy::collapsible_match, clippy::single_range_in_vec_init, reason = "reads better so")]

#[macro_use]
mod suite;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::error::ProvideErrorMetadata;
use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;
use futures::future::join_all;
use gristmill_local::{LocalError, ObjectServer, Serving};
use suite::{Target, noise, status};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

const BUCKET: &str = "gristmill";
const ACCESS_KEY: &str = "AKIATEST";
const SECRET_KEY: &str = "test/secret+key";
/// Time limit of a case on another S3: some never respond.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server on a directory, stopped when dropped.
struct Server {
    serving: Serving,
    stop: CancellationToken,
}

impl Server {
    async fn start(root: &Path) -> Self {
        Self::serve(builder(root).open().unwrap()).await
    }

    async fn serve(server: ObjectServer) -> Self {
        let stop = CancellationToken::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { serving: server.serve(listener, stop.clone()).unwrap(), stop }
    }

    fn target(&self) -> Target {
        self.target_of(BUCKET)
    }

    fn target_of(&self, bucket: &str) -> Target {
        let endpoint = format!("http://{}", self.serving.address());
        Target::new(&endpoint, ACCESS_KEY, SECRET_KEY, bucket)
    }

    async fn stop(self) {
        self.stop.cancel();
        self.serving.ended().await;
    }
}

fn builder(root: &Path) -> gristmill_local::ObjectServerBuilder {
    ObjectServer::builder(root).credentials(ACCESS_KEY, SECRET_KEY).bucket(BUCKET)
}

/// The status of a request without a signature of its own.
async fn plain_get(endpoint: &str, url: &str) -> u16 {
    let address = endpoint.strip_prefix("http://").unwrap();
    let path = url.strip_prefix(endpoint).unwrap();
    let text = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    raw(address, text.as_bytes()).await.0
}

/// Sends bytes and reads until the server closes: (status, all of the answer).
async fn raw(address: &str, bytes: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

mod conforms {
    macro_rules! case {
        ($name:ident) => {
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() {
                let root = tempfile::tempdir().unwrap();
                let server = super::Server::start(root.path()).await;
                super::suite::$name(server.target()).await;
                server.stop().await;
            }
        };
    }
    each_case!(case);
}

/// The suite on another S3, which `scripts/test-peers` starts and names, with a bucket `gristmill`.
mod peer {
    fn target() -> super::Target {
        let variable = |name| std::env::var(name).unwrap_or_else(|_| panic!("set {name}"));
        let keys = (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"));
        super::Target::new(&variable("GRISTMILL_PEER_S3"), &keys.0, &keys.1, super::BUCKET)
    }

    macro_rules! case {
        ($name:ident) => {
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            #[ignore = "needs another S3: scripts/test-peers"]
            async fn $name() {
                let case = super::suite::$name(target());
                tokio::time::timeout(super::PATIENCE, case).await.expect("it ends");
            }
        };
    }
    each_case!(case);
}

#[tokio::test]
async fn objects_and_metadata_outlive_the_server() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::serve(builder(root.path()).durable(true).open().unwrap()).await;
    let target = server.target();
    let etag = target.put("a/b", Bytes::from_static(b"kept")).await;
    let key = target.key("a/b");
    server.stop().await;

    let server = Server::start(root.path()).await;
    let get = server.target().client.get_object().bucket(BUCKET).key(key).send().await.unwrap();
    assert_eq!(get.e_tag, Some(etag));
    assert_eq!(get.body.collect().await.unwrap().into_bytes(), "kept");
}

#[tokio::test]
async fn a_directory_has_one_server() {
    let root = tempfile::tempdir().unwrap();
    let first = builder(root.path()).open().unwrap();
    assert!(matches!(builder(root.path()).open(), Err(LocalError::Busy { .. })));
    drop(first);
    builder(root.path()).open().unwrap();
    let none = ObjectServer::builder(root.path()).open();
    assert!(matches!(none, Err(LocalError::Config(_))), "no credentials");
    for name in ["No", "../x", "a/b", ""] {
        let odd = builder(root.path()).bucket(name).open();
        assert!(matches!(odd, Err(LocalError::Config(_))), "{name}");
    }
}

#[tokio::test]
async fn a_mount_is_read_only_and_leads_nowhere_but_where_its_links_lead() {
    let root = tempfile::tempdir().unwrap();
    let base = tempfile::tempdir().unwrap();
    let data = base.path().join("data");
    std::fs::create_dir_all(data.join("train/deep")).unwrap();
    std::fs::create_dir_all(base.path().join("outside")).unwrap();
    let big = noise(5, 3 << 20);
    std::fs::write(data.join("train/0.tfrecord"), &big).unwrap();
    std::fs::write(data.join("train/deep/1"), "one").unwrap();
    std::fs::write(data.join("READ ME"), "read").unwrap();
    std::fs::write(base.path().join("outside/secret"), "secret").unwrap();
    symlink(base.path().join("outside/secret"), data.join("absolute")).unwrap();
    symlink("../outside/secret", data.join("relative")).unwrap();
    symlink("../outside", data.join("directory")).unwrap();
    symlink("train/deep/1", data.join("inside")).unwrap();
    symlink(".", data.join("loop")).unwrap();

    let open = builder(root.path()).mount_read_only("data", &data).open().unwrap();
    let server = Server::serve(open).await;
    let target = server.target();
    let client = &target.client;
    let get = |key: &str| client.get_object().bucket("data").key(key);

    let found = get("train/0.tfrecord").send().await.unwrap();
    assert_eq!(found.body.collect().await.unwrap().into_bytes(), big);
    let part = get("train/0.tfrecord").range("bytes=1048570-1048580").send().await.unwrap();
    assert_eq!(part.body.collect().await.unwrap().into_bytes(), big[1_048_570..=1_048_580]);
    get("inside").send().await.unwrap();
    get("READ ME").send().await.unwrap();

    for key in ["absolute", "relative", "directory/secret"] {
        let linked = get(key).send().await.unwrap().body.collect().await.unwrap();
        assert_eq!(linked.into_bytes(), "secret", "{key}");
    }
    // A link created or changed later is ignored until the directory is mounted again.
    let other = base.path().join("other");
    std::fs::write(&other, "other").unwrap();
    symlink(&other, data.join("new")).unwrap();
    std::fs::remove_file(data.join("relative")).unwrap();
    symlink(&other, data.join("relative")).unwrap();
    symlink(&other, base.path().join("outside/by-folder")).unwrap();
    assert_eq!(status(get("new").send().await), 403);
    assert_eq!(status(get("directory/by-folder").send().await), 404);
    let pinned = get("relative").send().await.unwrap().body.collect().await.unwrap();
    assert_eq!(pinned.into_bytes(), "secret");
    server.serving.server().mount("data", &data).unwrap();
    for key in ["new", "relative", "directory/by-folder"] {
        let linked = get(key).send().await.unwrap().body.collect().await.unwrap();
        assert_eq!(linked.into_bytes(), "other", "{key}");
    }
    std::fs::remove_file(data.join("new")).unwrap();
    no_path_leads_out_of_a_mount(&server, client).await;
    mounted_files_are_listed(client).await;
    a_mount_refuses_writes(client).await;
    assert_eq!(std::fs::read(data.join("READ ME")).unwrap(), b"read");
}

async fn no_path_leads_out_of_a_mount(server: &Server, client: &Client) {
    for key in [
        "../outside/secret",
        "train/../../outside/secret",
        "/etc/passwd",
        "train",
        "train/",
        "train//0.tfrecord",
        "./READ ME",
        "no",
        "directory/../data/READ ME",
        "directory/no",
    ] {
        assert_eq!(status(client.get_object().bucket("data").key(key).send().await), 404, "{key}");
    }
    for path in
        ["/data/../outside/secret", "/data/%2e%2e/outside/secret", "/data/..%2foutside/secret"]
    {
        let endpoint = format!("http://{}", server.serving.address());
        let status = plain_get(&endpoint, &format!("{endpoint}{path}")).await;
        assert!((400..500).contains(&status), "{path}: {status}");
    }
}

async fn mounted_files_are_listed(client: &Client) {
    let list = client.list_objects_v2().bucket("data").send().await.unwrap();
    let keys: Vec<_> = list.contents().iter().map(|object| object.key().unwrap()).collect();
    assert_eq!(
        keys,
        ["READ ME", "absolute", "inside", "relative", "train/0.tfrecord", "train/deep/1"]
    );
    let list = client.list_objects_v2().bucket("data").prefix("train/").delimiter("/");
    let list = list.send().await.unwrap();
    assert_eq!(list.contents()[0].size(), Some(3 << 20));
    assert_eq!(list.common_prefixes()[0].prefix(), Some("train/deep/"));
    for prefix in ["../", "../outside/", "directory/", "/", "loop/"] {
        let list = client.list_objects_v2().bucket("data").prefix(prefix).send().await.unwrap();
        assert!(list.contents().is_empty(), "{prefix}");
    }
}

async fn a_mount_refuses_writes(client: &Client) {
    let put = client.put_object().bucket("data").key("new").body(noise(1, 10).into());
    assert_eq!(status(put.send().await), 405);
    let put = client.put_object().bucket("data").key("new").body(noise(1, 5 << 20).into());
    assert_eq!(status(put.send().await), 405);
    assert_eq!(status(client.delete_object().bucket("data").key("READ ME").send().await), 405);
    assert_eq!(status(client.create_bucket().bucket("data").send().await), 409);
}

#[tokio::test]
async fn a_changed_file_of_a_mount_is_another_object() {
    let (root, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = data.path().join("f");
    std::fs::write(&file, noise(1, 8 << 20)).unwrap();
    let server = Server::start(root.path()).await;
    let client = server.target().client;
    server.serving.server().mount("later", data.path()).unwrap();
    server.serving.server().mount("later", data.path()).unwrap();
    let get = || client.get_object().bucket("later").key("f");

    let mut found = get().send().await.unwrap();
    let etag = found.e_tag.clone().unwrap();
    found.body.next().await.unwrap().unwrap();
    // The same size, so only the time differs.
    let touched =
        std::fs::metadata(&file).unwrap().modified().unwrap() + std::time::Duration::from_nanos(1);
    std::fs::File::options().write(true).open(&file).unwrap().set_modified(touched).unwrap();
    assert_eq!(status(get().if_match(&etag).send().await), 412);
    found.body.collect().await.expect_err("a mixture must not pass for the file");
    get().send().await.unwrap().body.collect().await.unwrap();

    for name in ["UPPER", "x", "a/b"] {
        let error = server.serving.server().mount(name, data.path()).unwrap_err();
        assert!(matches!(error, LocalError::Config(_)), "{name}");
    }
    let error = server.serving.server().mount(BUCKET, data.path()).unwrap_err();
    assert!(error.to_string().contains("is a bucket"), "{error}");
    let error = server.serving.server().mount("gone", &data.path().join("no")).unwrap_err();
    assert!(matches!(error, LocalError::State { .. }));
    let error = server.serving.server().mount("file", &file).unwrap_err();
    assert!(matches!(error, LocalError::State { .. }));
}

#[tokio::test]
async fn a_failing_disk_is_an_answer_and_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path()).await;
    let target = server.target();
    target.put("k", Bytes::from_static(b"old")).await;
    let incoming = root.path().join("incoming");
    std::fs::remove_dir(&incoming).unwrap();
    for length in [10, 5 << 20] {
        let put = target.client.put_object().bucket(BUCKET).key(target.key("k"));
        assert_eq!(status(put.body(noise(1, length).into()).send().await), 500);
    }
    assert_eq!(target.get("k").await, "old");
    std::fs::create_dir(&incoming).unwrap();
    target.put("k", Bytes::from_static(b"new")).await;
    assert_eq!(target.get("k").await, "new");
    assert_eq!(std::fs::read_dir(&incoming).unwrap().count(), 0);
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path()).await;
    let target = server.target();
    let put = target.client.put_object().bucket(BUCKET).key(target.key("broken"));
    // Two chunks, and then an error instead of the third.
    let pieces = (0..3).map(|i| match i {
        0 | 1 => Ok(Bytes::from(vec![i; 2 << 20])),
        _ => Err(std::io::Error::other("the writer died")),
    });
    let frames = futures::stream::iter(pieces.map(|piece| piece.map(hyper::body::Frame::data)));
    let body = http_body_util::StreamBody::new(frames);
    let body = ByteStream::from_body_1_x(body);
    let put = put.content_length(6 << 20).body(body).customize().disable_payload_signing();
    put.send().await.unwrap_err();
    assert!(target.list("").await.is_empty());
    // The server notices slightly later than the client.
    let incoming = root.path().join("incoming");
    while std::fs::read_dir(&incoming).unwrap().count() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_a_power_cut_left_is_no_object() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path()).await;
    let target = server.target();
    let put = |body: &'static [u8]| {
        let put = target.client.put_object().bucket(BUCKET).key("cut");
        put.if_none_match("*").body(ByteStream::from_static(body))
    };
    for left in [0, 3, 20] {
        put(b"whole").send().await.unwrap();
        let file = root.path().join("buckets").join(BUCKET).join("cut=");
        std::fs::File::options().write(true).open(file).unwrap().set_len(left).unwrap();
        let get = target.client.get_object().bucket(BUCKET).key("cut").send().await;
        assert_eq!(get.unwrap_err().code(), Some("NoSuchKey"));
        let list = target.client.list_objects_v2().bucket(BUCKET).send().await.unwrap();
        assert!(list.contents().is_empty());
        put(b"again").send().await.unwrap();
        assert_eq!(status(put(b"third").send().await), 412);
        target.client.delete_object().bucket(BUCKET).key("cut").send().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn deleting_removes_directories_under_the_feet_of_puts() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path()).await;
    let target = server.target();
    let tasks = (0..8).map(|task| {
        let target = target.clone();
        tokio::spawn(async move {
            for i in 0..40 {
                let name = format!("a/b/c/{task}-{i}");
                target.put(&name, Bytes::new()).await;
                let delete = target.client.delete_object().bucket(BUCKET).key(target.key(&name));
                delete.send().await.unwrap();
            }
        })
    });
    join_all(tasks).await.into_iter().for_each(Result::unwrap);
    let bucket = root.path().join("buckets").join(BUCKET);
    assert_eq!(std::fs::read_dir(bucket).unwrap().count(), 0, "empty directories were left");
}

#[tokio::test]
async fn what_is_not_served_is_refused_cleanly() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path()).await;
    let target = server.target();
    let client = &target.client;
    let multipart = client.create_multipart_upload().bucket(BUCKET).key("m").send().await;
    assert_eq!(multipart.unwrap_err().code(), Some("NotImplemented"));
    let part = client.upload_part().bucket(BUCKET).key("m").upload_id("u").part_number(1);
    let part = part.body(noise(1, 100).into()).send().await;
    assert_eq!(part.unwrap_err().code(), Some("NotImplemented"));
    target.put("v", Bytes::new()).await;
    let delete = client.delete_object().bucket(BUCKET).key(target.key("v")).version_id("1");
    assert_eq!(status(delete.send().await), 501);
    target.get("v").await;
    let token = client.list_objects_v2().bucket(BUCKET).continuation_token("kzz").send().await;
    assert_eq!(token.unwrap_err().code(), Some("InvalidArgument"));
    let made = client.create_bucket().bucket("second").send().await;
    made.unwrap();
    assert_eq!(status(client.create_bucket().bucket("second").send().await), 409);
    let other = server.target_of("second");
    other.put("k", Bytes::new()).await;
    assert_eq!(other.list("").await, ["k"]);
}

#[tokio::test]
async fn a_form_upload_is_not_collected_for_strangers() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path()).await;
    let address = server.serving.address().to_string();
    let body = "--b\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nk\r\n--b\r\nContent-Disposition: \
                form-data; name=\"file\"; filename=\"f\"\r\n\r\ndata\r\n--b--\r\n";
    let text = format!(
        "POST /{BUCKET} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: \
         multipart/form-data; boundary=b\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (status, answer) = raw(&address, text.as_bytes()).await;
    assert!((400..500).contains(&status), "{answer}");
    assert!(server.target().list("").await.is_empty());
}

#[tokio::test]
async fn requests_and_bytes_are_counted() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(root.path()).await;
    let target = server.target();
    target.put("a", Bytes::from_static(b"12345")).await;
    target.get("a").await;
    target.put("c.gmc", Bytes::from_static(b"123")).await;
    target.get("c.gmc").await;
    target.get("c.gmc").await;
    let get = target.client.get_object().bucket(BUCKET).key(target.key("a"));
    get.range("bytes=1-2").send().await.unwrap().body.collect().await.unwrap();
    let get = target.client.get_object().bucket(BUCKET).key(target.key("a")).if_match("\"no\"");
    assert_eq!(status(get.send().await), 412);
    target.list("").await;
    let stranger = suite::client(&target.endpoint, ACCESS_KEY, "wrong");
    assert_eq!(status(stranger.list_objects_v2().bucket(BUCKET).send().await), 403);
    let stats = server.serving.stats();
    assert_eq!((stats.put, stats.get, stats.list), (2, 5, 1));
    assert_eq!((stats.received_bytes, stats.sent_bytes), (8, 13));
    assert_eq!((stats.received_chunk_bytes, stats.sent_chunk_bytes), (3, 6));
    assert_eq!((stats.refused, stats.failed), (2, 0));
}

/// A server in its own process: this test binary again, running the ignored test below.
struct Process {
    child: Child,
    target: Target,
}

impl Process {
    fn start(root: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "serve_until_killed"])
            .env("GRISTMILL_TEST_ROOT", root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let endpoint = loop {
            let line = lines.next().expect("the server ended").unwrap();
            if let Some((_, endpoint)) = line.split_once("endpoint ") {
                break endpoint.to_owned();
            }
        };
        // Later output must not break the server's pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, target: Target::new(&endpoint, ACCESS_KEY, SECRET_KEY, BUCKET) }
    }

    /// `VmHWM`, its peak memory.
    fn peak_kib(&self) -> Option<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a part of other tests"]
async fn serve_until_killed() {
    let Some(root) = std::env::var_os("GRISTMILL_TEST_ROOT") else { return };
    let server = Server::start(Path::new(&root)).await;
    println!("\nendpoint http://{}", server.serving.address());
    // Ends with the test that started it.
    let wait = || std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    tokio::task::spawn_blocking(wait).await.unwrap().unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_server_leaves_whole_objects_only() {
    const LENGTH: usize = 2 << 20;
    let root = tempfile::tempdir().unwrap();
    let mut acknowledged = Vec::new();
    let mut targets = Vec::new();
    for round in 0..4_u64 {
        let process = Process::start(root.path());
        let target = process.target.clone();
        let writers = (0..6_u64).map(|writer| {
            let target = target.clone();
            tokio::spawn(async move {
                let mut done = Vec::new();
                for i in 0.. {
                    // Every other put replaces an object.
                    let name = format!("{writer}/{}", i / 2);
                    let put = target.client.put_object().bucket(BUCKET).key(target.key(&name));
                    let seed = writer << 32 | i;
                    match put.body(noise(seed, LENGTH).into()).send().await {
                        Ok(_) => done.push((target.key(&name), seed)),
                        Err(_) => break,
                    }
                }
                done
            })
        });
        let writers: Vec<_> = writers.collect();
        // Killed at a different point each time.
        while target.list("").await.len() < 4 + 3 * round as usize {}
        drop(process);
        for writer in writers {
            acknowledged.extend(writer.await.unwrap());
        }
        targets.push(target);
    }
    let server = Server::start(root.path()).await;
    assert_eq!(std::fs::read_dir(root.path().join("incoming")).unwrap().count(), 0);
    let client = server.target().client;
    let mut found = std::collections::HashMap::new();
    let mut pages = client.list_objects_v2().bucket(BUCKET).into_paginator().send();
    while let Some(page) = pages.next().await {
        for object in page.unwrap().contents() {
            let key = object.key().unwrap().to_owned();
            let get = client.get_object().bucket(BUCKET).key(&key).send().await.unwrap();
            found.insert(key, get.body.collect().await.unwrap().into_bytes());
        }
    }
    for (key, seed) in &acknowledged {
        // The put after the last acknowledged one may have been published too.
        let body = &found[key];
        let (writer, i) = (seed >> 32, seed & 0xffff_ffff);
        let candidates = [i, i + 1].map(|i| writer << 32 | i);
        assert!(candidates.iter().any(|&seed| *body == noise(seed, LENGTH)), "{key} {seed}");
    }
    for (key, body) in &found {
        assert_eq!(body.len(), LENGTH, "{key}");
        let (rest, i) = key.rsplit_once('/').unwrap();
        let (writer, i): (u64, u64) =
            (rest.rsplit_once('/').unwrap().1.parse().unwrap(), i.parse().unwrap());
        let mut candidates = [2 * i, 2 * i + 1].into_iter().map(|i| writer << 32 | i);
        assert!(candidates.any(|seed| *body == noise(seed, LENGTH)), "{key} is a mixture");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_grows_neither_with_objects_nor_with_their_size() {
    let root = tempfile::tempdir().unwrap();
    let process = Process::start(root.path());
    let target = &process.target;
    let rounds = async |size: usize, count: usize| {
        let body = Bytes::from(noise(1, size));
        for i in 0..count {
            let put =
                target.client.put_object().bucket(BUCKET).key(target.key(&format!("{size}/{i}")));
            let put = put.body(body.clone().into()).customize().disable_payload_signing();
            put.send().await.unwrap();
            assert!(target.get(&format!("{size}/{i}")).await == body);
        }
        target.list("").await;
    };
    rounds(8 << 20, 8).await;
    let Some(before) = process.peak_kib() else { return };
    rounds(96 << 20, 2).await;
    rounds(10, 3000).await;
    let after = process.peak_kib().unwrap();
    assert!(after < before + 24 * 1024, "{before} KiB, then {after} KiB");
}
