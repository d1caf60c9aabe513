//! The table on an embedded engine.

use super::*;
use crate::sdk::{
    Aws,
    testing::{self, Answer, Server},
};
use gristmill_ports::conformance;
use std::sync::atomic::{AtomicUsize, Ordering};

async fn made() -> (Aws, DynamoTable) {
    let aws = testing::aws(&testing::dynamodb::start().await);
    let table = DynamoTable { client: aws.dynamodb().clone(), name: "gristmill".to_owned() };
    aws.make_table("gristmill").await.unwrap();
    (aws, table)
}

fn key(sk: &str) -> ItemKey {
    ItemKey { pk: "p".to_owned(), sk: sk.to_owned() }
}

#[tokio::test]
async fn conforms() {
    let (aws, table) = made().await;
    conformance::table(&table, "T#t").await;
    let counts = aws.counts();
    for operation in ["PutItem", "GetItem", "BatchGetItem", "Query"] {
        assert!(counts[&format!("dynamodb.{operation}")] > 0, "{counts:?}");
    }
}

#[tokio::test]
async fn json_is_stored_as_text_and_the_rest_as_binary() {
    let (_, table) = made().await;
    for (sk, body, name) in [
        ("json", &b"{\"a\":1}"[..], "json"),
        ("bytes", b"\x01", "bin"),
        ("almost", b"{\xff", "bin"),
        ("nothing", b"", "bin"),
    ] {
        table.write(&key(sk), 0, Bytes::from_static(body), Some(77)).await.unwrap();
        let input = GetItemInput {
            table_name: "gristmill",
            key: wire_key(&key(sk)),
            consistent_read: true,
        };
        let raw = table.client.get_item.send(&input).await.unwrap().item.unwrap();
        assert_eq!(
            (raw.json.is_some(), raw.bin.is_some()),
            (name == "json", name == "bin"),
            "{sk}"
        );
        assert_eq!(raw.ttl, Some(NumberAttribute { n: 77 }));
        let read = table.read(&[key(sk)]).await.unwrap();
        assert_eq!(read[0].as_ref().unwrap().body, body, "{sk}");
    }
}

#[tokio::test]
async fn a_large_query_has_every_page() {
    let (_, table) = made().await;
    let body = Bytes::from(vec![7; 300 << 10]);
    for i in 0..8 {
        table.write(&key(&format!("L#{i}")), 0, body.clone(), None).await.unwrap();
    }
    let found = table.range("p", "L#", "L#~").await.unwrap();
    assert_eq!(found.len(), 8);
    assert!(found.iter().all(|(_, item)| item.body == body));
    assert_eq!(table.range("p", "", "~").await.unwrap().len(), 8, "no prefix means all");
}

#[tokio::test]
async fn a_key_may_be_asked_for_twice() {
    let (_, table) = made().await;
    table.write(&key("a"), 0, Bytes::from_static(b"x"), None).await.unwrap();
    let read = table.read(&[key("a"), key("b"), key("a")]).await.unwrap();
    assert_eq!(read.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true]);
}

#[tokio::test]
async fn impossible_request_is_rejected_in_one_line() {
    let (aws, table) = made().await;
    let large = Bytes::from(vec![0; MAX_BODY_BYTES + 1]);
    let error = table.write(&key("large"), 0, large, None).await.unwrap_err();
    assert!(matches!(&error, TableError::Rejected(text) if text.contains("p/large")), "{error}");
    let largest = Bytes::from(vec![0; MAX_BODY_BYTES]);
    assert_eq!(table.write(&key("fits"), 0, largest, None).await.unwrap(), WriteOutcome::Written);
    let error = aws.table("absent").read(&[key("a")]).await.unwrap_err();
    let TableError::Rejected(text) = &error else { panic!("{error}") };
    assert!(text.starts_with("there is no table absent (GetItem): deploy"), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[tokio::test]
async fn absent_server_is_unavailable() {
    let table = testing::aws(&testing::nowhere().await).table("gristmill");
    let error = table.read(&[key("a")]).await.unwrap_err();
    let TableError::Unavailable(text) = &error else { panic!("{error}") };
    assert!(text.to_lowercase().contains("refused"), "{text}");
}

#[tokio::test]
async fn throttles_are_tried_again_and_then_unavailable() {
    let throttled = r#"{"__type":"x#ProvisionedThroughputExceededException","message":"slow"}"#;
    let server = Server::start(move |_, _| Answer::status(400, throttled)).await;
    let aws = server.aws();
    let body = Bytes::from_static(b"x");
    let error = aws.table("gristmill").write(&key("a"), 0, body, None).await.unwrap_err();
    assert!(matches!(error, TableError::Unavailable(_)), "{error}");
    assert_eq!(server.asked().len(), 4);
    assert_eq!(aws.counts()["dynamodb.PutItem"], 4, "every try is counted");
}

#[tokio::test]
async fn unprocessed_keys_are_asked_for_again() {
    let stored = |sk: &str| {
        format!(r#"{{"pk":{{"S":"p"}},"sk":{{"S":"{sk}"}},"v":{{"N":"1"}},"bin":{{"B":""}}}}"#)
    };
    let rounds = AtomicUsize::new(0);
    let server = Server::start(move |_, _| {
        let body = match rounds.fetch_add(1, Ordering::Relaxed) {
            0 => format!(
                r#"{{"Responses":{{"t":[{}]}},"UnprocessedKeys":
                {{"t":{{"Keys":[{{"pk":{{"S":"p"}},"sk":{{"S":"b"}}}}]}}}}}}"#,
                stored("a")
            ),
            _ => format!(r#"{{"Responses":{{"t":[{}]}}}}"#, stored("b")),
        };
        Answer::status(200, body)
    })
    .await;
    let read = server.aws().table("t").read(&[key("a"), key("b")]).await.unwrap();
    assert!(read.iter().all(Option::is_some));
    let asked = server.asked();
    assert_eq!(asked.len(), 2);
    let again = String::from_utf8_lossy(&asked[1].body);
    assert!(!again.contains(r#""S":"a""#) && again.contains(r#""ConsistentRead":true"#), "{again}");
}
