//! The accept loop of all listeners of this crate: HTTP/1.1 with keep-alive, bounded bodies, graceful shutdown.

use std::convert::Infallible;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::LocalError;

/// A complete response in memory: payloads are limited to a few MiB.
pub(crate) type Reply = Response<Full<Bytes>>;

/// Time for open exchanges to end after the server is stopped.
const DRAIN: Duration = Duration::from_secs(1);

/// Bytes of a refused body to read, so that its sender receives the refusal.
const MAX_DISCARD_BYTES: usize = 64 * 1024 * 1024;

/// Binds `port` of the loopback interface (0 = any free port).
///
/// # Errors
/// [`LocalError::Bind`].
pub(crate) fn bind(what: &'static str, port: u16) -> Result<std::net::TcpListener, LocalError> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let failed = |source| LocalError::Bind { what, address: address.to_string(), source };
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Registers a bound listener with the current runtime. Also returns its address.
///
/// # Errors
/// [`LocalError::System`].
pub(crate) fn adopt(
    what: &'static str,
    listener: std::net::TcpListener,
) -> Result<(TcpListener, SocketAddr), LocalError> {
    let failed = |source| LocalError::System { what, source };
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = TcpListener::from_std(listener).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Accepts connections until `stop`, one task of `tasks` per connection.
pub(crate) async fn serve<H, F>(
    listener: TcpListener,
    stop: CancellationToken,
    tasks: TaskTracker,
    handler: H,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Mostly out of descriptors: wait for open connections to close.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        // Nagle's delay would cost more than the whole exchange of small messages.
        let _ = stream.set_nodelay(true);
        let (handler, stop) = (handler.clone(), stop.clone());
        tasks.spawn(async move {
            let service = service_fn(move |request| {
                let reply = handler(request);
                async move { Ok::<_, Infallible>(reply.await) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            tokio::pin!(connection);
            tokio::select! {
                _ = connection.as_mut() => return,
                () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
            }
            let _ = tokio::time::timeout(DRAIN, connection).await;
        });
    }
}

/// Reason why a body was not read.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// Longer than the cap.
    TooLarge,
    /// The connection broke.
    Broken,
}

/// Reads the whole body, holding at most `cap_bytes`.
///
/// A longer body is still read to its end, up to a limit, and discarded: clients write all of it before they read
/// the response, and would see a broken connection instead of the refusal.
pub(crate) async fn read_body(mut body: Incoming, cap_bytes: usize) -> Result<Bytes, BodyError> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut seen_bytes = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
        seen_bytes += data.len();
        if seen_bytes > cap_bytes {
            (first, rest) = (Bytes::new(), BytesMut::new());
            if seen_bytes > cap_bytes + MAX_DISCARD_BYTES {
                return Err(BodyError::TooLarge);
            }
        } else if first.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                let announced = usize::try_from(body.size_hint().lower()).unwrap_or(0);
                rest.reserve((first.len() + data.len() + announced).min(cap_bytes));
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&data);
        }
    }
    if seen_bytes > cap_bytes {
        return Err(BodyError::TooLarge);
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// A response with a JSON body.
pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    typed(status, "application/json", body)
}

/// A response with a body of `content_type`.
pub(crate) fn typed(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// Adds a header; invalid values are omitted.
pub(crate) fn with_header(mut reply: Reply, name: &'static str, value: &str) -> Reply {
    if let Ok(value) = HeaderValue::from_str(value) {
        reply.headers_mut().insert(HeaderName::from_static(name), value);
    }
    reply
}

/// A response without a body.
pub(crate) fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::new()));
    *reply.status_mut() = status;
    reply
}
