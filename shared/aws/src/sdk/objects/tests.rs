//! Objects on a scripted server.

use super::*;
use crate::sdk::testing::{Answer, Asked, Server};
use gristmill_ports::MAX_GET_BYTES;
use std::sync::Arc;

fn path() -> ObjectPath {
    ObjectPath::new("bucket", "t/a/chunk.gmc")
}

/// Byte range of a GET.
fn range(asked: &Asked) -> Range<usize> {
    let (start, end) = asked.header("range").trim_start_matches("bytes=").split_once('-').unwrap();
    start.parse().unwrap()..end.parse::<usize>().unwrap() + 1
}

fn part(data: &[u8], range: Range<usize>) -> Answer {
    let headers = vec![("etag", "\"e\"".to_owned())];
    Answer::Full(206, headers, Bytes::copy_from_slice(&data[range]))
}

#[tokio::test]
async fn a_put_is_conditional_unhashed_and_bears_its_id() {
    let server = Server::start(|_, _| Answer::status(200, "")).await;
    let body = Bytes::from_static(b"body");
    let outcome = server.aws().objects().put_if_absent(&path(), body.clone(), "id-1").await;
    assert_eq!(outcome.unwrap(), PutOutcome::Created);
    let asked = server.asked();
    assert_eq!(asked.len(), 1);
    let put = &asked[0];
    assert_eq!((put.method.as_str(), put.header("if-none-match")), ("PUT", "*"));
    assert_eq!(put.target.split('?').next().unwrap(), "/bucket/t/a/chunk.gmc");
    assert_eq!(put.header("x-amz-content-sha256"), "UNSIGNED-PAYLOAD");
    assert_eq!(put.header("x-amz-meta-put-id"), "id-1");
    assert_eq!(put.header("content-length"), "4");
    assert_eq!(put.body, body);
    let hashed = put.headers.keys().find(|name| name.as_str().starts_with("x-amz-checksum"));
    assert_eq!(hashed, None);
}

#[tokio::test]
async fn a_put_whose_response_was_lost_is_created() {
    let server = Server::start(|n, asked| match (n, asked.method.as_str()) {
        (0, "PUT") => Answer::Drop,
        (_, "PUT") => Answer::status(412, "<Error><Code>PreconditionFailed</Code></Error>"),
        _ => Answer::Full(200, vec![("x-amz-meta-put-id", "mine".to_owned())], Bytes::new()),
    })
    .await;
    let aws = server.aws();
    let put = async |id| {
        aws.objects().put_if_absent(&path(), Bytes::from_static(b"x"), id).await.unwrap()
    };
    assert_eq!(put("mine").await, PutOutcome::Created);
    assert_eq!(put("other").await, PutOutcome::Exists);
    assert_eq!(aws.counts()["s3.PutObject"], 3);
}

#[tokio::test]
async fn a_put_that_meets_another_is_sent_again() {
    let busy = "<Error><Code>ConditionalRequestConflict</Code></Error>";
    let server = Server::start(move |n, _| match n {
        0 | 1 => Answer::status(409, busy),
        _ => Answer::status(200, ""),
    })
    .await;
    let put = server.aws().objects().put_if_absent(&path(), Bytes::new(), "id").await;
    assert_eq!(put.unwrap(), PutOutcome::Created);
    assert_eq!(server.asked().len(), 3);
}

#[tokio::test]
async fn keys_that_are_refused_for_a_moment_are_tried_again() {
    for code in KEYS_REFUSED {
        let refused = format!("<Error><Code>{code}</Code></Error>");
        let server = Server::start(move |n, asked| match n % 3 {
            0 | 1 => Answer::status(400, refused.clone()),
            _ if asked.method == "PUT" => Answer::status(200, ""),
            _ => part(b"0123456789", range(asked)),
        })
        .await;
        let objects = server.aws().objects();
        let put = objects.put_if_absent(&path(), Bytes::new(), "id").await;
        assert_eq!(put.unwrap(), PutOutcome::Created, "{code}");
        let read = objects.get_range(&path(), 2..8, None).await;
        assert_eq!(read.unwrap(), &b"234567"[..], "{code}");
    }
}

#[tokio::test]
async fn a_large_range_comes_in_pieces() {
    let data: Arc<[u8]> = (0..20 << 20).map(|i: u32| (i >> 8) as u8).collect();
    let served = data.clone();
    let server = Server::start(move |_, asked| part(&served, range(asked))).await;
    let read = server.aws().objects().get_range(&path(), 1..20 << 20, Some("\"e\"")).await;
    assert!(read.unwrap() == data[1..], "the bytes differ");
    let asked = server.asked();
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|asked| asked.header("if-match") == "\"e\""));
}

#[tokio::test]
async fn a_read_that_breaks_off_goes_on_where_it_stopped() {
    let data = b"0123456789";
    let server = Server::start(move |n, asked| match n {
        0 => Answer::Cut {
            status: 206,
            headers: vec![("etag", "\"e\"".to_owned())],
            length: 6,
            body: Bytes::from_static(&data[2..5]),
        },
        _ => part(data, range(asked)),
    })
    .await;
    let read = server.aws().objects().get_range(&path(), 2..8, None).await;
    assert_eq!(read.unwrap(), &data[2..8]);
    let asked = server.asked();
    assert_eq!(asked.len(), 2);
    assert!(range(&asked[1]).start > 2, "what had come is kept");
    assert_eq!(asked[1].header("if-match"), "\"e\"", "of the same object");
}

#[tokio::test]
async fn a_get_that_breaks_off_goes_on_by_range() {
    let data = b"0123456789";
    let server = Server::start(move |n, asked| match n {
        0 => Answer::Cut {
            status: 200,
            headers: vec![("etag", "\"e\"".to_owned())],
            length: 10,
            body: Bytes::from_static(&data[..4]),
        },
        _ => part(data, range(asked)),
    })
    .await;
    assert_eq!(server.aws().objects().get(&path()).await.unwrap(), &data[..]);
    assert_eq!(server.asked().len(), 2);
}

fn objects(server: &Server) -> S3Objects {
    let read_timeout = Arc::new(ReadTimeout::from_shortest(Duration::from_millis(300)));
    S3Objects { read_timeout, ..server.aws().objects() }
}

#[tokio::test]
async fn a_request_that_meets_silence_is_sent_again() {
    let data = b"0123456789";
    let server = Server::start(move |n, asked| match n {
        0 => Answer::Silence,
        1 => Answer::Stalled {
            status: 206,
            headers: vec![("etag", "\"e\"".to_owned())],
            length: 6,
            body: Bytes::from_static(&data[2..5]),
        },
        _ => part(data, range(asked)),
    })
    .await;
    assert_eq!(objects(&server).get_range(&path(), 2..8, None).await.unwrap(), &data[2..8]);
    assert_eq!(range(&server.asked()[2]), 5..8);
}

#[tokio::test]
async fn a_store_that_stays_silent_is_named() {
    let server = Server::start(|_, _| Answer::Silence).await;
    let error = objects(&server).get_range(&path(), 2..8, None).await.unwrap_err();
    assert!(matches!(error, ObjectError::Unavailable(_)), "{error}");
    let silent = "GetObject on s3://bucket/t/a/chunk.gmc: the store does not answer in time";
    assert_eq!(error.to_string(), silent);
}

#[tokio::test]
async fn a_busy_store_is_asked_again_by_any_name() {
    let codes = [(429, "TooManyRequests"), (429, ""), (408, ""), (503, "SlowDown"), (500, "")];
    for (status, code) in codes {
        let busy = format!("<Error><Code>{code}</Code></Error>");
        let server = Server::start(move |n, asked| match n {
            // More often than the SDK sends one request.
            0..9 => Answer::status(status, busy.clone()),
            _ => part(b"0123456789", range(asked)),
        })
        .await;
        let read = objects(&server).get_range(&path(), 2..8, None).await;
        assert_eq!(read.unwrap(), &b"234567"[..], "{status} {code}");
        let listed = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
        let server = Server::start(move |n, _| match n {
            0..3 => Answer::status(status, ""),
            _ => Answer::status(200, listed),
        })
        .await;
        assert_eq!(objects(&server).list("bucket", "t").await.unwrap(), [], "{status} {code}");
    }
}

#[tokio::test]
async fn an_empty_object_is_empty() {
    let server = Server::start(|_, _| Answer::status(200, "")).await;
    assert_eq!(server.aws().objects().get(&path()).await.unwrap(), Bytes::new());
}

#[tokio::test]
async fn sizes_are_checked_before_anything_is_allocated() {
    let server = Server::start(|_, _| Answer::Cut {
        status: 200,
        headers: Vec::new(),
        length: MAX_GET_BYTES + 1,
        body: Bytes::new(),
    })
    .await;
    let objects = server.aws().objects();
    assert!(matches!(objects.get(&path()).await, Err(ObjectError::Rejected(_))));
    assert_eq!(server.asked().len(), 1);
    for (start, end) in [(0, MAX_GET_BYTES + 1), (0, u64::MAX), (5, 4)] {
        let read = objects.get_range(&path(), Range { start, end }, None).await;
        assert!(matches!(read, Err(ObjectError::Rejected(_))), "{start}..{end}");
    }
    assert_eq!(server.asked().len(), 1, "a bad range is not asked for");
}

#[tokio::test]
async fn a_server_that_ignores_the_range_is_not_believed() {
    let server = Server::start(|_, _| Answer::status(200, "0123456789")).await;
    let read = server.aws().objects().get_range(&path(), 2..5, None).await;
    assert!(matches!(read, Err(ObjectError::Rejected(_))));
}

#[tokio::test]
async fn refusals_say_what_they_are() {
    let error =
        |code: &str| format!("<Error><Code>{code}</Code><Message>so\nit is</Message></Error>");
    let server = Server::start(move |_, asked| match asked.target.split('/').nth(2).unwrap() {
        key if key.starts_with('?') => Answer::status(403, error("AccessDenied")),
        key if key.starts_with("archived") => Answer::status(403, error("InvalidObjectState")),
        key if key.starts_with("gone") => Answer::status(404, error("NoSuchKey")),
        key if key.starts_with("bucket") => Answer::status(404, error("NoSuchBucket")),
        key if key.starts_with("changed") => Answer::status(412, error("PreconditionFailed")),
        key if key.starts_with("short") => Answer::status(416, error("InvalidRange")),
        key if key.starts_with("expired") => Answer::status(400, error("ExpiredToken")),
        key if key.starts_with("unknown") => Answer::status(403, error("InvalidAccessKeyId")),
        key if key.starts_with("skewed") => Answer::status(403, error("RequestTimeTooSkewed")),
        key if key.starts_with("denied") => Answer::status(403, error("AccessDenied")),
        _ => Answer::status(503, error("SlowDown")),
    })
    .await;
    let objects = server.aws().objects();
    let get = async |key: &str| {
        objects.get_range(&ObjectPath::new("b", key), 0..5, None).await.unwrap_err()
    };
    assert!(matches!(get("gone").await, ObjectError::NotFound(_)));
    assert!(matches!(get("bucket").await, ObjectError::Rejected(_)));
    assert!(matches!(get("changed").await, ObjectError::Changed(_)));
    assert!(matches!(get("short").await, ObjectError::Rejected(_)));
    assert!(matches!(get("slow").await, ObjectError::Unavailable(_)));
    assert!(matches!(get("expired").await, ObjectError::Rejected(_)));
    assert!(matches!(get("unknown").await, ObjectError::Rejected(_)));
    assert!(matches!(get("skewed").await, ObjectError::Denied(_)));
    let ObjectError::Denied(text) = get("denied").await else { panic!("not denied") };
    assert!(text.starts_with("GetObject on s3://b/denied: AccessDenied: so it is: "), "{text}");
    let ObjectError::Rejected(text) = get("archived").await else { panic!("not final") };
    assert!(text.contains("restore-object"), "{text}");
    let ObjectError::Denied(text) = objects.list("b", "t").await.unwrap_err() else { panic!() };
    assert!(
        text.starts_with("ListObjectsV2 on s3://b/t: ") && text.contains("s3:ListBucket"),
        "{text}"
    );
}

#[tokio::test]
async fn a_key_that_is_not_deleted_is_reported() {
    let answer = "<DeleteResult><Error><Key>k1</Key><Code>AccessDenied</Code>\
                  <Message>no</Message></Error></DeleteResult>";
    let server = Server::start(move |_, _| Answer::status(200, answer)).await;
    let objects = server.aws().objects();
    let keys = ["k0".to_owned(), "k1".to_owned()];
    let error = objects.delete("b", &keys).await.unwrap_err().to_string();
    assert!(error.contains("s3://b/k1: AccessDenied: no"), "{error}");
    objects.delete("b", &[]).await.unwrap();
    assert_eq!(server.asked().len(), 1, "nothing to delete is no request");
}

#[tokio::test]
async fn a_page_after_a_key_is_one_request() {
    let object = "<Contents><Key>p/b</Key><Size>1</Size><ETag>e</ETag></Contents>";
    let page =
        format!("<ListBucketResult><IsTruncated>true</IsTruncated>{object}</ListBucketResult>");
    let server = Server::start(move |_, _| Answer::status(200, page.clone())).await;
    let found = server.aws().objects().list_after("b", "p/", "p/a").await.unwrap();
    assert_eq!(found.into_iter().map(|object| object.key).collect::<Vec<_>>(), ["p/b"]);
    let [asked] = &server.asked()[..] else { panic!("one request") };
    assert!(asked.target.contains("start-after=p%2Fa"), "{}", asked.target);
}
