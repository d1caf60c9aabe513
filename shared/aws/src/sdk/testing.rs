//! Scripted servers that record their requests, and an embedded table.

use crate::sdk::{Aws, AwsCredentials, AwsEndpoints};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::{body::Frame, service::service_fn};
use std::{
    future::pending,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::net::TcpListener;

#[path = "../../tests/stand_ins/dynamodb.rs"]
pub(crate) mod dynamodb;
#[path = "../../tests/stand_ins/loopback.rs"]
mod loopback;
#[path = "../../tests/stand_ins/signature.rs"]
pub(crate) mod signature;

pub(crate) use loopback::Asked;

pub(crate) enum Answer {
    Full(u16, Vec<(&'static str, String)>, Bytes),
    /// Declares `length` bytes, sends `body` and closes.
    Cut {
        status: u16,
        headers: Vec<(&'static str, String)>,
        length: u64,
        body: Bytes,
    },
    /// Declares `length` bytes, sends `body`, and no more.
    Stalled {
        status: u16,
        headers: Vec<(&'static str, String)>,
        length: u64,
        body: Bytes,
    },
    /// Keeps the connection open without an answer.
    Silence,
    /// Closes the connection without an answer.
    Drop,
}

impl Answer {
    pub fn status(status: u16, body: impl Into<Bytes>) -> Self {
        Self::Full(status, Vec::new(), body.into())
    }
}

pub(crate) struct Server {
    pub url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// Answers the request with number `n` (from 0) by `answer(n, request)`.
    pub async fn start(answer: impl Fn(usize, &Asked) -> Answer + Send + Sync + 'static) -> Self {
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let connections: Arc<AtomicUsize> = Arc::default();
        let (answer, log, opened) = (Arc::new(answer), asked.clone(), connections.clone());
        let url = loopback::serve(move || {
            opened.fetch_add(1, Ordering::Relaxed);
            let (answer, log) = (answer.clone(), log.clone());
            service_fn(move |request| {
                let (answer, log) = (answer.clone(), log.clone());
                async move {
                    let asked = Asked::read(request).await;
                    let n = {
                        let mut log = log.lock().unwrap();
                        log.push(asked.clone());
                        log.len() - 1
                    };
                    match answer(n, &asked) {
                        Answer::Silence => pending().await,
                        answer => respond(answer),
                    }
                }
            })
        })
        .await;
        Self { url, asked, connections }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Clients with this server as the endpoint of every service.
    pub fn aws(&self) -> Aws {
        aws(&self.url)
    }
}

pub(crate) fn aws(url: &str) -> Aws {
    let endpoints = AwsEndpoints {
        s3: Some(url.to_owned()),
        dynamodb: Some(url.to_owned()),
        lambda: Some(url.to_owned()),
    };
    let credentials = AwsCredentials {
        access_key_id: signature::ACCESS_KEY_ID.to_owned(),
        secret_access_key: signature::SECRET_ACCESS_KEY.to_owned(),
        session_token: Some("session".to_owned()),
    };
    Aws::with(endpoints, signature::REGION.to_owned(), credentials).unwrap()
}

/// A URL where no server listens.
pub(crate) async fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

type Body = BoxBody<Bytes, io::Error>;

fn respond(answer: Answer) -> Result<Response<Body>, io::Error> {
    let gone = || io::Error::other("the test closes this connection");
    let (status, headers, body): (_, _, Body) = match answer {
        Answer::Drop | Answer::Silence => return Err(gone()),
        Answer::Stalled { status, mut headers, length, body } => {
            headers.push(("content-length", length.to_string()));
            let frames = stream::iter([Ok(Frame::data(body))]).chain(stream::pending());
            (status, headers, BoxBody::new(StreamBody::new(frames)))
        }
        Answer::Full(status, headers, body) => {
            (status, headers, Full::new(body).map_err(|never| match never {}).boxed())
        }
        Answer::Cut { status, mut headers, length, body } => {
            headers.push(("content-length", length.to_string()));
            // Pending once, so that the server flushes its data before it fails.
            let end = async move {
                tokio::task::yield_now().await;
                Err(gone())
            };
            let frames = stream::iter([Ok(Frame::data(body))]).chain(stream::once(end));
            (status, headers, BoxBody::new(StreamBody::new(frames)))
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    Ok(response)
}
