//! HTTP connections of the object store, with bodies streamed in both directions.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use s3s::service::S3Service;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::stats::Counters;

/// Time for open exchanges to end after the server is stopped.
const DRAIN: Duration = Duration::from_secs(1);
/// Pause after a failed accept, for open connections to close.
const PAUSE: Duration = Duration::from_millis(20);

/// Serves until `stop`; returns when the last connection is closed.
pub(super) async fn serve(
    listener: TcpListener,
    stop: CancellationToken,
    service: S3Service,
    counters: Arc<Counters>,
) {
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Mostly out of descriptors.
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        // Headers and a small body are two writes: Nagle's delay between them would cost more than the exchange.
        let _ = stream.set_nodelay(true);
        tasks.spawn(converse(stream, stop.clone(), service.clone(), Arc::clone(&counters)));
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

async fn converse(
    stream: TcpStream,
    stop: CancellationToken,
    service: S3Service,
    counters: Arc<Counters>,
) {
    let service = service_fn(move |request: http::Request<Incoming>| {
        let (service, counters) = (service.clone(), Arc::clone(&counters));
        async move {
            let answer = service.call(request.map(s3s::Body::from)).await;
            if let Ok(answer) = &answer {
                counters.answered(answer.status().as_u16());
            }
            answer
        }
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = tokio::time::timeout(DRAIN, connection).await;
}
