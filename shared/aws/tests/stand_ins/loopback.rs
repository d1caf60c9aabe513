//! HTTP servers on loopback, and the requests that they receive.

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use hyper::{
    body::{Body, Incoming},
    server::conn::http1,
    service::Service,
};
use hyper_util::rt::TokioIo;
use std::error::Error;
use tokio::net::TcpListener;

/// Serves on a free port while the runtime of the test lives, each connection by a service of its own. Returns the URL.
pub async fn serve<S, B>(connected: impl Fn() -> S + Send + 'static) -> String
where
    S: Service<Request<Incoming>, Response = Response<B>> + Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::Future: Send,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            // Headers and body are two writes; Nagle's delay between them would cost more than the exchange.
            socket.set_nodelay(true).unwrap();
            let serving = http1::Builder::new().serve_connection(TokioIo::new(socket), connected());
            tokio::spawn(serving);
        }
    });
    url
}

/// A received request.
#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    /// Path and query.
    pub target: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Asked {
    pub async fn read(request: Request<Incoming>) -> Self {
        let (parts, body) = request.into_parts();
        Self {
            method: parts.method.to_string(),
            target: parts.uri.to_string(),
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    /// The header `name`; empty if absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}
