//! A function for the host's tests that behaves as its event specifies.
//!
//! Events are objects; each of these members is done in this order: `sleep_ms`, `abort`, `exit`, `error`, `child`, `big`.
//! The response contains the event, the process and the runtime's context. Requests to a function URL are answered by
//! their path. `INIT=fail|hang|report` in the environment breaks the start; `RECORD` names a file that gets each event.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::io::Write;
use std::time::{Duration, SystemTime};

use lambda_runtime::{Error, LambdaEvent, service_fn};
use serde_json::{Value, json};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    match std::env::var("INIT").as_deref() {
        Ok("fail") => std::process::exit(3),
        Ok("hang") => std::thread::sleep(Duration::from_secs(3600)),
        _ => {}
    }
    println!("started {}", std::process::id());
    lambda_runtime::run(service_fn(handle)).await
}

async fn handle(event: LambdaEvent<Value>) -> Result<Value, Error> {
    let LambdaEvent { payload, context } = event;
    if let Ok(path) = std::env::var("RECORD") {
        let mut file = std::fs::File::options().create(true).append(true).open(path)?;
        file.write_all(format!("{payload}\n").as_bytes())?;
    }
    if payload["requestContext"]["http"].is_object() {
        return Ok(answer_request(&payload).await);
    }
    if let Some(ms) = payload["sleep_ms"].as_u64() {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    if payload["abort"] == true {
        std::process::abort();
    }
    if let Some(code) = payload["exit"].as_i64() {
        std::process::exit(i32::try_from(code)?);
    }
    if let Some(message) = payload["error"].as_str() {
        return Err(message.into());
    }
    if payload["child"] == true {
        let child = std::process::Command::new("sleep").arg("3600").spawn()?;
        return Ok(json!({"child": child.id()}));
    }
    if let Some(bytes) = payload["big"].as_u64() {
        return Ok(Value::String("x".repeat(usize::try_from(bytes)?)));
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let environment: serde_json::Map<String, Value> =
        std::env::vars().map(|(name, value)| (name, Value::String(value))).collect();
    Ok(json!({
        "event": payload,
        "pid": std::process::id(),
        "request_id": context.request_id,
        "arn": context.invoked_function_arn,
        "client_context": context.client_context,
        "remaining_ms": context.deadline.saturating_sub(u64::try_from(now.as_millis())?),
        "environment": environment,
    }))
}

async fn answer_request(event: &Value) -> Value {
    match event["rawPath"].as_str().unwrap_or("") {
        "/sleep" => {
            let ms = event["queryStringParameters"]["ms"].as_str().and_then(|ms| ms.parse().ok());
            tokio::time::sleep(Duration::from_millis(ms.unwrap_or(0))).await;
            json!({"statusCode": 204})
        }
        "/abort" => std::process::abort(),
        "/bare" => json!({"no": "status"}),
        "/event" => json!({
            "statusCode": 200,
            "headers": {"content-type": "application/json"},
            "body": event.to_string(),
        }),
        _ => json!({
            "statusCode": 201,
            "headers": {"content-type": "application/octet-stream", "x-number": 7},
            "cookies": ["a=1", "b=2"],
            "body": event["body"],
            "isBase64Encoded": event["isBase64Encoded"],
        }),
    }
}
