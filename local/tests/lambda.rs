//! Lambda's behaviour towards callers, tested on our function host and, when `scripts/test-peers` runs the ignored
//! tests, on other implementations of Lambda.
#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod support;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use aws_sdk_lambda::Client;
use aws_sdk_lambda::config::retry::RetryConfig;
use aws_sdk_lambda::config::{BehaviorVersion, Region};
use aws_sdk_lambda::operation::invoke::InvokeOutput;
use aws_sdk_lambda::primitives::Blob;
use aws_sdk_lambda::types::InvocationType;
use gristmill_local::{Credentials, FunctionConfig, FunctionHost, HostConfig, UrlConfig};
use serde_json::{Value, json};
use support::{Answer, echo_function, eventually, living, request, sdk_credentials};
use tempfile::TempDir;

/// Time limit of a case on another implementation.
const PATIENCE: Duration = Duration::from_secs(90);

/// A Lambda with these functions, all of them the echo function of the tests:
/// `peer-echo` (2 minutes, a URL, `MINE=yes`), `peer-warm` (the same, without), `peer-short` (1 second),
/// `peer-busy` (one at a time), `peer-broken` (`INIT=fail`), `peer-work` (no retries, its failures go to
/// `peer-failures`). Each writes the events it gets into a file of its name.
struct Target {
    endpoint: String,
    keys: Credentials,
    /// URL of `peer-echo`, without a trailing slash.
    url: String,
    records: PathBuf,
    own: Option<(FunctionHost, TempDir)>,
}

impl Target {
    async fn own() -> Self {
        let records = tempfile::tempdir().unwrap();
        let function = |name: &str| {
            let mut function = FunctionConfig {
                timeout: Duration::from_secs(120),
                ..FunctionConfig::new(name, echo_function())
            };
            let record = records.path().join(name).to_str().unwrap().to_owned();
            function.env = [("RECORD".into(), record), ("MINE".into(), "yes".into())].into();
            function
        };
        let mut echo = function("peer-echo");
        echo.url = Some(UrlConfig::default());
        let mut broken = function("peer-broken");
        broken.env.insert("INIT".into(), "fail".into());
        let functions = vec![
            echo,
            function("peer-warm"),
            FunctionConfig { timeout: Duration::from_secs(1), ..function("peer-short") },
            FunctionConfig { reserved_concurrency: Some(1), ..function("peer-busy") },
            broken,
            FunctionConfig { on_failure: Some("peer-failures".into()), ..function("peer-work") },
            function("peer-failures"),
        ];
        let keys =
            Credentials { access_key_id: "AKIATEST".into(), secret_access_key: "secret".into() };
        let host = FunctionHost::start(HostConfig::new(keys.clone(), functions)).await.unwrap();
        Self {
            endpoint: host.endpoint(),
            keys,
            url: host.url("peer-echo").unwrap(),
            records: records.path().to_owned(),
            own: Some((host, records)),
        }
    }

    fn peer() -> Self {
        let variable = |name| std::env::var(name).unwrap_or_else(|_| panic!("set {name}"));
        Self {
            endpoint: variable("GRISTMILL_PEER_LAMBDA"),
            keys: Credentials {
                access_key_id: variable("AWS_ACCESS_KEY_ID"),
                secret_access_key: variable("AWS_SECRET_ACCESS_KEY"),
            },
            url: variable("GRISTMILL_PEER_URL").trim_end_matches('/').to_owned(),
            records: variable("GRISTMILL_PEER_RECORDS").into(),
            own: None,
        }
    }

    async fn end(self) {
        if let Some((host, _records)) = self.own {
            host.shutdown().await;
        }
    }

    fn client(&self) -> Client {
        self.client_with(&self.keys)
    }

    fn client_with(&self, credentials: &Credentials) -> Client {
        let config = aws_sdk_lambda::Config::builder()
            .behavior_version(BehaviorVersion::v2026_01_12())
            .region(Region::new("us-east-1"))
            .endpoint_url(&self.endpoint)
            .credentials_provider(sdk_credentials(credentials))
            .retry_config(RetryConfig::disabled())
            .build();
        Client::from_conf(config)
    }

    async fn invoke(&self, function: &str, event: Value) -> Invoked {
        let payload = Blob::new(event.to_string());
        Ok(self.client().invoke().function_name(function).payload(payload).send().await?)
    }

    async fn send(&self, function: &str, event: Value) -> Invoked {
        let payload = Blob::new(event.to_string());
        let call = self.client().invoke().function_name(function).payload(payload);
        Ok(call.invocation_type(InvocationType::Event).send().await?)
    }

    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let url = format!("{}{path}", self.url);
        support::signed_request(&self.keys, method, &url, headers, body).await
    }

    /// The events of a function that satisfy `about`.
    fn recorded(&self, function: &str, about: impl Fn(&Value) -> bool) -> Vec<Value> {
        let text = std::fs::read_to_string(self.records.join(function)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).filter(about).collect()
    }
}

type Invoked = Result<InvokeOutput, aws_sdk_lambda::Error>;

fn body(output: &InvokeOutput) -> Value {
    serde_json::from_slice(output.payload().unwrap().as_ref()).unwrap()
}

/// A fresh text: a peer may be reused.
fn fresh() -> String {
    format!("{}", SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos())
}

fn process(answer: &Value) -> u32 {
    u32::try_from(answer["pid"].as_u64().unwrap()).unwrap()
}

/// Defines a test of each case for our host, and one for a peer.
macro_rules! cases {
    ($($name:ident,)*) => {
        mod our_host {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let target = super::Target::own().await;
                super::$name(&target).await;
                target.end().await;
            })*
        }
        mod peer {
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "needs another Lambda: scripts/test-peers"]
            async fn $name() {
                let target = super::Target::peer();
                let case = super::$name(&target);
                tokio::time::timeout(super::PATIENCE, case).await.expect("it ends");
            })*
        }
    };
}

cases! {
    a_function_gets_its_event_and_context,
    an_environment_is_used_again,
    a_dry_run_runs_nothing,
    functions_and_versions_that_are_not_there_are_not_found,
    what_is_no_json_is_refused,
    payloads_and_answers_have_a_greatest_length,
    signatures_are_checked,
    errors_are_function_errors,
    crashes_are_function_errors,
    a_function_that_takes_too_long_is_killed,
    a_function_that_cannot_start_says_so,
    an_event_is_accepted_and_run_once,
    callers_are_refused_and_events_wait_at_the_concurrency_limit,
    a_failed_event_reaches_the_failure_destination,
    a_url_carries_bytes,
    a_url_tells_the_request,
    a_url_checks_signatures,
    a_url_reports_crashes,
}

async fn a_function_gets_its_event_and_context(target: &Target) {
    let output = target.invoke("peer-echo", json!({"a": [1, "é"]})).await.unwrap();
    assert_eq!((output.status_code(), output.function_error()), (200, None));
    assert_eq!(output.executed_version(), Some("$LATEST"));
    let answer = body(&output);
    assert_eq!(answer["event"], json!({"a": [1, "é"]}));
    assert_eq!(answer["arn"], "arn:aws:lambda:us-east-1:000000000000:function:peer-echo");
    let remaining = answer["remaining_ms"].as_u64().unwrap();
    assert!((1..=120_000).contains(&remaining), "{remaining}");
    let environment = &answer["environment"];
    assert_eq!(environment["MINE"], "yes");
    assert_eq!(environment["AWS_LAMBDA_FUNCTION_NAME"], "peer-echo");
    assert_eq!(environment["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"], "1769");
    assert_eq!(environment["AWS_REGION"], "us-east-1");
}

async fn an_environment_is_used_again(target: &Target) {
    let first = body(&target.invoke("peer-warm", json!({})).await.unwrap());
    let by_arn = "arn:aws:lambda:us-east-1:000000000000:function:peer-warm:$LATEST";
    let second = body(&target.invoke(by_arn, json!({})).await.unwrap());
    assert_eq!(second["pid"], first["pid"]);
    assert_ne!(second["request_id"], first["request_id"]);
    let failed = target.invoke("peer-warm", json!({"error": "on purpose"})).await.unwrap();
    assert!(failed.function_error().is_some());
    let third = body(&target.invoke("peer-warm", json!({})).await.unwrap());
    assert_eq!(third["pid"], first["pid"], "an error keeps the environment");
}

async fn a_dry_run_runs_nothing(target: &Target) {
    let id = fresh();
    let payload = Blob::new(json!({"id": id}).to_string());
    let call = target.client().invoke().function_name("peer-echo").payload(payload);
    let dry = call.invocation_type(InvocationType::DryRun).send().await.unwrap();
    assert_eq!(dry.status_code(), 204);
    assert!(target.recorded("peer-echo", |event| event["id"] == id.as_str()).is_empty());
}

async fn functions_and_versions_that_are_not_there_are_not_found(target: &Target) {
    for name in ["nobody", "peer-echo:7"] {
        let error = target.invoke(name, json!({})).await.unwrap_err();
        assert!(matches!(error, aws_sdk_lambda::Error::ResourceNotFoundException(_)), "{error:?}");
    }
}

async fn what_is_no_json_is_refused(target: &Target) {
    let call = target.client().invoke().function_name("peer-echo").payload(Blob::new("{not json"));
    let error = aws_sdk_lambda::Error::from(call.send().await.unwrap_err());
    assert!(matches!(error, aws_sdk_lambda::Error::InvalidRequestContentException(_)), "{error:?}");
}

async fn payloads_and_answers_have_a_greatest_length(target: &Target) {
    let length = 6 * 1024 * 1024;
    let too_long = Value::String("x".repeat(length));
    let error = target.invoke("peer-echo", too_long).await.unwrap_err();
    assert!(matches!(error, aws_sdk_lambda::Error::RequestTooLargeException(_)), "{error:?}");
    // It fits; the larger answer that repeats it does not.
    let just_fits = Value::String("x".repeat(length - 2));
    let output = target.invoke("peer-echo", just_fits).await.unwrap();
    assert_eq!(body(&output)["errorType"], "Function.ResponseSizeTooLarge");
    let too_long = Value::String("x".repeat(1024 * 1024));
    let error = target.send("peer-echo", too_long).await.unwrap_err();
    assert!(matches!(error, aws_sdk_lambda::Error::RequestTooLargeException(_)), "{error:?}");
}

async fn signatures_are_checked(target: &Target) {
    let stranger = Credentials { secret_access_key: "guess".into(), ..target.keys.clone() };
    let call = target.client_with(&stranger).invoke().function_name("peer-echo");
    let error = call.send().await.unwrap_err();
    assert_eq!(error.raw_response().unwrap().status().as_u16(), 403);
    assert!(format!("{error:?}").contains("InvalidSignatureException"), "{error:?}");
}

async fn errors_are_function_errors(target: &Target) {
    let failed = target.invoke("peer-echo", json!({"error": "on purpose"})).await.unwrap();
    assert_eq!((failed.status_code(), failed.function_error()), (200, Some("Unhandled")));
    assert_eq!(body(&failed)["errorMessage"], "on purpose");
}

async fn crashes_are_function_errors(target: &Target) {
    for (event, reason) in [
        (json!({"exit": 7}), "Runtime exited with error: exit status 7"),
        (json!({"abort": true}), "Runtime exited with error: signal: aborted"),
        (json!({"exit": 0}), "Runtime exited without providing a reason"),
    ] {
        let crashed = target.invoke("peer-echo", event).await.unwrap();
        assert_eq!(crashed.function_error(), Some("Unhandled"));
        assert_eq!(body(&crashed)["errorType"], "Runtime.ExitError");
        let message = body(&crashed)["errorMessage"].as_str().unwrap().to_owned();
        assert!(message.starts_with("RequestId: ") && message.ends_with(reason), "{message}");
    }
}

async fn a_function_that_takes_too_long_is_killed(target: &Target) {
    let warm = body(&target.invoke("peer-short", json!({})).await.unwrap());
    let late = target.invoke("peer-short", json!({"sleep_ms": 60_000})).await.unwrap();
    assert_eq!(late.function_error(), Some("Unhandled"));
    let message = body(&late)["errorMessage"].as_str().unwrap().to_owned();
    assert!(message.ends_with("Task timed out after 1.00 seconds"), "{message}");
    assert!(!living(process(&warm)), "killed at its deadline");
}

async fn a_function_that_cannot_start_says_so(target: &Target) {
    let output = target.invoke("peer-broken", json!({})).await.unwrap();
    assert_eq!(output.function_error(), Some("Unhandled"));
    assert_eq!(body(&output)["errorType"], "Runtime.ExitError");
    let message = body(&output)["errorMessage"].as_str().unwrap().to_owned();
    assert!(message.contains("exit status 3"), "{message}");
}

async fn an_event_is_accepted_and_run_once(target: &Target) {
    let id = fresh();
    let sent = target.send("peer-echo", json!({"id": id})).await.unwrap();
    assert_eq!(sent.status_code(), 202);
    let came = || target.recorded("peer-echo", |event| event["id"] == id.as_str()).len();
    eventually("it runs", || came() > 0).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(came(), 1);
}

async fn callers_are_refused_and_events_wait_at_the_concurrency_limit(target: &Target) {
    let id = fresh();
    let came = || target.recorded("peer-busy", |event| event["id"] == id.as_str()).len();
    target.send("peer-busy", json!({"id": id, "sleep_ms": 2_000})).await.unwrap();
    eventually("it runs", || came() == 1).await;
    let error = target.invoke("peer-busy", json!({"id": id})).await.unwrap_err();
    let aws_sdk_lambda::Error::TooManyRequestsException(error) = error else { panic!("{error:?}") };
    let reason = error.reason().unwrap().as_str();
    assert_eq!(reason, "ReservedFunctionConcurrentInvocationLimitExceeded");
    let waits = target.send("peer-busy", json!({"id": id})).await.unwrap();
    assert_eq!((waits.status_code(), came()), (202, 1));
    eventually("there is room for what waits", || came() == 2).await;
}

async fn a_failed_event_reaches_the_failure_destination(target: &Target) {
    let id = fresh();
    target.send("peer-work", json!({"exit": 9, "id": id})).await.unwrap();
    let reports =
        || target.recorded("peer-failures", |event| event["requestPayload"]["id"] == id.as_str());
    eventually("the crash is reported", || !reports().is_empty()).await;
    let report = reports().remove(0);
    assert_eq!(report["version"], "1.0");
    assert!(report["timestamp"].as_str().unwrap().ends_with('Z'), "{report}");
    let context = &report["requestContext"];
    assert_eq!(context["condition"], "RetriesExhausted");
    assert_eq!(context["approximateInvokeCount"], 1);
    let arn = "arn:aws:lambda:us-east-1:000000000000:function:peer-work:$LATEST";
    assert_eq!(context["functionArn"], arn);
    let response =
        json!({"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"});
    assert_eq!(report["responseContext"], response);
    assert_eq!(report["responsePayload"]["errorType"], "Runtime.ExitError");
}

async fn a_url_carries_bytes(target: &Target) {
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let headers = [("content-type", "application/octet-stream")];
    let answer = target.ask("POST", "/a%20b?x=1&x=2&y=%26", &headers, &bytes).await;
    assert_eq!(answer.status, 201, "{}", answer.headers);
    assert!(answer.body == bytes, "{} bytes came back", answer.body.len());
    assert_eq!(answer.header("x-number"), Some("7"));
    assert!(answer.header("x-amzn-requestid").is_some());
    for cookie in ["set-cookie: a=1", "set-cookie: b=2"] {
        assert!(answer.headers.lines().any(|line| line.eq_ignore_ascii_case(cookie)), "{cookie}");
    }
}

async fn a_url_tells_the_request(target: &Target) {
    let headers = [("content-type", "application/json"), ("cookie", "k=v; l=w")];
    let answer = target.ask("PUT", "/event?x=1&x=2&y=%26", &headers, br#"{"q":1}"#).await;
    let event = answer.json();
    assert_eq!(event["version"], "2.0");
    assert_eq!(event["rawPath"], "/event");
    assert_eq!(event["rawQueryString"], "x=1&x=2&y=%26");
    assert_eq!(event["queryStringParameters"], json!({"x": "1,2", "y": "&"}));
    assert_eq!((&event["body"], &event["isBase64Encoded"]), (&json!(r#"{"q":1}"#), &json!(false)));
    let context = &event["requestContext"];
    assert_eq!(context["http"]["method"], "PUT");
    assert!(context["time"].as_str().unwrap().ends_with(" +0000"), "{context}");
    assert_eq!(event["cookies"], json!(["k=v", "l=w"]));
    let caller = target.keys.access_key_id.as_str();
    assert_eq!(context["authorizer"]["iam"]["accessKey"], caller);
}

async fn a_url_checks_signatures(target: &Target) {
    let url = format!("{}/bare", target.url);
    let answer = target.ask("GET", "/bare", &[], b"").await;
    assert_eq!((answer.status, answer.json()), (200, json!({"no": "status"})));
    assert_eq!(request("GET", &url, &[], b"").await.status, 403, "no signature");
    let other = format!("{}/other", target.url);
    let other = support::signed_headers(&target.keys, "GET", &other, &[], b"");
    assert_eq!(request("GET", &url, &other, b"").await.status, 403, "a signature of another path");
}

async fn a_url_reports_crashes(target: &Target) {
    assert_eq!(target.ask("GET", "/abort", &[], b"").await.status, 502);
}
