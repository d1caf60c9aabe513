//! Calls to a service on this machine: one HTTP request each, over its socket or its port.

use crate::{ChunkByteCounter, ServiceFile, service_file::UNIX};
use async_trait::async_trait;
use bytes::Bytes;
use gristmill_model::Namespace;
use gristmill_model::wire::{AnyCall, AnyReply, MAX_MESSAGE_BYTES, SpokenVersions, protocol};
use gristmill_ports::{CallError, CallTransport, CallVersion, Coordinator, encode_call};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Method, StatusCode, body::Incoming, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{collections::BTreeMap, fmt::Display, path::PathBuf, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};

const DEADLINE: Duration = Duration::from_secs(10);
/// Header with the bytes of chunks that the caller has read since its last call.
pub const READ_HEADER: &str = "gristmill-chunk-bytes-read";
const MAX_IDLE: usize = 4;

/// The state of a service on this machine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceStatus {
    pub version: String,
    /// The versions of the protocol that it speaks.
    pub spoken: SpokenVersions,
    pub pid: u32,
    pub state_dir: PathBuf,
    /// Why jobs cannot proceed, with the remedy.
    pub trouble: Option<String>,
    /// Worker processes that work, and that wait for an event.
    pub busy_workers: u32,
    pub idle_workers: u32,
    /// CPU of the worker processes so far.
    pub worker_cpu_ms: u64,
    /// Calls so far, by name; reads and writes of the table; bytes of chunks that were committed.
    pub counts: BTreeMap<String, u64>,
}

/// Space that a service's state takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUse {
    pub used_bytes: u64,
    /// The most that caches, batches on their way and logs grow to.
    pub bound_bytes: u64,
}

type Connection = http1::SendRequest<Full<Bytes>>;

/// A client of one service; share it behind an `Arc`.
#[derive(Debug)]
pub struct HostServiceClient {
    endpoint: String,
    token: String,
    ns: Namespace,
    read: ChunkByteCounter,
    idle: Mutex<Vec<Connection>>,
    version: CallVersion,
}

impl HostServiceClient {
    /// A client of the service that wrote `file`.
    pub fn new(file: &ServiceFile) -> Self {
        let ServiceFile { endpoint, token, namespace, .. } = file.clone();
        Self {
            endpoint,
            token,
            ns: namespace,
            read: ChunkByteCounter::default(),
            idle: Mutex::default(),
            version: CallVersion::default(),
        }
    }

    /// Tells the service how many bytes of chunks this process reads.
    #[must_use]
    pub fn telling(self, read: ChunkByteCounter) -> Self {
        Self { read, ..self }
    }

    /// The address of the service.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The state of the service.
    pub async fn status(&self) -> Result<ServiceStatus, CallError> {
        self.ask(Method::GET, "/status", Bytes::new()).await
    }

    /// Space that the service's state takes.
    pub async fn disk(&self) -> Result<DiskUse, CallError> {
        self.ask(Method::GET, "/disk", Bytes::new()).await
    }

    /// Asks the service to end; it answers before it does.
    pub async fn stop(&self) -> Result<(), CallError> {
        self.ask(Method::POST, "/stop", Bytes::new()).await
    }

    /// Kills one busy worker, as a crash would; returns its process, if there was one.
    pub async fn kill_worker(&self) -> Result<Option<u32>, CallError> {
        self.ask(Method::POST, "/kill", Bytes::new()).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, CallError> {
        let answer = self.answer(method, path, body).await?;
        serde_json::from_slice(&answer).map_err(|error| self.unreadable(&error))
    }

    fn unreadable(&self, error: &serde_json::Error) -> CallError {
        CallError::Rejected(format!("{}: cannot read the answer: {error}", self.endpoint))
    }

    /// The answer to a request, within the deadline.
    async fn answer(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, CallError> {
        let asking = self.request(method, path, body);
        match tokio::time::timeout(DEADLINE, asking).await {
            Ok(answer) => answer,
            Err(_) => {
                let seconds = DEADLINE.as_secs();
                Err(CallError::Unavailable(format!(
                    "{}: no answer within {seconds} s",
                    self.endpoint
                )))
            }
        }
    }

    /// Sends a request, again if the service had closed an idle connection: a call that is sent twice has one effect.
    async fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, CallError> {
        let failed =
            |error: &dyn Display| CallError::Unavailable(format!("{}: {error}", self.endpoint));
        loop {
            let idle = self.idle.lock().pop();
            let is_fresh = idle.is_none();
            let mut connection = match idle {
                Some(connection) => connection,
                None => self.connect().await.map_err(|error| failed(&error))?,
            };
            let request = hyper::Request::builder()
                .method(method.clone())
                .uri(path)
                .header(header::HOST, "localhost")
                .header(READ_HEADER, self.read.take())
                .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
                .body(Full::new(body.clone()))
                .map_err(|error| CallError::Rejected(format!("{}: {error}", self.endpoint)))?;
            match connection.send_request(request).await {
                Ok(answer) => {
                    let (status, body) = (answer.status(), answer.into_body());
                    let body = read(body).await.map_err(|error| failed(&error))?;
                    if connection.ready().await.is_ok() {
                        let mut idle = self.idle.lock();
                        if idle.len() < MAX_IDLE {
                            idle.push(connection);
                        }
                    }
                    return self.judge(status, body);
                }
                Err(_) if !is_fresh => {}
                Err(error) => return Err(failed(&error)),
            }
        }
    }

    fn judge(&self, status: StatusCode, body: Bytes) -> Result<Bytes, CallError> {
        let text =
            || format!("{} answers {status}: {}", self.endpoint, String::from_utf8_lossy(&body));
        if status.is_success() {
            Ok(body)
        } else if status == StatusCode::TOO_MANY_REQUESTS {
            Err(CallError::Throttled(text()))
        } else if status.is_server_error() {
            Err(CallError::Unavailable(text()))
        } else if status == StatusCode::UNAUTHORIZED {
            Err(CallError::Denied(text()))
        } else {
            Err(CallError::Rejected(text()))
        }
    }

    async fn connect(&self) -> std::io::Result<Connection> {
        match self.endpoint.strip_prefix(UNIX) {
            Some(path) => {
                let stream = UnixStream::connect(path).await?;
                // Another user may have put a socket there.
                if stream.peer_cred()?.uid() != geteuid().as_raw() {
                    return Err(std::io::Error::other(
                        "the process that listens there is not yours",
                    ));
                }
                open(stream).await
            }
            None => {
                let address = self.endpoint.trim_start_matches("http://");
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                open(stream).await
            }
        }
    }
}

async fn open(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> std::io::Result<Connection> {
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
    tokio::spawn(async move {
        // The request that waits for an answer gets the error.
        let _ = connection.await;
    });
    Ok(sender)
}

async fn read(body: Incoming) -> Result<Bytes, String> {
    let whole = Limited::new(body, MAX_MESSAGE_BYTES).collect().await;
    whole.map(|whole| whole.to_bytes()).map_err(|error| error.to_string())
}

#[async_trait]
impl CallTransport for HostServiceClient {
    async fn send(&self, call: &AnyCall, version: u32) -> Result<AnyReply, CallError> {
        let body = encode_call(&self.ns, call, version)?;
        let answer = self.answer(Method::POST, "/call", body.into()).await?;
        match protocol::read(&answer, version).map_err(|error| self.unreadable(&error))? {
            AnyReply::Refused(refusal) => Err(CallError::Refused(refusal)),
            reply => Ok(reply),
        }
    }
}

#[async_trait]
impl Coordinator for HostServiceClient {
    async fn exchange(&self, call: &AnyCall) -> Result<AnyReply, CallError> {
        self.version.exchange(self, call).await
    }

    fn speak(&self, version: u32) {
        self.version.speak(version);
    }
}
