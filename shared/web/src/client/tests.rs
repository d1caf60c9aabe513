//! Reads from scripted servers.

use super::{WebObjects, url};
use crate::{AllowedServers, WebRoutedStore};
use gristmill_ports::{ObjectError, ObjectPath, ObjectStore, ReadTimeout, memory::MemoryObjects};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

/// A response to a request for bytes `first..=last` of the file: all of it, head included.
type Respond = dyn Fn(&str, usize, usize) -> Vec<u8> + Send + Sync;

/// At the end of a response: no byte follows, and the connection stays open.
const SILENCE: &[u8] = b"silence";

const FILE: &[u8] = b"0123456789abcdef";

/// Starts a server that answers each connection's one request with `respond`. Returns its address and
/// the requests it received.
async fn serve(respond: Arc<Respond>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    tokio::spawn(async move {
        let mut open = Vec::new();
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let (mut request, mut byte) = (Vec::new(), [0]);
            while !request.ends_with(b"\r\n\r\n") && connection.read(&mut byte).await.unwrap() > 0 {
                request.push(byte[0]);
            }
            let request = String::from_utf8(request).unwrap();
            let range = request.lines().find_map(|line| line.strip_prefix("range: bytes="));
            let (first, last) = range.and_then(|range| range.split_once('-')).unwrap_or(("0", "0"));
            let response = respond(&request, first.parse().unwrap(), last.parse().unwrap());
            seen.lock().unwrap().push(request);
            let silent = response.strip_suffix(SILENCE);
            let _ = connection.write_all(silent.unwrap_or(&response)).await;
            open.extend(silent.map(|_| connection));
        }
    });
    (address, asked)
}

fn part(first: usize, last: usize, version: &str, sent: usize) -> Vec<u8> {
    let last = last.min(FILE.len() - 1);
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes {first}-{last}/{}\r\n{version}\r\n\
         connection: close\r\n\r\n",
        last + 1 - first,
        FILE.len()
    );
    let body = &FILE[first..=last];
    [head.as_bytes(), &body[..body.len().min(sent)]].concat()
}

fn said(status: &str, headers: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n{headers}connection: close\r\n\r\n")
        .into_bytes()
}

fn objects(authorization: &str) -> WebRoutedStore {
    let mut web = WebObjects::new(AllowedServers::Any, authorization).unwrap();
    web.read_timeout = ReadTimeout::from_shortest(Duration::from_millis(200));
    WebRoutedStore::new(Arc::new(MemoryObjects::default()), web)
}

/// Reads bytes 2..12 of the listed version from a server that answers with `respond`.
async fn read(
    respond: impl Fn(&str, usize, usize) -> Vec<u8> + Send + Sync + 'static,
) -> Result<Vec<u8>, ObjectError> {
    let (origin, _) = serve(Arc::new(respond)).await;
    let objects = objects("");
    let found = objects.list(&origin, "d/x.jsonl").await?;
    let [file] = found.as_slice() else {
        return Err(ObjectError::Rejected("not found".to_owned()));
    };
    assert_eq!(file.size, FILE.len() as u64);
    let path = ObjectPath::new(origin, "d/x.jsonl");
    Ok(objects.get_range(&path, 2..12, Some(&file.etag)).await?.to_vec())
}

const TAG: &str = "etag: \"v1\"";

#[tokio::test]
async fn ranges_are_read_and_broken_connections_gone_on_with() {
    assert_eq!(read(|_, first, last| part(first, last, TAG, 99)).await.unwrap(), &FILE[2..12]);
    // Four bytes at a time.
    assert_eq!(read(|_, first, last| part(first, last, TAG, 4)).await.unwrap(), &FILE[2..12]);
    let dated = "last-modified: Mon, 23 Nov 2026 10:00:00 GMT\r\netag: W/\"weak\"";
    assert_eq!(
        read(move |_, first, last| part(first, last, dated, 99)).await.unwrap(),
        &FILE[2..12]
    );
}

#[tokio::test]
async fn a_server_that_is_busy_is_asked_again() {
    let calls = Mutex::new(0);
    let busy = move |_: &str, first, last| {
        let mut calls = calls.lock().unwrap();
        *calls += 1;
        match *calls % 2 {
            1 => said("503 Service Unavailable", "retry-after: 0\r\n"),
            _ => part(first, last, TAG, 99),
        }
    };
    assert_eq!(read(busy).await.unwrap(), &FILE[2..12]);
    let error = read(|_, _, _| said("500 Internal Server Error", "")).await.unwrap_err();
    assert!(matches!(&error, ObjectError::Unavailable(why) if why.contains("500")), "{error}");
}

#[tokio::test]
async fn a_request_that_meets_silence_is_sent_again() {
    for silent in 1..=3 {
        let calls = AtomicUsize::new(0);
        let respond = move |_: &str, first, last| match calls.fetch_add(1, Ordering::Relaxed) {
            n if n == silent && silent > 1 => SILENCE.to_vec(),
            // In the middle of a body.
            n if n == silent => [&part(first, last, TAG, 5), SILENCE].concat(),
            _ => part(first, last, TAG, 5),
        };
        assert_eq!(read(respond).await.unwrap(), &FILE[2..12], "{silent}");
    }
}

#[tokio::test]
async fn a_server_that_stays_silent_or_sends_too_little_is_named_without_the_query() {
    let silent = |n: usize| {
        move |_: &str, first, last| match first {
            0 if n > 0 => part(first, last, TAG, 99),
            _ if n > 1 => [&part(first, last, TAG, n - 2), SILENCE].concat(),
            _ => SILENCE.to_vec(),
        }
    };
    for (respond, said) in [
        (Arc::new(silent(0)) as Arc<Respond>, "does not answer in time"),
        (Arc::new(silent(1)), "does not answer in time"),
        (Arc::new(silent(2)), "does not answer in time"),
        (Arc::new(silent(3)), "does not answer in time"),
        (Arc::new(|_: &str, first, last| part(first, last, TAG, usize::from(first == 0))), "end"),
    ] {
        let (origin, _) = serve(respond).await;
        let objects = objects("");
        let path = ObjectPath::new(&origin, "d/x.jsonl?token=s3cret");
        let error = match objects.list(&origin, &path.key).await {
            Ok(_) => objects.get_range(&path, 2..12, None).await.unwrap_err(),
            Err(error) => error,
        };
        let text = error.to_string();
        assert!(matches!(error, ObjectError::Unavailable(_)), "{text}");
        let named = format!("{origin}/d/x.jsonl?...");
        assert!(text.contains(&named) && text.contains(said), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[tokio::test]
async fn a_file_that_changes_is_noticed() {
    for changed in ["etag: \"v2\"", "last-modified: Mon, 23 Nov 2026 10:00:00 GMT"] {
        let respond = move |_: &str, first, last| {
            part(first, last, if first == 0 { TAG } else { changed }, 99)
        };
        assert!(matches!(read(respond).await, Err(ObjectError::Changed(_))), "{changed}");
    }
    // In the middle of a read.
    let respond =
        |_: &str, first, last| part(first, last, if first <= 2 { TAG } else { "etag: \"v2\"" }, 4);
    assert!(matches!(read(respond).await, Err(ObjectError::Changed(_))));
}

#[tokio::test]
async fn servers_that_cannot_be_read_from_are_refused_with_the_reason() {
    let refused = async |respond: fn(&str, usize, usize) -> Vec<u8>| {
        read(respond).await.unwrap_err().to_string()
    };
    let whole =
        |_: &str, _, _| b"HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n0123456789abcdef".to_vec();
    assert!(refused(whole).await.contains("whole file where a range is asked for"));
    assert!(
        refused(|_, first, last| part(first, last, "x-a: b", 99))
            .await
            .contains("neither an ETag nor a date")
    );
    assert!(
        refused(|_, first, last| part(first, last, "content-encoding: gzip", 99))
            .await
            .contains("as gzip")
    );
    assert!(
        refused(|_, _, _| said("403 Forbidden", "")).await.contains("GRISTMILL_WEB_AUTHORIZATION")
    );
    assert!(refused(|_, _, _| said("404 Not Found", "")).await.contains("not found"));
    assert!(refused(|_, _, _| said("400 Bad Request", "")).await.contains("400"));
    let shifted =
        |_: &str, first, last| part(if first == 0 { 0 } else { first + 1 }, last, TAG, 99);
    assert!(refused(shifted).await.contains("the server sends bytes 3..12 for 2..12"));
}

#[tokio::test]
async fn an_empty_file_is_a_file() {
    for empty in ["200 OK", "416 Range Not Satisfiable"] {
        let head = format!("content-range: bytes */0\r\n{TAG}\r\n");
        let (origin, _) = serve(Arc::new(move |_: &str, _, _| said(empty, &head))).await;
        let found = objects("").list(&origin, "empty").await.unwrap();
        assert_eq!(found[0].size, 0);
    }
}

#[tokio::test]
async fn credentials_stay_with_their_server_and_secrets_out_of_messages() {
    let (other, asked_there) =
        serve(Arc::new(|_: &str, first, last| part(first, last, TAG, 99))).await;
    // The same machine by another name is another server.
    let there = other.replace("127.0.0.1", "localhost");
    let away =
        Arc::new(move |_: &str, _, _| said("302 Found", &format!("location: {there}/moved\r\n")));
    let (origin, asked) = serve(away).await;
    let objects = objects("127.0.0.1 Bearer s3cret");
    let path = ObjectPath::new(&origin, "x?signature=hidden");
    assert_eq!(objects.get_range(&path, 2..4, None).await.unwrap(), &FILE[2..4]);
    assert!(asked.lock().unwrap()[0].contains("authorization: Bearer s3cret"));
    assert!(!asked_there.lock().unwrap()[0].contains("s3cret"));
    assert_eq!(path.to_string(), format!("{origin}/x?..."));
    let nobody = ObjectPath::new("http://127.0.0.1:9", "x?signature=hidden");
    let error = objects.get_range(&nobody, 0..1, None).await.unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:9/x?...") && !error.contains("hidden"), "{error}");
}

#[tokio::test]
async fn a_worker_of_an_account_does_not_follow_into_it() {
    let web = WebObjects::new(AllowedServers::Public, "").unwrap();
    for origin in ["http://169.254.169.254", "http://localhost:1", "https://[::1]"] {
        let path = ObjectPath::new(origin, "latest/meta-data");
        let looked = tokio::time::timeout(Duration::from_secs(60), web.look(&path)).await.unwrap();
        let error = looked.unwrap_err().to_string();
        assert!(error.contains("not a public address"), "{error}");
    }
}

#[test]
fn credentials_are_of_one_server_and_never_shown() {
    let text = "Data.example.com  Bearer s3cret\n\nother Basic x";
    let web = WebObjects::new(AllowedServers::Any, text).unwrap();
    assert_eq!(web.authorization["data.example.com"], "Bearer s3cret");
    assert!(!web.authorization.contains_key("example.com"));
    assert!(!format!("{web:?}").contains("s3cret"));
    let error = WebObjects::new(AllowedServers::Any, "s3cret").unwrap_err();
    assert!(error.contains("line 1") && !error.contains("s3cret"), "{error}");
}

#[test]
fn addresses_of_files_are_escaped() {
    let path = ObjectPath::new("https://h", "a b/c?x=y z");
    assert_eq!(url(&path).unwrap().as_str(), "https://h/a%20b/c?x=y%20z");
}
