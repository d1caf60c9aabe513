//! Calls against a scripted server.

use super::*;
use crate::sdk::testing::{self, Answer, Server, signature::is_signed};
use aws_credential_types::{
    Credentials,
    provider::{self, ProvideCredentials, future},
};
use bytes::Bytes;
use gristmill_model::wire::VERSION;
use gristmill_model::wire::{AppliedReply, CallEnvelope, LeaveCall, RefusalKind};
use gristmill_ports::Invoker as _;
use std::{
    env,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::SystemTime,
};

fn call() -> AnyCall {
    LeaveCall { job: "a-job".parse().unwrap(), worker: 1, error: None, said: None }.into()
}

fn coordinator(url: &str) -> HttpCoordinator {
    testing::aws(url).coordinator(url, "team".parse().unwrap()).unwrap()
}

async fn outcome(
    answer: impl Fn() -> Answer + Send + Sync + 'static,
) -> Result<AnyReply, CallError> {
    let server = Server::start(move |_, _| answer()).await;
    let outcome = coordinator(&server.url).exchange(&call()).await;
    assert_eq!(server.asked().len(), 1, "a call is one try");
    outcome
}

#[tokio::test]
async fn a_call_is_a_signed_post() {
    let server = Server::start(|_, _| Answer::status(200, r#"{"reply":"leave"}"#)).await;
    let aws = server.aws();
    let coordinator = aws.coordinator(&server.url, "team".parse().unwrap()).unwrap();
    assert!(matches!(coordinator.exchange(&call()).await, Ok(AnyReply::Leave(AppliedReply {}))));
    let asked = &server.asked()[0];
    assert_eq!((asked.method.as_str(), asked.target.as_str()), ("POST", "/"));
    let request: CallEnvelope = serde_json::from_slice(&asked.body).unwrap();
    assert_eq!((request.v, request.ns.as_str()), (VERSION, "team"));
    assert!(
        matches!(request.call, AnyCall::Leave(LeaveCall { job, .. }) if job.as_str() == "a-job")
    );
    let authorization = asked.header("authorization");
    for signed in ["host", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"] {
        assert!(authorization.contains(signed), "{authorization}");
    }
    assert!(authorization.contains("/us-east-1/lambda/aws4_request"), "{authorization}");
    assert_eq!(asked.header("x-amz-content-sha256").len(), 64);
    assert!(is_signed(asked, "lambda"), "the signature holds");
    assert_eq!(aws.counts()["coordinator.leave"], 1);
}

#[tokio::test]
async fn connections_are_reused() {
    let server = Server::start(|_, _| Answer::status(200, r#"{"reply":"leave"}"#)).await;
    let coordinator = coordinator(&server.url);
    for _ in 0..3 {
        coordinator.exchange(&call()).await.unwrap();
    }
    assert_eq!((server.asked().len(), server.connections()), (3, 1));
}

#[tokio::test]
async fn answers_mean_what_the_caller_does_next() {
    let refused = r#"{"reply":"refused","kind":"lease_lost","message":"gone"}"#;
    let refused = outcome(move || Answer::status(200, refused)).await;
    assert!(matches!(refused, Err(CallError::Refused(r)) if r.kind == RefusalKind::LeaseLost));
    for status in [500, 502, 503, 504] {
        let passing = outcome(move || Answer::status(status, "{\"Message\":\"later\"}")).await;
        let Err(CallError::Unavailable(text)) = passing else { panic!("{status}: {passing:?}") };
        assert!(text.contains(&status.to_string()) && text.ends_with("later"), "{text}");
    }
    let crowded = outcome(|| Answer::status(429, "{\"Message\":\"later\"}")).await;
    assert!(matches!(crowded, Err(CallError::Throttled(text)) if text.ends_with("later")));
    let denied = outcome(|| Answer::status(403, "{\"Message\":\"Forbidden\"}")).await;
    let Err(CallError::Denied(text)) = denied else { panic!("{denied:?}") };
    assert!(text.contains("Forbidden") && text.contains("clock"), "{text}");
    let unlike = outcome(|| Answer::status(400, "<html>\nno</html>")).await;
    assert!(matches!(unlike, Err(CallError::Denied(text)) if text.ends_with("<html> no</html>")));
    let other = outcome(|| Answer::status(200, "{\"reply\":\"of-another-version\"}")).await;
    assert!(matches!(other, Err(CallError::Rejected(_))));
}

#[tokio::test]
async fn no_answer_is_unavailable_after_one_try() {
    let dropped = outcome(|| Answer::Drop).await;
    assert!(matches!(dropped, Err(CallError::Unavailable(_))), "{dropped:?}");
    let cut = outcome(|| Answer::Cut {
        status: 200,
        headers: Vec::new(),
        length: 100,
        body: Bytes::from_static(b"{\"reply\":"),
    })
    .await;
    assert!(matches!(cut, Err(CallError::Unavailable(_))), "{cut:?}");
    let url = testing::nowhere().await;
    let nobody = coordinator(&url).exchange(&call()).await;
    assert!(matches!(nobody, Err(CallError::Unavailable(text)) if text.contains(&url)));
}

#[tokio::test]
async fn messages_are_capped_both_ways() {
    let long = outcome(|| Answer::Cut {
        status: 200,
        headers: Vec::new(),
        length: MAX_MESSAGE_BYTES as u64 + 1,
        body: Bytes::new(),
    })
    .await;
    assert!(matches!(long, Err(CallError::Rejected(_))), "{long:?}");
    let server = Server::start(|_, _| Answer::Drop).await;
    let fail = gristmill_model::wire::FailCall {
        lease: gristmill_model::wire::LeaseRef {
            job: "a-job".parse().unwrap(),
            partition: gristmill_model::wire::BundlePartition { registered_ms: 0, partition: 0 },
            epoch: 0,
            bundle: 0,
            attempt: 1,
            nonce: gristmill_model::Nonce([0; 8]),
        },
        error: "x".repeat(MAX_MESSAGE_BYTES),
        fatal: false,
        blameless: false,
        record: None,
    };
    let sent = coordinator(&server.url).exchange(&fail.into()).await;
    assert!(matches!(sent, Err(CallError::Rejected(_))), "{sent:?}");
    assert!(server.asked().is_empty());
}

const ARN: &str = "arn:aws:lambda:eu-west-1:123456789012:function:g-coordinator:live";

#[tokio::test]
async fn an_arn_is_called_through_the_endpoint_of_lambda() {
    let failed = r#"{"errorMessage":"RequestId: 1 Error: ended","errorType":"Runtime.ExitError"}"#;
    let server = Server::start(move |n, _| match n {
        0 => Answer::status(200, r#"{"reply":"leave"}"#),
        1 => {
            let header = ("x-amz-function-error", "Unhandled".to_owned());
            Answer::Full(200, vec![header], Bytes::from(failed))
        }
        _ => Answer::status(403, r#"{"Message":"not authorized"}"#),
    })
    .await;
    let coordinator = server.aws().coordinator(ARN, "team".parse().unwrap()).unwrap();
    assert_eq!(coordinator.url_region(), Some("eu-west-1"));
    assert!(matches!(coordinator.exchange(&call()).await, Ok(AnyReply::Leave(AppliedReply {}))));
    let ended = coordinator.exchange(&call()).await;
    let Err(CallError::Unavailable(text)) = ended else { panic!("{ended:?}") };
    assert!(text.ends_with("Error: ended"), "{text}");
    let denied = coordinator.exchange(&call()).await;
    let Err(CallError::Denied(text)) = denied else { panic!("{denied:?}") };
    assert!(text.contains(ARN) && text.contains("TrainersInvoke"), "{text}");
    let asked = &server.asked()[0];
    let arn = ARN.replace(':', "%3A");
    assert_eq!(asked.target, format!("/2015-03-31/functions/{arn}/invocations"));
    assert!(asked.header("authorization").contains("/eu-west-1/lambda/aws4_request"));
    assert!(serde_json::from_slice::<CallEnvelope>(&asked.body).is_ok());
}

#[test]
fn urls_are_checked_and_tell_their_region() {
    let uri = "https://abc.lambda-url.eu-west-1.on.aws/".parse().unwrap();
    assert_eq!(function_url_region(&uri), Some("eu-west-1"));
    assert_eq!(function_url_region(&"http://127.0.0.1:1/".parse().unwrap()), None);
    let aws = testing::aws("http://127.0.0.1:1");
    for url in
        ["", "abc", "ftp://host/", "/path", "https://", "arn:aws:s3:::bucket", "arn:aws:lambda:x"]
    {
        let error = aws.coordinator(url, "team".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("GRISTMILL_COORDINATOR_URL"), "{error}");
    }
}

#[derive(Debug, Default)]
struct Loads {
    count: Arc<AtomicUsize>,
    expires_in: Option<Duration>,
}

impl ProvideCredentials for Loads {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        self.count.fetch_add(1, Ordering::Relaxed);
        let expiry = self.expires_in.map(|after| SystemTime::now() + after);
        let credentials: provider::Result = Ok(Credentials::new("id", "key", None, expiry, "t"));
        future::ProvideCredentials::ready(credentials)
    }
}

#[tokio::test]
async fn credentials_are_loaded_once_until_they_end_or_are_refused() {
    let loads = |expires_in| {
        let loads = Loads { expires_in, ..Loads::default() };
        let count = loads.count.clone();
        (CredentialsCache::new(Some(SharedCredentialsProvider::new(loads))), count)
    };
    for (expires_in, expected) in
        [(None, 1), (Some(Duration::from_secs(3600)), 1), (Some(Duration::from_secs(30)), 3)]
    {
        let (cache, count) = loads(expires_in);
        for _ in 0..3 {
            cache.identity().await.unwrap();
        }
        assert_eq!(count.load(Ordering::Relaxed), expected, "{expires_in:?}");
    }
    let (cache, count) = loads(None);
    cache.identity().await.unwrap();
    cache.forget().await;
    cache.identity().await.unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn absent_credentials_are_explained() {
    let error = CredentialsCache::new(None).identity().await.unwrap_err();
    assert!(reason(&error).contains("AWS_ACCESS_KEY_ID"));
}

const IN_FUNCTION: &str = "GRISTMILL_TEST_FUNCTION";

/// The side of a process that runs as a function does: calls the coordinator, then invokes another function.
#[tokio::test]
async fn a_process_in_a_function() {
    let Ok(url) = env::var(IN_FUNCTION) else { return };
    coordinator(&url).exchange(&call()).await.unwrap();
    testing::aws(&url).invoker().invoke("f", Bytes::from_static(b"{}")).await.unwrap();
}

/// Lambda ends what it takes for a loop by this header. The scaler starts workers, and those call the coordinator, by
/// which the scaler runs again: not a loop, since a call to the URL begins a new trace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invocations_carry_a_trace_and_calls_to_the_url_do_not() {
    let server = Server::start(|_, asked| match asked.target.as_str() {
        "/" => Answer::status(200, r#"{"reply":"leave"}"#),
        _ => Answer::status(202, ""),
    })
    .await;
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["sdk::coordinator::tests::a_process_in_a_function", "--exact"]);
    child.env(IN_FUNCTION, &server.url);
    child.env("AWS_LAMBDA_FUNCTION_NAME", "worker").env("_X_AMZN_TRACE_ID", "Root=1-2-3");
    assert!(child.output().unwrap().status.success());
    let traces = server.asked().into_iter().map(|asked| asked.header("x-amzn-trace-id").to_owned());
    assert_eq!(traces.collect::<Vec<_>>(), ["", "Root=1-2-3"]);
}
