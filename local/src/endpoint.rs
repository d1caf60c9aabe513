//! The HTTP endpoint of a service: a socket that only its user can open, or a port of this machine, which a successor on
//! the same state directory takes over. Each request names the service's token.

use crate::{counts::CHUNK_BYTES_READ, service::ServiceParts};
use bytes::Bytes;
use gristmill_host::{HostError, READ_HEADER, ServiceFile, read_private, write_private};
use gristmill_model::wire::{AnyReply, CallEnvelope, MAX_MESSAGE_BYTES, protocol};
use gristmill_ports::{Clock as _, SystemClock};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Method, Request as HttpRequest, Response, StatusCode, body::Incoming, header,
    server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{
    convert::Infallible,
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::Semaphore,
    task::JoinSet,
};

/// Time for the head of a request. A client that sends it byte by byte keeps its connection no longer.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Time for the body of a request.
const BODY_TIME: Duration = Duration::from_secs(20);
/// Descriptors that connections leave to files and pipes.
const OTHER_DESCRIPTORS: u64 = 256;
const MAX_CONNECTIONS: u64 = 16_384;

/// The socket or the port of a service.
pub(crate) enum ServiceListener {
    Socket(UnixListener, PathBuf),
    Port(TcpListener),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl ServiceListener {
    /// The socket of the service on `state_dir`, which it has locked.
    pub fn socket(state_dir: &Path) -> Result<Self, HostError> {
        let path = ServiceFile::socket_path(state_dir)?;
        // One that a killed service left, in a folder that is this user's alone.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(HostError::at(&path)(error));
            }
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(HostError::at(&path))?;
        Ok(Self::Socket(listener, path))
    }

    /// A port of the loopback interface; 0: any free one.
    pub async fn port(port: u16) -> Result<Self, HostError> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = TcpListener::bind(address).await;
        let taken = |error| {
            HostError::Unusable(format!("cannot listen on {address}: {error}: name another --port"))
        };
        listener.map(Self::Port).map_err(taken)
    }

    /// The port, unless clients connect to a socket.
    pub fn port_number(&self) -> Option<u16> {
        match self {
            Self::Socket(..) => None,
            Self::Port(listener) => Some(listener.local_addr().ok()?.port()),
        }
    }

    /// The address for clients.
    pub fn endpoint(&self) -> Result<String, HostError> {
        match self {
            Self::Socket(_, path) => Ok(format!("unix:{}", path.display())),
            Self::Port(listener) => {
                let address = listener.local_addr();
                let address = address.map_err(|error| HostError::Unusable(error.to_string()))?;
                Ok(format!("http://{address}"))
            }
        }
    }

    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Socket(listener, _) => {
                let (stream, _) = listener.accept().await?;
                if stream.peer_cred()?.uid() == geteuid().as_raw() {
                    Ok(Box::new(stream))
                } else {
                    Err(io::ErrorKind::PermissionDenied.into())
                }
            }
            Self::Port(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
        }
    }
}

impl Drop for ServiceListener {
    fn drop(&mut self) {
        if let Self::Socket(_, path) = self {
            // It may be gone with its folder.
            let _ = fs::remove_file(path);
        }
    }
}

/// Accepts connections for ever, one task each.
pub(crate) async fn serve(listener: ServiceListener, shared: Arc<ServiceParts>) -> Infallible {
    let room = Arc::new(Semaphore::new(most_connections()));
    // Ended with this task.
    let mut open = JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        let permit = Arc::clone(&room).acquire_owned().await;
        match listener.accept().await {
            Ok(stream) => {
                let shared = Arc::clone(&shared);
                open.spawn(async move {
                    converse(stream, shared).await;
                    drop(permit);
                });
            }
            // Mostly out of descriptors: others close meanwhile.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Raises this process's limit of descriptors as far as it may, and leaves some for files.
fn most_connections() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(u64::MAX).min(MAX_CONNECTIONS + OTHER_DESCRIPTORS);
    let raised = current.is_some_and(|current| current < wanted)
        && setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_ok();
    let limit = if raised { wanted } else { current.unwrap_or(wanted) };
    usize::try_from(limit.saturating_sub(OTHER_DESCRIPTORS).clamp(16, MAX_CONNECTIONS))
        .unwrap_or(16)
}

async fn converse(stream: Box<dyn Stream>, shared: Arc<ServiceParts>) {
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer(request, &shared).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(64 << 10);
    // A connection that breaks concerns its client alone.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

type Answer = Response<Full<Bytes>>;

async fn answer(request: HttpRequest<Incoming>, shared: &ServiceParts) -> Answer {
    let given =
        request.headers().get(header::AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
    if !shared.admits(given.strip_prefix(b"Bearer ").unwrap_or_default()) {
        return text(StatusCode::UNAUTHORIZED, "the token is not this service's");
    }
    let read =
        request.headers().get(READ_HEADER).and_then(|bytes| bytes.to_str().ok()?.parse().ok());
    shared.counts.add(CHUNK_BYTES_READ, read.unwrap_or(0));
    match (request.method(), request.uri().path()) {
        (&Method::POST, "/call") => call(request, shared).await,
        (&Method::GET, "/status") => json(&shared.status()),
        (&Method::GET, "/disk") => json(&shared.disk().await),
        (&Method::POST, "/kill") => json(&shared.pool.kill_one()),
        (&Method::POST, "/stop") => {
            shared.stop.notify_one();
            json(&())
        }
        _ => text(StatusCode::NOT_FOUND, "there is no such path"),
    }
}

async fn call(request: HttpRequest<Incoming>, shared: &ServiceParts) -> Answer {
    // As Lambda answers: <https://docs.aws.amazon.com/lambda/latest/dg/urls-configuration.html#urls-throttling>
    let Ok(_place) = shared.begin_call() else {
        return text(StatusCode::TOO_MANY_REQUESTS, "Rate Exceeded.");
    };
    let whole = Limited::new(request.into_body(), MAX_MESSAGE_BYTES).collect();
    let body = match tokio::time::timeout(BODY_TIME, whole).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => return text(StatusCode::BAD_REQUEST, &error.to_string()),
        Err(_) => return text(StatusCode::REQUEST_TIMEOUT, "the request does not end"),
    };
    let (version, reply) = match CallEnvelope::read(&body, shared.spoken()) {
        Ok(request) => (request.v, shared.call(&request).await),
        Err(refusal) => (CallEnvelope::version_of(&body), AnyReply::Refused(refusal)),
    };
    written(protocol::write(&reply, version))
}

fn json(answer: &impl serde::Serialize) -> Answer {
    written(serde_json::to_vec(answer))
}

fn written(answer: serde_json::Result<Vec<u8>>) -> Answer {
    match answer {
        Ok(body) => respond(StatusCode::OK, body.into()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn text(status: StatusCode, message: &str) -> Answer {
    respond(status, json!({ "message": message }).to_string().into())
}

fn respond(status: StatusCode, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    answer
}

/// How clients reached the service that ran before on a state directory: they find its successor there.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ServiceAddress {
    pub token: String,
    pub port: Option<u16>,
}

const ADDRESS_FILE: &str = "address.json";

impl ServiceAddress {
    /// The address that an earlier service left in `dir`, if it can be read.
    pub fn read(dir: &Path) -> Option<Self> {
        /// Far longer than any.
        const MAX_BYTES: u64 = 4 << 10;
        serde_json::from_slice(&read_private(&dir.join(ADDRESS_FILE), MAX_BYTES).ok()?).ok()
    }

    /// Writes the address to `dir`, readable by its user only.
    pub fn write(&self, dir: &Path) -> Result<(), HostError> {
        let path = dir.join(ADDRESS_FILE);
        let text = serde_json::to_vec(self).map_err(std::io::Error::from);
        text.and_then(|text| write_private(&path, &text)).map_err(HostError::at(&path))
    }
}

pub(crate) fn new_token() -> String {
    format!("{}{}", SystemClock.nonce(), SystemClock.nonce())
}
