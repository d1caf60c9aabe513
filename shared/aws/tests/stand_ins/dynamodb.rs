//! A DynamoDB in memory: the engine dynoxide behind a check of signatures. It runs what the adapter asks for.

use super::{
    loopback::{Asked, serve},
    signature::is_signed,
};
use bytes::Bytes;
use dynoxide::{Database, DynoxideError};
use http::Response;
use http_body_util::Full;
use hyper::service::service_fn;
use serde::{Serialize, de::DeserializeOwned};
use std::convert::Infallible;

/// Starts one without tables; returns its URL.
pub async fn start() -> String {
    let database = Database::memory().unwrap();
    serve(move || {
        let database = database.clone();
        service_fn(move |request| {
            let database = database.clone();
            async move { Ok::<_, Infallible>(answer(&database, &Asked::read(request).await)) }
        })
    })
    .await
}

fn answer(database: &Database, asked: &Asked) -> Response<Full<Bytes>> {
    let (status, body) = if is_signed(asked, "dynamodb") {
        match run(database, asked) {
            Ok(body) => (200, body),
            Err(error) => (error.status_code(), error.to_json().into()),
        }
    } else {
        let error = r#"{"__type":"com.amazon.coral.service#InvalidSignatureException"}"#;
        (400, error.into())
    };
    Response::builder().status(status).body(Full::new(body)).unwrap()
}

fn run(database: &Database, asked: &Asked) -> Result<Bytes, DynoxideError> {
    match asked.header("x-amz-target").trim_start_matches("DynamoDB_20120810.") {
        "BatchGetItem" => call(asked, |request| database.batch_get_item(request)),
        "CreateTable" => call(asked, |request| database.create_table(request)),
        "DescribeTable" => call(asked, |request| database.describe_table(request)),
        "GetItem" => call(asked, |request| database.get_item(request)),
        "PutItem" => call(asked, |request| database.put_item(request)),
        "Query" => call(asked, |request| database.query(request)),
        "UpdateTimeToLive" => call(asked, |request| database.update_time_to_live(request)),
        other => Err(DynoxideError::ValidationException(format!("{other} is not supported"))),
    }
}

fn call<Q: DeserializeOwned, R: Serialize>(
    asked: &Asked,
    run: impl FnOnce(Q) -> Result<R, DynoxideError>,
) -> Result<Bytes, DynoxideError> {
    let request = serde_json::from_slice(&asked.body);
    let request = request.map_err(|e| DynoxideError::SerializationException(e.to_string()))?;
    Ok(serde_json::to_vec(&run(request)?).unwrap().into())
}
