//! Tests of the composed service: restarts and refusals.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aws_sdk_s3::config::{BehaviorVersion, Region};
use gristmill_local::service::read_credentials;
use gristmill_local::{
    Credentials, Endpoints, FunctionConfig, LocalError, Service, ServiceConfig, UrlConfig,
};
use serde_json::json;
use support::{echo_function, request, sdk_credentials, signed_request};

fn functions(endpoints: &Endpoints) -> Vec<FunctionConfig> {
    let mut coordinator = FunctionConfig::new("coordinator", echo_function());
    coordinator.url = Some(UrlConfig::default());
    coordinator.env.insert("S3".into(), endpoints.s3.clone());
    vec![coordinator]
}

async fn start(dir: &Path) -> Result<Service, LocalError> {
    Service::start(ServiceConfig::new(dir), functions).await
}

fn s3(endpoints: &Endpoints, credentials: &Credentials) -> aws_sdk_s3::Client {
    aws_sdk_s3::Client::from_conf(
        aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::v2026_01_12())
            .region(Region::new("us-east-1"))
            .endpoint_url(&endpoints.s3)
            .force_path_style(true)
            .credentials_provider(sdk_credentials(credentials))
            .build(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_ports_keys_objects_and_mounts() {
    let dir = tempfile::tempdir().unwrap();
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("file"), "data").unwrap();
    let service = start(&dir.path().join("state")).await.unwrap();
    let (endpoints, keys) = (service.endpoints().clone(), service.credentials().clone());
    let client = s3(&endpoints, &keys);
    client
        .put_object()
        .bucket("gristmill")
        .key("k")
        .body(b"v".to_vec().into())
        .send()
        .await
        .unwrap();

    let body = json!({"name": "photos", "path": data.path()}).to_string();
    let url = format!("{}/gristmill/mounts", endpoints.lambda);
    assert_eq!(signed_request(&keys, "POST", &url, &[], body.as_bytes()).await.status, 200);
    let url = format!("{}/event", endpoints.coordinator_url);
    assert_eq!(signed_request(&keys, "GET", &url, &[], b"").await.status, 200);

    let found = request("GET", &format!("{}/gristmill/service", endpoints.lambda), &[], b"").await;
    assert_eq!(found.json()["endpoints"]["s3"], endpoints.s3.as_str());
    let text = String::from_utf8(found.body).unwrap();
    assert!(!text.contains(&keys.secret_access_key), "{text}");
    let stats = format!("{}/gristmill/stats", endpoints.lambda);
    let stats = signed_request(&keys, "GET", &stats, &[], b"").await.json();
    assert_eq!(stats["objects"]["put"], 1);
    assert_eq!(stats["table"]["refused"], 0);
    assert_eq!(stats["functions"]["coordinator"]["invocations_url"], 1);

    let busy = start(&dir.path().join("state")).await.unwrap_err();
    assert!(matches!(busy, LocalError::Busy { .. }), "{busy}");
    service.shutdown().await;

    let file = dir.path().join("state/service.json");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(read_credentials(&dir.path().join("state")).unwrap(), keys);
    let service = start(&dir.path().join("state")).await.unwrap();
    assert_eq!((service.endpoints(), service.credentials()), (&endpoints, &keys));
    for (bucket, key, value) in [("gristmill", "k", "v"), ("photos", "file", "data")] {
        let object = client.get_object().bucket(bucket).key(key).send().await.unwrap();
        assert_eq!(object.body.collect().await.unwrap().into_bytes(), value);
    }
    service.shutdown().await;

    // A missing directory does not prevent the start.
    drop(data);
    start(&dir.path().join("state")).await.unwrap().shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_and_a_spoilt_state_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = ServiceConfig::new(dir.path());
    config.ports.dynamodb = taken.local_addr().unwrap().port();
    let error = Service::start(config, functions).await.unwrap_err();
    assert!(matches!(error, LocalError::Bind { what: "table", .. }), "{error}");

    std::fs::write(dir.path().join("service.json"), "{").unwrap();
    let error = start(dir.path()).await.unwrap_err().to_string();
    assert!(error.contains("service.json") && error.contains("remove it"), "{error}");
}
