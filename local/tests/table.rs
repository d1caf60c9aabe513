//! The table, driven by the DynamoDB SDK.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod support;

use std::path::PathBuf;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::{BehaviorVersion, Region};
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    AttributeValue, Put, ReturnValuesOnConditionCheckFailure, TransactWriteItem,
};
use gristmill_local::{Credentials, TableConfig, TableServer};
use support::sdk_credentials;

fn keys() -> Credentials {
    Credentials { access_key_id: "AKIATEST".into(), secret_access_key: "secret".into() }
}

fn start(file: Option<PathBuf>) -> TableServer {
    TableServer::start(TableConfig {
        file,
        tables: vec!["gristmill".into()],
        region: "us-east-1".into(),
        credentials: keys(),
        listener: None,
    })
    .unwrap()
}

fn client(server: &TableServer, credentials: &Credentials) -> Client {
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .region(Region::new("us-east-1"))
        .endpoint_url(server.endpoint())
        .credentials_provider(sdk_credentials(credentials))
        .retry_config(RetryConfig::disabled())
        .build();
    Client::from_conf(config)
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.into())
}

/// Takes the lease on an item if it is free.
async fn claim(client: &Client, pk: &str, owner: &str) -> Result<(), UpdateItemError> {
    let result = client
        .update_item()
        .table_name("gristmill")
        .key("pk", text(pk))
        .key("sk", text("B#1"))
        .update_expression("SET #o = :me, attempt = if_not_exists(attempt, :zero) + :one")
        .condition_expression("attribute_not_exists(#o)")
        .expression_attribute_names("#o", "owner")
        .expression_attribute_values(":me", text(owner))
        .expression_attribute_values(":zero", AttributeValue::N("0".into()))
        .expression_attribute_values(":one", AttributeValue::N("1".into()))
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
        .send()
        .await;
    result.map(drop).map_err(|error| error.into_service_error())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_sixteen_conditional_writers_one_wins_and_the_others_see_what_it_wrote() {
    let server = start(None);
    let client = client(&server, &keys());
    for round in 0..10 {
        let pk = format!("T#t#{round}");
        let writers = (0..16).map(|n| {
            let (client, pk) = (client.clone(), pk.clone());
            async move { claim(&client, &pk, &format!("w{n}")).await }
        });
        let results = futures::future::join_all(writers).await;
        let winners: Vec<usize> = (0..16).filter(|n| results[*n].is_ok()).collect();
        assert_eq!(winners.len(), 1, "{results:?}");
        let winner = text(&format!("w{}", winners[0]));
        for refused in results.into_iter().filter_map(Result::err) {
            let UpdateItemError::ConditionalCheckFailedException(refused) = refused else {
                panic!("{refused:?}")
            };
            assert_eq!(refused.item().unwrap()["owner"], winner);
            assert_eq!(refused.item().unwrap()["attempt"], AttributeValue::N("1".into()));
        }
    }
    let stats = server.stats();
    assert_eq!((stats.operations["UpdateItem"], stats.conditions_failed), (160, 150));
    assert_eq!(stats.refused, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_pages_and_transactions_work_through_the_sdk() {
    let server = start(None);
    let client = client(&server, &keys());
    for n in 0..5 {
        let put = Put::builder()
            .table_name("gristmill")
            .item("pk", text("p"))
            .item("sk", text(&format!("B#{n}")))
            .condition_expression("attribute_not_exists(pk)")
            .build()
            .unwrap();
        let write = TransactWriteItem::builder().put(put).build();
        client.transact_write_items().transact_items(write).send().await.unwrap();
    }
    let pages = client
        .query()
        .table_name("gristmill")
        .key_condition_expression("pk = :p AND begins_with(sk, :b)")
        .expression_attribute_values(":p", text("p"))
        .expression_attribute_values(":b", text("B#"))
        .consistent_read(true)
        .limit(2)
        .into_paginator()
        .items()
        .send()
        .collect::<Result<Vec<_>, _>>()
        .await
        .unwrap();
    let keys: Vec<&AttributeValue> = pages.iter().map(|item| &item["sk"]).collect();
    assert_eq!(
        keys,
        (0..5).map(|n| text(&format!("B#{n}"))).collect::<Vec<_>>().iter().collect::<Vec<_>>()
    );

    let wrong = client.get_item().table_name("nobody").key("pk", text("p")).key("sk", text("x"));
    let error = wrong.send().await.unwrap_err().into_service_error();
    assert!(error.is_resource_not_found_exception(), "{error:?}");
    let wrong = client.get_item().table_name("gristmill").key("pk", text("p"));
    let error = aws_sdk_dynamodb::Error::from(wrong.send().await.unwrap_err());
    assert!(format!("{error:?}").contains("ValidationException"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_signature_is_refused_and_runs_nothing() {
    let server = start(None);
    let stranger = Credentials { secret_access_key: "guess".into(), ..keys() };
    let error = client(&server, &stranger).list_tables().send().await.unwrap_err();
    assert_eq!(error.raw_response().unwrap().status().as_u16(), 403);
    let unsigned = support::request(
        "POST",
        &server.endpoint(),
        &[
            ("x-amz-target".into(), "DynamoDB_20120810.ListTables".into()),
            ("content-type".into(), "application/x-amz-json-1.0".into()),
        ],
        b"{}",
    )
    .await;
    assert_eq!(unsigned.status, 403);
    let stats = server.stats();
    assert_eq!((stats.operations.len(), stats.refused), (0, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_in_a_file_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("table.sqlite");
    let server = start(Some(file.clone()));
    claim(&client(&server, &keys()), "p", "me").await.unwrap();
    server.shutdown();

    let server = start(Some(file));
    let refused = claim(&client(&server, &keys()), "p", "you").await.unwrap_err();
    let UpdateItemError::ConditionalCheckFailedException(refused) = refused else { panic!() };
    assert_eq!(refused.item().unwrap()["owner"], text("me"));
}

#[test]
fn a_file_that_is_no_table_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("table.sqlite");
    std::fs::write(&file, "this is not a database, and long enough to be sure of it".repeat(100))
        .unwrap();
    let config = TableConfig {
        file: Some(file),
        tables: vec!["gristmill".into()],
        region: "us-east-1".into(),
        credentials: keys(),
        listener: None,
    };
    let error = TableServer::start(config).unwrap_err().to_string();
    assert!(error.contains("table.sqlite"), "{error}");
}
