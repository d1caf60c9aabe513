//! Queries to scripted servers.

use super::*;
use crate::sdk::testing::{Answer, Server, aws, nowhere};
use std::time::SystemTime;

async fn asked<T>(
    answer: impl Fn(usize, &crate::sdk::testing::Asked) -> Answer + Send + Sync + 'static,
    ask: impl AsyncFnOnce(&DeploymentProbes) -> T,
) -> (T, Server) {
    let server = Server::start(answer).await;
    let probes = server.aws().probes();
    (ask(&probes).await, server)
}

#[tokio::test]
async fn a_bucket_tells_its_region_even_to_those_who_come_to_another() {
    let region = || vec![("x-amz-bucket-region", "eu-west-1".to_owned())];
    for status in [200, 301, 400] {
        let answer = move |_, _: &_| Answer::Full(status, region(), "".into());
        let (found, _) = asked(answer, async |probes| probes.bucket_region("b").await).await;
        assert_eq!(found, Ok(Some("eu-west-1".to_owned())), "{status}");
    }
}

#[tokio::test]
async fn a_dataset_is_read_in_the_region_of_its_bucket() {
    let page = "<ListBucketResult><Contents><Key>p/a</Key></Contents></ListBucketResult>";
    for (read, expected) in
        [(206, Ok(())), (416, Ok(())), (403, Err("GetObject")), (0, Err("no object"))]
    {
        let answer = move |_, asked: &crate::sdk::testing::Asked| {
            let region = vec![("x-amz-bucket-region", "eu-west-1".to_owned())];
            let is_there = asked.header("authorization").contains("/eu-west-1/");
            match (is_there, asked.target.contains("list-type"), read) {
                (false, ..) => Answer::Full(301, region, "".into()),
                (true, true, 0) => Answer::status(200, "<ListBucketResult></ListBucketResult>"),
                (true, true, _) => Answer::status(200, page),
                (true, false, status) => Answer::status(status, "x"),
            }
        };
        let (found, server) = asked(answer, async |probes| probes.dataset("b", "p").await).await;
        match (found, expected) {
            (Ok(object), Ok(())) => {
                assert_eq!(
                    (object.key.as_str(), object.region.as_deref()),
                    ("p/a", Some("eu-west-1"))
                );
                assert_eq!(server.asked().last().unwrap().header("range"), "bytes=0-0");
            }
            (Err(trouble), Err(words)) => assert!(trouble.to_string().contains(words), "{trouble}"),
            (found, _) => panic!("{read}: {found:?}"),
        }
    }
}

#[tokio::test]
async fn troubles_are_distinguished() {
    for (status, expected) in [(403, "Denied"), (404, "Missing"), (500, "Other")] {
        let answer = move |_, _: &_| Answer::status(status, "");
        let (found, _) = asked(answer, async |probes| probes.bucket_region("b").await).await;
        let trouble = format!("{:?}", found.unwrap_err());
        assert!(trouble.starts_with(expected), "{status}: {trouble}");
    }
    let url = nowhere().await;
    let trouble = aws(&url).probes().bucket_region("b").await.unwrap_err();
    let ProbeError::Unreachable(text) = trouble else { panic!("{trouble:?}") };
    assert!(text.contains(&url), "the address is named: {text}");
}

#[tokio::test]
async fn unknown_keys_are_distinguished_from_missing_permissions() {
    for (code, refused) in [("UnrecognizedClientException", true), ("AccessDeniedException", false)]
    {
        let answer = move |_, _: &_| {
            let headers = vec![("x-amzn-errortype", code.to_owned())];
            Answer::Full(403, headers, "{\"message\":\"no\"}".into())
        };
        let (found, _) = asked(answer, async |probes| probes.quota().await).await;
        assert_eq!(matches!(found, Err(ProbeError::KeysRefused(_))), refused, "{found:?}");
    }
}

#[tokio::test]
async fn rights_are_found_out_without_leaving_anything() {
    let answer = |_, asked: &crate::sdk::testing::Asked| match asked.method.as_str() {
        "GET" => Answer::status(200, "<ListBucketResult></ListBucketResult>"),
        "HEAD" => Answer::status(404, ""),
        _ => Answer::status(400, "<Error><Code>BadDigest</Code></Error>"),
    };
    let ns: Namespace = "default".parse().unwrap();
    let (rights, server) = asked(answer, async |p| p.bucket_rights("b", &ns).await).await;
    let all = BucketRights { list: Ok(()), get_chunks: Ok(()), put_indices: Ok(()) };
    assert_eq!(rights, all);
    let asked = server.asked();
    let put = asked.iter().find(|asked| asked.method == "PUT").unwrap();
    assert_eq!(put.header("if-none-match"), "*");
    assert_eq!(put.header("content-md5"), WRONG_MD5);
    assert!(put.target.contains("/t/default/index/"), "where a trainer may: {}", put.target);

    let (rights, _) = asked_of_one_who_may_nothing(async |p| p.bucket_rights("b", &ns).await).await;
    for right in [rights.list, rights.get_chunks, rights.put_indices] {
        assert!(matches!(right, Err(ProbeError::Denied(_))), "{right:?}");
    }
}

async fn asked_of_one_who_may_nothing<T>(
    ask: impl AsyncFnOnce(&DeploymentProbes) -> T,
) -> (T, Server) {
    let denied = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>";
    asked(move |_, _| Answer::status(403, denied), ask).await
}

#[tokio::test]
async fn a_put_that_no_sum_held_back_is_undone() {
    let answer = |_, _: &_| Answer::status(200, "");
    let ns: Namespace = "default".parse().unwrap();
    let (_, server) = asked(answer, async |p| p.may_put_indices("b", &ns).await).await;
    let methods: Vec<String> = server.asked().into_iter().map(|asked| asked.method).collect();
    assert_eq!(methods, ["PUT", "DELETE"]);
}

#[tokio::test]
async fn answers_tell_the_time_and_who_gives_them() {
    let answer = |_, _: &_| {
        let then = SystemTime::now() - Duration::from_secs(100);
        let date = aws_smithy_types::DateTime::from(then);
        let date = date.fmt(aws_smithy_types::date_time::Format::HttpDate).unwrap();
        Answer::Full(200, vec![("date", date), ("server", "Emu/1".to_owned())], "".into())
    };
    let (responder, server) = asked(answer, async |probes| {
        probes.bucket_region("b").await.unwrap();
        probes.responders()["s3"].clone()
    })
    .await;
    assert!((-102..=-99).contains(&responder.ahead_s.unwrap()), "{responder:?}");
    assert_eq!((responder.server.as_deref(), &responder.address), (Some("Emu/1"), &server.url));
}

#[test]
fn concurrency_belongs_to_functions_not_to_versions() {
    let arn = "arn:aws:lambda:eu-west-1:123456789012:function:g-worker";
    for name in [arn.to_owned(), format!("{arn}:7")] {
        assert_eq!(unqualified(&name), arn);
    }
    assert_eq!(
        (unqualified("g-worker:7"), unqualified("g-worker")),
        ("g-worker".into(), "g-worker".into())
    );
}
